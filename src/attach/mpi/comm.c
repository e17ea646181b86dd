/* SPDX-License-Identifier: Apache-2.0 */
/* Life of a communicator's engine: settings, begin, break, end, and what is told of it. */
#include "attach_mpi.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <msdu/msdu.h>

#include "attach/report.h"
#include "base/clock.h"

#define WHICH_BYTES 128

/* What a list can say of it: " (comm=MPI_COMM_WORLD)". */
static const char *which(const msdu__stream *stream, char text[WHICH_BYTES])
{
    const msdu__attach_comm *place = &stream->place;
    (void)snprintf(text, WHICH_BYTES, place->name[0] != '\0' ? " (comm=%s)" : "%s", place->name);
    return text;
}

/* --- begin --- */

static const char *refusal(const msdu__recognizer *r)
{
    int level = 0;
    (void)PMPI_Query_thread(&level);
    if (level != MPI_THREAD_MULTIPLE) {
        return "MPI was initialized without MPI_THREAD_MULTIPLE";
    }
    return msdu__attach_engine_refusal(r);
}

static bool sum_over_ranks(void *user, double *values, size_t count)
{
    const msdu__stream *stream = user;
    return PMPI_Allreduce(MPI_IN_PLACE, values, (int)count, MPI_DOUBLE, MPI_SUM, stream->comm) ==
           MPI_SUCCESS;
}

void msdu__stream_meet(msdu__stream *stream)
{
    stream->is_met = true;
    /* threads come to communicators in any order, and ranks end them in one */
    (void)PMPI_Bcast(&stream->order, 1, MPI_UINT64_T, 0, stream->comm);
    if (!msdu__stream_is_equal(stream, msdu__attach_hash())) {
        msdu__recognize_close(&stream->recognizer);
        if (stream->rank == 0) {
            (void)fprintf(stderr,
                          "msdu: ranks were given different settings (MSDU_ATTACH_*, or what "
                          "is to be done with gradients): all is passed through\n");
        }
    }
}

/* Plain calls are timed as long as any communicator wants it. */
static void set_timed(msdu__stream *stream, bool is_timed)
{
    msdu__stream_time((is_timed ? 1 : 0) - (stream->is_timed ? 1 : 0));
    stream->is_timed = is_timed;
}

void msdu__stream_vote(msdu__stream *stream)
{
    msdu__recognizer *r = &stream->recognizer;
    double sums[MSDU__VOTE_SUMS];
    msdu__recognize_vote(r, sums);
    if (!sum_over_ranks(stream, sums, MSDU__VOTE_SUMS)) {
        msdu__recognize_close(r);
    } else if (msdu__recognize_agree(r, sums, stream->ranks)) {
        stream->ledger.patterns++;
        stream->is_told = stream->is_proven = false;
        stream->has_failed = msdu__part_is_lost(&stream->part, r, stream->why, sizeof(stream->why));
        set_timed(stream, stream->gain.phase == MSDU__GAIN_PLAIN && !stream->is_plain);
    }
    if (msdu__stream_is_teller(stream)) {
        msdu__tell_vote(r, &stream->unmet_told);
    }
}

/* What one rank cannot, none does. */
static void refuse(msdu__stream *stream, const char *why, bool is_own)
{
    stream->is_plain = true;
    if (stream->rank == 0 || is_own) {
        (void)fprintf(stderr,
                      "msdu: rank %d: not attached, all reductions are passed through: "
                      "%s\n",
                      stream->rank, why != NULL && *why != '\0' ? why : "another rank could not");
    }
    if (stream->engine.ctx != NULL) {
        msdu__attach_engine_close(&stream->engine);
    }
}

