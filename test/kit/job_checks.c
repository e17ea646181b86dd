/* SPDX-License-Identifier: Apache-2.0 */
/* Settings, runs and ends of jobs of real processes. */
#include "job_checks.h"

#include <string.h>

#include "expect.h"
#include "suite.h"

void job_set_modes(job *j, const char *domain, const char *overlap, const char *wire)
{
    job_set(j, JOB_ALL, "MSDU_DOMAIN=%s", domain);
    job_set(j, JOB_ALL, "MSDU_OVERLAP=%s", overlap);
    job_set(j, JOB_ALL, "MSDU_WIRE=%s", wire);
    job_set(j, JOB_ALL, "MSDU_INTERVAL=fixed");
    job_set(j, JOB_ALL, "MSDU_INTERVAL_STEPS=4");
    job_set(j, JOB_ALL, "MSDU_WARMUP_STEPS=0");
    job_set(j, JOB_ALL, "MSDU_SLICE_BYTES=1024");
    job_set(j, JOB_ALL, "MSDU_FUSE_BYTES=256");
}

void job_set_sgd(job *j)
{
    job_set(j, JOB_ALL, "MSDU_OPTIMIZER=sgd");
    job_set(j, JOB_ALL, "MSDU_LR=0.125");
    job_set(j, JOB_ALL, "MSDU_MOMENTUM=0.5");
}

void job_set_fragments(job *j)
{
    job_set_sgd(j);
    job_set(j, JOB_ALL, "MSDU_INTERVAL_STEPS=3");
    job_set(j, JOB_ALL, "MSDU_WARMUP_STEPS=2");
    job_set(j, JOB_ALL, "MSDU_FRAGMENTS=3");
    job_set(j, JOB_ALL, "MSDU_WIRE_BLOCK=64");
}

void job_set_threads(job *j, int ranks)
{
    job_set(j, 0, "MSDU_RANKS=");
    job_set(j, 0, "MSDU_RANK=");
    job_argument(j, 0, "threads=%d", ranks);
}

void job_run(job *j, int limit_ms)
{
    ck_assert(job_start(j, JOB_ALL));
    ck_assert(job_wait(j, JOB_ALL, limit_ms));
}

static void check_status(const job *j, int process, int rank, const char *wanted)
{
    const char *status = job_value(j, process, rank, "status");
    ck_assert_msg(strcmp(status, wanted) == 0, "rank %d: %s instead of %s:\n%s", rank, status,
                  wanted, j->ranks[process].text);
}

void job_check_ok(const job *j, int process, int rank)
{
    check_status(j, process, rank, "MSDU_OK");
}

void job_check_failed(const job *j, int process, int rank, const char *status, const char *words)
{
    ck_assert_msg(job_exited(j, process, 0), "rank %d: ended badly:\n%s", rank,
                  j->ranks[process].text);
    check_status(j, process, rank, status);
    expect_words(job_value(j, process, rank, "error"), words);
    ck_assert_str_eq(job_value(j, process, rank, "lines"), "1");
}

int job_suite_run(Suite *suite)
{
    if (!job_is_possible()) {
        srunner_free(srunner_create(suite));
        return 77;
    }
    return suite_run(suite);
}
