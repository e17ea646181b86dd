/* SPDX-License-Identifier: Apache-2.0 */
/* Settings from the environment: MSDU_* variables, and rank and size from launchers. */
#include "table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PREFIX "MSDU_"

/* An empty variable counts as unset, because shells and launchers clear them that way. A program
 * with more rights than its caller takes none: a backend may be the path of a library. */
static const char *variable(const char *name)
{
    const char *value = secure_getenv(name);
    return value != NULL && value[0] != '\0' ? value : NULL;
}

/* Variables that are read outside the table: by the backend registry, by the Python package. */
static bool is_known(const char *name)
{
    const msdu__setting *setting = NULL;
    for (size_t i = 0; (setting = msdu__setting_at(i)) != NULL; i++) {
        if (strcmp(setting->environment, name) == 0) {
            return true;
        }
    }
    return strcmp(name, "MSDU_MODULE_PATH") == 0 || strcmp(name, "MSDU_LIBRARY") == 0;
}

static msdu_status check_known(const msdu__loader *loader, const char *entry)
{
    char name[64];
    size_t length = strcspn(entry, "=");
    snprintf(name, sizeof(name), "%.*s", (int)(length < sizeof(name) ? length : sizeof(name) - 1),
             entry);
    if (is_known(name)) {
        return MSDU_OK;
    }
    const char *instead = msdu__setting_removed(name);
    if (instead != NULL && variable(name) != NULL) {
        return msdu__setting_fail(loader, "%s is %s", name, instead);
    }
    const char *near = msdu__setting_nearest(name, true);
    msdu__log_line(loader->log, MSDU_LOG_WARN, "unknown variable %s ignored%s%s%s", name,
                   near != NULL ? ", did you mean " : "", near != NULL ? near : "",
                   near != NULL ? "?" : "");
    return MSDU_OK;
}

msdu_status msdu__settings_environment(msdu__loader *loader)
{
    const msdu__setting *setting = NULL;
    for (size_t i = 0; (setting = msdu__setting_at(i)) != NULL; i++) {
        const char *value = variable(setting->environment);
        if (value == NULL || i == MSDU__AT_CONFIG) {
            continue; /* the file's own name was used before */
        }
        msdu_status status = msdu__setting_override(loader, i, value, setting->environment);
        if (status != MSDU_OK) {
            return status;
        }
    }
    msdu_status status = MSDU_OK;
    for (char **entry = environ; entry != NULL && *entry != NULL && status == MSDU_OK; entry++) {
        if (strncmp(*entry, PREFIX, sizeof(PREFIX) - 1) == 0) {
            status = check_known(loader, *entry);
        }
    }
    return status;
}

typedef struct launcher {
    const char *rank;
    const char *ranks;
    bool is_size_alone; /* the size may be set in a shell that is no rank */
} launcher;

static const launcher launchers[] = {
    {"RANK", "WORLD_SIZE", false},                           /* torchrun */
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", false}, /* Open MPI */
    {"PMI_RANK", "PMI_SIZE", false},                         /* MPICH */
    {"SLURM_PROCID", "SLURM_NTASKS", true},                  /* srun; salloc sets the size alone */
};
#define LAUNCHERS (sizeof(launchers) / sizeof(launchers[0]))

int msdu__settings_peek_rank(const msdu_config *config)
{
    const char *text = variable("MSDU_RANK");
    int64_t rank = -1;
    if (text == NULL && config->ranks > 0) {
        return config->rank;
    }
    for (size_t i = 0; text == NULL && i < LAUNCHERS; i++) {
        text = variable(launchers[i].rank);
    }
    bool is_good = text != NULL && msdu__setting_integer(text, &rank) && rank >= 0 && rank < 65536;
    return is_good ? (int)rank : -1;
}

static msdu_status use_launcher(msdu__loader *loader, const launcher *found)
{
    const char *rank = variable(found->rank);
    const char *ranks = variable(found->ranks);
    if (rank == NULL || ranks == NULL) {
        return msdu__setting_fail(loader, "%s is set, but %s is not",
                                  rank != NULL ? found->rank : found->ranks,
                                  rank != NULL ? found->ranks : found->rank);
    }
    msdu_status status = msdu__setting_override(loader, MSDU__AT_RANKS, ranks, found->ranks);
    if (status != MSDU_OK) {
        return status;
    }
    return msdu__setting_override(loader, MSDU__AT_RANK, rank, found->rank);
}

static msdu_status find_launcher(msdu__loader *loader)
{
    for (size_t i = 0; i < LAUNCHERS; i++) {
        bool has_rank = variable(launchers[i].rank) != NULL;
        bool has_ranks = variable(launchers[i].ranks) != NULL;
        if (has_rank || (has_ranks && !launchers[i].is_size_alone)) {
            return use_launcher(loader, &launchers[i]);
        }
    }
    return MSDU_OK;
}

/* A literal IPv6 address stands in brackets, so that its colons are not taken for the port's. */
static msdu_status set_master(msdu__loader *loader)
{
    const char *host = variable("MASTER_ADDR");
    const char *port = variable("MASTER_PORT");
    int64_t number = 0;
    if (host == NULL || port == NULL) {
        return MSDU_OK;
    }
    if (!msdu__setting_integer(port, &number) || number < 1 || number > 65535) {
        return msdu__setting_fail(loader, "MASTER_PORT: '%.60s' is not a port; allowed: 1 .. 65535",
                                  port);
    }
    bool is_bare = strchr(host, ':') != NULL && host[0] != '[';
    char url[MSDU__SETTING_BYTES];
    int length = snprintf(url, sizeof(url), "tcp://%s%s%s:%d", is_bare ? "[" : "", host,
                          is_bare ? "]" : "", (int)number);
    if (length >= (int)sizeof(url)) {
        return msdu__setting_fail(loader, "MASTER_ADDR is longer than a setting may be");
    }
    return msdu__setting_override(loader, MSDU__AT_RENDEZVOUS, url, "MASTER_ADDR and MASTER_PORT");
}

/* The caller's store tells where rank 0 listens; this, by which address the others come. */
static msdu_status set_store(msdu__loader *loader)
{
    const char *host = variable("MASTER_ADDR");
    char url[MSDU__SETTING_BYTES];
    if (snprintf(url, sizeof(url), "store://%s", host != NULL ? host : "") >= (int)sizeof(url)) {
        return msdu__setting_fail(loader, "MASTER_ADDR is longer than a setting may be");
    }
    return msdu__setting_override(loader, MSDU__AT_RENDEZVOUS, url, "msdu_config.store");
}

msdu_status msdu__settings_launcher(msdu__loader *loader)
{
    bool has_rank = loader->given[MSDU__AT_RANK];
    bool has_ranks = loader->given[MSDU__AT_RANKS];
    msdu_status status = MSDU_OK;
    if (!has_rank && !has_ranks) {
        status = find_launcher(loader);
    } else if (has_rank && !has_ranks) {
        status = msdu__setting_fail(loader, "rank is set, but ranks is not");
    } else if (!has_rank && loader->settings->ranks > 1) {
        status = msdu__setting_fail(loader, "ranks is set, but rank is not");
    }
    if (status == MSDU_OK && loader->settings->rank >= loader->settings->ranks) {
        status = msdu__setting_fail(loader, "rank %lld is not below ranks, which is %lld",
                                    (long long)loader->settings->rank,
                                    (long long)loader->settings->ranks);
    }
    if (status == MSDU_OK && !loader->given[MSDU__AT_RENDEZVOUS]) {
        status = loader->settings->store.size > 0 ? set_store(loader) : set_master(loader);
    }
    return status;
}
