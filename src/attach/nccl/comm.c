/* SPDX-License-Identifier: Apache-2.0 */
/* Life of an NCCL communicator's engine: begin, break, end, and what is told of it. */
#include "attach_nccl.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "attach/early_end.h"
#include "attach/report.h"

#ifndef MSDU__NCCL_NAME
#define MSDU__NCCL_NAME "nccl" /* the tests build it once more, over a stand-in */
#endif

#define PAUSE_NS     1000000L
#define ABORT_PAUSES 700 /* until what is under way has ended */

static uint64_t deadline_ms(void)
{
    return msdu__attach_number("deadline_ms", 60000);
}

/* --- begin --- */

/* Kinds of sums and of means do not share a context. */
static const char *refusal(const msdu__track *track)
{
    const msdu__recognizer *r = &track->recognizer;
    if (msdu__attach_engine_is_local() ? msdu__recognize_is_mistaken(r)
                                       : msdu__recognize_is_contradicted(r)) {
        return "gradients come from several places in memory, and may be several parameters";
    }
    for (uint32_t i = 1; i < r->tensor_count; i++) {
        if ((r->tensors[i].kind > MSDU__KIND_MEANS) != (r->tensors[0].kind > MSDU__KIND_MEANS)) {
            return "some gradients are summed up, others averaged";
        }
    }
    return msdu__attach_engine_refusal(r);
}

static msdu_status open_engine(msdu__track *track, double hosts)
{
    char secret[MSDU__PLACE_BYTES] = "";
    char job[48];
    msdu__meeting meeting;
    if (!msdu__talk_secret(track, secret)) {
        return MSDU_ERR_BACKEND;
    }
    msdu__meeting_begin(&meeting, track, hosts);
    (void)snprintf(job, sizeof(job), "nccl-%.16s", secret);
    const msdu__device_place place = {
        .backend = MSDU__NCCL_NAME,
        .url = meeting.url,
        .store = &meeting.store,
        .job = job,
        .secret = secret,
        .rank = track->rank,
        .ranks = track->ranks,
        .is_mean = track->recognizer.tensors[0].kind > MSDU__KIND_MEANS,
    };
    msdu_status status = msdu__device_open(&track->engine, &track->recognizer, &place);
    msdu__meeting_end(&meeting);
    explicit_bzero(secret, sizeof(secret));
    return status;
}

static void close_engine(msdu__track *track)
{
    msdu__attach_engine_close(&track->engine);
    track->is_taking = false;
}

static void refuse(msdu__track *track, const char *why)
{
    track->is_plain = true;
    if (why != NULL || track->rank == 0) {
        (void)fprintf(stderr,
                      "msdu: rank %d: not attached, all reductions are passed through: %s\n",
                      track->rank, why != NULL && *why != '\0' ? why : "another rank could not");
    }
    close_engine(track); /* or what was left of the attempt */
}

static void tell_begin(const msdu__track *track)
{
    const msdu__recognizer *r = &track->recognizer;
    uint64_t elements = 0;
    for (uint32_t i = 0; i < r->tensor_count; i++) {
        elements += r->tensors[i].count;
    }
    if (track->rank == 0 && msdu__attach_is_loud()) {
        (void)fprintf(stderr,
                      "msdu: gradients recognized: %u reductions a step, %" PRIu64
                      " elements, on an NCCL communicator of %d ranks; domain %s\n",
                      r->tensor_count, elements, track->ranks,
                      track->engine.is_accumulated ? "accumulated" : "gradient");
    }
}

void msdu__track_fail_with(msdu__track *track, const char *text)
{
    track->has_failed = true;
    (void)snprintf(track->why, sizeof(track->why), "%s", text);
    (void)fprintf(stderr, "msdu: rank %d: %s\n", track->rank, track->why);
}

/* Rank 0 may have to wait for the others' ends. Without their numbers it waits for nobody. */
static void hear_of_mates(msdu__track *track)
{
    const size_t count = (size_t)track->ranks;
    const msdu__mate own = msdu__early_self();
    double *values = calloc(2 * count, sizeof(*values));
    msdu__mate *all = calloc(count, sizeof(*all));
    if (values != NULL) {
        values[2 * track->rank] = (double)own.machine;
        values[2 * track->rank + 1] = (double)own.process;
    }
    const bool has_met = values != NULL && msdu__talk_add(track, values, 2 * count, deadline_ms());
    for (size_t i = 0; i < count && has_met && all != NULL; i++) {
        all[i] = (msdu__mate){(uint64_t)values[2 * i], (uint64_t)values[2 * i + 1]};
    }
    if (has_met && all != NULL && track->rank == 0) {
        msdu__early_wait_for(all, count);
    }
    free(all);
    free(values);
}

