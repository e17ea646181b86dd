/* SPDX-License-Identifier: Apache-2.0 */
/* Which reductions are gradients: periods, memory, other calls between, changes. */
#include "attach/recognize.h"
#include "suite.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

/* Memory of its own for each size, unless said otherwise. */
#define AT(n, place)                                                                               \
    ((msdu__call){.count = (n), .kind = 1, .is_candidate = true, .is_sum = true, .memory = (place)})
#define GRADIENT(n) AT(n, 4096 * (n))
#define SMALL(n)    ((msdu__call){.count = (n), .kind = 1, .is_sum = true})
#define OTHER(n)    ((msdu__call){.count = (n), .kind = 16})

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
    msdu__verdict verdict = msdu__recognize(r, &call, position_out);
    if (verdict == MSDU__CALL_VOTES) { /* one rank agrees with itself */
        double sums[MSDU__VOTE_SUMS];
        msdu__recognize_vote(r, sums);
        (void)msdu__recognize_agree(r, sums, 1);
        verdict = MSDU__CALL_OTHER;
    }
    return verdict;
}

/* Feed steps until the first gradient is recognized; returns how many steps were only learned. */
static uint32_t learn(msdu__recognizer *r, const msdu__call *step, uint32_t count)
{
    uint32_t position = 0;
    for (uint32_t steps = 0; steps < 10000; steps++) {
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
    (void)see(r, AT(500, 7), &position);
    (void)see(r, AT(70, 8), &position);
    (void)see(r, AT(900, 9), &position);
    (void)see(r, OTHER(4), &position);
    ck_assert_uint_le(learn(r, step, 5), 10); /* gradients lie elsewhere than parameters */
    ck_assert_uint_eq(r->tensor_count, 3);
    ck_assert_uint_eq(r->tensors[0].count, 500);
    ck_assert_uint_eq(r->pattern[0].memory,
                      step[1].memory); /* the gradient's, not the parameter's */
    expect_steps(r, step, 5, 20);
    free(r);
}
END_TEST

START_TEST(equal_layers_are_told_apart_by_their_memory)
{
    const msdu__call step[] = {AT(64, 1000), AT(64, 2000), AT(64, 3000), AT(64, 4000), OTHER(1)};
    msdu__recognizer *r = recognizer(12, 0);
    (void)learn(r, step, 5);
    ck_assert_uint_eq(r->tensor_count, 4);
    expect_steps(r, step, 5, 50);
    ck_assert(!msdu__recognize_is_proven(r)); /* it may be two steps, if memory alternates */
    free(r);
}
END_TEST

#define LAYERS 48

/* An embedding, equal layers of four tensors, a head; forward or backward. */
static uint32_t layered(msdu__call *step, bool is_backward)
{
    const uint32_t count = 4 * LAYERS + 2;
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t size = i == 0 ? 7000 : i == count - 1 ? 300 : 512U << (i % 4);
        step[is_backward ? count - 1 - i : i] = AT(size, 64000 * (i + 1));
    }
    return count;
}

START_TEST(a_layer_is_no_step)
{
    msdu__call step[4 * LAYERS + 2];
    const uint32_t count = layered(step, _i == 1);
    msdu__recognizer *r = recognizer(32, 0);
    ck_assert_uint_ge(learn(r, step, count), 3);
    ck_assert_uint_eq(r->tensor_count, count);
    expect_steps(r, step, count, 5);
    ck_assert(!msdu__recognize_is_proven(r)); /* fewer than 20 steps so far */
    expect_steps(r, step, count, 20);
    ck_assert(!msdu__recognize_is_proven(r)); /* it may be a micro-batch */
    r->total_steps = 100;
    ck_assert(msdu__recognize_is_proven(r));
    free(r);
}
END_TEST

