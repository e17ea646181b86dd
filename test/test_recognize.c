/* SPDX-License-Identifier: Apache-2.0 */
/* Which reductions are gradients: periods, other calls between, changes. */
#include "attach/recognize.h"
#include "suite.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#define GRADIENT(n) ((msdu__call){.count = (n), .kind = 1, .is_candidate = true})
#define OTHER(n)    ((msdu__call){.count = (n), .kind = 16, .is_candidate = false})

static msdu__recognizer *recognizer(uint32_t least, uint32_t wanted)
{
    msdu__recognizer *r = calloc(1, sizeof(*r));
    ck_assert_ptr_nonnull(r);
    r->least = least;
    r->tensors_wanted = wanted;
    return r;
}

static msdu__verdict see(msdu__recognizer *r, msdu__call call, uint32_t *position_out)
{
    *position_out = UINT32_MAX;
    return msdu__recognize(r, &call, position_out);
}

/* Feed steps until the first gradient is recognized; returns how many steps were only learned. */
static uint32_t learn(msdu__recognizer *r, const msdu__call *step, uint32_t count)
{
    uint32_t position = 0;
    for (uint32_t steps = 0; steps < 1000; steps++) {
        for (uint32_t i = 0; i < count; i++) {
            bool is_gradient = see(r, step[i], &position) == MSDU__CALL_GRADIENT;
            if (is_gradient) {
                ck_assert_uint_eq(position, 0);
                ck_assert(step[i].is_candidate);
                /* the rest of this step is recognized too */
                for (uint32_t k = i + 1; k < count; k++) {
                    ck_assert_int_eq(see(r, step[k], &position),
                                     step[k].is_candidate ? MSDU__CALL_GRADIENT : MSDU__CALL_OTHER);
                }
                return steps;
            }
        }
    }
    ck_abort_msg("nothing was recognized");
    return 0;
}

static void expect_steps(msdu__recognizer *r, const msdu__call *step, uint32_t count,
                         uint32_t steps)
{
    for (uint32_t s = 0; s < steps; s++) {
        uint32_t next = 0;
        for (uint32_t i = 0; i < count; i++) {
            uint32_t position = 0;
            msdu__verdict verdict = see(r, step[i], &position);
            if (step[i].is_candidate) {
                ck_assert_int_eq(verdict, MSDU__CALL_GRADIENT);
                ck_assert_uint_eq(position, next++);
            } else {
                ck_assert_int_eq(verdict, MSDU__CALL_OTHER);
            }
        }
    }
}

START_TEST(a_step_begins_with_the_first_gradient_that_repeats)
{
    const msdu__call step[] = {OTHER(1), GRADIENT(500), GRADIENT(70), OTHER(2), GRADIENT(900)};
    msdu__recognizer *r = recognizer(8, 0);
    uint32_t position = 0;
    /* before training: parameters are summed, and a seed */
    (void)see(r, GRADIENT(1470), &position);
    (void)see(r, OTHER(4), &position);
    ck_assert_uint_le(learn(r, step, 5), 4);
    ck_assert_uint_eq(r->tensor_count, 3);
    ck_assert_uint_eq(r->tensors[0].count, 500);
    expect_steps(r, step, 5, 20);
    free(r);
}
END_TEST

START_TEST(equal_layers_are_told_apart_by_what_comes_between_steps)
{
    const msdu__call step[] = {GRADIENT(64), GRADIENT(64), GRADIENT(64), GRADIENT(64), OTHER(1)};
    msdu__recognizer *r = recognizer(12, 0);
    (void)learn(r, step, 5);
    ck_assert_uint_eq(r->tensor_count, 4);
    expect_steps(r, step, 5, 5);
    free(r);
}
END_TEST

/* 40 equal layers look like 40 steps of one, until the loss comes twice. */
START_TEST(many_equal_layers_are_looked_at_twice)
{
    msdu__call step[41];
    uint32_t position = 0;
    uint32_t breaks = 0;
    msdu__recognizer *r = recognizer(12, 0);
    for (uint32_t i = 0; i < 40; i++) {
        step[i] = GRADIENT(64);
    }
    step[40] = OTHER(1);
    for (uint32_t s = 0; s < 12; s++) {
        for (uint32_t i = 0; i < 41; i++) {
            breaks += see(r, step[i], &position) == MSDU__CALL_BREAKS ? 1 : 0;
        }
    }
    ck_assert_uint_eq(breaks, 1);
    ck_assert_uint_eq(r->tensor_count, 40);
    expect_steps(r, step, 41, 3);
    free(r);
}
END_TEST

