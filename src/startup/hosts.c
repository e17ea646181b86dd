/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which ranks share a host, found before training: the kernel's name of this boot and the network
 * namespace, or the name given by hand (setting hosts). Runs on the API thread.
 */
#include "startup.h"

#include "base/serial.h"
#include "core/blocking.h"
#include "core/levels.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>

#define INNER_NS    UINT64_C(10000000000) /* ranks of a host meet within this, or stay flat */
#define TOKEN_BYTES 16
#define FARTHER_NS                                                                                 \
    UINT64_C(1000000000) /* who waits here for a mean names no rank of this host                   \
                            before the cause elsewhere was heard of */

/* What a rank says of its host. */
typedef struct facts {
    uint64_t loopback;                /* of boot and network namespace; 0: not known */
    uint64_t key;                     /* of its host: that, or the name given */
    uint64_t is_flat;                 /* setting hosts is flat */
    uint64_t is_named;                /* it is a name */
    unsigned char token[TOKEN_BYTES]; /* the first rank's is in the name of its host's job */
} facts;

static size_t ranks_of(const msdu__engine *e)
{
    return (size_t)(uint32_t)e->job->ranks;
}

/* 0 is kept for what is not known. */
static uint64_t known(uint64_t hash)
{
    return hash != 0 ? hash : 1;
}

static uint64_t find_loopback(void)
{
    char name[40] = {0};
    struct stat space;
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    bool is_known = file != NULL && fgets(name, sizeof(name), file) != NULL &&
                    stat("/proc/self/ns/net", &space) == 0;
    if (file != NULL) {
        (void)fclose(file);
    }
    if (!is_known) {
        return 0;
    }
    uint64_t hash = msdu__serial_hash(name, strlen(name));
    hash = msdu__serial_hash_more(hash, &space.st_dev, sizeof(space.st_dev));
    return known(msdu__serial_hash_more(hash, &space.st_ino, sizeof(space.st_ino)));
}

static facts own_facts(const msdu__engine *e)
{
    const char *name = e->job->settings.hosts;
    facts own = {.loopback = find_loopback(), .is_flat = strcmp(name, "flat") == 0};
    own.is_named = !own.is_flat && strcmp(name, "auto") != 0;
    own.key = own.is_named ? known(msdu__serial_hash(name, strlen(name))) : own.loopback;
    if (getrandom(own.token, sizeof(own.token), 0) != (ssize_t)sizeof(own.token)) {
        own.loopback = 0;
    }
    return own;
}

/* flat on all ranks or on none, a name on all or on none. */
static msdu_status check_facts(const msdu__engine *e, const facts *all)
{
    static const char *const kinds[] = {"auto", "a name", "flat"};
    for (int32_t i = 1; i < e->job->ranks; i++) {
        uint64_t kind = all[i].is_flat ? 2 : all[i].is_named;
        uint64_t first = all[0].is_flat ? 2 : all[0].is_named;
        if (kind != first) {
            return msdu__fail(MSDU_ERR_MISMATCH,
                              "ranks 0 and %d disagree: setting hosts is %s on rank 0, %s on rank "
                              "%d; it is auto, flat or a name on all ranks",
                              i, kinds[first], kinds[kind], i);
        }
    }
    return MSDU_OK;
}

/* Why a job of several hosts stays flat; NULL: it need not. Equal on all ranks. */
static const char *reason_for_flat(const msdu__engine *e)
{
    const msdu__job *job = e->job;
    return job->device != NULL                      ? "tensors are on a device"
           : !MSDU_BACKEND_HAS(job->backend, split) ? "the backend forms no groups of ranks"
           : job->is_accumulated                    ? "domain is accumulated"
           : !job->interval_args.can_go_local       ? "there are no local steps"
                                                    : NULL;
}

/* Do all ranks of every host reach each other's memory? */
static bool share_memory(const facts *all, const int32_t *host, int32_t ranks)
{
    for (int32_t i = 0; i < ranks; i++) {
        for (int32_t k = 0; k < i; k++) {
            if (host[i] == host[k] &&
                (all[i].loopback == 0 || all[i].loopback != all[k].loopback)) {
                return false;
            }
        }
    }
    return true;
}

/* This rank's side of its host's shared memory. */
static msdu_status open_inner(msdu__engine *e, const facts *all, const int32_t *host)
{
    msdu__levels *levels = &e->job->levels;
    const unsigned char *token = all[e->job->rank].token;
    int32_t count = 0;
    for (int32_t i = 0; i < e->job->ranks; i++) {
        if (host[i] == levels->host) {
            token = count == 0 ? all[i].token : token;
            levels->names[count++] = i;
        }
    }
    size_t used = 0;
    for (size_t i = 0; i < TOKEN_BYTES; i++) {
        used += (size_t)snprintf(levels->job + used, sizeof(levels->job) - used, "%02x", token[i]);
    }
    levels->inner_host = e->job->host;
    levels->inner_host.rank = levels->index;
    levels->inner_host.ranks = levels->size;
    levels->inner_host.job = levels->job;
    levels->inner_host.rendezvous = NULL;
    levels->inner_host.lanes = (uint32_t)(2 * e->job->settings.lanes);
    levels->inner_host.names = levels->names;
    if (levels->inner_host.deadline_ns > INNER_NS) {
        levels->inner_host.deadline_ns = INNER_NS;
    }
    msdu_status status = levels->inner->open(&levels->inner_host, &levels->inner_comm);
    levels->inner_host.deadline_ns = e->job->host.deadline_ns + FARTHER_NS;
    return status;
}

