/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks of `msdu bench overlap` tell each other numbers over a small context of their own: results,
 * and where the context of the next method meets. So they may be processes of one bench or of a
 * launcher, on one machine or many.
 */
#include "overlap.h"

#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define DEADLINE_MS 600000 /* a step of a large model over a slow link is long */
#define PLACE_BYTES 512

static const char exact[] = "domain=gradient\ninterval=fixed\ninterval_steps=1\nwarmup_steps=0\n"
                            "wire=float32\nreduce=sum\ncheck_finite=no\n";

static void common(const msdu__overlap_plan *plan, msdu_config *config)
{
    *config = (msdu_config)MSDU_CONFIG_INIT;
    config->backend = plan->backend;
    config->deadline_ms = DEADLINE_MS;
    if (plan->folder[0] != '\0') {
        config->ranks = plan->ranks;
        config->rank = plan->rank;
        config->interface = "lo";
    }
}

/* The environment wins over a configuration: contexts for methods meet elsewhere. */
static void keep_place(msdu__overlap_group *group)
{
    const char *given = getenv("MSDU_RENDEZVOUS");
    snprintf(group->given, sizeof(group->given), "%s", given != NULL ? given : "");
    (void)unsetenv("MSDU_RENDEZVOUS");
}

/* Settings are the methods'; what the environment says about the group stays. */
static void clear_settings(const msdu__overlap_plan *plan)
{
    static const char *const kept[] = {"backend", "secret",    "tls_key",    "tls_cert",
                                       "tls_ca",  "log_level", "rendezvous", "interface",
                                       "ranks",   "rank",      "deadline_ms"};
    size_t count = sizeof(kept) / sizeof(kept[0]) - (plan->folder[0] != '\0' ? 5 : 0);
    msdu_setting_info info = MSDU_SETTING_INFO_INIT;
    for (uint32_t i = 0; msdu_setting_get(i, &info) == MSDU_OK; i++) {
        bool is_kept = false;
        for (size_t k = 0; k < count; k++) {
            is_kept = is_kept || strcmp(kept[k], info.name) == 0;
        }
        if (!is_kept) {
            (void)unsetenv(info.environment);
        }
    }
}

bool msdu__overlap_group_open(msdu__overlap_group *group, const msdu__overlap_plan *plan)
{
    msdu_config config;
    msdu_summary summary = MSDU_SUMMARY_INIT;
    msdu_tensor_desc desc = MSDU_TENSOR_INIT;
    *group = (msdu__overlap_group){.plan = plan};
    clear_settings(plan);
    group->values = calloc(MSDU__OVERLAP_GROUP_VALUES, sizeof(*group->values));
    desc.name = "numbers";
    desc.gradient = group->values;
    desc.count = MSDU__OVERLAP_GROUP_VALUES;
    desc.dtype = MSDU_FLOAT64;
    common(plan, &config);
    config.job = "bench overlap";
    config.settings = exact;
    if (plan->folder[0] != '\0') {
        snprintf(group->place, sizeof(group->place), "file://%s/group", plan->folder);
        (void)mkdir(group->place + strlen("file://"), 0700); /* another rank may have been first */
        config.rendezvous = group->place;
    }
    if (group->values == NULL || msdu_create(&config, &group->ctx) != MSDU_OK ||
        msdu_tensor_add(group->ctx, &desc, NULL) != MSDU_OK || msdu_start(group->ctx) != MSDU_OK ||
        msdu_summary_get(group->ctx, &summary) != MSDU_OK) {
        return false;
    }
    group->rank = summary.rank;
    group->ranks = summary.ranks;
    keep_place(group);
    return true;
}

void msdu__overlap_group_close(msdu__overlap_group *group)
{
    if (group->ctx != NULL) {
        msdu_status status = msdu_finish(group->ctx); /* all is told by now */
        (void)status;
        msdu_destroy(group->ctx);
    }
    free(group->values);
    *group = (msdu__overlap_group){.ctx = NULL};
}

