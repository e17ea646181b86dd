/* SPDX-License-Identifier: Apache-2.0 */
/* A job beside its reference: every parameter of every step. */
#include "reference.h"

#include <check.h>
#include <math.h>

/* ck_assert writes to a file whenever it is passed, so it is only reached to fail. */
static void compare(const ranks_self *self, const double *expected, double tolerance)
{
    uint64_t count = ((uint64_t)self->job->steps + 1) * self->elements;
    ck_assert_ptr_nonnull(expected);
    for (uint64_t i = 0; i < count; i++) {
        double far = fabs(self->history[i] - expected[i]);
        if (!(far <= tolerance * (1 + fabs(expected[i])))) {
            ck_abort_msg("rank %d step %llu element %llu: %.17g instead of %.17g", self->rank,
                         (unsigned long long)(i / self->elements),
                         (unsigned long long)(i % self->elements), self->history[i], expected[i]);
        }
    }
}

void ranks_run_well(const ranks_job *job, ranks_run *run)
{
    ck_assert(ranks_go(job, run));
    int failed = ranks_failed(run, job->ranks);
    ck_assert_msg(failed < 0, "rank %d: %s", failed, failed < 0 ? "" : run->selves[failed].text);
}

void reference_check(const ranks_job *job, double tolerance)
{
    ranks_run got;
    reference wanted;
    ranks_run_well(job, &got);
    ck_assert(reference_go(job, got.selves[0].fragment, &wanted));
    for (int rank = 0; rank < job->ranks; rank++) {
        compare(&got.selves[rank], wanted.history[rank], tolerance);
        /* rounding may make the final average needed, or not */
        uint64_t rounds = got.selves[rank].summary.rounds;
        ck_assert_msg(tolerance > 0 || rounds == wanted.rounds, "%llu rounds instead of %llu",
                      (unsigned long long)rounds, (unsigned long long)wanted.rounds);
    }
    reference_free(&wanted);
    ranks_free(&got);
}
