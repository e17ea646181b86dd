/* SPDX-License-Identifier: Apache-2.0 */
/* Test that nothing is allocated after start, counted by the linker's --wrap. */
#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

#include "ranks.h"
#include "reference.h"
#include "suite.h"

static _Atomic uint64_t allocations;

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);

void *__wrap_malloc(size_t bytes)
{
    atomic_fetch_add(&allocations, 1);
    return __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    atomic_fetch_add(&allocations, 1);
    return __real_calloc(count, bytes);
}

void *__wrap_realloc(void *memory, size_t bytes)
{
    atomic_fetch_add(&allocations, 1);
    return __real_realloc(memory, bytes);
}

typedef struct counting {
    pthread_barrier_t barrier;
    uint64_t before;
    uint64_t after;
} counting;

static void count_from_here(ranks_self *self, int step)
{
    counting *c = self->job->user;
    if (step == 0) {
        (void)pthread_barrier_wait(&c->barrier);
        if (self->rank == 0) {
            c->before = atomic_load(&allocations);
        }
        (void)pthread_barrier_wait(&c->barrier);
    }
}

static void count_to_here(ranks_self *self)
{
    counting *c = self->job->user;
    (void)pthread_barrier_wait(&c->barrier);
    if (self->rank == 0) {
        c->after = atomic_load(&allocations);
    }
    (void)pthread_barrier_wait(&c->barrier);
}

START_TEST(nothing_is_allocated_after_start)
{
    static const char *const modes[][4] = {{"gradient", "backward", "fixed", "float32"},
                                           {"gradient", "blocking", "fixed", "int2"},
                                           {"accumulated", "backward", "fixed", "float32"},
                                           {"auto", "backward", "divergence", "auto"},
                                           {"parameter", "streamed", "fixed", "int4"}};
    static const ranks_tensor model[] = {{.count = 1}, {.count = 700}, {.count = 1500}};
    counting c = {.before = 0};
    ranks_run run;
    ranks_job job = {.ranks = 2,
                     .steps = 100,
                     .tensors = model,
                     .tensor_count = 3,
                     .config = {.domain = modes[_i][0],
                                .overlap = modes[_i][1],
                                .interval = modes[_i][2],
                                .wire = modes[_i][3],
                                .optimizer = "sgd",
                                .interval_steps = 3,
                                .slice_bytes = 1024,
                                .lr = 0.01},
                     .stepped = count_from_here,
                     .ended = count_to_here,
                     .user = &c};
    ck_assert_int_eq(pthread_barrier_init(&c.barrier, NULL, 2), 0);
    uint64_t at_first = atomic_load(&allocations);
    ranks_run_well(&job, &run);
    ck_assert_uint_gt(c.before, at_first); /* it does count */
    ck_assert_uint_eq(c.after, c.before);
    ranks_free(&run);
    pthread_barrier_destroy(&c.barrier);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("allocations");
    TCase *tcase = suite_case(suite, "allocations", 60, NULL, NULL);
    tcase_add_loop_test(tcase, nothing_is_allocated_after_start, 0, 5);
    return suite_run(suite);
}
