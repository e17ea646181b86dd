/* SPDX-License-Identifier: Apache-2.0 */
/* Work drawn by speed. Runs on the API thread. */
#include "draw.h"

#include <inttypes.h>
#include <stdlib.h>

/* Of its own: what the engine allocates is given back where slices are cut anew. */
msdu_status msdu__draw_prepare(msdu__draw *d, msdu__handover *hand, int32_t ranks)
{
    uint64_t count = (uint64_t)ranks;
    d->of = calloc(count, sizeof(*d->of));
    d->parts = calloc(count, sizeof(*d->parts));
    d->had = calloc(count, sizeof(*d->had));
    d->sizes = calloc(MSDU__DRAW_VERSIONS * count, sizeof(*d->sizes));
    d->times = calloc(2 * count, sizeof(*d->times));
    if (d->of == NULL || d->parts == NULL || d->had == NULL || d->sizes == NULL ||
        d->times == NULL) {
        return msdu__fail(MSDU_ERR_NO_MEMORY, "no memory for shares of %d ranks", ranks);
    }
    msdu__shares_init(&d->shares, ranks, d->of, d->parts);
    for (int32_t i = 0; i < ranks; i++) {
        d->sizes[i] = d->of[i].size;
    }
    d->versions = 1;
    d->batch = 1;
    d->clock_step = UINT64_MAX;
    hand->fragments[0].answers[0].step_ns = d->times;
    hand->fragments[0].answers[1].step_ns = d->times + ranks;
    return MSDU_OK;
}

void msdu__draw_free(msdu__draw *d)
{
    free(d->of);
    free(d->parts);
    free(d->had);
    free(d->sizes);
    free(d->times);
}

/* --- draw --- */

static double *sizes_of(const msdu__draw *d, uint64_t version)
{
    return d->sizes + version % MSDU__DRAW_VERSIONS * (uint64_t)d->shares.ranks;
}

/* The latest version that was decided before step - ahead. The first is of before all steps. */
static uint64_t version_for(const msdu__draw *d, uint64_t step, uint64_t ahead)
{
    uint64_t version = d->versions - 1;
    while (version > 0 && d->decided[version % MSDU__DRAW_VERSIONS] + ahead >= step) {
        version--;
    }
    return version;
}

static uint32_t mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * 0x9e3779b97f4a7c15ULL;
    return (uint32_t)(hash >> 32);
}

uint32_t msdu__draw_check_of(const msdu_work *work, uint64_t position)
{
    return mix(mix(mix(mix(1, work->total), work->batch), work->ahead), position) | 1U;
}

msdu_status msdu__draw_check(const msdu__job *job, const msdu_work *work)
{
    if (job->settings.commit_tensor && job->ranks > 1) {
        return msdu__fail(MSDU_ERR_UNSUPPORTED,
                          "rank %d: msdu_next() weighs ranks: setting commit = tensor releases "
                          "gradients before the weights of all ranks are known",
                          job->rank);
    }
    const uint64_t most = UINT64_C(1) << 48;
    bool is_sized = work->total > 0 && work->total <= most && work->batch > 0 &&
                    work->batch <= most / (uint64_t)job->ranks && work->position <= work->total;
    if (!is_sized || work->ahead > MSDU__AHEAD_MOST) {
        return msdu__fail(MSDU_ERR_INVALID,
                          "rank %d: total %" PRIu64 ", batch %" PRIu64 ", position %" PRIu64
                          ", ahead %" PRIu64 ": total and batch are at least 1, position is 0 .. "
                          "total, ahead 0 .. %d",
                          job->rank, work->total, work->batch, work->position, work->ahead,
                          MSDU__AHEAD_MOST);
    }
    return MSDU_OK;
}

bool msdu__draw_is_dealt(const msdu__draw *d, const msdu__job *job, uint64_t now,
                         const msdu_work *work)
{
    uint64_t step = work->step > now ? work->step : now;
    bool is_past = d->clock_step != UINT64_MAX && step >= d->clock_step + work->ahead;
    return d->dealt.is_on || (job->ranks > 1 && is_past && work->position < work->total);
}

