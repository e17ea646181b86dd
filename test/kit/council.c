/* SPDX-License-Identifier: Apache-2.0 */
/* Membership among threads of this process. */
#include "council.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MEMBERS_MOST 16
#define WAIT_S       30

struct msdu_members {
    const msdu_host *host;
    bool is_old;    /* it was in an epoch */
    bool has_left;  /* it waits for the next epoch */
    bool has_state; /* and tells this */
    uint64_t step;
    int32_t rank; /* in the present epoch; launch: as it was started */
    int32_t least;
    uint64_t epoch;
    msdu_epoch next; /* what was decided for it */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static msdu_members *all[MEMBERS_MOST]; /* that are there, in rank order; newcomers behind */
static int count;
static uint64_t epoch; /* the latest */
static int before;     /* ranks of it when it began */

void council_reset(void)
{
    count = before = 0;
    epoch = 0;
}

static void decide(int32_t launch)
{
    int first = 0;
    int lost = before;
    for (int i = 0; i < count; i++) {
        bool is_whole = epoch == 0 || all[i]->has_state;
        if (!all[i]->has_left || (epoch == 0 && count < launch)) {
            return;
        }
        lost -= all[i]->is_old ? 1 : 0;
        first = is_whole && (!all[first]->has_state || all[i]->step > all[first]->step) ? i : first;
    }
    msdu_members *donor = all[first];
    for (int i = first; epoch > 0 && i > 0; i--) {
        all[i] = all[i - 1];
    }
    all[0] = epoch > 0 ? donor : all[0];
    epoch++;
    for (int i = 0; i < count; i++) {
        all[i]->rank = i;
        all[i]->epoch = epoch;
        all[i]->has_left = false;
        all[i]->next = (msdu_epoch){.size = sizeof(msdu_epoch),
                                    .number = epoch,
                                    .rank = i,
                                    .ranks = count,
                                    .lost = lost,
                                    .joined = epoch > 1 ? count - before + lost : 0,
                                    .is_newcomer = epoch > 1 && !all[i]->is_old};
    }
    for (int i = 0; i < count; i++) {
        all[i]->is_old = true;
    }
    before = count;
    (void)pthread_cond_broadcast(&changed);
}

/* Until an epoch behind `last` is this member's. */
static msdu_status await(msdu_members *m, uint64_t last, msdu_epoch *out)
{
    struct timespec until;
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += WAIT_S;
    while (m->epoch == last) {
        if (pthread_cond_timedwait(&changed, &lock, &until) != 0) {
            return m->host->fail(MSDU_ERR_TIMEOUT, "council: no epoch");
        }
    }
    *out = m->next;
    return out->ranks >= m->least ? MSDU_OK
                                  : m->host->fail(MSDU_ERR_PEER_LOST, "council: too few are left");
}

static msdu_status council_open(const msdu_host *host, int32_t least, int32_t most,
                                uint64_t wait_ns, msdu_members **members_out, msdu_epoch *epoch_out)
{
    msdu_members *m = calloc(1, sizeof(*m));
    (void)most;
    (void)wait_ns;
    *m = (msdu_members){
        .host = host, .has_left = true, .rank = host->rank, .least = least, .step = 0};
    *members_out = m;
    (void)pthread_mutex_lock(&lock);
    int at = count++;
    while (epoch == 0 && at > 0 && all[at - 1]->rank > m->rank) {
        all[at] = all[at - 1];
        at--;
    }
    all[at] = m;
    decide(host->ranks);
    msdu_status status = await(m, 0, epoch_out);
    (void)pthread_mutex_unlock(&lock);
    return status;
}

static msdu_status council_next(msdu_members *m, uint64_t step, int32_t has_state,
                                msdu_epoch *epoch_out)
{
    (void)pthread_mutex_lock(&lock);
    m->step = step;
    m->has_state = has_state != 0;
    m->has_left = true;
    uint64_t last = m->epoch;
    decide(0);
    msdu_status status = await(m, last, epoch_out);
    (void)pthread_mutex_unlock(&lock);
    return status;
}

static int32_t council_has_newcomer(msdu_members *m)
{
    bool has = false;
    (void)pthread_mutex_lock(&lock);
    for (int i = 0; i < count; i++) {
        has = has || (m->rank == 0 && all[i]->epoch == 0);
    }
    (void)pthread_mutex_unlock(&lock);
    return has;
}

static void council_close(msdu_members *m)
{
    (void)pthread_mutex_lock(&lock);
    int kept = 0;
    for (int i = 0; i < count; i++) {
        if (all[i] != m) {
            all[kept++] = all[i];
        }
    }
    count = kept;
    if (count > 0) {
        decide(0);
    }
    (void)pthread_mutex_unlock(&lock);
    free(m);
}

const msdu_membership council = {
    .size = sizeof(msdu_membership),
    .open = council_open,
    .next = council_next,
    .has_newcomer = council_has_newcomer,
    .close = council_close,
};
