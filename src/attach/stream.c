/* SPDX-License-Identifier: Apache-2.0 */
/* Life of a communicator's engine: settings, begin, break, end, and what is told of it. */
#include "attach_mpi.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <msdu/msdu.h>

#include "tell.h"

#define WHICH_BYTES 128

/* What a list can say of it: " (stride=1, comm=MPI_COMM_WORLD)". */
static const char *which(const msdu__stream *stream, char text[WHICH_BYTES])
{
    const msdu__attach_comm *place = &stream->place;
    (void)snprintf(text, WHICH_BYTES, " (stride=%d%s%s)", place->stride,
                   place->name[0] != '\0' ? ", comm=" : "", place->name);
    return text;
}

/* --- begin --- */

/* What one rank cannot do, none does: all are at the same call. */
static bool agree(const msdu__stream *stream, bool is_good)
{
    int mine = is_good ? 1 : 0;
    int all = 0;
    (void)PMPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_MIN, stream->comm);
    return all == 1;
}

static const char *refusal(const msdu__recognizer *r)
{
    int level = 0;
    (void)PMPI_Query_thread(&level);
    if (level != MPI_THREAD_MULTIPLE) {
        return "MPI was initialized without MPI_THREAD_MULTIPLE";
    }
    return msdu__engine_refusal(r);
}

void msdu__stream_begin(msdu__stream *stream)
{
    const msdu__recognizer *r = &stream->recognizer;
    const char *why = refusal(r);
    char text[WHICH_BYTES];
    msdu_status status = MSDU_ERR_UNSUPPORTED;
    if (stream->is_plain || msdu__engine_is_plain()) {
        stream->is_plain = true;
        return;
    }
    if (msdu__part_is_lost(&stream->part, r, stream->why, sizeof(stream->why))) {
        stream->has_failed = true;
        return;
    }
    bool is_good = agree(stream, why == NULL);
    if (is_good) {
        if (stream->own == MPI_COMM_NULL) {
            (void)PMPI_Comm_dup(stream->comm, &stream->own);
        }
        status = msdu__engine_open(&stream->engine, r, MSDU_MPI_FAMILY,
                                   (int)PMPI_Comm_c2f(stream->comm), stream->rank, stream->ranks);
        why = msdu_last_error();
        is_good = agree(stream, status == MSDU_OK);
    }
    if (!is_good) {
        stream->is_plain = true;
        if (stream->rank == 0 || status != MSDU_OK) {
            (void)fprintf(stderr,
                          "msdu: rank %d: not attached, all reductions are passed through: "
                          "%s\n",
                          stream->rank,
                          why != NULL && *why != '\0' ? why : "another rank could not");
        }
        if (stream->engine.ctx != NULL) {
            msdu__engine_close(&stream->engine);
        }
        return;
    }
    /* Ranks that took local steps are joined by the same tensors only, so these are waited for. */
    stream->recognizer.is_patient = stream->engine.is_accumulated;
    stream->recognizer.steps_borne = MSDU__STEPS_BORNE;
    stream->engine.steps_before =
        stream->ended_steps + (stream->learned_calls - stream->ended_calls) / r->pattern_count;
    stream->tensors = r->tensor_count;
    stream->elements = 0;
    for (uint32_t i = 0; i < r->tensor_count; i++) {
        stream->elements += r->tensors[i].count;
    }
    if (stream->rank == 0 && msdu__attach_is_loud()) {
        (void)fprintf(stderr,
                      "msdu: gradients recognized: %u reductions a step, %" PRIu64
                      " elements, on a communicator of %d ranks%s; domain %s\n",
                      r->tensor_count, stream->elements, stream->ranks, which(stream, text),
                      stream->engine.is_accumulated ? "accumulated" : "gradient");
    }
    msdu__part_tell(&stream->part, false);
}

/* --- end --- */