/* All ranks said that they can. */
static void begin(msdu__track *track, double hosts)
{
    double failed[1][MSDU__SUM_ROOM] = {{0}};
    char why[256] = "";
    bool is_good = open_engine(track, hosts) == MSDU_OK;
    if (!is_good) {
        (void)snprintf(why, sizeof(why), "%s", msdu_last_error());
    } else if (!msdu__guard_open(track)) {
        (void)snprintf(why, sizeof(why), "no memory for MSDU_ATTACH_GUARD");
        is_good = false;
    }
    failed[0][0] = is_good ? 0 : 1;
    if (!msdu__talk_sum(&track, 1, failed, deadline_ms()) || failed[0][0] > 0) {
        refuse(track, is_good ? NULL : why);
        return;
    }
    /* the present step is NCCL's own */
    track->engine.steps_before =
        track->ended_steps +
        (track->step_calls - track->ended_calls) / track->recognizer.pattern_count + 1;
    track->is_taking = false;
    if (track->engine.is_accumulated) {
        hear_of_mates(track);
    }
    tell_begin(track);
    msdu__join_tell(track);
}

void msdu__track_vote(msdu__track *const *tracks, size_t track_count)
{
    double(*values)[MSDU__SUM_ROOM] = calloc(track_count, sizeof(*values));
    if (values == NULL) {
        return; /* the others tell that this rank did not come */
    }
    for (size_t i = 0; i < track_count; i++) {
        msdu__recognize_vote(&tracks[i]->recognizer, values[i]);
    }
    bool has_met = msdu__talk_sum(tracks, track_count, values, deadline_ms());
    for (size_t i = 0; i < track_count; i++) {
        msdu__recognizer *r = &tracks[i]->recognizer;
        if (!has_met) {
            msdu__recognize_close(r);
        } else if (msdu__recognize_agree(r, values[i], tracks[i]->ranks)) {
            char lost[256];
            tracks[i]->ledger.patterns++;
            if (msdu__part_is_lost(&tracks[i]->part, r, lost, sizeof(lost))) {
                msdu__track_fail_with(tracks[i], lost);
            }
        }
        if (tracks[i]->rank == 0 && msdu__attach_is_loud()) {
            msdu__tell_vote(r, &tracks[i]->unmet_told);
        }
    }
    free(values);
}

void msdu__track_begin(msdu__track *const *tracks, size_t track_count)
{
    static const char several[] = "one thread reduces over several communicators in a group";
    double(*values)[MSDU__SUM_ROOM] = calloc(track_count, sizeof(*values));
    if (values == NULL) {
        return; /* the others tell that this rank did not come */
    }
    for (size_t i = 0; i < track_count; i++) {
        bool is_good = track_count == 1 && refusal(tracks[i]) == NULL;
        values[i][0] = is_good ? 0 : 1;
        values[i][1] = msdu__talk_host();
    }
    bool has_met = msdu__talk_sum(tracks, track_count, values, deadline_ms());
    for (size_t i = 0; i < track_count; i++) {
        const char *why = track_count > 1 ? several : refusal(tracks[i]);
        if (!has_met) {
            refuse(tracks[i], "ranks did not meet within the deadline");
        } else if (values[i][0] > 0) {
            refuse(tracks[i], why);
        } else {
            begin(tracks[i], values[i][1]);
        }
    }
    free(values);
}

/* --- break --- */

/* Zeros take part in the sums of a step that no trainer will see. */
static msdu_status fill_step(msdu__track *track)
{
    msdu__attach_engine *engine = &track->engine;
    msdu_status status = MSDU_OK;
    while (status == MSDU_OK && engine->announced > 0) {
        uint32_t at = engine->announced;
        size_t bytes = engine->grads[at].count * sizeof(double);
        void *zeros = NULL;
        if (cudaMalloc(&zeros, bytes) != cudaSuccess) {
            return MSDU_ERR_NO_MEMORY;
        }
        (void)cudaMemsetAsync(zeros, 0, bytes, track->stream);
        status = msdu__device_start(engine, at, zeros, track->stream);
        status = status == MSDU_OK ? msdu__device_wait(engine, at, track->stream) : status;
        (void)cudaStreamSynchronize(track->stream);
        (void)cudaFree(zeros);
    }
    return status;
}