/* Micro-batches, or layers in shared memory: only their number tells. */
START_TEST(more_steps_than_the_trainer_has_are_none)
{
    const msdu__call step[] = {AT(64, 1000), AT(65, 2000), OTHER(1)};
    const msdu__call other[] = {AT(65, 2000), AT(64, 1000), OTHER(1)};
    msdu__recognizer *r = recognizer(8, 0);
    r->total_steps = 100;
    (void)learn(r, step, 3);
    expect_steps(r, step, 3, 60 - (uint32_t)msdu__recognize_steps(r));
    ck_assert_uint_eq(msdu__recognize_steps(r), 60);
    (void)learn(r, other, 3); /* a change does not lose them, nor count them twice */
    ck_assert_uint_ge(msdu__recognize_steps(r), 63);
    ck_assert_uint_le(msdu__recognize_steps(r), 72);
    expect_steps(r, other, 3, 108 - (uint32_t)msdu__recognize_steps(r));
    ck_assert(!msdu__recognize_is_exceeded(r)); /* averages at the beginning and end, perhaps */
    expect_steps(r, other, 3, 1);
    ck_assert(msdu__recognize_is_exceeded(r));
    r->total_steps = 0;
    ck_assert(!msdu__recognize_is_exceeded(r));
    free(r);
}
END_TEST

/* The user's number is no proof where two gradients of one size may change places unseen. */
START_TEST(gradients_of_one_size_need_memory_for_local_steps)
{
    const msdu__call shared[] = {AT(64, 1000), AT(64, 1000), AT(65, 1000), OTHER(1)};
    const msdu__call own[] = {AT(64, 1000), AT(64, 2000), AT(65, 3000), OTHER(1)};
    const msdu__call other[] = {AT(64, 1000), AT(65, 1000), AT(66, 1000), OTHER(1)};
    const msdu__call *const steps[] = {shared, own, other};
    const msdu__doubt doubts[] = {MSDU__DOUBT_NONE, MSDU__DOUBT_SAID, MSDU__DOUBT_NONE};
    msdu__recognizer *r = recognizer(8, 3);
    (void)learn(r, steps[_i], 4);
    expect_steps(r, steps[_i], 4, 30);
    ck_assert_int_eq(r->doubt, doubts[_i]);
    ck_assert_int_eq(msdu__recognize_is_blind(r), _i == 0);
    ck_assert_int_eq(msdu__recognize_is_proven(r), _i != 0);
    ck_assert(!msdu__recognize_is_mistaken(r));
    free(r);
}
END_TEST

/* Memory told it from others, and then does not. */
START_TEST(a_gradient_that_leaves_its_memory_ends_the_proof)
{
    const msdu__call step[] = {AT(64, 1000), AT(64, 2000), AT(65, 3000), OTHER(1)};
    for (uint32_t said = 0; said < 2; said++) {
        for (uint32_t moved = 0; moved < 3; moved++) {
            msdu__call later[] = {step[0], step[1], step[2], step[3]};
            msdu__recognizer *r = recognizer(8, said == 1 ? 3 : 0);
            (void)learn(r, step, 4);
            expect_steps(r, step, 4, 5);
            later[moved].memory = 9000;
            expect_steps(r, later, 4, 1);
            /* the user's number tells it where no other has its size */
            ck_assert_int_eq(msdu__recognize_is_mistaken(r), said == 0 || moved < 2);
            ck_assert_int_eq(msdu__recognize_was_mistaken(r),
                             msdu__recognize_is_mistaken(r) && moved < 2);
            ck_assert(!msdu__recognize_is_contradicted(r)); /* it may be new memory of its own */
            free(r);
        }
    }
}
END_TEST

/* A layer in place of a step comes again and again; what is passed through counts, too. So does a
 * layer of which the first gradient stays away. */
