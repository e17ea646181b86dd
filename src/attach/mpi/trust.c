/* SPDX-License-Identifier: Apache-2.0 */
/* Is what was taken for a step one? What ranks ask each other about it, and how a job ends that
 * was mistaken under local steps: by an error, because what they did cannot be undone. */
#include "attach_mpi.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include <msdu/msdu.h>

#include "attach/early_end.h"
#include "attach/report.h"
#include "base/clock.h"

#define HEARD_NS UINT64_C(300000000) /* a line's way through a launcher, on a busy machine */

static MPI_Comm quiet_comm(const msdu__stream *stream)
{
    return stream->own != MPI_COMM_NULL ? stream->own : stream->comm;
}

bool msdu__stream_is_teller(const msdu__stream *stream)
{
    return stream->rank == 0 && msdu__attach_is_loud();
}

/* Who is at its end asks last, and others may be at a step still. */
static bool ask(msdu__stream *stream, bool is_good, bool is_end)
{
    const int mine[2] = {is_good ? 1 : 0, is_end ? 0 : 1};
    int all[2] = {0};
    (void)PMPI_Allreduce(mine, all, 2, MPI_INT, MPI_MIN, quiet_comm(stream));
    stream->is_deserted = stream->is_deserted || all[1] < mine[1];
    return all[0] == 1 && all[1] == mine[1];
}

bool msdu__stream_agree(msdu__stream *stream, bool is_good)
{
    return ask(stream, is_good, false);
}

bool msdu__stream_is_equal(const msdu__stream *stream, uint64_t number)
{
    const uint64_t own[2] = {number, ~number};
    uint64_t largest[2] = {0};
    return PMPI_Allreduce(own, largest, 2, MPI_UINT64_T, MPI_MAX, quiet_comm(stream)) ==
               MPI_SUCCESS &&
           largest[0] == ~largest[1];
}

bool msdu__stream_is_local(const msdu__stream *stream)
{
    return stream->engine.ctx != NULL && stream->engine.is_accumulated;
}

static void fail(msdu__stream *stream, const char *why)
{
    stream->has_failed = true;
    (void)snprintf(stream->why, sizeof(stream->why), "%s before step %" PRIu64,
                   stream->is_deserted ? "another rank ended its training" : why,
                   stream->step_calls / (stream->step_length > 0 ? stream->step_length : 1) + 1);
}

/* Launchers drop what a rank just wrote if another one ends the job: MPICH's did in 3 of 30. */
void msdu__stream_tell_failure(msdu__stream *stream, const char *why)
{
    (void)fprintf(stderr, "msdu: rank %d: %s\n", stream->rank, why);
    if (!stream->is_failure_told) {
        stream->is_failure_told = true;
        const struct timespec span = msdu__clock_spec(HEARD_NS);
        (void)nanosleep(&span, NULL);
    }
}

/* What was given out, or parameters where all were said to be equal, must be so on all ranks. */
static void guard(msdu__stream *stream, bool is_guarded)
{
    const msdu__attach_engine *engine = &stream->engine;
    const bool is_promised = engine->guard_steps > 0 && engine->has_promised && engine->steps > 0;
    if (!engine->is_accumulated && is_guarded && !msdu__stream_is_equal(stream, engine->given)) {
        fail(stream, "MSDU_ATTACH_GUARD: ranks were given different sums");
    } else if (is_promised &&
               !msdu__stream_agree(stream, msdu__attach_engine_has_met(&stream->engine))) {
        fail(stream, "MSDU_ATTACH_GUARD: ranks differ behind a synchronization");
    }
}

/* Local steps on what is two parameters. */
static void fail_contradicted(msdu__stream *stream)
{
    fail(stream, "under local steps gradients of one size came in another order, or from other "
                 "memory: ranks have moved apart; use MSDU_DOMAIN=gradient; seen");
}

/* What was taken for a parameter is two of them, as memory says on some rank. */
void msdu__stream_contradict(msdu__stream *stream)
{
    if (msdu__stream_is_local(stream)) {
        fail_contradicted(stream);
        return;
    }
    stream->is_plain = true;
    if (msdu__stream_is_teller(stream)) {
        msdu__tell_contradiction(&stream->recognizer, stream->engine.ctx != NULL);
    }
}

/* Parameters are equal behind the trainer's last step. What else comes, such as an average, is the
 * trainer's own. */
static void end_local(msdu__stream *stream)
{
    if (!msdu__stream_agree(stream, msdu__attach_engine_has_met(&stream->engine))) {
        fail(stream, "ranks differ behind the last step");
        return;
    }
    stream->is_plain = true;
    if (msdu__stream_is_teller(stream)) {
        (void)fprintf(stderr,
                      "msdu: all %" PRIu64
                      " steps of MSDU_TOTAL_STEPS were made: what comes now is "
                      "passed through\n",
                      stream->recognizer.total_steps);
    }
}

bool msdu__stream_has_too_many(msdu__stream *stream)
{
    const msdu__recognizer *r = &stream->recognizer;
    if (!stream->was_local || stream->has_failed || !msdu__recognize_is_exceeded(r)) {
        return stream->has_failed;
    }
    stream->has_failed = true;
    (void)snprintf(stream->why, sizeof(stream->why),
                   "%" PRIu64 " steps came, MSDU_TOTAL_STEPS is %" PRIu64
                   ": the number is wrong, or what was taken for a step is a part of one, and "
                   "local steps made ranks differ; use MSDU_DOMAIN=gradient, or say "
                   "MSDU_ATTACH_TENSORS",
                   msdu__recognize_steps(r), r->total_steps);
    return true;
}