/* How far ranks' momentum and parameters are apart counts from here on. */
static void tell_begin(msdu__stream *stream)
{
    char text[WHICH_BYTES];
    if (!stream->is_told && msdu__stream_is_teller(stream)) {
        (void)fprintf(stderr,
                      "msdu: gradients recognized: %u reductions a step, %" PRIu64
                      " elements, on a communicator of %d ranks%s; domain %s\n",
                      stream->recognizer.tensor_count, stream->gain.elements, stream->ranks,
                      which(stream, text),
                      stream->engine.is_accumulated ? "accumulated" : "gradient");
    }
    stream->is_told = true;
    msdu__part_tell(&stream->part);
}

/* Steps of the trainer so far, without an engine. */
static uint64_t steps_without(const msdu__stream *stream)
{
    return stream->ended_steps +
           (stream->step_calls - stream->ended_calls) / stream->recognizer.pattern_count;
}

static void begin(msdu__stream *stream)
{
    const msdu__recognizer *r = &stream->recognizer;
    const char *why = refusal(r);
    msdu_status status = MSDU_ERR_UNSUPPORTED;
    bool is_good = msdu__stream_agree(stream, why == NULL);
    if (is_good) {
        if (stream->own == MPI_COMM_NULL) {
            (void)PMPI_Comm_dup(stream->comm, &stream->own);
        }
        status =
            msdu__attach_engine_open(&stream->engine, r, MSDU_MPI_FAMILY,
                                     (int)PMPI_Comm_c2f(stream->comm), stream->rank, stream->ranks);
        why = msdu_last_error();
        is_good = msdu__stream_agree(stream, status == MSDU_OK);
    }
    if (!is_good) {
        refuse(stream, why, status != MSDU_OK);
        return;
    }
    if (stream->engine.is_accumulated && !stream->was_local) {
        stream->was_local = true;
        msdu__stream_hear_of_mates(stream);
    }
    stream->step_length = r->pattern_count;
    stream->engine.steps_before = steps_without(stream);
    tell_begin(stream);
}

/* --- end --- */

/* All ranks see the change at the same call, or one of them reduces something else. */
static bool is_seen_by_all(const msdu__stream *stream)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    /* sooner than the others, who only see that this rank is late */
    uint64_t left_ms = msdu__attach_number("deadline_ms", 60000) / 2;
    MPI_Request request = MPI_REQUEST_NULL;
    int is_done = 0;
    (void)PMPI_Ibarrier(stream->own, &request);
    (void)PMPI_Test(&request, &is_done, MPI_STATUS_IGNORE);
    for (; !is_done && left_ms > 0; left_ms--) {
        (void)nanosleep(&pause, NULL);
        (void)PMPI_Test(&request, &is_done, MPI_STATUS_IGNORE);
    }
    return is_done != 0;
}

static void fail_alone(msdu__stream *stream, const msdu__call *seen)
{
    stream->has_failed = true;
    (void)snprintf(stream->why, sizeof(stream->why),
                   "a reduction of %" PRIu64 " elements came where another was due, and not all "
                   "ranks differ so",
                   seen->count);
}

void msdu__stream_stray(msdu__stream *stream, const msdu__call *seen)
{
    if (!is_seen_by_all(stream)) {
        fail_alone(stream, seen);
        return;
    }
    msdu__stream_suspect(stream, seen->count, seen->kind);
    if (!stream->has_strayed && stream->rank == 0) {
        (void)fprintf(stderr,
                      "msdu: rank 0: the pattern of reductions changed after %" PRIu64
                      " steps: one of %" PRIu64 " elements, and what is like it, is passed "
                      "through; the others go on\n",
                      stream->engine.steps, seen->count);
    }
    stream->has_strayed = true;
}

static void fail_parted(msdu__stream *stream, const char *why)
{
    stream->has_failed = true;
    (void)snprintf(stream->why, sizeof(stream->why),
                   "the pattern of reductions changed, and ranks could not be joined: %s", why);
}

void msdu__stream_join(msdu__stream *stream, msdu__apart *apart, void *sum)
{
    if (msdu__rejoin(&stream->part.optimizer, apart, sum)) {
        msdu__part_joined(&stream->part, apart);
        msdu__apart_free(apart);
    }
}