START_TEST(a_pattern_that_broke_is_counted_where_it_comes_again)
{
    const msdu__call layer[] = {AT(64, 1000), AT(65, 2000), OTHER(1)};
    msdu__recognizer *r = recognizer(8, 0);
    const uint64_t first = _i < 2 ? 0 : 1; /* that comes again */
    uint32_t position = 0;
    r->total_steps = 100;
    (void)learn(r, layer, 3);
    expect_steps(r, layer, 3, 60 - (uint32_t)msdu__recognize_steps(r));
    ck_assert_int_eq(see(r, layer[1], &position), MSDU__CALL_BREAKS);
    if (_i % 2 == 1) {
        msdu__recognize_close(r); /* for the second time */
    }
    for (uint64_t i = 0; i < 48; i++) {
        ck_assert_uint_eq(msdu__recognize_steps(r), 60 + i);
        for (uint64_t k = first; k < 2; k++) {
            (void)msdu__recognize(r, &layer[k], &position);
        }
        (void)msdu__recognize(r, &AT(70 + i, 64 * i), &position); /* and others between */
    }
    ck_assert(!msdu__recognize_is_exceeded(r));
    (void)msdu__recognize(r, &layer[1], &position);
    ck_assert(msdu__recognize_is_exceeded(r));
    free(r);
}
END_TEST

/* One place through which all layers are copied says nothing of where a step begins. */
START_TEST(layers_in_shared_memory_are_left_alone_unless_their_number_is_given)
{
    msdu__call step[4 * LAYERS + 2];
    const uint32_t count = layered(step, false);
    msdu__recognizer *r = recognizer(32, _i == 1 ? count : 0);
    uint32_t position = 0;
    for (uint32_t i = 0; i < count; i++) {
        step[i].memory = 1000;
    }
    if (_i == 1) {
        (void)learn(r, step, count);
        ck_assert_uint_eq(r->tensor_count, count);
        free(r);
        return;
    }
    for (uint32_t s = 0; s < 50; s++) {
        for (uint32_t i = 0; i < count; i++) {
            ck_assert_int_eq(see(r, step[i], &position), MSDU__CALL_OTHER);
        }
    }
    free(r);
}
END_TEST

/* A single reduction a step, or layers that share memory? What comes between may come with each
 * layer. */
START_TEST(one_reduction_is_a_step_only_if_that_is_said)
{
    const msdu__call between[] = {SMALL(64), OTHER(1), GRADIENT(5000)};
    for (uint32_t i = 0; i < 4; i++) {
        msdu__recognizer *r = recognizer(8, 0);
        uint32_t position = 0;
        for (uint32_t k = 0; k < 1000; k++) {
            ck_assert_int_eq(see(r, GRADIENT(5000), &position), MSDU__CALL_OTHER);
            if (i < 3) {
                ck_assert_int_eq(see(r, between[i], &position), MSDU__CALL_OTHER);
            } else {
                msdu__recognize_mark(r); /* a barrier, say */
            }
        }
        ck_assert_uint_eq(r->tensor_count, 0);
        free(r);
    }
    const msdu__call fused[] = {GRADIENT(5000), OTHER(1)};
    msdu__recognizer *r = recognizer(8, 1);
    (void)learn(r, fused, 2);
    expect_steps(r, fused, 2, 5);
    free(r);
}
END_TEST

/* The trainer's own number, in which small gradients count. */
START_TEST(the_number_given_counts_small_gradients)
{
    const msdu__call step[] = {GRADIENT(64), SMALL(8), GRADIENT(65),
                               SMALL(9),     SMALL(1), GRADIENT(66)}; /* and a loss, perhaps */
    for (uint32_t wanted = 2; wanted <= 7; wanted++) {
        msdu__recognizer *r = recognizer(8, wanted);
        uint32_t position = 0;
        if (wanted == 3 || wanted == 5 || wanted == 6) {
            (void)learn(r, step, 6);
            ck_assert_uint_eq(r->tensor_count, 3);
            ck_assert_uint_eq(r->unmet_count, 0);
        } else {
            for (uint32_t i = 0; i < 100; i++) {
                ck_assert_int_eq(see(r, step[i % 6], &position), MSDU__CALL_OTHER);
            }
            ck_assert_uint_eq(r->unmet_count, 3);
            ck_assert_uint_eq(r->unmet_sums, 5);
        }
        free(r);
    }
}
END_TEST