static msdu_status finish(msdu__track *track)
{
    msdu_status status = fill_step(track);
    return status == MSDU_OK ? msdu_finish(track->engine.ctx) : status;
}

int msdu__track_fail(msdu__track *track, msdu_status status)
{
    if (status != MSDU_OK && !track->has_failed) {
        msdu__track_fail_with(track, msdu_last_error());
        msdu__ledger_add(&track->ledger, track->engine.ctx);
        close_engine(track); /* at once: the trainer may end without a word */
    }
    return status == MSDU_OK && !track->has_failed ? MSDU__NCCL_SUCCESS : MSDU__NCCL_REMOTE_ERROR;
}

/* All ranks see the change at the same call, or one of them reduces something else. */
static bool is_seen_by_all(msdu__track *track)
{
    double values[1][MSDU__SUM_ROOM] = {{0}};
    /* sooner than the others, who only see that this rank is late */
    return msdu__talk_sum(&track, 1, values, deadline_ms() / 2);
}

static bool sum_over_ranks(void *user, double *values, size_t count)
{
    return msdu__talk_add(user, values, count, deadline_ms());
}

/* How far ranks are apart after local steps, for what joins them. What one rank cannot, none does.
 */
static bool part(msdu__track *track)
{
    static const char changed[] =
        "the pattern of reductions changed, and ranks could not be joined";
    double failed[1][MSDU__SUM_ROOM] = {{0}};
    char text[256];
    msdu__apart *list = NULL;
    msdu_status status = msdu__attach_engine_part(&track->engine, &list, &track->part.optimizer);
    (void)snprintf(text, sizeof(text), "%s: %s", changed,
                   status == MSDU_OK ? "another rank failed" : msdu_last_error());
    failed[0][0] = status == MSDU_OK ? 0 : 1;
    if (!msdu__talk_sum(&track, 1, failed, deadline_ms()) || failed[0][0] > 0) {
        msdu__apart_free(list);
    } else if (msdu__part_keep(&track->part, list, &track->recognizer, track->ranks, sum_over_ranks,
                               track)) {
        return true;
    } else {
        (void)snprintf(text, sizeof(text), "%s: their sums failed", changed);
    }
    msdu__track_fail_with(track, text);
    return false;
}

/* Gradients of one size may have been taken for each other before the change was seen. */
static bool has_moved(msdu__track *track)
{
    double moved[1][MSDU__SUM_ROOM] = {{0}};
    const bool is_local = track->engine.is_accumulated;
    moved[0][0] = is_local && msdu__recognize_is_mistaken(&track->recognizer) ? 1 : 0;
    return !msdu__talk_sum(&track, 1, moved, deadline_ms()) || moved[0][0] > 0;
}

void msdu__track_break(msdu__track *track, const msdu__call *seen)
{
    char text[256];
    track->is_breaking = false;
    if (track->engine.ctx == NULL) {
        return;
    }
    if (!is_seen_by_all(track)) {
        (void)snprintf(text, sizeof(text),
                       "a reduction of %" PRIu64 " elements came where another was due, and not "
                       "all ranks differ so",
                       seen->count);
        msdu__track_fail_with(track, text);
        close_engine(track);
        return;
    }
    if (has_moved(track)) {
        msdu__track_fail_with(
            track, "the pattern of reductions changed, and ranks cannot be joined: gradients "
                   "of one size are not in the order that they were in");
        close_engine(track);
        return;
    }
    /* the present step begins behind the last one's tensors, or where it began */
    track->ended_steps = track->engine.steps_before + track->engine.steps;
    track->ended_calls =
        track->step_calls + (track->engine.announced > 0 ? 0 : track->engine.count);
    track->ledger.breaks++;
    track->recognizer.tensors_wanted = 0; /* was said of what there is no more */
    const bool is_last = track->ledger.breaks >= MSDU__BREAKS_MOST;
    if (part(track)) {
        if (track->rank == 0) {
            msdu__tell_break(&track->engine, seen, is_last);
        }
        msdu_status status = finish(track);
        if (status != MSDU_OK) {
            (void)fprintf(stderr, "msdu: rank %d: %s\n", track->rank, msdu_last_error());
        }
    }
    msdu__ledger_add(&track->ledger, track->engine.ctx);
    close_engine(track);
    if (is_last) {
        msdu__recognize_close(&track->recognizer);
    }
}