static void keep_summary(msdu__stream *stream)
{
    stream->summary = (msdu_summary)MSDU_SUMMARY_INIT;
    stream->has_summary = msdu_summary_get(stream->engine.ctx, &stream->summary) == MSDU_OK;
}

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
    if (!stream->has_strayed && stream->rank == 0) {
        (void)fprintf(stderr,
                      "msdu: rank 0: the pattern of reductions changed after %" PRIu64
                      " steps: one of %" PRIu64 " elements, and what is like it, is passed "
                      "through; local steps go on for the others\n",
                      stream->engine.steps, seen->count);
    }
    stream->has_strayed = true;
}

static bool sum_over_ranks(void *user, double *values, size_t count)
{
    const msdu__stream *stream = user;
    return PMPI_Allreduce(MPI_IN_PLACE, values, (int)count, MPI_DOUBLE, MPI_SUM, stream->own) ==
           MPI_SUCCESS;
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

void msdu__stream_break(msdu__stream *stream, const msdu__call *seen)
{
    msdu__apart *list = NULL;
    stream->is_plain = false;
    if (stream->engine.ctx == NULL) {
        return;
    }
    if (!is_seen_by_all(stream)) {
        fail_alone(stream, seen);
        return;
    }
    msdu_status status = msdu__engine_part(&stream->engine, &list, &stream->part.optimizer);
    if (!agree(stream, status == MSDU_OK)) {
        fail_parted(stream, status == MSDU_OK ? "another rank failed" : msdu_last_error());
        msdu__apart_free(list);
        list = NULL;
    }
    if (!msdu__part_keep(&stream->part, list, stream->ranks, sum_over_ranks, stream)) {
        fail_parted(stream, "out of memory, or MPI failed");
    }
    /* the present step begins behind the last one's tensors, or where it began */
    stream->ended_steps = stream->engine.steps_before + stream->engine.steps;
    stream->ended_calls =
        stream->step_calls + (stream->engine.announced > 0 ? 0 : stream->engine.count);
    if (stream->rank == 0) {
        msdu__tell_break(&stream->engine, seen);
    }
    status = msdu__engine_finish(&stream->engine);
    if (status != MSDU_OK) {
        (void)fprintf(stderr, "msdu: rank %d: %s\n", stream->rank, msdu_last_error());
    }
    keep_summary(stream);
    msdu__engine_close(&stream->engine);
}

static void tell_passed(const msdu__stream *stream)
{
    static const char *const reasons[MSDU__PASSED_REASONS] = {
        "not a sum of float32 or float64",
        "small (MSDU_ATTACH_MIN_BYTES)",
        "denied by a list",
        "while learning, or in no pattern",
        "gradients, exact as they are",
        "gradients that joined the ranks after a change",
        "by calls that are not taken (of Fortran, without waiting)"};
    msdu__tell_passed(stream->passed, reasons, MSDU__PASSED_REASONS);
}

static void tell(msdu__stream *stream)
{
    char text[WHICH_BYTES];
    (void)fprintf(stderr,
                  "msdu: communicator of %d ranks%s: %" PRIu64 " reductions taken as gradients\n",
                  stream->ranks, which(stream, text), stream->taken);
    if (stream->has_summary) {
        msdu__tell_summary(&stream->summary);
    }
    tell_passed(stream);
    msdu__part_tell(&stream->part, true);
}

void msdu__stream_end(msdu__stream *stream)
{
    uint64_t passed = 0;
    if (stream->engine.ctx != NULL) {
        msdu_status status = msdu__engine_finish(&stream->engine);
        if (status != MSDU_OK) {
            (void)fprintf(stderr, "msdu: rank %d: %s\n", stream->rank, msdu_last_error());
        }
        keep_summary(stream);
        msdu__engine_close(&stream->engine);
    }
    for (int i = 0; i < MSDU__PASSED_REASONS; i++) {
        passed += stream->passed[i];
    }
    if (stream->rank == 0 && !stream->is_left_alone && msdu__attach_is_loud() &&
        passed + stream->taken > 0) {
        tell(stream);
    }
    msdu__part_free(&stream->part);
    stream->is_left_alone = true;
}
