/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of different speeds: what their messages tell. */
#include "pace.h"

#include "control.h"
#include "memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHANGED     0.25 /* of a speed, or of all rounds: worth a line */
#define FIRST_HEARD 32   /* rounds by the clock, before ranks are described */
#define SMOOTH      0.1

msdu_status msdu__pace_prepare(msdu__engine *e)
{
    uint64_t ranks = (uint64_t)e->job->ranks;
    const double *known = e->paces.ladder.late_ns; /* whatever is done to slices */
    double *late = msdu__memory_block(e, ranks * sizeof(*late));
    e->paces.of = msdu__memory_block(e, ranks * sizeof(*e->paces.of));
    e->paces.times = msdu__memory_block(e, ranks * sizeof(*e->paces.times));
    e->paces.late = msdu__memory_block(e, ranks * sizeof(*e->paces.late));
    if (late == NULL || e->paces.of == NULL || e->paces.times == NULL || e->paces.late == NULL) {
        return msdu__memory_none(e, "times of ranks");
    }
    if (known == NULL) {
        msdu__ladder_init(&e->paces.ladder, late);
    } else {
        memcpy(late, known, ranks * sizeof(*late));
        e->paces.ladder.late_ns = late;
    }
    return MSDU_OK;
}

const char *msdu__pace_obstacle(const msdu__engine *e)
{
    const msdu__settings *s = &e->job->settings;
    bool is_late = s->overlap == MSDU__OVERLAP_AUTO || s->overlap == MSDU__OVERLAP_DELAYED;
    const struct {
        bool is_there;
        const char *what;
    } list[] = {
        {e->job->ranks == 1, "there is one rank only"},
        {e->job->device != NULL, "tensors are not in the host's memory"},
        {s->domain != MSDU__DOMAIN_AUTO, "setting domain is not auto"},
        {!e->job->interval_args.can_go_local, "parameters are not known"},
        {!is_late, "setting overlap is neither auto nor delayed"},
        {!msdu__settings_is_default(s, "correct"), "setting correct is given"},
        {s->state == MSDU__STATE_RESET, "setting state is reset"},
        {e->job->policy != msdu__policy_find("divergence"), "setting interval is not divergence"},
    };
    for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++) {
        if (list[i].is_there) {
            return list[i].what;
        }
    }
    return NULL;
}

/* --- what messages tell --- */

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

void msdu__pace_times(const msdu__engine *e, const msdu__fragment *f, msdu__round_stats *stats)
{
    int32_t count = 0;
    for (int32_t rank = 0; rank < e->job->ranks; rank++) {
        const msdu__control *c = &f->control.of[rank];
        if (!msdu__control_has(c, MSDU__CONTROL_IDLE)) {
            e->paces.times[count++] = c->step_ns;
        }
    }
    qsort(e->paces.times, (size_t)count, sizeof(*e->paces.times), by_size);
    bool is_known = count > 0 && e->paces.times[0] > 0;
    stats->times = is_known ? e->paces.times : NULL;
    stats->time_count = is_known ? count : 0;
}

void msdu__pace_late(const msdu__engine *e, const msdu__fragment *f, msdu__round_stats *stats)
{
    double sum = 0;
    double trainers = 0;
    for (int32_t rank = 0; rank < e->job->ranks; rank++) {
        const msdu__control *c = &f->control.of[rank];
        sum += c->weight > 0 ? c->alone_ns : 0;
        trainers += c->weight > 0 ? 1 : 0;
    }
    for (int32_t rank = 0; rank < e->job->ranks; rank++) {
        const msdu__control *c = &f->control.of[rank];
        e->paces.late[rank] = c->weight > 0 ? sum / trainers - c->alone_ns : 0;
    }
    stats->late = e->paces.late;
}

/* In rank order, so that all ranks name the same one. */
static int32_t slowest(const msdu__engine *e, const msdu__fragment *f)
{
    int32_t found = 0;
    for (int32_t rank = 1; rank < e->job->ranks; rank++) {
        if (f->control.of[rank].step_ns > f->control.of[found].step_ns) {
            found = rank;
        }
    }
    return found;
}

int32_t msdu__pace_came(const msdu__engine *e, const msdu__fragment *f)
{
    int32_t count = 0;
    for (int32_t rank = 0; rank < e->job->ranks; rank++) {
        const msdu__control *c = &f->control.of[rank];
        bool is_idle = msdu__control_has(c, MSDU__CONTROL_IDLE);
        count += !is_idle && c->missed <= e->paces.of[rank].missed ? 1 : 0;
    }
    return count;
}

static void note_rank(msdu__engine *e, const msdu__fragment *f, int32_t rank)
{
    msdu__rank_pace *p = &e->paces.of[rank];
    const msdu__control *c = &f->control.of[rank];
    double came = c->missed > p->missed ? 0 : 1;
    p->missed = c->missed;
    p->share += (e->paces.heard == 1 ? 1 : SMOOTH) * (came - p->share);
    p->step_ns += (p->step_ns == 0 ? 1 : SMOOTH) * (c->step_ns - p->step_ns);
}

static bool has_changed(const msdu__rank_pace *p)
{
    return fabs(p->share - p->told_share) > CHANGED ||
           p->step_ns > (1 + CHANGED) * p->told_step_ns ||
           p->told_step_ns > (1 + CHANGED) * p->step_ns;
}

