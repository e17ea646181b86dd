/* SPDX-License-Identifier: Apache-2.0 */
/* Which ranks take turns on cores, and what of a wait left a core idle. */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/cores.h"
#include "suite.h"

#define MORE 8 /* ranks, more than cores; those of other hosts */

static msdu__job job;
static msdu__engine engine = {.job = &job};

/* `ranks` of this host in `processes`, then some of another. */
static double share(int32_t ranks, int32_t processes)
{
    msdu__place_name *names = calloc((size_t)ranks + MORE, sizeof(*names));

    ck_assert_ptr_nonnull(names);
    for (int32_t i = 0; i < ranks + MORE; i++) {
        names[i].host = i < ranks ? 7 : 9;
        names[i].process = (uint64_t)(i % processes);
    }
    job.ranks = ranks + MORE;
    job.clock = msdu__clock_monotonic;
    msdu__cores_count(&engine, names);
    free(names);
    return job.core_share;
}

START_TEST(only_ranks_of_a_host_that_outnumber_its_cores_share_them)
{
    int32_t cores = (int32_t)sysconf(_SC_NPROCESSORS_ONLN);

    ck_assert_double_eq(share(cores, cores), 0);
    ck_assert_double_eq(share(2 * cores, 2 * cores), 0.5);
    ck_assert_double_eq(share(cores + 1, 1), cores); /* as threads of one process */
}
END_TEST

/* `more` ranks are elsewhere, `apart` ones in other network namespaces. */
static double local_ns(int32_t more, int32_t apart)
{
    msdu__place_name names[4] = {{.host = 0}};

    for (int32_t i = 0; i < 4; i++) {
        names[i] = (msdu__place_name){
            .host = i < 4 - more ? 7 : 9, .process = (uint64_t)i, .network = i < 4 - apart ? 5 : 6};
    }
    job.ranks = 4;
    msdu__cores_count(&engine, names);
    ck_assert((job.interval_args.local_ns > 0) == (job.interval_args.local_byte_ns > 0));
    return job.interval_args.local_ns;
}

START_TEST(all_ranks_of_one_host_have_no_network)
{
    ck_assert_double_eq(local_ns(1, 0), 0);
    ck_assert_double_gt(local_ns(0, 0), 0);
    ck_assert_double_eq(local_ns(3, 0), 0);
    ck_assert_double_eq(local_ns(0, 1), 0); /* a link between them may be as slow as any */
}
END_TEST

START_TEST(a_host_without_a_name_tells_nothing)
{
    msdu__place_name names[1024] = {{0}};

    job.ranks = 1024;
    job.clock = msdu__clock_monotonic;
    msdu__cores_count(&engine, names);
    ck_assert_double_eq(job.core_share, 0);
}
END_TEST

START_TEST(a_process_has_one_name_and_its_host_is_known)
{
    msdu__place_name first = msdu__cores_name();
    msdu__place_name again = msdu__cores_name();

    ck_assert_uint_ne(first.host, 0);
    ck_assert_uint_eq(first.host, again.host);
    ck_assert_uint_eq(first.process, again.process);
}
END_TEST

START_TEST(a_stolen_core_halts_the_ranks_on_the_others_too)
{
    ck_assert_double_eq(msdu__cores_halted_ns(2, 1e9, 0), 0);
    ck_assert_double_eq_tol(msdu__cores_halted_ns(1, 1e9, 3e8), 3e8, 1);
    ck_assert_double_eq_tol(msdu__cores_halted_ns(2, 1e9, 1e9), 7.5e8, 1); /* half of each */
    ck_assert_double_eq(msdu__cores_halted_ns(2, 1e9, 3e9), 1e9);          /* ticks are coarse */
}
END_TEST

static void *compute(void *unused)
{
    uint64_t began = msdu__cores_thread_ns();

    (void)unused;
    while (msdu__cores_thread_ns() - began < 2000000) {
    }
    return NULL;
}