void msdu__stream_check(msdu__stream *stream)
{
    const msdu__recognizer *r = &stream->recognizer;
    (void)msdu__attach_engine_settle(&stream->engine); /* told by the next call */
    const bool is_guarded = msdu__attach_engine_is_guarded(&stream->engine);
    const bool is_due = is_guarded || msdu__recognize_is_due(r, stream->engine.steps,
                                                             stream->engine.is_accumulated);
    const bool is_over = msdu__attach_engine_is_over(&stream->engine);
    const bool is_wrong = is_over                         ? msdu__recognize_was_mistaken(r)
                          : stream->engine.is_accumulated ? msdu__recognize_is_mistaken(r)
                                                          : msdu__recognize_is_contradicted(r);
    if (is_due && !msdu__stream_agree(stream, !is_wrong)) {
        msdu__stream_contradict(stream);
        return;
    }
    guard(stream, is_guarded);
    if (!stream->has_failed && is_over) {
        end_local(stream);
    }
}

void msdu__stream_suspect(msdu__stream *stream, uint64_t count, int32_t kind)
{
    const msdu__attach_engine *engine = &stream->engine;
    const bool is_equal = engine->has_promised && engine->announced == 0;
    uint64_t all = 0;
    bool is_one = false;
    for (uint32_t i = 0; msdu__stream_is_local(stream) && !is_equal && i < engine->count; i++) {
        all += engine->grads[i].count;
        is_one = is_one || (engine->grads[i].count == count && engine->grads[i].kind == kind);
    }
    stream->is_overwritten = stream->is_overwritten || is_one || (all > 0 && all == count);
}

void msdu__stream_hear_of_mates(msdu__stream *stream)
{
    const msdu__mate own = msdu__early_self();
    msdu__mate *all = calloc((size_t)stream->ranks, sizeof(*all));
    if (msdu__stream_agree(stream, all != NULL) &&
        PMPI_Gather(&own, 2, MPI_UINT64_T, all, 2, MPI_UINT64_T, 0, quiet_comm(stream)) ==
            MPI_SUCCESS &&
        stream->rank == 0) {
        msdu__early_wait_for(all, (size_t)stream->ranks);
    }
    free(all);
}

/* The engine of local steps is gone. */
static void tell_left(const msdu__stream *stream)
{
    const msdu__recognizer *r = &stream->recognizer;
    uint64_t most = 0;
    if (stream->was_local && stream->rank == 0 && !stream->has_failed &&
        msdu__early_is_left(r, stream->ended_steps, stream->candidates - stream->ended_calls,
                            &most)) {
        msdu__early_tell("at most ", most, r->total_steps);
    }
}

/* What the end does not show: local steps were right only if these were what they seemed to be. */
static void tell_unsure(msdu__stream *stream)
{
    const msdu__recognizer *r = &stream->recognizer;
    char why[512];
    const bool is_overwritten = !ask(stream, !stream->is_overwritten, true);
    const bool is_apart = !ask(stream, !msdu__part_differs(&stream->part), true);
    const bool is_longer = r->doubt <= MSDU__DOUBT_SAID && !r->has_twins && r->total_steps > 0 &&
                           msdu__recognize_steps(r) > r->total_steps;
    if (stream->rank != 0) {
        return;
    }
    if (is_overwritten) {
        msdu__early_fail(
            "between local steps values came to all ranks of which there are as many as of a "
            "gradient or of all: if they became parameters, ranks differ; let ranks synchronize "
            "before (msdu_attach_sync_after_step(), MSDU_ATTACH_EQUAL_STEPS), or use "
            "MSDU_DOMAIN=gradient");
    }
    if (is_apart) {
        msdu__part_fail(&stream->part);
    }
    if (is_longer) {
        (void)snprintf(why, sizeof(why),
                       "what looks like a step came %" PRIu64 " times, MSDU_TOTAL_STEPS is %" PRIu64
                       ": an average of parameters may have been taken for one, which only memory "
                       "would tell, and then ranks differ; reduce each gradient from memory of "
                       "its own, or use MSDU_DOMAIN=gradient",
                       msdu__recognize_steps(r), r->total_steps);
        msdu__early_fail(why);
    }
}

msdu__last_word msdu__stream_last_word(msdu__stream *stream)
{
    msdu__last_word word = {.is_local = msdu__stream_is_local(stream)};
    if (word.is_local) {
        word.is_over = msdu__attach_engine_is_over(&stream->engine);
        word.has_met = msdu__attach_engine_has_met(&stream->engine);
        word.is_early = !word.has_met || msdu__attach_engine_is_early(&stream->engine);
        word.steps = msdu__attach_engine_steps(&stream->engine);
    }
    return word;
}

void msdu__stream_check_end(msdu__stream *stream, const msdu__last_word *word)
{
    const bool is_done = msdu__stream_has_too_many(stream) || !word->is_local;
    if (!is_done && !ask(stream, !msdu__recognize_is_mistaken(&stream->recognizer), true)) {
        fail_contradicted(stream);
    } else if (!is_done && word->is_over && !ask(stream, word->has_met, true)) {
        fail(stream, "ranks differ behind the last step");
    } else if (!is_done && !word->is_over && !ask(stream, !word->is_early, true) &&
               stream->rank == 0) {
        msdu__early_tell("", word->steps, stream->recognizer.total_steps);
    } else if (!word->is_local) {
        tell_left(stream);
    }
    if (stream->was_local && !stream->has_failed) {
        tell_unsure(stream);
    }
    if (stream->has_failed) {
        msdu__stream_tell_failure(stream, stream->why);
        (void)PMPI_Abort(stream->comm, 1); /* the end itself has no error that anybody looks at */
    }
}