static void tell(msdu__engine *e, int32_t rank)
{
    msdu__rank_pace *p = &e->paces.of[rank];
    bool is_first = p->told_step_ns == 0;
    if (!is_first) {
        msdu__log_line(&e->job->log, MSDU_LOG_INFO,
                       "rank %d: in %.0f %% of rounds, %.1f ms a step (were %.0f %%, %.1f ms)",
                       rank, 100 * p->share, p->step_ns * 1e-6, 100 * p->told_share,
                       p->told_step_ns * 1e-6);
    }
    p->told_share = p->share;
    p->told_step_ns = p->step_ns;
}

/* Of ranks without input as well: the number never falls. */
static void count_steps(msdu__engine *e, const msdu__fragment *f)
{
    double steps = 0;
    for (int32_t rank = 0; rank < e->job->ranks; rank++) {
        steps += f->control.of[rank].steps;
    }
    pthread_mutex_lock(&e->hand->lock);
    e->hand->summary.common_steps = (uint64_t)(steps / e->job->ranks);
    pthread_mutex_unlock(&e->hand->lock);
}

/* Each rank has its own data, as far as is known. */
static void warn_of_data(msdu__engine *e, const msdu__fragment *f)
{
    int32_t last = slowest(e, f);
    msdu__round_stats stats = {.times = NULL};
    msdu__pace_times(e, f, &stats);
    double median = stats.times != NULL ? stats.times[(stats.time_count - 1) / 2] : 0;
    double step = e->paces.of[last].step_ns;
    if (e->paces.is_warned || msdu__flag_get(&e->hand->supply.is_drawn) || median == 0 ||
        step < (1 + CHANGED) * median) {
        return;
    }
    e->paces.is_warned = true;
    msdu__log_line(
        &e->job->log, MSDU_LOG_WARN,
        "rank %d makes %.2f of the median rank's steps, so its data count less: let work "
        "be drawn (msdu_next(), in Python msdu.batches), or set uneven = wait where ranks "
        "have different data",
        last, median / step);
}

void msdu__pace_watch(msdu__engine *e, const msdu__fragment *f)
{
    e->paces.heard++;
    count_steps(e, f);
    for (int32_t rank = 0; rank < e->job->ranks; rank++) {
        if (!msdu__control_has(&f->control.of[rank], MSDU__CONTROL_IDLE)) {
            note_rank(e, f, rank);
        }
        if (e->paces.heard >= FIRST_HEARD && has_changed(&e->paces.of[rank])) {
            tell(e, rank);
        }
    }
    if (e->paces.heard >= FIRST_HEARD) {
        warn_of_data(e, f);
    }
}

/* --- what follows --- */

bool msdu__pace_decide(msdu__engine *e, const msdu__round_stats *stats, msdu__decision *next)
{
    msdu__ladder_learn(stats, e->ticks.is_on, &e->paces.ladder);
    if (!e->ticks.is_on || e->job->settings.uneven != MSDU__UNEVEN_AUTO) {
        return false;
    }
    next->period_ns = e->decision.period_ns;
    msdu__ladder_clock(&e->job->interval_args, stats, &e->paces.ladder, &e->interval_state, next);
    return true;
}

/* Which rank it is; or that it is none. */
static void name_slow(msdu__engine *e, const msdu__fragment *f, const msdu__round_stats *stats,
                      char *text, size_t bytes)
{
    int32_t last = slowest(e, f);
    bool is_one =
        msdu__ladder_lasting(stats, &e->paces.ladder) > e->job->interval_args.target_overhead;
    if (is_one) {
        (void)snprintf(text, bytes, "rank %d: %.1f ms a step", last,
                       f->control.of[last].step_ns * 1e-6);
    } else {
        (void)snprintf(text, bytes, "no rank for long");
    }
}

static void tell_climb(msdu__engine *e, const msdu__fragment *f, const msdu__round_stats *stats)
{
    const char *outcome = e->job->may_clock ? "rounds by the clock from here on"
                          : e->job->settings.uneven == MSDU__UNEVEN_AUTO
                              ? msdu__pace_obstacle(e)
                              : "settings uneven = auto and clock wait for none";
    double median = stats->time_count > 0 ? stats->times[(stats->time_count - 1) / 2] : 0;
    char who[64];
    name_slow(e, f, stats, who, sizeof(who));
    msdu__log_line(&e->job->log, MSDU_LOG_INFO,
                   "step %llu: %.1f %% of the time is waited for slow ranks (%s, median %.1f): %s",
                   (unsigned long long)stats->step, 100 * msdu__ladder_waits(&e->paces.ladder), who,
                   median * 1e-6, outcome);
}

void msdu__pace_climb(msdu__engine *e, const msdu__fragment *f, const msdu__round_stats *stats,
                      msdu__decision *next)
{
    bool is_asked = !e->ticks.is_on && e->job->ranks > 1 && !e->paces.is_told;
    next->is_clock = e->decision.is_clock;
    if (f->contribution.work != 0) { /* msdu_next() evens step times out, exactly */
        msdu__ladder_try_shares(stats, f->contribution.is_moving, &e->paces.ladder);
    }
    if (!is_asked || stats->step < e->job->interval_args.warmup_steps ||
        !msdu__ladder_wants_clock(&e->job->interval_args, stats, &e->paces.ladder)) {
        return;
    }
    tell_climb(e, f, stats);
    e->paces.is_told = true;
    next->is_clock = e->job->may_clock;
}
