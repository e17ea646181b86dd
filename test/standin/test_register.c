/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that the module nccl registers: used by what is narrow, taken back, and freed once,
 * however a job ends. The stand-in counts what breaks NCCL's rules. With STANDIN_IS_OLD=1 over one
 * that has nothing to register with.
 */
#include <check.h>
#include <dlfcn.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include <nccl.h>

#include "ranks.h"
#include "suite.h"

static const ranks_tensor model[] = {
    {.count = 3000}, {.count = 40}, {.count = 900, .dtype = MSDU_BFLOAT16}};

static bool is_old(void)
{
    return getenv("STANDIN_IS_OLD") != NULL;
}

static ranks_job job_of(int ranks, const char *domain, const char *wire)
{
    return (ranks_job){
        .ranks = ranks,
        .steps = 10,
        .tensors = model,
        .tensor_count = sizeof(model) / sizeof(model[0]),
        .config = {.domain = domain,
                   .interval = "fixed",
                   .interval_steps = 2,
                   .wire = wire,
                   .slice_bytes = 4096,
                   .fuse_bytes = 1024,
                   .wire_block = 64,
                   .lr = 0.05},
    };
}

/* Nothing is left, and no rule was broken; operations by registered memory. */
static int used_by(const ranks_job *job, bool is_well)
{
    ranks_run run;
    int before = standin_registered_now().operations;
    ck_assert(ranks_go(job, &run));
    int failed = ranks_failed(&run, job->ranks);
    ck_assert_msg((failed < 0) == is_well, "%s", failed < 0 ? "" : run.selves[failed].text);
    ranks_free(&run);
    standin_registered now = standin_registered_now();
    ck_assert_int_eq(now.faults, 0);
    ck_assert_int_eq(now.handles, 0);
    ck_assert(now.abandoned == 0 || !is_well);
    ck_assert_int_eq(now.memories, 0);
    return now.operations - before;
}

START_TEST(narrow_slices_travel_by_registered_memory)
{
    static const char *const domains[] = {"gradient", "parameter"};
    ranks_job job = job_of(3, domains[_i], "int4");
    int used = used_by(&job, true);
    ck_assert_msg(is_old() ? used == 0 : used > 100, "%d operations", used);
}
END_TEST

static const ranks_tensor floats[] = {{.count = 3000}, {.count = 40}};

START_TEST(whole_slices_and_single_ranks_have_no_use_for_it)
{
    ranks_job job = job_of(_i == 0 ? 1 : 3, "gradient", _i == 0 ? "int4" : "float32");
    job.tensors = floats;
    job.tensor_count = 2;
    ck_assert_int_eq(used_by(&job, true), 0);
}
END_TEST

static void spoil(ranks_self *self, int step, uint32_t tensor)
{
    if (self->rank == 1 && step == 4 && tensor == 0) {
        ((float *)self->gradient[0])[7] = (float)NAN;
    }
}

/* All ranks leave in the middle of things. */
START_TEST(a_job_that_fails_leaves_nothing_registered)
{
    ranks_job job = job_of(3, "gradient", "int4");
    job.computed = spoil;
    job.config.deadline_ms = 3600000; /* nobody waits for that */
    (void)used_by(&job, false);
}
END_TEST

int main(void)
{
    if (is_old() && dlsym(RTLD_DEFAULT, "ncclCommRegister") != NULL) {
        puts("skipped: this linker's paths do not let LD_LIBRARY_PATH choose the older library");
        return 77;
    }
    Suite *suite = suite_create("device_register");
    TCase *tcase = suite_case(suite, "register", 60, NULL, NULL);
    tcase_add_loop_test(tcase, narrow_slices_travel_by_registered_memory, 0, 2);
    tcase_add_loop_test(tcase, whole_slices_and_single_ranks_have_no_use_for_it, 0, 2);
    tcase_add_test(tcase, a_job_that_fails_leaves_nothing_registered);
    return suite_run(suite);
}