START_TEST(the_number_of_tensors_may_be_given)
{
    const msdu__call step[] = {GRADIENT(64), GRADIENT(64), GRADIENT(64)};
    msdu__recognizer *r = recognizer(12, 3);
    (void)learn(r, step, 3);
    ck_assert_uint_eq(r->tensor_count, 3);
    expect_steps(r, step, 3, 5);
    free(r);
}
END_TEST

START_TEST(evaluation_between_steps_changes_nothing)
{
    const msdu__call step[] = {GRADIENT(64), OTHER(1), GRADIENT(65)};
    uint32_t position = 0;
    msdu__recognizer *r = recognizer(9, 0);
    (void)learn(r, step, 3);
    for (uint32_t i = 0; i < 100; i++) {
        expect_steps(r, step, 3, i % 3);
        ck_assert_int_eq(see(r, OTHER(i), &position), MSDU__CALL_OTHER);
    }
    free(r);
}
END_TEST

/* The call that breaks the pattern, and all that is learned after it, is never a gradient. */
START_TEST(a_change_breaks_once_and_is_learned_anew)
{
    const msdu__call step[] = {GRADIENT(64), GRADIENT(65), OTHER(1)};
    const msdu__call later[] = {GRADIENT(64), GRADIENT(65), GRADIENT(66), OTHER(1)};
    for (uint32_t missing = 0; missing < 2; missing++) {
        uint32_t position = 0;
        msdu__recognizer *r = recognizer(9, 0);
        (void)learn(r, step, 3);
        if (missing == 1) { /* the first layer is frozen from now on */
            ck_assert_int_eq(see(r, GRADIENT(65), &position), MSDU__CALL_BREAKS);
        } else {
            (void)see(r, later[0], &position);
            (void)see(r, later[1], &position);
            ck_assert_int_eq(see(r, later[2], &position), MSDU__CALL_BREAKS);
            (void)see(r, later[3], &position);
        }
        ck_assert_uint_ge(learn(r, later, 4), 2);
        expect_steps(r, later, 4, 5);
        free(r);
    }
}
END_TEST

/* What is no tensor may come now and then; in step after step, or instead of the tensors, it is a
 * change. */
START_TEST(patience_bears_strays_and_ends)
{
    const msdu__call step[] = {GRADIENT(64), GRADIENT(65), OTHER(1)};
    uint32_t position = 0;
    msdu__recognizer *r = recognizer(9, 0);
    r->is_patient = true;
    r->steps_borne = 3;
    (void)learn(r, step, 3);
    for (uint32_t i = 0; i < 20; i++) {
        bool has_stray = i % 4 != 3;
        ck_assert_int_eq(see(r, step[0], &position), MSDU__CALL_GRADIENT);
        if (has_stray) {
            ck_assert_int_eq(see(r, GRADIENT(66), &position), MSDU__CALL_STRAYS);
        }
        ck_assert_int_eq(see(r, step[1], &position), MSDU__CALL_GRADIENT);
        ck_assert_uint_eq(position, 1);
    }
    if (_i == 0) { /* three steps in a row were borne */
        for (uint32_t i = 0; i < 3; i++) {
            ck_assert_int_eq(see(r, step[0], &position), MSDU__CALL_GRADIENT);
            ck_assert_int_eq(see(r, GRADIENT(66), &position), MSDU__CALL_STRAYS);
            ck_assert_int_eq(see(r, step[1], &position), MSDU__CALL_GRADIENT);
        }
        ck_assert_int_eq(see(r, step[0], &position), MSDU__CALL_GRADIENT);
    } else { /* as many as two steps have */
        for (uint32_t i = 0; i < 4; i++) {
            ck_assert_int_eq(see(r, GRADIENT(66), &position), MSDU__CALL_STRAYS);
        }
    }
    ck_assert_int_eq(see(r, GRADIENT(66), &position), MSDU__CALL_BREAKS);
    free(r);
}
END_TEST

START_TEST(patience_may_bear_strays_in_every_step)
{
    const msdu__call step[] = {GRADIENT(64), GRADIENT(65), OTHER(1)};
    uint32_t position = 0;
    msdu__recognizer *r = recognizer(9, 0);
    r->is_patient = true;
    (void)learn(r, step, 3);
    for (uint32_t i = 0; i < 40; i++) {
        ck_assert_int_eq(see(r, step[0], &position), MSDU__CALL_GRADIENT);
        ck_assert_int_eq(see(r, GRADIENT(66), &position), MSDU__CALL_STRAYS);
        ck_assert_int_eq(see(r, step[1], &position), MSDU__CALL_GRADIENT);
    }
    free(r);
}
END_TEST