START_TEST(a_wait_counts_as_far_as_cores_were_idle)
{
    const double hour = 3.6e12;
    msdu__fragment f = {0};
    pthread_t thread;

    job.clock = msdu__clock_monotonic;
    job.core_share = 0; /* cores of one's own */
    ck_assert_double_eq(msdu__cores_alone(&engine, &f, hour), hour);

    job.cores = 1;
    job.core_share = 1e9; /* of so many cores one is always idle: as long as time went by */
    ck_assert_double_eq(msdu__cores_alone(&engine, &f, hour), hour); /* since when is not known */
    ck_assert_double_lt(msdu__cores_alone(&engine, &f, hour), hour);
    ck_assert_double_eq(msdu__cores_alone(&engine, &f, 1), 1);

    job.core_share = 1e-9; /* and of so few none, whatever it was */
    (void)msdu__cores_alone(&engine, &f, hour);
    ck_assert_int_eq(pthread_create(&thread, NULL, compute, NULL), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_double_eq(msdu__cores_alone(&engine, &f, hour), 0);
}
END_TEST

START_TEST(ranks_that_may_use_the_same_cores_are_a_crowd)
{
    msdu__place_name names[5] = {{.host = 7, .process = 1, .cores = 3, .count = 2.5},
                                 {.host = 7, .process = 1, .cores = 3, .count = 2.5},
                                 {.host = 7, .process = 2, .cores = 3, .count = 2.5},
                                 {.host = 7, .process = 3, .cores = 4, .count = 2},
                                 {.host = 9, .process = 4, .cores = 3, .count = 2}};

    job.ranks = 5;
    job.rank = 2;
    msdu__cores_count(&engine, names);
    ck_assert_int_eq(job.crowd.ranks, 3);
    ck_assert_int_eq(job.crowd.processes, 2);
    ck_assert_double_eq(job.crowd.cores, 2.5);
    job.rank = 3; /* pinned to others */
    msdu__cores_count(&engine, names);
    ck_assert_int_eq(job.crowd.ranks, 1);
    names[3].host = 0; /* not known */
    msdu__cores_count(&engine, names);
    ck_assert_int_eq(job.crowd.ranks, 0);
    job.rank = 0;
}
END_TEST

START_TEST(the_cores_of_a_process_are_those_it_may_use)
{
    cpu_set_t set;

    ck_assert_int_eq(sched_getaffinity(0, sizeof(set), &set), 0);
    ck_assert_double_gt(msdu__cores_name().count, 0);
    ck_assert_double_le(msdu__cores_name().count, CPU_COUNT(&set));
    ck_assert_uint_eq(msdu__cores_name().cores, msdu__cores_name().cores);
}
END_TEST

/* Computing in another thread keeps one core busy: of one nothing is left, of many enough. */
START_TEST(what_computes_leaves_no_core_for_coding)
{
    for (int cores = 1; cores <= 64; cores *= 8) {
        msdu__fragment f = {0};
        pthread_t thread;

        job.clock = msdu__clock_monotonic;
        job.crowd = (msdu__crowd){.ranks = 1, .processes = 1, .cores = cores};
        ck_assert_double_eq(msdu__cores_taken(&engine, &f, 0), 0); /* since when is not known */
        ck_assert_int_eq(pthread_create(&thread, NULL, compute, NULL), 0);
        ck_assert_int_eq(pthread_join(thread, NULL), 0);
        double share = msdu__cores_taken(&engine, &f, 0);
        ck_assert(cores == 1 ? share > 0 && share <= 1 : share == 0);
        ck_assert_double_eq(msdu__cores_taken(&engine, &f, 1e15), share); /* it only waited */
    }
    msdu__fragment f = {.last = {.taken = {.told_ns = 1, .share = 1}}};
    job.crowd.cores = 1e-9;
    ck_assert_double_gt(msdu__cores_taken(&engine, &f, 0), 0);
    static const msdu_device device;
    job.device = &device; /* it codes by itself */
    ck_assert_double_eq(msdu__cores_taken(&engine, &f, 0), 0);
    job.device = NULL;
    job.crowd = (msdu__crowd){.ranks = 0};
}
END_TEST

static cpu_set_t pinned;
static pthread_barrier_t together;

static void *compute_pinned(void *queued_out)
{
    uint64_t began = msdu__cores_thread_ns();

    (void)sched_setaffinity(0, sizeof(pinned), &pinned);
    pthread_barrier_wait(&together);
    while (msdu__cores_thread_ns() - began < 40000000) {
    }
    *(uint64_t *)queued_out = msdu__cores_queued_ns();
    return NULL;
}

/* Two threads that compute on one core: one at least is ready while the other runs. */
START_TEST(a_thread_without_a_core_is_queued)
{
    uint64_t queued[2] = {0};
    pthread_t threads[2];

    if (access("/proc/thread-self/schedstat", R_OK) != 0) {
        return;
    }
    CPU_ZERO(&pinned);
    CPU_SET((size_t)sched_getcpu(), &pinned);
    pthread_barrier_init(&together, NULL, 2);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(pthread_create(&threads[i], NULL, compute_pinned, &queued[i]), 0);
    }
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    }
    pthread_barrier_destroy(&together);
    ck_assert_uint_gt(queued[0] + queued[1], 1000000);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cores");
    TCase *tcase = suite_case(suite, "cores", 0, NULL, NULL);

    tcase_add_test(tcase, only_ranks_of_a_host_that_outnumber_its_cores_share_them);
    tcase_add_test(tcase, all_ranks_of_one_host_have_no_network);
    tcase_add_test(tcase, a_host_without_a_name_tells_nothing);
    tcase_add_test(tcase, a_process_has_one_name_and_its_host_is_known);
    tcase_add_test(tcase, a_stolen_core_halts_the_ranks_on_the_others_too);
    tcase_add_test(tcase, a_wait_counts_as_far_as_cores_were_idle);
    tcase_add_test(tcase, ranks_that_may_use_the_same_cores_are_a_crowd);
    tcase_add_test(tcase, the_cores_of_a_process_are_those_it_may_use);
    tcase_add_test(tcase, what_computes_leaves_no_core_for_coding);
    tcase_add_test(tcase, a_thread_without_a_core_is_queued);
    return suite_run(suite);
}
