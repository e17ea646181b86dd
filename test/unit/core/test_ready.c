/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the ready queue: order, bounds, and many producers at once. */
#include <check.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include "core/ready.h"
#include "suite.h"

#define PRODUCERS 4

static msdu__ready queue;
static uint32_t each; /* values of one producer */

static bool push(uint64_t number)
{
    return msdu__ready_push(&queue, &(msdu__event){.number = number});
}

static bool peek(uint32_t *number_out)
{
    msdu__event event;
    bool is_there = msdu__ready_peek(&queue, &event);
    *number_out = is_there ? (uint32_t)event.number : *number_out;
    return is_there;
}

static void fill(uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        ck_assert(push(i));
    }
}

static void take(uint32_t expected)
{
    uint32_t value = 0;
    ck_assert(peek(&value));
    ck_assert_uint_eq(value, expected);
    msdu__ready_pop(&queue);
}

START_TEST(values_come_out_in_order)
{
    uint32_t value = 0;
    ck_assert(msdu__ready_init(&queue, 8));
    ck_assert(!peek(&value));
    for (uint32_t turn = 0; turn < 5; turn++) { /* over the end of the ring */
        fill(5);
        for (uint32_t i = 0; i < 5; i++) {
            take(i);
        }
        ck_assert(!peek(&value));
    }
    msdu__ready_free(&queue);
}
END_TEST

START_TEST(looking_does_not_take)
{
    ck_assert(msdu__ready_init(&queue, 4));
    fill(2);
    uint32_t value = 9;
    ck_assert(peek(&value));
    ck_assert(peek(&value));
    ck_assert_uint_eq(value, 0);
    take(0);
    take(1);
    msdu__ready_free(&queue);
}
END_TEST

START_TEST(holds_what_was_asked_for_and_refuses_more)
{
    uint32_t held = 0;
    ck_assert(msdu__ready_init(&queue, (uint32_t)_i));
    while (push(held)) {
        held++;
        ck_assert_uint_le(held, 64);
    }
    ck_assert_uint_ge(held, (unsigned)_i);
    ck_assert(!push(held));
    take(0);
    ck_assert(push(held));
    ck_assert(!push(held + 1));
    for (uint32_t i = 1; i <= held; i++) {
        take(i);
    }
    msdu__ready_free(&queue);
}
END_TEST

/* Producer in the upper bits, its counter below. */
static void *produce(void *argument)
{
    uint32_t producer = *(const uint32_t *)argument;
    for (uint32_t i = 0; i < each; i++) {
        while (!push(producer << 24 | i)) {
            sched_yield();
        }
    }
    return NULL;
}

/* Full most of the time at the smaller size: pushes fail and are repeated. */
START_TEST(many_producers_lose_nothing_and_keep_their_order)
{
    pthread_t threads[PRODUCERS];
    uint32_t names[PRODUCERS];
    uint32_t next[PRODUCERS] = {0};
    uint32_t disorder = 0;
    each = _i == 0 ? 500 : 20000;
    ck_assert(msdu__ready_init(&queue, _i == 0 ? 2 : 4096));
    for (uint32_t i = 0; i < PRODUCERS; i++) {
        names[i] = i;
        ck_assert_int_eq(pthread_create(&threads[i], NULL, produce, &names[i]), 0);
    }
    for (uint32_t taken = 0; taken < PRODUCERS * each; taken++) {
        uint32_t value = 0;
        while (!peek(&value)) {
            sched_yield();
        }
        msdu__ready_pop(&queue);
        uint32_t producer = value >> 24;
        disorder += producer >= PRODUCERS || next[producer] != (value & 0xffffffU) ? 1 : 0;
        next[producer % PRODUCERS]++;
    }
    for (uint32_t i = 0; i < PRODUCERS; i++) {
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
        ck_assert_uint_eq(next[i], each);
    }
    uint32_t value = 0;
    ck_assert_uint_eq(disorder, 0);
    ck_assert(!peek(&value));
    msdu__ready_free(&queue);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("ready");
    TCase *tcase = suite_case(suite, "ready", 60, NULL, NULL);
    tcase_add_test(tcase, values_come_out_in_order);
    tcase_add_test(tcase, looking_does_not_take);
    tcase_add_loop_test(tcase, holds_what_was_asked_for_and_refuses_more, 1, 34);
    tcase_add_loop_test(tcase, many_producers_lose_nothing_and_keep_their_order, 0, 2);
    return suite_run(suite);
}
