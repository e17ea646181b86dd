/* SPDX-License-Identifier: Apache-2.0 */
/* A job beside its reference: every parameter of every step. */
#include "reference.h"

#include <check.h>
#include <math.h>
#include <string.h>

#include "expect.h"

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

void ranks_run_badly(const ranks_job *job, msdu_status status, const char *words)
{
    ranks_run run;
    ck_assert(ranks_go(job, &run));
    for (int rank = 0; rank < job->ranks; rank++) {
        const ranks_self *self = &run.selves[rank];
        ck_assert_msg(self->status == status, "rank %d: %s: %s", rank,
                      msdu_status_name(self->status), self->text);
        expect_words(self->text, words);
    }
    ranks_free(&run);
}

void ranks_check_alike(const ranks_run *run, int first, int last)
{
    const ranks_self *self = &run->selves[0];
    size_t bytes = (size_t)(last - first + 1) * self->elements * sizeof(double);
    for (int rank = 1; rank < self->job->ranks; rank++) {
        ck_assert(memcmp(ranks_row(self, first), ranks_row(&run->selves[rank], first), bytes) == 0);
    }
}

double ranks_far_from_float32(const ranks_job *job, int first)
{
    ranks_run exact;
    ranks_run narrow;
    ranks_job wide = *job;
    double sum = 0;
    wide.config.wire = "float32";
    ranks_run_well(&wide, &exact);
    ranks_run_well(job, &narrow);
    ranks_check_alike(&narrow, first, job->steps);
    uint64_t elements = ranks_elements(job);
    for (uint64_t i = 0; i < elements; i++) {
        double far = ranks_row(&narrow.selves[0], job->steps)[i] -
                     ranks_row(&exact.selves[0], job->steps)[i];
        sum += far * far;
    }
    ck_assert(sum > 0); /* the wire was used */
    ranks_free(&exact);
    ranks_free(&narrow);
    return sqrt(sum / (double)elements);
}

double ranks_led_to(const ranks_job *job, int steps, uint64_t at)
{
    double sum = 0;
    double weights = 0;
    for (int rank = 0; rank < job->ranks; rank++) {
        double weight = ranks_weight(job, rank, 0);
        sum += weight * ranks_gradient(job, rank, 0, MSDU_FLOAT32, at, 0);
        weights += weight;
    }
    return ranks_initial(job, 0, MSDU_FLOAT32, at) - steps * job->config.lr * sum / weights;
}

double ranks_lost_at_end(const ranks_job *job)
{
    ranks_run run;
    double worst = 0;
    ranks_run_well(job, &run);
    ranks_check_alike(&run, job->steps, job->steps);
    for (uint64_t i = 0; i < run.selves[0].elements; i++) {
        double wanted = ranks_led_to(job, job->steps, i);
        worst = fmax(worst, fabs(ranks_row(&run.selves[0], job->steps)[i] - wanted));
    }
    ranks_free(&run);
    return worst;
}