bool msdu__overlap_group_sum(msdu__overlap_group *group, double *values, uint32_t count)
{
    memset(group->values, 0, MSDU__OVERLAP_GROUP_VALUES * sizeof(*group->values));
    memcpy(group->values, values, count * sizeof(*values));
    if (msdu_tensor_ready(group->ctx, 0, MSDU_GRADIENT) != MSDU_OK ||
        msdu_tensor_wait(group->ctx, 0, MSDU_GRADIENT) != MSDU_OK ||
        msdu_step(group->ctx) != MSDU_OK) {
        return false;
    }
    memcpy(values, group->values, count * sizeof(*values));
    return true;
}

/* --- where the next context meets --- */

/* A port of this machine that nobody listens on just now, 0 if there is none. */
static unsigned free_port(void)
{
    struct sockaddr_in6 address = {.sin6_family = AF_INET6};
    socklen_t bytes = sizeof(address);
    unsigned port = 0;
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        address.sin6_family = AF_INET; /* port and family lie where sockaddr_in has them */
        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        bytes = sizeof(struct sockaddr_in);
    }
    if (fd >= 0 && bind(fd, (struct sockaddr *)&address, bytes) == 0 &&
        getsockname(fd, (struct sockaddr *)&address, &bytes) == 0) {
        port = ntohs(address.sin6_port);
    }
    if (fd >= 0) {
        close(fd);
    }
    return port;
}

/* Of "tcp://HOST:PORT" the part before the port; of MASTER_ADDR the same. */
static void tcp_base(const char *given, char *out, size_t bytes)
{
    const char *master = getenv("MASTER_ADDR");
    if (given == NULL) {
        const char *marks = master != NULL && strchr(master, ':') != NULL ? "[]" : "";
        snprintf(out, bytes, "tcp://%.1s%s%s", marks, master != NULL ? master : "127.0.0.1",
                 marks[0] != '\0' ? "]" : "");
        return;
    }
    snprintf(out, bytes, "%.200s", given);
    char *colon = strrchr(out, ':');
    if (colon != NULL) {
        *colon = '\0';
    }
}

/* Rank 0 decides; "": the context needs none or finds its own. */
static void choose_place(msdu__overlap_group *group, char *out, size_t bytes)
{
    const char *given = group->given[0] != '\0' ? group->given : NULL;
    char base[PLACE_BYTES / 2];
    out[0] = '\0';
    if (group->plan->folder[0] != '\0') {
        snprintf(out, bytes, "file://%.400s/%u", group->plan->folder, group->opened);
    } else if (given != NULL && strncmp(given, "file://", 7) == 0) {
        snprintf(out, bytes, "%.400s/overlap-%ld-%u", given, (long)getpid(), group->opened);
    } else if (given != NULL && strncmp(given, "tcp://", 6) != 0) {
        snprintf(out, bytes, "%.400s", given); /* the job's name tells contexts apart */
    } else {
        tcp_base(given, base, sizeof(base));
        snprintf(out, bytes, "%s:%u", base, free_port());
    }
    if (strncmp(out, "file://", 7) == 0) {
        (void)mkdir(out + 7, 0700);
    }
}

/* Numbers are what travels here: a character each. */
static bool tell(msdu__overlap_group *group, char *text, uint32_t bytes)
{
    double codes[PLACE_BYTES] = {0};
    for (uint32_t i = 0; i < bytes && group->rank == 0; i++) {
        codes[i] = (unsigned char)text[i];
    }
    if (!msdu__overlap_group_sum(group, codes, bytes)) {
        return false;
    }
    for (uint32_t i = 0; i < bytes; i++) {
        text[i] = (char)(unsigned char)codes[i];
    }
    text[bytes - 1] = '\0';
    return true;
}

bool msdu__overlap_group_next(msdu__overlap_group *group, msdu_config *config)
{
    static char job[32];
    char place[PLACE_BYTES] = "";
    group->opened++;
    if (group->rank == 0) {
        choose_place(group, place, sizeof(place));
    }
    if (!tell(group, place, sizeof(place))) {
        return false;
    }
    snprintf(group->place, sizeof(group->place), "%s", place);
    snprintf(job, sizeof(job), "bench overlap %u", group->opened);
    common(group->plan, config);
    config->ranks = group->ranks;
    config->rank = group->rank;
    config->job = job;
    config->rendezvous = place[0] != '\0' ? group->place : NULL;
    return true;
}
