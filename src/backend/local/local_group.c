/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks of a job that are threads of this process: joining, failing and leaving. */
#include "local_group.h"

#include "backend/rank_list.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static pthread_mutex_t forming_lock = PTHREAD_MUTEX_INITIALIZER;
static struct group *forming;

bool msdu__local_wait_change(struct group *group, uint64_t until_ns)
{
    struct timespec until = msdu__clock_spec(until_ns);
    return pthread_cond_timedwait(&group->changed, &group->lock, &until) != ETIMEDOUT;
}

static void group_free(struct group *group)
{
    if (group == NULL) {
        return;
    }
    (void)pthread_cond_destroy(&group->changed);
    (void)pthread_mutex_destroy(&group->lock);
    free(group->job);
    free(group->comms);
    free(group->has_joined);
    free(group->has_left);
    for (size_t i = 0; i < MSDU_GROUPS; i++) {
        free(group->colors[i]);
    }
    free(group->slots);
    free(group->ops);
    free(group);
}

static struct group *group_new(const char *job, int32_t ranks)
{
    struct group *group = calloc(1, sizeof(*group));
    if (group == NULL) {
        return NULL;
    }
    msdu__cond_init(&group->changed);
    (void)pthread_mutex_init(&group->lock, NULL);
    group->ranks = ranks;
    group->job = strdup(job);
    group->comms = calloc((size_t)ranks, sizeof(struct msdu_comm *));
    group->has_joined = calloc((size_t)ranks, sizeof(*group->has_joined));
    group->has_left = calloc((size_t)ranks, sizeof(*group->has_left));
    if (group->job == NULL || group->comms == NULL || group->has_joined == NULL ||
        group->has_left == NULL) {
        group_free(group);
        return NULL;
    }
    return group;
}

/* Slots for as many operations as all ranks together may have in flight. */
static bool group_fill(struct group *group)
{
    size_t count = 0;
    for (int32_t rank = 0; rank < group->ranks; rank++) {
        count += group->comms[rank]->host->requests;
    }
    group->slots = calloc(count + 1, sizeof(*group->slots));
    group->ops = calloc((count + 1) * 2 * (size_t)group->ranks, sizeof(const msdu_op *));
    if (group->slots == NULL || group->ops == NULL) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        group->slots[i].ops = group->ops + 2 * i * (size_t)group->ranks;
        group->slots[i].moved = group->slots[i].ops + group->ranks;
        group->slots[i].next = group->free;
        group->free = &group->slots[i];
    }
    return true;
}

void msdu__local_fail(struct group *group, msdu_status status, const char *format, ...)
{
    if (group->status < 0) {
        return;
    }
    va_list args;
    va_start(args, format);
    (void)vsnprintf(group->text, sizeof(group->text), format, args);
    va_end(args);
    group->status = status;
    for (struct slot *slot = group->active; slot != NULL; slot = slot->next) {
        if (!slot->is_done && !slot->is_moving) {
            slot->is_done = true;
            slot->status = status;
        }
    }
    (void)pthread_cond_broadcast(&group->changed);
}

void msdu__local_notify(struct group *group)
{
    for (int32_t rank = 0; rank < group->ranks; rank++) {
        (void)pthread_mutex_lock(&group->lock);
        struct msdu_comm *comm = group->comms[rank];
        if (comm != NULL) {
            comm->notifying++;
        }
        (void)pthread_mutex_unlock(&group->lock);
        if (comm == NULL) {
            continue;
        }
        if (comm->host->notify != NULL) {
            comm->host->notify(comm->host->user);
        }
        (void)pthread_mutex_lock(&group->lock);
        comm->notifying--;
        (void)pthread_cond_broadcast(&group->changed);
        (void)pthread_mutex_unlock(&group->lock);
    }
}

/* Take a group out of the forming list. forming_lock held. */
static void forming_remove(struct group *group)
{
    for (struct group **at = &forming; *at != NULL; at = &(*at)->next) {
        if (*at == group) {
            *at = group->next;
            return;
        }
    }
}

/* The forming group of this job, made if there is none. forming_lock held. */
static struct group *forming_find(const msdu_host *host)
{
    for (struct group *group = forming; group != NULL; group = group->next) {
        if (group->ranks == host->ranks && strcmp(group->job, host->job) == 0) {
            return group;
        }
    }
    struct group *group = group_new(host->job, host->ranks);
    if (group != NULL) {
        group->next = forming;
        forming = group;
    }
    return group;
}