void msdu__track_join(msdu__track *track, const msdu__nccl_call *call, const msdu__call *seen)
{
    if (!track->has_failed && !msdu__join_add(track, call, seen)) {
        msdu__track_fail_with(
            track, "what joins the ranks after local steps could not be given to the device");
    }
}

void msdu__track_stray(msdu__track *track, const msdu__call *seen)
{
    if (!track->has_strayed && track->rank == 0) {
        (void)fprintf(stderr,
                      "msdu: rank 0: the pattern of reductions changed after %" PRIu64
                      " steps: one of %" PRIu64 " elements, and what is like it, is passed "
                      "through; the others go on\n",
                      track->engine.steps, seen->count);
    }
    track->has_strayed = true;
}

/* --- end --- */

static void tell(msdu__track *track)
{
    static const char *const reasons[MSDU__REASONS_MAX] = {
        "not a sum or mean of float32 or 16 bits (float64 with local steps)",
        "small (MSDU_ATTACH_MIN_BYTES)",
        "denied by a list",
        "while learning, or in no pattern",
        "gradients, exact as they are (MSDU_ATTACH=always takes them)",
        "captured in a CUDA graph",
        "gradients that joined the ranks after a change",
        "of 16 bits (not with local steps, nor over wires as wide)",
        "gradients, while they were watched"};
    (void)fprintf(
        stderr, "msdu: NCCL communicator of %d ranks: %" PRIu64 " reductions taken as gradients\n",
        track->ranks, track->ledger.taken);
    track->ledger.steps = track->ended_steps;
    if (track->recognizer.pattern_count > 0) {
        track->ledger.steps +=
            (track->candidates - track->ended_calls) / track->recognizer.pattern_count;
    }
    msdu__tell_ledger(&track->ledger, &track->gain, &track->recognizer, track->ranks, reasons);
    if (track->ledger.patterns == 0) {
        msdu__tell_nothing(&track->recognizer, track->unmet_told);
    }
}

/* Wait for rounds in flight, ABORT_PAUSES pauses at most: gradients of other ranks may still be on
 * their way. A local wait, for which no other rank has to come. */
static void rest(const msdu__track *track)
{
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    msdu_summary s = MSDU_SUMMARY_INIT;
    for (int i = 0; i < ABORT_PAUSES && !track->engine.is_accumulated; i++) {
        if (msdu_summary_get(track->engine.ctx, &s) != MSDU_OK || s.rounds >= s.steps) {
            break;
        }
        (void)nanosleep(&pause, NULL);
    }
}

/* Only what this rank knows: the others may not come. */
static void tell_early(const msdu__track *track)
{
    const msdu__recognizer *r = &track->recognizer;
    const bool was_local = track->engine.ctx == NULL && track->part.before_count > 0;
    uint64_t most = 0;
    if (track->rank != 0 || track->has_failed || track->is_left_alone) {
        return;
    }
    if (msdu__attach_engine_is_early(&track->engine)) {
        msdu__early_tell("", msdu__attach_engine_steps(&track->engine), r->total_steps);
    } else if (was_local && msdu__early_is_left(r, track->ended_steps,
                                                track->candidates - track->ended_calls, &most)) {
        msdu__early_tell("at most ", most, r->total_steps);
    }
    if (msdu__join_differs(track)) {
        msdu__part_fail(&track->part);
    }
}

void msdu__track_end(msdu__track *track, int how)
{
    tell_early(track);
    if (track->engine.ctx != NULL) {
        msdu_status status = MSDU_OK;
        if (how == MSDU__NCCL_ENDED && !track->has_failed) {
            status = finish(track);
        } else if (!track->has_failed) {
            rest(track);
        }
        (void)msdu__track_fail(track, status);
    }
    if (track->engine.ctx != NULL) {
        msdu__ledger_add(&track->ledger, track->engine.ctx);
        close_engine(track);
    }
    if (track->rank == 0 && !track->is_left_alone && msdu__attach_is_loud() &&
        msdu__ledger_passed(&track->ledger) + track->ledger.taken > 0) {
        tell(track);
    }
    track->is_left_alone = true;
    msdu__guard_close(track);
    msdu__join_close(track);
    msdu__talk_close(track);
}
