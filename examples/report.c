/* SPDX-License-Identifier: Apache-2.0 */
/* Result files and progress lines of the trainer. */
#include "report.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

int report_open(const char *pattern, const msdu_summary *summary, FILE **file_out)
{
    const char *mark = pattern != NULL ? strstr(pattern, "%r") : NULL;
    char path[PATH_MAX];

    *file_out = NULL;
    if (pattern == NULL || (mark == NULL && summary->rank != 0)) {
        return 0;
    }
    if (mark == NULL) {
        snprintf(path, sizeof(path), "%s", pattern);
    } else {
        snprintf(path, sizeof(path), "%.*s%" PRId32 "%s", (int)(mark - pattern), pattern,
                 summary->rank, mark + 2);
    }
    *file_out = fopen(path, "w");
    if (*file_out == NULL) {
        fprintf(stderr, "trainer: rank %" PRId32 ": %s: %s\n", summary->rank, path,
                strerror(errno));
        return -1;
    }
    return 0;
}

int report_close(FILE *file, const char *pattern)
{
    bool is_bad;

    if (file == NULL) {
        return 0;
    }
    is_bad = ferror(file) != 0;
    is_bad = fclose(file) != 0 || is_bad;
    if (is_bad) {
        fprintf(stderr, "trainer: %s: could not be written\n", pattern);
        return -1;
    }
    return 0;
}

static double waited_share(const msdu_summary *summary)
{
    return summary->elapsed_ns > 0 ? (double)summary->wait_ns / (double)summary->elapsed_ns : 0;
}

void report_step(FILE *out, const msdu_summary *summary)
{
    if (summary->steps == 1) {
        fprintf(out, "step,h,wire,bytes\n");
    }
    fprintf(out, "%" PRIu64 ",%" PRIu64 ",%s,%" PRIu64 "\n", summary->steps,
            summary->interval_steps, summary->wire, summary->bytes_sent);
}

void report_epoch(FILE *out, uint64_t epoch, uint64_t epochs, double loss,
                  const msdu_summary *summary)
{
    fprintf(out,
            "epoch %3" PRIu64 "/%" PRIu64 "  loss %.4f  h %" PRIu64
            "  wire %s  sent %.3f MB  waited %.1f %%\n",
            epoch, epochs, loss, summary->interval_steps, summary->wire,
            (double)summary->bytes_sent / 1e6, 100 * waited_share(summary));
    fflush(out);
}

static void text_field(FILE *out, const char *name, const char *text)
{
    fprintf(out, "  \"%s\": \"", name);
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\') {
            fputc('\\', out);
        }
        fputc((unsigned char)*text < ' ' ? ' ' : *text, out);
    }
    fprintf(out, "\",\n");
}

void report_result(FILE *out, const msdu_summary *summary, double accuracy, double loss,
                   uint64_t seed)
{
    fprintf(out, "{\n");
    text_field(out, "domain", summary->domain);
    text_field(out, "interval", summary->interval);
    text_field(out, "wire", summary->wire);
    text_field(out, "reason", summary->reason);
    fprintf(out, "  \"rank\": %" PRId32 ",\n  \"ranks\": %" PRId32 ",\n", summary->rank,
            summary->ranks);
    fprintf(out, "  \"seed\": %" PRIu64 ",\n  \"steps\": %" PRIu64 ",\n", seed, summary->steps);
    fprintf(out, "  \"rounds\": %" PRIu64 ",\n", summary->rounds);
    fprintf(out, "  \"interval_steps\": %" PRIu64 ",\n", summary->interval_steps);
    fprintf(out, "  \"bytes_per_rank\": %" PRIu64 ",\n", summary->bytes_sent);
    fprintf(out, "  \"bytes_plain\": %" PRIu64 ",\n", summary->bytes_plain);
    fprintf(out, "  \"seconds\": %.6f,\n", (double)summary->elapsed_ns * 1e-9);
    fprintf(out, "  \"waited_share\": %.6f,\n", waited_share(summary));
    if (isfinite(loss)) { /* JSON has no NaN */
        fprintf(out, "  \"loss\": %.9g,\n", loss);
    }
    fprintf(out, "  \"accuracy\": %.6f\n}\n", accuracy);
}

void report_parameters(FILE *out, const struct net *net)
{
    for (size_t l = 0; l < net->layer_count; l++) {
        const struct net_layer *layer = &net->layers[l];

        fwrite(layer->weight, sizeof(float), layer->inputs * layer->outputs, out);
        fwrite(layer->bias, sizeof(float), layer->outputs, out);
    }
}
