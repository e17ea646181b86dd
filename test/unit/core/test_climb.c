/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Setting uneven = auto with ranks that are threads, over the backend "local": plain training until
 * too much is waited for a slow rank, then rounds by the clock, on all ranks after the same step.
 * Time is virtual. It moves when every thread sleeps, so a busy machine makes nobody slow.
 */
#include <check.h>
#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "api/context.h"
#include "pause.h"
#include "suite.h"

#define RANKS    4
#define COUNT    64
#define FAST_NS  2000000
#define SECOND   1000000000ULL
#define LIMIT_NS (20 * SECOND)
#define AFTER    40 /* steps of the slow rank by the clock */
#define QUANTUM  FAST_NS

typedef struct rank {
    msdu_ctx *ctx;
    int index;
    msdu_status status;
    char error[512];
    float parameter[COUNT];
    float gradient[COUNT];
    float statistics[3]; /* a buffer, which differs between ranks */
    double bowl;         /* gradients lead to it */
    uint64_t end_ns;     /* of what it computes; 0: nothing */
    bool is_started, is_over;
    uint64_t entered_ns;
    uint64_t entered; /* step after which rounds were by the clock */
    uint64_t steps;
    uint64_t seen_common; /* after the last step */
    char lines[4096];     /* of the log */
} rank;

/* As a checkpoint has it. */
typedef struct saved {
    unsigned char state[16384];
    size_t bytes;
    float parameter[COUNT];
    float statistics[3];
    uint64_t steps;
} saved;

typedef struct job {
    rank ranks[RANKS];
    const char *settings;
    uint64_t (*step_ns)(int index, uint64_t step);
    bool has_gradients;
    uint64_t steps; /* of the slow rank; the others take as long */
    bool does_save; /* at the end */
    bool does_load;
    saved saved[RANKS];
    pthread_mutex_t lock;
    pthread_cond_t moved; /* time has */
} job;

static job the_job = {
    .has_gradients = true, .lock = PTHREAD_MUTEX_INITIALIZER, .moved = PTHREAD_COND_INITIALIZER};

/* --- virtual time --- */

static _Atomic uint64_t virtual_ns;

static uint64_t now_ns(void)
{
    return atomic_load(&virtual_ns);
}

static uint64_t virtual_clock(void *user)
{
    (void)user;
    return now_ns();
}

static void compute(rank *r, uint64_t ns)
{
    (void)pthread_mutex_lock(&the_job.lock);
    r->end_ns = now_ns() + ns;
    while (now_ns() < r->end_ns) {
        (void)pthread_cond_wait(&the_job.moved, &the_job.lock);
    }
    r->end_ns = 0;
    (void)pthread_mutex_unlock(&the_job.lock);
}

/* How often the other threads of this process went to sleep. */
static long sleeps(void)
{
    struct rusage all;
    struct rusage own;
    (void)getrusage(RUSAGE_THREAD, &own);
    (void)getrusage(RUSAGE_SELF, &all);
    return all.ru_nvcsw - own.ru_nvcsw;
}

static bool is_asleep(const char *thread)
{
    char path[64];
    char text[512] = "";
    (void)snprintf(path, sizeof(path), "/proc/self/task/%.20s/stat", thread);
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        return true; /* it has ended */
    }
    text[fread(text, 1, sizeof(text) - 1, file)] = '\0';
    (void)fclose(file);
    const char *name_end = strrchr(text, ')');
    return name_end == NULL || strncmp(name_end, ") S", 3) == 0;
}

/* Does every other thread sleep? A thread that was woken is awake to the kernel, run or not. */
static bool is_quiet(void)
{
    bool is_quiet = true;
    long before = sleeps();
    long own = syscall(SYS_gettid);
    DIR *threads = opendir("/proc/self/task");
    ck_assert_ptr_nonnull(threads);
    for (struct dirent *one = readdir(threads); one != NULL; one = readdir(threads)) {
        long thread = strtol(one->d_name, NULL, 10);
        is_quiet = is_quiet && (thread == 0 || thread == own || is_asleep(one->d_name));
    }
    (void)closedir(threads);
    return is_quiet && sleeps() == before;
}