START_TEST(ranks_that_see_different_steps_take_none)
{
    const msdu__call step[] = {AT(64, 1000), AT(64, 2000), OTHER(1)};
    msdu__recognizer *r[2] = {recognizer(6, 0), recognizer(6, 0)};
    for (uint32_t i = 0; i < 300; i++) {
        double all[MSDU__VOTE_SUMS] = {0};
        msdu__verdict verdict = MSDU__CALL_OTHER;
        for (uint32_t k = 0; k < 2; k++) {
            double sums[MSDU__VOTE_SUMS];
            uint32_t position = 0;
            msdu__call call = step[i % 3];
            call.memory += k == 1 && i % 3 == 1 ? 64 * i : 0; /* this one's moves */
            verdict = msdu__recognize(r[k], &call, &position);
            msdu__recognize_vote(r[k], sums);
            for (int n = 0; n < MSDU__VOTE_SUMS; n++) {
                all[n] += sums[n];
            }
        }
        if (verdict == MSDU__CALL_VOTES) {
            ck_assert(!msdu__recognize_agree(r[0], all, 2));
            ck_assert(!msdu__recognize_agree(r[1], all, 2));
        }
    }
    free(r[0]);
    free(r[1]);
}
END_TEST

/* Layers that share their memory repeated in the step before, and then broke. */
START_TEST(what_repeated_before_and_broke_is_no_step)
{
    const msdu__call layer[] = {AT(64, 1000), AT(65, 2000)};
    msdu__recognizer *r = recognizer(8, 0);
    uint32_t position = 0;
    double sums[MSDU__VOTE_SUMS];
    for (uint32_t i = 0; i < 8; i++) {
        (void)msdu__recognize(r, &layer[i % 2], &position);
    }
    if (_i == 1) { /* the end of the first step */
        (void)msdu__recognize(r, &layer[0], &position);
        for (uint32_t i = 0; i < 8; i++) {
            (void)msdu__recognize(r, &layer[i % 2], &position);
        }
    }
    msdu__recognize_vote(r, sums);
    ck_assert_double_eq(sums[0], _i == 0 ? 2 : 0);
    free(r);
}
END_TEST

/* The second of two models of one shape has its turn, and then the first again. */
START_TEST(two_models_of_one_shape_contradict_the_pattern)
{
    const msdu__call first[] = {AT(64, 1000), AT(65, 2000), OTHER(1)};
    const msdu__call second[] = {AT(64, 3000), AT(65, 4000), OTHER(1)};
    msdu__recognizer *r = recognizer(8, 0);
    (void)learn(r, first, 3);
    expect_steps(r, first, 3, 5);
    ck_assert(!msdu__recognize_is_contradicted(r));
    expect_steps(r, second, 3, 1); /* new memory alone may be the same tensor's */
    ck_assert(!msdu__recognize_is_contradicted(r));
    expect_steps(r, first, 3, 1);
    ck_assert(msdu__recognize_is_contradicted(r));
    ck_assert(!msdu__recognize_is_due(r, 0, false) && !msdu__recognize_is_due(r, 3, false));
    ck_assert(msdu__recognize_is_due(r, 64, false) && msdu__recognize_is_due(r, 384, false));
    ck_assert(msdu__recognize_is_due(r, 8, true) && msdu__recognize_is_due(r, 24, true));
    ck_assert(!msdu__recognize_is_due(r, 24, false));
    r->doubt = MSDU__DOUBT_NONE; /* but the user knows best */
    ck_assert(!msdu__recognize_is_contradicted(r) && !msdu__recognize_is_due(r, 64, false));
    free(r);
}
END_TEST