/* Ranks that took local steps are not equal: what joins them is made ready. All ranks are here. */
static void part(msdu__stream *stream)
{
    msdu__apart *list = NULL;
    msdu_status status = msdu__attach_engine_part(&stream->engine, &list, &stream->part.optimizer);
    if (!msdu__stream_agree(stream, status == MSDU_OK)) {
        fail_parted(stream, status == MSDU_OK ? "another rank failed" : msdu_last_error());
        msdu__apart_free(list);
        list = NULL;
    }
    if (!msdu__part_keep(&stream->part, list, &stream->recognizer, stream->ranks, sum_over_ranks,
                         stream)) {
        fail_parted(stream, "out of memory, or MPI failed");
    }
}

/* In the middle of a step, too. */
static void close_engine(msdu__stream *stream)
{
    msdu_status status = msdu__attach_engine_finish(&stream->engine);
    if (status != MSDU_OK) {
        (void)fprintf(stderr, "msdu: rank %d: %s\n", stream->rank, msdu_last_error());
    }
    msdu__ledger_add(&stream->ledger, stream->engine.ctx);
    msdu__attach_engine_close(&stream->engine);
}

/* Steps of the trainer until the present one, which begins after so many candidates. */
static void count_steps(msdu__stream *stream, uint64_t calls)
{
    stream->ended_steps = msdu__attach_engine_steps(&stream->engine);
    stream->ended_calls = calls;
}

void msdu__stream_break(msdu__stream *stream, const msdu__call *seen)
{
    msdu__recognizer *r = &stream->recognizer;
    msdu__gain_reset(&stream->gain);
    if (stream->engine.ctx == NULL) {
        return;
    }
    if (!is_seen_by_all(stream)) {
        fail_alone(stream, seen);
        return;
    }
    /* a step's gradients of one size were taken for each other before it was seen */
    if (!msdu__stream_agree(stream,
                            !stream->engine.is_accumulated || !msdu__recognize_is_mistaken(r))) {
        fail_parted(stream, "gradients of one size are not in the order that they were in; use "
                            "MSDU_DOMAIN=gradient");
        return;
    }
    part(stream);
    /* the present step begins behind the last one's tensors, or where it began */
    count_steps(stream,
                stream->step_calls + (stream->engine.announced > 0 ? 0 : stream->step_length));
    stream->ledger.breaks++;
    r->tensors_wanted = 0; /* was said of what there is no more */
    const bool is_last = stream->ledger.breaks >= MSDU__BREAKS_MOST;
    if (stream->rank == 0) {
        msdu__tell_break(&stream->engine, seen, is_last);
    }
    close_engine(stream);
    if (is_last) {
        msdu__recognize_close(r);
    }
}

/* --- with or without an engine --- */

/* A phase of measuring ends: on all ranks, before the same step. */
static void decide(msdu__stream *stream)
{
    double own[MSDU__GAIN_NUMBERS];
    double largest[MSDU__GAIN_NUMBERS];
    const msdu__gain_phase before = stream->gain.phase;
    msdu__gain_report(&stream->gain, own);
    if (PMPI_Allreduce(own, largest, MSDU__GAIN_NUMBERS, MPI_DOUBLE, MPI_MAX, stream->comm) !=
        MPI_SUCCESS) {
        stream->is_plain = true;
        return;
    }
    msdu__gain_decide(&stream->gain, largest);
    set_timed(stream, stream->gain.phase == MSDU__GAIN_PLAIN);
    if (msdu__stream_is_teller(stream)) {
        msdu__tell_gain(&stream->gain, before, &stream->recognizer);
    }
}

/* The pattern holds, and what it is good for was measured. */
static void measure(msdu__stream *stream)
{
    msdu__gain *gain = &stream->gain;
    const uint64_t waits = msdu__stream_waits();
    gain->elements = 0;
    for (uint32_t i = 0; i < stream->recognizer.tensor_count; i++) {
        gain->elements += stream->recognizer.tensors[i].count;
    }
    if (msdu__gain_step(gain, msdu__clock_now(), waits - stream->waits_ns)) {
        decide(stream);
        (void)msdu__gain_step(gain, msdu__clock_now(), 0);
    }
    stream->waits_ns = waits;
}