/* All ranks of all hosts, or none. */
static msdu_status open_all(msdu__engine *e, const facts *all, const int32_t *host, bool *has_out)
{
    msdu__levels *levels = &e->job->levels;
    void *opened = NULL;
    levels->names = calloc(ranks_of(e), sizeof(*levels->names));
    if (levels->names == NULL) {
        return msdu__fail(MSDU_ERR_NO_MEMORY, "rank %d: no memory to find hosts", e->job->rank);
    }
    uint64_t own = open_inner(e, all, host) == MSDU_OK ? 1 : 0;
    if (own == 0) {
        levels->inner_comm = NULL;
        msdu__log_line(&e->job->log, MSDU_LOG_WARN,
                       "no shared memory with the ranks of this host: %s", msdu_last_error());
    }
    msdu_status status = msdu__blocking_gather(e, &own, sizeof(own), 0, 0, &opened);
    *has_out = status == MSDU_OK;
    for (int32_t i = 0; i < e->job->ranks && *has_out; i++) {
        *has_out = ((const uint64_t *)opened)[i] != 0;
    }
    free(opened);
    if (!*has_out) {
        msdu__levels_close(e->job);
    }
    return status;
}

/* Groups of the backend; hosts too where they do not share memory. */
static msdu_status split(msdu__engine *e, const int32_t *host, int32_t *index, bool has_memory)
{
    const msdu__job *job = e->job;
    uint32_t lanes = (uint32_t)(2 * job->settings.lanes);
    for (int32_t i = 0; i < job->ranks; i++) {
        index[i] = index[i] < job->levels.carriers ? index[i] : -1;
    }
    msdu_status status =
        has_memory ? MSDU_OK : job->backend->split(job->comm, MSDU_GROUP_HOST, host, lanes);
    return status == MSDU_OK ? job->backend->split(job->comm, MSDU_GROUP_INDEX, index, lanes)
                             : status;
}

static msdu_status enter(msdu__engine *e, const facts *all, int32_t *host, int32_t *index)
{
    msdu__job *job = e->job;
    bool has_memory = job->levels.inner != NULL && share_memory(all, host, job->ranks);
    msdu_status status = has_memory ? open_all(e, all, host, &has_memory) : MSDU_OK;
    status = status == MSDU_OK ? split(e, host, index, has_memory) : status;
    job->levels.is_on = status == MSDU_OK;
    status = status == MSDU_OK ? msdu__start_levels(e) : status;
    if (status == MSDU_OK) {
        e->hand->summary.carriers = (uint32_t)job->levels.carriers;
    }
    return status;
}

/* What all ranks said, to what they do. room: for two numbers of each rank. */
static msdu_status decide(msdu__engine *e, const facts *all, uint64_t *keys, int32_t *room)
{
    msdu__job *job = e->job;
    int32_t *host = room;
    int32_t *index = room + job->ranks;
    const msdu_backend *inner = job->levels.inner;
    msdu_status status = check_facts(e, all);
    if (status != MSDU_OK) {
        return status;
    }
    for (int32_t i = 0; i < job->ranks; i++) {
        keys[i] = all[i].key;
    }
    job->levels = msdu__levels_of(keys, job->ranks, job->rank, host, index);
    job->levels.inner = inner;
    e->hand->summary.hosts = (uint32_t)job->levels.hosts;
    if (all[0].is_flat || !msdu__levels_are_two(&job->levels, job->ranks)) {
        return MSDU_OK;
    }
    const char *why = reason_for_flat(e);
    if (why != NULL) {
        msdu__log_line(&job->log, MSDU_LOG_INFO, "%d hosts, exchanged as one group of ranks: %s",
                       job->levels.hosts, why);
        return MSDU_OK;
    }
    return enter(e, all, host, index);
}

msdu_status msdu__hosts_find(msdu__engine *e)
{
    size_t ranks = ranks_of(e);
    facts own = own_facts(e);
    void *all = NULL;
    uint64_t *keys = calloc(ranks, sizeof(*keys));
    int32_t *room = calloc(2 * ranks, sizeof(*room));
    msdu_status status = MSDU_ERR_NO_MEMORY;
    if (keys == NULL || room == NULL) {
        msdu__fail(status, "rank %d: no memory to find hosts", e->job->rank);
    } else {
        status = msdu__blocking_gather(e, &own, sizeof(own), 0, 0, &all);
    }
    status = status == MSDU_OK ? decide(e, all, keys, room) : status;
    free(room);
    free(keys);
    free(all);
    return status;
}