/* Move time; true once all ranks are over. */
static bool move_time(void)
{
    int over = 0;
    bool is_any_due = false;
    (void)pthread_mutex_lock(&the_job.lock);
    uint64_t now = atomic_fetch_add(&virtual_ns, QUANTUM) + QUANTUM;
    for (int i = 0; i < RANKS; i++) {
        rank *r = &the_job.ranks[i];
        is_any_due = is_any_due || (r->end_ns > 0 && r->end_ns <= now);
        over += r->is_over ? 1 : 0;
        if (r->is_started && !r->is_over) {
            msdu__worker_kick(&r->ctx->hand.worker);
        }
    }
    if (is_any_due) {
        (void)pthread_cond_broadcast(&the_job.moved);
    }
    (void)pthread_mutex_unlock(&the_job.lock);
    return over == RANKS;
}

static void drive(void)
{
    do {
        for (int quiet = 0; quiet < 2;) { /* once more: a thread may be on its way to sleep */
            quiet = is_quiet() ? quiet + 1 : 0;
            if (quiet == 0) {
                pause_us(20);
            }
        }
    } while (!move_time());
}

static void note(bool *what)
{
    (void)pthread_mutex_lock(&the_job.lock);
    *what = true;
    (void)pthread_mutex_unlock(&the_job.lock);
}

/* --- ranks --- */

static void keep_line(void *user, msdu_log_level level, const char *text)
{
    rank *r = user;
    (void)pthread_mutex_lock(&the_job.lock);
    size_t used = strlen(r->lines);
    (void)snprintf(r->lines + used, sizeof(r->lines) - used, "%s%s\n",
                   level == MSDU_LOG_WARN ? "warn: " : "", text);
    (void)pthread_mutex_unlock(&the_job.lock);
}

static msdu_status start(rank *r)
{
    msdu_config config = MSDU_CONFIG_INIT;
    config.ranks = RANKS;
    config.rank = r->index;
    config.backend = "local";
    config.job = "climb";
    config.settings = the_job.settings;
    config.log = keep_line;
    config.log_user = r;
    config.log_level = MSDU_LOG_INFO;
    msdu_status status = msdu_create(&config, &r->ctx);
    if (status != MSDU_OK) {
        return status;
    }
    r->ctx->job.clock = virtual_clock;
    msdu_tensor_desc desc = MSDU_TENSOR_INIT;
    desc.name = "w";
    desc.parameter = r->parameter;
    desc.gradient = the_job.has_gradients ? r->gradient : NULL;
    desc.count = COUNT;
    status = msdu_tensor_add(r->ctx, &desc, NULL);
    desc = (msdu_tensor_desc)MSDU_TENSOR_INIT;
    desc.name = "statistics";
    desc.parameter = r->statistics;
    desc.count = 3;
    desc.role = MSDU_ROLE_BUFFER;
    if (status == MSDU_OK) {
        status = msdu_tensor_add(r->ctx, &desc, NULL);
    }
    return status == MSDU_OK ? msdu_start(r->ctx) : status;
}

static msdu_status step(rank *r)
{
    compute(r, the_job.step_ns(r->index, r->steps));
    msdu_status status = msdu_tensor_wait(r->ctx, 0, MSDU_PARAMETER);
    for (int k = 0; k < COUNT; k++) {
        r->gradient[k] = r->parameter[k] - (float)(r->bowl + k);
    }
    r->statistics[r->steps % 3] += 1;
    if (the_job.has_gradients && status == MSDU_OK) {
        status = msdu_tensor_ready(r->ctx, 0, MSDU_GRADIENT);
        status = status == MSDU_OK ? msdu_tensor_wait(r->ctx, 0, MSDU_GRADIENT) : status;
    }
    for (int k = 0; k < COUNT && status == MSDU_OK; k++) {
        r->parameter[k] -= 0.05F * r->gradient[k];
    }
    status = status == MSDU_OK ? msdu_step(r->ctx) : status;
    r->steps++;
    return status == MSDU_OK ? msdu_tensor_wait(r->ctx, MSDU_ALL_TENSORS, MSDU_PARAMETER) : status;
}

