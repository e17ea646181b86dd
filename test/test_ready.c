/* SPDX-License-Identifier: Apache-2.0 */
/* The ready queue: bounds, order, and many threads against one. */
#include "ready.h"

#include <check.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

enum { THREADS = 4, EACH = 20000 };

START_TEST(empty_queue_shows_nothing)
{
    msdu__ready queue;
    uint32_t value = 7;
    ck_assert(msdu__ready_init(&queue, 4));
    ck_assert(!msdu__ready_peek(&queue, &value));
    ck_assert_uint_eq(value, 7);
    msdu__ready_free(&queue);
}
END_TEST

START_TEST(values_come_out_in_order_over_many_turns)
{
    msdu__ready queue;
    ck_assert(msdu__ready_init(&queue, 3));
    uint32_t next = 0;
    for (uint32_t pushed = 0; pushed < 1000;) {
        for (uint32_t i = 0; i < 3; i++) {
            ck_assert(msdu__ready_push(&queue, pushed++));
        }
        uint32_t value = 0;
        while (msdu__ready_peek(&queue, &value)) {
            ck_assert_uint_eq(value, next++);
            msdu__ready_pop(&queue);
        }
        ck_assert_uint_eq(next, pushed);
    }
    msdu__ready_free(&queue);
}
END_TEST

START_TEST(peek_does_not_take)
{
    msdu__ready queue;
    uint32_t value = 0;
    ck_assert(msdu__ready_init(&queue, 2));
    ck_assert(msdu__ready_push(&queue, 11));
    ck_assert(msdu__ready_push(&queue, 12));
    ck_assert(msdu__ready_peek(&queue, &value) && value == 11);
    ck_assert(msdu__ready_peek(&queue, &value) && value == 11);
    msdu__ready_pop(&queue);
    ck_assert(msdu__ready_peek(&queue, &value) && value == 12);
    msdu__ready_free(&queue);
}
END_TEST

START_TEST(full_queue_refuses_until_a_value_is_taken)
{
    for (uint32_t capacity = 1; capacity <= 9; capacity++) {
        msdu__ready queue;
        uint32_t room = 0;
        ck_assert(msdu__ready_init(&queue, capacity));
        while (msdu__ready_push(&queue, room)) {
            room++;
        }
        ck_assert_uint_ge(room, capacity);
        ck_assert_uint_le(room, 2 * capacity);
        msdu__ready_pop(&queue);
        ck_assert(msdu__ready_push(&queue, 99));
        ck_assert(!msdu__ready_push(&queue, 100));
        msdu__ready_free(&queue);
    }
}
END_TEST

typedef struct producer {
    msdu__ready *queue;
    uint32_t first;
    uint32_t *memory; /* written before each push, read by the consumer after it */
} producer;

static void *produce(void *argument)
{
    producer *self = argument;
    for (uint32_t i = 0; i < EACH; i++) {
        self->memory[self->first + i] = self->first + i + 1;
        while (!msdu__ready_push(self->queue, self->first + i)) {
            sched_yield();
        }
    }
    return NULL;
}

/* Takes everything; values of one producer must come in its order, with what it wrote before. */
static void consume(msdu__ready *queue, const uint32_t *memory)
{
    uint32_t next[THREADS] = {0};
    for (uint32_t taken = 0; taken < THREADS * EACH;) {
        uint32_t value = 0;
        if (!msdu__ready_peek(queue, &value)) {
            sched_yield();
            continue;
        }
        msdu__ready_pop(queue);
        ck_assert_uint_eq(value % EACH, next[value / EACH]++);
        ck_assert_uint_eq(memory[value], value + 1);
        taken++;
    }
}

START_TEST(every_value_of_every_thread_arrives_once_with_its_memory)
{
    msdu__ready queue;
    pthread_t threads[THREADS];
    producer producers[THREADS];
    uint32_t *memory = calloc((size_t)THREADS * EACH, sizeof(*memory));
    ck_assert_ptr_nonnull(memory);
    ck_assert(msdu__ready_init(&queue, 64));
    for (uint32_t i = 0; i < THREADS; i++) {
        producers[i] = (producer){&queue, i * EACH, memory};
        ck_assert_int_eq(pthread_create(&threads[i], NULL, produce, &producers[i]), 0);
    }
    consume(&queue, memory);
    for (uint32_t i = 0; i < THREADS; i++) {
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    }
    uint32_t value = 0;
    ck_assert(!msdu__ready_peek(&queue, &value));
    msdu__ready_free(&queue);
    free(memory);
}
END_TEST

int main(void)
{
    TCase *cases = tcase_create("ready");
    tcase_set_timeout(cases, 60);
    tcase_add_test(cases, empty_queue_shows_nothing);
    tcase_add_test(cases, values_come_out_in_order_over_many_turns);
    tcase_add_test(cases, peek_does_not_take);
    tcase_add_test(cases, full_queue_refuses_until_a_value_is_taken);
    tcase_add_test(cases, every_value_of_every_thread_arrives_once_with_its_memory);
    Suite *suite = suite_create("ready");
    suite_add_tcase(suite, cases);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