/* Enter the group; the last rank completes it. forming_lock held. */
static msdu_status group_enter(struct group *group, struct msdu_comm *comm, char *text)
{
    (void)pthread_mutex_lock(&group->lock);
    if (group->has_joined[comm->rank]) {
        (void)pthread_mutex_unlock(&group->lock);
        (void)snprintf(text, MSDU__TEXT_BYTES, "local: rank %" PRId32 " of job %s is taken",
                       comm->rank, comm->host->job);
        return MSDU_ERR_DENIED;
    }
    comm->group = group;
    group->has_joined[comm->rank] = true;
    group->comms[comm->rank] = comm;
    group->joined++;
    group->members++;
    if (group->joined == group->ranks) {
        forming_remove(group);
        if (!group_fill(group)) {
            msdu__local_fail(group, MSDU_ERR_NO_MEMORY, "local: no memory for requests");
        }
        (void)pthread_cond_broadcast(&group->changed);
    }
    (void)pthread_mutex_unlock(&group->lock);
    return MSDU_OK;
}

/* Give up on a group that did not become complete. Names who is missing to all who wait. */
static void group_give_up(struct group *group, const msdu_host *host)
{
    (void)pthread_mutex_lock(&forming_lock);
    (void)pthread_mutex_lock(&group->lock);
    if (group->joined < group->ranks && group->status == MSDU_OK) {
        char names[MSDU__LOCAL_NAMES_BYTES];
        char span[32];
        (void)msdu__rank_list(group->has_joined, false, group->ranks, names, sizeof(names));
        msdu__span_text(host->deadline_ns, span, sizeof(span));
        msdu__local_fail(group, MSDU_ERR_TIMEOUT, "%s did not join job %s within %s", names,
                         group->job, span);
        forming_remove(group);
    }
    (void)pthread_mutex_unlock(&group->lock);
    (void)pthread_mutex_unlock(&forming_lock);
}

bool msdu__local_takes_part(const struct group *group, const struct slot *slot, int32_t rank)
{
    return slot->group == MSDU_GROUP_WORLD || group->colors[slot->group][rank] == slot->color;
}

msdu_status msdu__local_split(struct group *group, uint32_t number, const int32_t *colors,
                              char text[MSDU__TEXT_BYTES])
{
    size_t bytes = (size_t)group->ranks * sizeof(*colors);
    msdu_status status = MSDU_OK;
    (void)pthread_mutex_lock(&group->lock);
    if (group->colors[number] == NULL) {
        group->colors[number] = malloc(bytes);
        if (group->colors[number] != NULL) {
            memcpy(group->colors[number], colors, bytes);
        } else {
            status = MSDU_ERR_NO_MEMORY;
            (void)snprintf(text, MSDU__TEXT_BYTES, "local: no memory for a group");
        }
    } else if (memcmp(group->colors[number], colors, bytes) != 0) {
        status = MSDU_ERR_MISMATCH;
        (void)snprintf(text, MSDU__TEXT_BYTES,
                       "local: ranks disagree about who is in group %" PRIu32, number);
        msdu__local_fail(group, status, "%s", text);
    }
    (void)pthread_mutex_unlock(&group->lock);
    return status;
}

void msdu__local_leave(struct msdu_comm *comm)
{
    struct group *group = comm->group;
    bool is_last = false;
    if (group != NULL) {
        (void)pthread_mutex_lock(&group->lock);
        while (comm->notifying > 0) {
            (void)pthread_cond_wait(&group->changed, &group->lock);
        }
        group->comms[comm->rank] = NULL;
        group->has_left[comm->rank] = true;
        group->members--;
        is_last = group->members == 0;
        (void)pthread_mutex_unlock(&group->lock);
    }
    if (is_last) {
        group_free(group);
    }
    free(comm->reqs);
    free(comm);
}

static msdu_status wait_complete(struct msdu_comm *comm, char *text)
{
    struct group *group = comm->group;
    uint64_t until_ns = msdu__clock_now() + comm->host->deadline_ns;
    bool is_late = false;
    (void)pthread_mutex_lock(&group->lock);
    while (group->joined < group->ranks && group->status == MSDU_OK && !is_late) {
        is_late = !msdu__local_wait_change(group, until_ns);
    }
    (void)pthread_mutex_unlock(&group->lock);
    if (is_late) {
        group_give_up(group, comm->host);
    }
    (void)pthread_mutex_lock(&group->lock);
    /* A failure after the group was complete belongs to the operations, not to open(). */
    bool is_complete = group->joined == group->ranks && group->ops != NULL;
    msdu_status status = is_complete ? MSDU_OK : group->status;
    (void)snprintf(text, MSDU__TEXT_BYTES, "%s", group->text);
    (void)pthread_mutex_unlock(&group->lock);
    return status;
}

msdu_status msdu__local_join(struct msdu_comm *comm, char text[MSDU__TEXT_BYTES])
{
    msdu_status status = MSDU_ERR_NO_MEMORY;
    (void)snprintf(text, MSDU__TEXT_BYTES, "local: no memory for the group");
    (void)pthread_mutex_lock(&forming_lock);
    struct group *group = forming_find(comm->host);
    if (group != NULL) {
        status = group_enter(group, comm, text);
    }
    (void)pthread_mutex_unlock(&forming_lock);
    return status == MSDU_OK ? wait_complete(comm, text) : status;
}