/* Between two steps. */
static void leave(msdu__stream *stream)
{
    part(stream);
    if (msdu__attach_engine_is_over(&stream->engine)) {
        msdu__part_over(&stream->part, &stream->recognizer);
    }
    count_steps(stream, stream->step_calls);
    close_engine(stream);
}

/* Local steps have to wait for a proof; true: they do. */
static bool is_waiting(msdu__stream *stream)
{
    const msdu__recognizer *r = &stream->recognizer;
    if (stream->engine.ctx != NULL || !msdu__attach_engine_is_local() || stream->is_proven) {
        return false;
    }
    const bool is_late = r->total_steps > 0 && steps_without(stream) >= r->total_steps;
    if (is_late || !msdu__recognize_is_proven(r)) {
        if (msdu__stream_is_teller(stream)) {
            msdu__tell_doubt(r, &stream->is_doubt_told);
        }
        return true;
    }
    stream->is_proven = msdu__stream_agree(stream, !msdu__recognize_is_mistaken(r));
    if (!stream->is_proven) {
        msdu__stream_contradict(stream);
    }
    return !stream->is_proven;
}

void msdu__stream_step(msdu__stream *stream)
{
    if (msdu__stream_has_too_many(stream)) {
        return;
    }
    if (stream->is_plain || msdu__attach_engine_is_plain()) {
        stream->is_plain = true;
        return;
    }
    if (is_waiting(stream)) {
        return;
    }
    if (stream->engine.ctx != NULL) {
        msdu__stream_check(stream);
    }
    if (stream->is_plain) {
        leave(stream);
    }
    if (stream->is_plain || stream->has_failed) {
        return;
    }
    measure(stream);
    const bool is_wanted = msdu__gain_wants_engine(&stream->gain);
    if (stream->engine.ctx != NULL && !is_wanted) {
        leave(stream);
    } else if (stream->engine.ctx == NULL && is_wanted) {
        begin(stream);
    }
}

/* --- the end --- */

static void tell(msdu__stream *stream)
{
    static const char *const reasons[MSDU__REASONS_MAX] = {
        "not a sum of float32 or float64",
        "small (MSDU_ATTACH_MIN_BYTES)",
        "denied by a list",
        "while learning, or in no pattern",
        "gradients, exact as they are",
        "gradients that joined the ranks after a change",
        "by calls that are not taken (persistent, or of Fortran without waiting)",
        "gradients, while they were watched"};
    char text[WHICH_BYTES];
    (void)fprintf(stderr,
                  "msdu: communicator of %d ranks%s: %" PRIu64 " reductions taken as gradients\n",
                  stream->ranks, which(stream, text), stream->ledger.taken);
    stream->ledger.steps = stream->ended_steps;
    if (stream->recognizer.pattern_count > 0) {
        stream->ledger.steps +=
            (stream->candidates - stream->ended_calls) / stream->recognizer.pattern_count;
    }
    msdu__tell_ledger(&stream->ledger, &stream->gain, &stream->recognizer, stream->ranks, reasons);
    if (stream->ledger.patterns == 0) {
        msdu__tell_nothing(&stream->recognizer, stream->unmet_told);
    }
}

void msdu__stream_end(msdu__stream *stream)
{
    if (stream->is_left_alone) {
        return;
    }
    const msdu__last_word word = msdu__stream_last_word(stream);
    if (stream->engine.ctx != NULL) {
        close_engine(stream);
    }
    msdu__stream_check_end(stream, &word);
    set_timed(stream, false);
    if (msdu__stream_is_teller(stream) &&
        msdu__ledger_passed(&stream->ledger) + stream->ledger.taken > 0) {
        tell(stream);
    }
    msdu__part_free(&stream->part);
    stream->is_left_alone = true;
}