static void look(rank *r)
{
    msdu_summary summary = MSDU_SUMMARY_INIT;
    if (msdu_summary_get(r->ctx, &summary) == MSDU_OK) {
        bool is_clock = strcmp(summary.state, "clock") == 0;
        if (is_clock && r->entered == 0) {
            r->entered = r->steps;
            r->entered_ns = now_ns();
        }
        r->seen_common = summary.common_steps;
    }
}

static msdu_status save(rank *r)
{
    saved *to = &the_job.saved[r->index];
    msdu_status status = msdu_state_get(r->ctx, NULL, 0, &to->bytes); /* while it ticks */
    ck_assert_int_eq(status, MSDU_ERR_STATE);
    ck_assert_ptr_nonnull(strstr(msdu_last_error(), "call msdu_synchronize() before"));
    status = msdu_synchronize(r->ctx);
    status = status == MSDU_OK ? msdu_state_get(r->ctx, to->state, sizeof(to->state), &to->bytes)
                               : status;
    memcpy(to->parameter, r->parameter, sizeof(r->parameter));
    memcpy(to->statistics, r->statistics, sizeof(r->statistics));
    to->steps = r->steps;
    return status;
}

static msdu_status load(rank *r)
{
    const saved *from = &the_job.saved[r->index];
    msdu_status status = msdu_state_set(r->ctx, from->state, from->bytes);
    memcpy(r->parameter, from->parameter, sizeof(r->parameter));
    memcpy(r->statistics, from->statistics, sizeof(r->statistics));
    return status;
}

static void *run_rank(void *argument)
{
    rank *r = argument;
    uint64_t began = now_ns();
    uint64_t slow_ns = the_job.step_ns(RANKS - 1, 0);
    uint64_t most = the_job.steps * slow_ns;
    r->status = start(r);
    if (r->status == MSDU_OK) {
        note(&r->is_started);
    }
    for (int k = 0; k < 3; k++) {
        r->statistics[k] = (float)r->index;
    }
    r->status = r->status == MSDU_OK && the_job.does_load ? load(r) : r->status;
    while (r->status == MSDU_OK && now_ns() - began < most + LIMIT_NS) {
        r->status = step(r);
        look(r);
        bool is_over =
            r->entered > 0 ? now_ns() - r->entered_ns > AFTER * slow_ns : r->steps >= the_job.steps;
        if (is_over) {
            break;
        }
    }
    r->status = r->status == MSDU_OK && the_job.does_save ? save(r) : r->status;
    r->status = r->status == MSDU_OK ? msdu_finish(r->ctx) : r->status;
    (void)snprintf(r->error, sizeof(r->error), "%s", msdu_last_error());
    note(&r->is_over);
    return NULL;
}

static void run(const char *settings, uint64_t (*step_ns)(int index, uint64_t step), uint64_t steps)
{
    pthread_t threads[RANKS];
    the_job.settings = settings;
    the_job.step_ns = step_ns;
    the_job.steps = steps;
    atomic_store(&virtual_ns, SECOND);
    for (int i = 0; i < RANKS; i++) {
        rank *r = &the_job.ranks[i];
        *r = (rank){.index = i, .bowl = i};
        for (int k = 0; k < COUNT; k++) {
            r->parameter[k] = (float)k / 7;
        }
        ck_assert_int_eq(pthread_create(&threads[i], NULL, run_rank, r), 0);
    }
    drive();
    for (int i = 0; i < RANKS; i++) {
        (void)pthread_join(threads[i], NULL);
    }
    for (int i = 0; i < RANKS; i++) {
        rank *r = &the_job.ranks[i];
        ck_assert_msg(r->status == MSDU_OK, "rank %d: %s", i, r->error);
        ck_assert_mem_eq(r->parameter, the_job.ranks[0].parameter, sizeof(r->parameter));
        ck_assert_mem_eq(r->statistics, the_job.ranks[0].statistics, sizeof(r->statistics));
    }
}

