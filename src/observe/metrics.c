/* SPDX-License-Identifier: Apache-2.0 */
/* Prometheus text file: written beside its place, then renamed, so that no reader sees a part. */
#include "observe.h"

#include <errno.h>
#include <limits.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

bool msdu__observe_path(const char *pattern, int32_t rank, char *path_out, size_t bytes)
{
    size_t used = 0;
    for (const char *at = pattern; *at != '\0'; at++) {
        int length = 0;
        if (at[0] == '%' && at[1] == 'r') {
            length = snprintf(path_out + used, bytes - used, "%d", rank);
            at++;
        } else {
            length = snprintf(path_out + used, bytes - used, "%c", *at);
        }
        used += (size_t)length;
        if (used >= bytes) {
            return false;
        }
    }
    if (bytes > 0) {
        path_out[used] = '\0';
    }
    return bytes > 0;
}

typedef struct metric {
    const char *name;
    const char *type;
    const char *help;
    double value;
} metric;

static double seconds(uint64_t ns)
{
    return (double)ns * 1e-9;
}

static void write_metric(FILE *file, int32_t rank, const metric *m)
{
    fprintf(file, "# HELP %s %s\n# TYPE %s %s\n%s{rank=\"%d\"} ", m->name, m->help, m->name,
            m->type, m->name, rank);
    /* The format's own words for what is not a number. */
    if (isnan(m->value)) {
        fputs("NaN\n", file);
    } else if (isinf(m->value)) {
        fputs(m->value > 0 ? "+Inf\n" : "-Inf\n", file);
    } else {
        fprintf(file, "%.15g\n", m->value);
    }
}

static void write_all(FILE *file, const msdu_summary *s)
{
    const metric list[] = {
        {"msdu_steps_total", "counter", "Training steps.", (double)s->steps},
        {"msdu_rounds_total", "counter", "Synchronizations completed.", (double)s->rounds},
        {"msdu_sent_bytes_total", "counter", "Payload this rank sent for synchronizations.",
         (double)s->bytes_sent},
        {"msdu_plain_bytes_total", "counter",
         "Payload that an allreduce a step, in the types of the tensors, would send.",
         (double)s->bytes_plain},
        {"msdu_wait_seconds_total", "counter", "Time the trainer was blocked.",
         seconds(s->wait_ns)},
        {"msdu_elapsed_seconds_total", "counter", "Time since the start.", seconds(s->elapsed_ns)},
        {"msdu_plan_renewals_total", "counter", "Times the order of slices was renewed.",
         (double)s->plan_renewals},
        {"msdu_cpu_seconds_total", "counter", "Processor time of the communication thread.",
         seconds(s->cpu_ns)},
        {"msdu_missed_rounds_total", "counter", "Rounds by the clock that this rank missed.",
         (double)s->missed},
        {"msdu_network_wait_seconds_total", "counter",
         "What the rank that waited least waited in each round: for the network.",
         seconds(s->network_ns)},
        {"msdu_straggler_wait_seconds_total", "counter",
         "What ranks waited more, on average: for slower ranks.", seconds(s->straggler_ns)},
        {"msdu_common_steps_total", "counter", "Steps of the average rank.",
         (double)s->common_steps},
        {"msdu_inside_bytes_total", "counter", "Bytes given to ranks of the same host.",
         (double)s->bytes_inside},
        {"msdu_hosts", "gauge", "Hosts of the job.", (double)s->hosts},
        {"msdu_gradient_ranks", "gauge", "Ranks over which gradients are averaged now.",
         (double)s->gradient_ranks},
        {"msdu_interval_steps", "gauge", "Steps that the last synchronization spanned.",
         (double)s->interval_steps},
        {"msdu_drift_ratio", "gauge", "Relative drift of the last round.", s->drift},
        {"msdu_divergence_ratio", "gauge", "Gradient divergence of the last round.", s->divergence},
        {"msdu_ranks", "gauge", "Size of the group.", (double)s->ranks},
    };
    for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++) {
        write_metric(file, s->rank, &list[i]);
    }
    /* Texts as labels of a constant: the custom for build and version facts. */
    fprintf(file,
            "# HELP msdu_info Version, domain, policy and wire format.\n# TYPE msdu_info gauge\n"
            "msdu_info{rank=\"%d\",version=\"%s\",domain=\"%s\",policy=\"%s\",wire=\"%s\"} 1\n",
            s->rank, msdu_version(), s->domain != NULL ? s->domain : "",
            s->interval != NULL ? s->interval : "", s->wire != NULL ? s->wire : "");
}

static msdu_status fail(const msdu_summary *summary, const char *path, int cause)
{
    return msdu__fail(MSDU_ERR_IO, "rank %d: metrics file %s: %s", summary->rank, path,
                      strerror(cause));
}

/* Each of the three may be the one that meets the full disk. */
static int finish(FILE *file)
{
    int cause = 0;
    if (ferror(file) != 0 || fflush(file) != 0) {
        cause = errno != 0 ? errno : EIO;
    }
    if (fclose(file) != 0 && cause == 0) {
        cause = errno;
    }
    return cause;
}

msdu_status msdu__metrics_write(const char *path, const msdu_summary *summary)
{
    char beside[PATH_MAX];
    int length = snprintf(beside, sizeof(beside), "%s.%ld.part", path, (long)getpid());
    if (length < 0 || (size_t)length >= sizeof(beside)) {
        return fail(summary, path, ENAMETOOLONG);
    }
    FILE *file = fopen(beside, "we");
    if (file == NULL) {
        return fail(summary, beside, errno);
    }
    /* Decimal points, whatever the trainer's locale. */
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    int cause = ENOMEM;
    if (plain != (locale_t)0) {
        locale_t before = uselocale(plain);
        write_all(file, summary);
        uselocale(before);
        freelocale(plain);
        cause = finish(file);
    } else {
        (void)fclose(file);
    }
    if (cause == 0 && rename(beside, path) != 0) {
        cause = errno;
    }
    if (cause != 0) {
        unlink(beside);
        return fail(summary, path, cause);
    }
    return MSDU_OK;
}