static void keep(msdu__draw *d, uint64_t step, const msdu_work *work, uint64_t version)
{
    d->batch = work->batch;
    d->pieces[step % MSDU__DRAW_PIECES] =
        (msdu__piece){.step = step,
                      .samples = work->end - work->begin,
                      .batch = work->batch,
                      .version = version,
                      .check = msdu__draw_check_of(work, work->position)};
}

msdu_status msdu__draw_next(msdu__draw *d, const msdu__job *job, uint64_t now, msdu_work *work)
{
    uint64_t step = work->step > now ? work->step : now;
    uint64_t left = work->total - work->position;
    uint64_t whole = work->batch * (uint64_t)job->ranks;
    if (left == 0) {
        work->begin = work->end = work->total;
        return MSDU_OK;
    }
    if (step > now + work->ahead) {
        return msdu__fail(MSDU_ERR_STATE,
                          "rank %d: a piece for step %" PRIu64 " is drawn before step %" PRIu64
                          ", and ahead is %" PRIu64 ": a step takes one piece, and a loader that "
                          "fetches more of them early needs a larger ahead",
                          job->rank, step, now, work->ahead);
    }
    uint64_t version = version_for(d, step, work->ahead);
    uint64_t samples = left < whole ? left : whole;
    msdu__shares_divide(&d->shares, sizes_of(d, version), samples, d->had);
    uint64_t begin = work->position;
    for (int32_t i = 0; i < job->rank; i++) {
        begin += d->had[i];
    }
    uint64_t own = d->had[job->rank];
    work->begin = own > 0 ? begin : work->position; /* nothing is never at the end of the work */
    work->end = work->begin + own;
    keep(d, step, work, version);
    work->position += samples;
    work->step = step + 1;
    return MSDU_OK;
}

const msdu__piece *msdu__draw_piece(const msdu__draw *d, uint64_t step)
{
    const msdu__piece *piece = &d->pieces[step % MSDU__DRAW_PIECES];
    return piece->batch > 0 && piece->step == step ? piece : NULL;
}

void msdu__draw_count(msdu__draw *d, uint64_t step)
{
    const msdu__piece *piece = msdu__draw_piece(d, step);
    d->samples += piece != NULL ? piece->samples : d->batch;
    d->nominal += piece != NULL ? piece->batch : d->batch;
}

/* --- decide --- */

static void log_shares(const msdu__draw *d, const msdu__job *job, uint64_t now)
{
    int32_t least = 0;
    int32_t most = 0;
    for (int32_t i = 0; i < job->ranks; i++) {
        least = d->shares.of[i].size < d->shares.of[least].size ? i : least;
        most = d->shares.of[i].size > d->shares.of[most].size ? i : most;
    }
    msdu__log_line(&job->log, MSDU_LOG_INFO,
                   "step %" PRIu64
                   ": shares of samples %s: %.2f of an even one on rank %d, to %.2f "
                   "on rank %d",
                   now, d->shares.is_moving ? "follow speed" : "rest", d->shares.of[least].size,
                   least, d->shares.of[most].size, most);
}

void msdu__draw_hear(msdu__draw *d, const msdu__job *job, uint64_t now, uint64_t heard,
                     const double *step_ns)
{
    const msdu__piece *piece = msdu__draw_piece(d, heard);
    if (piece == NULL || now < d->looked + MSDU__SHARES_STEPS) {
        return;
    }
    d->looked = now;
    bool was_moving = d->shares.is_moving;
    uint64_t whole = piece->batch * (uint64_t)job->ranks;
    msdu__shares_divide(&d->shares, sizes_of(d, piece->version), whole, d->had);
    if (msdu__shares_decide(&d->shares, piece->batch, d->had, step_ns)) {
        for (int32_t i = 0; i < job->ranks; i++) {
            sizes_of(d, d->versions)[i] = d->shares.of[i].size;
        }
        d->decided[d->versions++ % MSDU__DRAW_VERSIONS] = now;
    }
    if (d->shares.is_moving != was_moving) {
        log_shares(d, job, now);
    }
}