static void end(void)
{
    for (int i = 0; i < RANKS; i++) {
        msdu_destroy(the_job.ranks[i].ctx);
    }
}

static msdu_summary summary_of(const rank *r)
{
    msdu_summary summary = MSDU_SUMMARY_INIT;
    ck_assert_int_eq(msdu_summary_get(r->ctx, &summary), MSDU_OK);
    return summary;
}

static uint64_t last_is_slow(int index, uint64_t step)
{
    (void)step;
    return index == RANKS - 1 ? 6 * FAST_NS : FAST_NS;
}

static uint64_t slow_in_turn(int index, uint64_t step)
{
    return index == (int)(step % RANKS) ? 6 * FAST_NS : FAST_NS;
}

/* --- cases --- */

START_TEST(a_slow_rank_brings_the_clock_on_all_ranks_at_once)
{
    run("uneven = auto", last_is_slow, 150);
    uint64_t entered = the_job.ranks[0].entered;
    ck_assert_uint_gt(entered, 12);
    for (int i = 0; i < RANKS; i++) {
        rank *r = &the_job.ranks[i];
        msdu_summary summary = summary_of(r);
        ck_assert_uint_eq(r->entered, entered);
        ck_assert_str_eq(summary.state, "clock");
        ck_assert_str_eq(summary.domain, "parameter");
        ck_assert_msg(strstr(r->lines, "is waited for slow ranks (rank 3: ") != NULL, "%s",
                      r->lines);
        ck_assert_ptr_nonnull(strstr(r->lines, "rounds by the clock from here on"));
        ck_assert_uint_gt(summary.straggler_ns, summary.network_ns);
    }
    /* the fast ones wait no longer, and counted steps are of the average rank */
    ck_assert_uint_gt(the_job.ranks[0].steps, the_job.ranks[RANKS - 1].steps + 20);
    ck_assert_uint_gt(the_job.ranks[0].steps, the_job.ranks[0].seen_common);
    ck_assert_uint_lt(the_job.ranks[RANKS - 1].steps, the_job.ranks[0].seen_common);
    ck_assert_uint_gt(summary_of(&the_job.ranks[RANKS - 1]).missed, 0);
    end();
}
END_TEST

static int count_of(const char *text, const char *what)
{
    int count = 0;
    for (const char *at = strstr(text, what); at != NULL; at = strstr(at + 1, what)) {
        count++;
    }
    return count;
}

/* Each rank trains with its own data, and by the clock those of a slow one count less. */
START_TEST(data_of_slow_ranks_count_less_and_a_line_says_so)
{
    run("uneven = clock", last_is_slow, 60);
    for (int i = 0; i < RANKS; i++) {
        const char *lines = the_job.ranks[i].lines;
        ck_assert_msg(count_of(lines, "warn: ") == 1, "%s", lines);
        ck_assert_ptr_nonnull(strstr(lines,
                                     "let work be drawn (msdu_next(), in Python msdu.batches)"
                                     ", or set uneven = wait"));
    }
    end();
}
END_TEST

static uint64_t last_is_very_slow(int index, uint64_t step)
{
    (void)step;
    return index == RANKS - 1 ? 50 * FAST_NS / 2 : FAST_NS / 4;
}

/* A hundred times slower, and its steps take a fifth of the deadline. */
START_TEST(a_very_slow_rank_holds_nobody_up)
{
    run(_i == 0 ? "uneven = auto\ndeadline_ms = 1000" : "uneven = clock\ndeadline_ms = 1000",
        last_is_very_slow, 50);
    for (int i = 0; i < RANKS; i++) {
        ck_assert_uint_gt(the_job.ranks[i].entered, 0);
    }
    ck_assert_uint_gt(the_job.ranks[0].steps, 10 * the_job.ranks[RANKS - 1].steps);
    end();
}
END_TEST