/* A tensor that stays away or comes in another place: the next one would be taken for it. */
START_TEST(a_tensor_out_of_turn_breaks_at_once)
{
    const msdu__call step[] = {GRADIENT(64), GRADIENT(65), GRADIENT(67), OTHER(1)};
    uint32_t position = 0;
    msdu__recognizer *r = recognizer(9, 0);
    r->is_patient = true;
    (void)learn(r, step, 4);
    ck_assert_int_eq(see(r, step[_i], &position), MSDU__CALL_BREAKS);
    ck_assert_int_eq(see(r, step[0], &position), MSDU__CALL_OTHER);
    free(r);
}
END_TEST

/* Also with far more calls before training than are remembered. */
START_TEST(no_pattern_is_no_gradient)
{
    uint32_t position = 0;
    msdu__recognizer *r = recognizer(9, 0);
    for (uint64_t i = 0; i < 3 * MSDU__CALLS_MAX; i++) {
        ck_assert_int_eq(see(r, GRADIENT(1000 + i * i), &position), MSDU__CALL_OTHER);
    }
    const msdu__call step[] = {GRADIENT(64), OTHER(1), GRADIENT(65)};
    ck_assert_uint_le(learn(r, step, 3), 5);
    free(r);
}
END_TEST

/* Only the middle one of three. */
static bool allows_ends(const void *user, const msdu__call *call, uint32_t at)
{
    ck_assert_str_eq(user, "whose");
    ck_assert_uint_eq(call->count, at == 0 ? 500 : at == 1 ? 70 : 900);
    return at != 1;
}

START_TEST(what_is_denied_by_its_place_is_part_of_the_pattern_but_no_tensor)
{
    const msdu__call step[] = {GRADIENT(500), OTHER(2), GRADIENT(70), GRADIENT(900)};
    msdu__recognizer *r = recognizer(8, 0);
    uint32_t position = 0;
    r->allows = allows_ends;
    r->allows_user = "whose";
    while (r->state != MSDU__FOLLOWING || r->position != 0) {
        for (uint32_t i = 0; i < 4; i++) {
            (void)see(r, step[i], &position);
        }
    }
    ck_assert_uint_eq(r->pattern_count, 3);
    ck_assert_uint_eq(r->tensor_count, 2);
    ck_assert_uint_eq(r->tensors[1].count, 900);
    for (int s = 0; s < 5; s++) {
        ck_assert_int_eq(see(r, step[0], &position), MSDU__CALL_GRADIENT);
        ck_assert_uint_eq(position, 0);
        ck_assert_int_eq(see(r, step[1], &position), MSDU__CALL_OTHER);
        ck_assert_int_eq(see(r, step[2], &position), MSDU__CALL_DENIED);
        ck_assert_int_eq(see(r, step[3], &position), MSDU__CALL_GRADIENT);
        ck_assert_uint_eq(position, 1);
    }
    /* one that does not come is missed all the same */
    (void)see(r, step[0], &position);
    ck_assert_int_eq(see(r, step[3], &position), MSDU__CALL_BREAKS);
    free(r);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("recognize");
    TCase *tcase = tcase_create("recognize");
    tcase_add_test(tcase, a_step_begins_with_the_first_gradient_that_repeats);
    tcase_add_test(tcase, equal_layers_are_told_apart_by_what_comes_between_steps);
    tcase_add_test(tcase, many_equal_layers_are_looked_at_twice);
    tcase_add_test(tcase, the_number_of_tensors_may_be_given);
    tcase_add_test(tcase, what_is_denied_by_its_place_is_part_of_the_pattern_but_no_tensor);
    tcase_add_test(tcase, evaluation_between_steps_changes_nothing);
    tcase_add_test(tcase, a_change_breaks_once_and_is_learned_anew);
    tcase_add_loop_test(tcase, patience_bears_strays_and_ends, 0, 2);
    tcase_add_test(tcase, patience_may_bear_strays_in_every_step);
    tcase_add_loop_test(tcase, a_tensor_out_of_turn_breaks_at_once, 1, 3);
    tcase_add_test(tcase, no_pattern_is_no_gradient);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