/* Gradients of one size in another order: memory tells, where local steps rely on it. */
START_TEST(an_equal_tensor_that_stays_away_is_noticed)
{
    msdu__call step[4 * LAYERS + 2];
    const uint32_t count = layered(step, false);
    msdu__recognizer *r = recognizer(32, 0);
    uint32_t position = 0;
    (void)learn(r, step, count);
    expect_steps(r, step, count, 3);
    ck_assert(!r->has_moved);
    for (uint32_t i = 0; i < count; i++) {
        if (i >= 9 && i < 13) {
            continue; /* a layer is frozen */
        }
        const msdu__verdict verdict = see(r, step[i], &position);
        ck_assert_int_eq(verdict, i < count - 1 ? MSDU__CALL_GRADIENT : MSDU__CALL_BREAKS);
    }
    ck_assert(r->has_moved);
    free(r);
}
END_TEST

START_TEST(the_number_of_tensors_may_be_given)
{
    const msdu__call step[] = {AT(64, 1), AT(64, 1), AT(64, 1)};
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
            for (uint32_t i = 0; i < MSDU__STEPS_BORNE; i++) {
                (void)see(r, later[0], &position);
                (void)see(r, later[1], &position);
                ck_assert_int_eq(see(r, later[2], &position), MSDU__CALL_STRAYS);
                (void)see(r, later[3], &position);
            }
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

/* A tensor that stays away or comes in another place: the next one would be taken for it. */
START_TEST(a_tensor_out_of_turn_breaks_at_once)
{
    const msdu__call step[] = {GRADIENT(64), GRADIENT(65), GRADIENT(67), OTHER(1)};
    uint32_t position = 0;
    msdu__recognizer *r = recognizer(9, 0);
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
    ck_assert_uint_le(learn(r, step, 3), 5000); /* what came before may be a step's beginning */
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
    TCase *tcase = suite_case(suite, "recognize", 0, NULL, NULL);
    tcase_add_test(tcase, a_step_begins_with_the_first_gradient_that_repeats);
    tcase_add_test(tcase, equal_layers_are_told_apart_by_their_memory);
    tcase_add_loop_test(tcase, a_layer_is_no_step, 0, 2);
    tcase_add_loop_test(tcase, layers_in_shared_memory_are_left_alone_unless_their_number_is_given,
                        0, 2);
    tcase_add_loop_test(tcase, gradients_of_one_size_need_memory_for_local_steps, 0, 3);
    tcase_add_test(tcase, a_gradient_that_leaves_its_memory_ends_the_proof);
    tcase_add_loop_test(tcase, a_pattern_that_broke_is_counted_where_it_comes_again, 0, 4);
    tcase_add_test(tcase, one_reduction_is_a_step_only_if_that_is_said);
    tcase_add_test(tcase, the_number_given_counts_small_gradients);
    tcase_add_test(tcase, ranks_that_see_different_steps_take_none);
    tcase_add_loop_test(tcase, what_repeated_before_and_broke_is_no_step, 0, 2);
    tcase_add_test(tcase, two_models_of_one_shape_contradict_the_pattern);
    tcase_add_test(tcase, an_equal_tensor_that_stays_away_is_noticed);
    tcase_add_test(tcase, more_steps_than_the_trainer_has_are_none);
    tcase_add_test(tcase, the_number_of_tensors_may_be_given);
    tcase_add_test(tcase, what_is_denied_by_its_place_is_part_of_the_pattern_but_no_tensor);
    tcase_add_test(tcase, evaluation_between_steps_changes_nothing);
    tcase_add_test(tcase, a_change_breaks_once_and_is_learned_anew);
    tcase_add_loop_test(tcase, patience_bears_strays_and_ends, 0, 2);
    tcase_add_loop_test(tcase, a_tensor_out_of_turn_breaks_at_once, 1, 3);
    tcase_add_test(tcase, no_pattern_is_no_gradient);
    return suite_run(suite);
}