/* From local steps as well, where means are late: a trainer that shows parameters only. */
START_TEST(the_clock_comes_in_local_steps_too)
{
    the_job.has_gradients = false;
    run(_i == 0 ? "uneven = auto" : "uneven = auto\noverlap = delayed\nwire = int4", last_is_slow,
        300);
    for (int i = 0; i < RANKS; i++) {
        ck_assert_uint_gt(the_job.ranks[i].entered, 12);
        ck_assert_uint_eq(the_job.ranks[i].entered, the_job.ranks[0].entered);
    }
    end();
    the_job.has_gradients = true;
}
END_TEST

/* Half of the waiting is for slow ranks, and still the network is free: nothing is given up. */
START_TEST(a_slow_rank_is_no_slow_network)
{
    run("uneven = wait", _i == 0 ? last_is_slow : slow_in_turn, 100);
    for (int i = 0; i < RANKS; i++) {
        rank *r = &the_job.ranks[i];
        msdu_summary summary = summary_of(r);
        ck_assert_str_eq(summary.state, "exact");
        ck_assert_str_eq(summary.wire, "float32");
        ck_assert_uint_eq(summary.common_steps, summary.steps);
        ck_assert_uint_gt(summary.straggler_ns, 100 * FAST_NS);
        ck_assert_msg(strstr(r->lines, "settings uneven = auto and clock wait for none") != NULL,
                      "%s", r->lines);
    }
    end();
}
END_TEST

static const char *const obstacles[][2] = {
    {"uneven = auto\ndomain = gradient", "for setting domain is not auto"},
    {"uneven = auto\noverlap = backward", "for setting overlap is neither auto nor delayed"},
    {"uneven = auto\ncorrect = outer", "for setting correct is given"},
    {"uneven = auto\nstate = reset", "for setting state is reset"},
    {"uneven = auto\ninterval = fixed", "for setting interval is not divergence"},
};

START_TEST(where_there_can_be_no_clock_a_line_says_why)
{
    run(obstacles[_i][0], last_is_slow, 60);
    for (int i = 0; i < RANKS; i++) {
        ck_assert_msg(strstr(the_job.ranks[i].lines, obstacles[_i][1]) != NULL, "%s: %s",
                      obstacles[_i][1], the_job.ranks[i].lines);
        ck_assert_str_ne(summary_of(&the_job.ranks[i]).state, "clock");
    }
    end();
}
END_TEST

/* Behind a synchronization; and the resumed job waits for no slow rank again. */
START_TEST(a_state_by_the_clock_goes_on)
{
    the_job.does_save = true;
    run(_i == 0 ? "uneven = auto" : "uneven = auto\nwire = int4", last_is_slow, 150);
    end();
    the_job.does_save = false;
    the_job.does_load = true;
    run(_i == 0 ? "uneven = auto" : "uneven = auto\nwire = int4", last_is_slow, 150);
    for (int i = 0; i < RANKS; i++) {
        rank *r = &the_job.ranks[i];
        msdu_summary summary = summary_of(r);
        ck_assert_uint_eq(r->entered, 1);
        ck_assert_uint_eq(summary.steps, the_job.saved[i].steps + r->steps);
        ck_assert_uint_ge(summary.common_steps, the_job.saved[RANKS - 1].steps);
    }
    ck_assert_uint_gt(the_job.ranks[0].steps, 3 * the_job.ranks[RANKS - 1].steps);
    end();
    the_job.does_load = false;
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("climb");
    TCase *tcase = suite_case(suite, "climb", 60, NULL, NULL);
    tcase_add_test(tcase, a_slow_rank_brings_the_clock_on_all_ranks_at_once);
    tcase_add_test(tcase, data_of_slow_ranks_count_less_and_a_line_says_so);
    tcase_add_loop_test(tcase, a_very_slow_rank_holds_nobody_up, 0, 2);
    tcase_add_loop_test(tcase, the_clock_comes_in_local_steps_too, 0, 2);
    tcase_add_loop_test(tcase, a_slow_rank_is_no_slow_network, 0, 2);
    tcase_add_loop_test(tcase, where_there_can_be_no_clock_a_line_says_why, 0,
                        (int)(sizeof(obstacles) / sizeof(obstacles[0])));
    tcase_add_loop_test(tcase, a_state_by_the_clock_goes_on, 0, 2);
    return suite_run(suite);
}
