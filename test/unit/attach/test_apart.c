/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks whose optimizers are apart are joined by additions to equal sums: the pure part of it. */
#include "attach/drift_recovery.h"
#include "suite.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>

#define RANKS 3
#define COUNT 5

/* A trainer with its own parameters and momentum. */
typedef struct trainer {
    double parameter[COUNT];
    double momentum[COUNT];
} trainer;

static const msdu__optimizer optimizers[] = {
    {.lr = 0.1, .momentum = 0, .factor = 1},
    {.lr = 0.1, .momentum = 0.9, .factor = 1},
    {.lr = 0.1, .momentum = 0.9, .factor = 1, .is_nesterov = true},
    {.lr = 1.0, .momentum = 0.9, .factor = 0.7},
    {.lr = 0.1, .momentum = 0, .factor = 1, .weight_decay = 0.05},
    {.lr = 0.1, .momentum = 0.8, .factor = 1, .weight_decay = 0.05, .is_nesterov = true},
    {.lr = 0.02, .momentum = 0.95, .factor = 0.5, .weight_decay = 0.1},
};
#define OPTIMIZERS ((int)(sizeof(optimizers) / sizeof(optimizers[0])))

static double draw(unsigned *state)
{
    *state = *state * 1664525U + 1013904223U;
    return (double)*state / 4294967296.0 - 0.5;
}

static void update(const msdu__optimizer *o, trainer *t, const double *gradient)
{
    for (int i = 0; i < COUNT; i++) {
        double u = gradient[i] + o->weight_decay * t->parameter[i];
        double *v = &t->momentum[i];
        *v = o->momentum * *v + o->factor * u;
        t->parameter[i] -= o->lr * (o->is_nesterov ? u + o->momentum * *v : *v);
    }
}

/* Ranks anywhere, and how far each is from their mean; as floats if kind is 1. */
static void scatter(trainer *ranks, msdu__apart **aparts, int32_t kind)
{
    unsigned state = 17;
    for (int i = 0; i < COUNT; i++) {
        double p_mean = 0;
        double v_mean = 0;
        for (int r = 0; r < RANKS; r++) {
            p_mean += (ranks[r].parameter[i] = draw(&state)) / RANKS;
            v_mean += (ranks[r].momentum[i] = draw(&state)) / RANKS;
        }
        for (int r = 0; r < RANKS; r++) {
            double x = ranks[r].parameter[i] - p_mean;
            double w = ranks[r].momentum[i] - v_mean;
            if (kind == 2) {
                ((double *)aparts[r]->parameter)[i] = x;
                ((double *)aparts[r]->momentum)[i] = w;
            } else {
                ((float *)aparts[r]->parameter)[i] = (float)x;
                ((float *)aparts[r]->momentum)[i] = (float)w;
            }
        }
    }
}

static double spread(const trainer *ranks, bool is_of_momentum)
{
    double worst = 0;
    for (int i = 0; i < COUNT; i++) {
        for (int r = 1; r < RANKS; r++) {
            const double *a = is_of_momentum ? ranks[0].momentum : ranks[0].parameter;
            const double *b = is_of_momentum ? ranks[r].momentum : ranks[r].parameter;
            worst = fmax(worst, fabs(a[i] - b[i]));
        }
    }
    return worst;
}

/* One call of all ranks: an equal sum, what joins them, the update. Have all been joined? */
static bool call(const msdu__optimizer *o, trainer *ranks, msdu__apart **aparts, unsigned *state)
{
    double sum[COUNT];
    bool is_joined = true;
    for (int i = 0; i < COUNT; i++) {
        sum[i] = draw(state);
    }
    for (int r = 0; r < RANKS; r++) {
        double wide[COUNT];
        float narrow[COUNT];
        for (int i = 0; i < COUNT; i++) {
            wide[i] = sum[i];
            narrow[i] = (float)sum[i];
        }
        bool is_double = aparts[r]->kind == 2;
        is_joined =
            msdu__rejoin(o, aparts[r], is_double ? (void *)wide : (void *)narrow) && is_joined;
        for (int i = 0; i < COUNT && !is_double; i++) {
            wide[i] = (double)narrow[i];
        }
        update(o, &ranks[r], wide);
    }
    return is_joined;
}

static void make(msdu__apart **aparts, int32_t kind)
{
    for (int r = 0; r < RANKS; r++) {
        aparts[r] = msdu__apart_new(COUNT, kind);
        ck_assert_ptr_nonnull(aparts[r]);
    }
}

static void drop(msdu__apart **aparts)
{
    for (int r = 0; r < RANKS; r++) {
        msdu__apart_free(aparts[r]);
    }
}

static bool has_any(msdu__apart **aparts, bool (*is_so)(const msdu__apart *apart))
{
    bool has_one = false;
    for (int i = 0; i < RANKS; i++) {
        has_one = has_one || is_so(aparts[i]);
    }
    return has_one;
}

START_TEST(two_calls_make_parameters_and_momentum_equal)
{
    for (int32_t kind = 1; kind <= 2; kind++) {
        const double tolerance = kind == 2 ? 1e-13 : 1e-5;
        trainer ranks[RANKS];
        msdu__apart *aparts[RANKS];
        unsigned state = 3;
        make(aparts, kind);
        scatter(ranks, aparts, kind);
        ck_assert(!call(&optimizers[_i], ranks, aparts, &state));
        /* without Nesterov parameters are equal by now, momentum is not */
        ck_assert_int_eq(has_any(aparts, msdu__apart_differs),
                         spread(ranks, false) > (kind == 2 ? 1e-12 : 1e-4));
        ck_assert_int_eq(has_any(aparts, msdu__apart_differs), optimizers[_i].is_nesterov);
        ck_assert(has_any(aparts, msdu__apart_drifts));
        ck_assert(call(&optimizers[_i], ranks, aparts, &state));
        ck_assert_double_lt(spread(ranks, false), tolerance);
        ck_assert_double_lt(spread(ranks, true), tolerance);
        ck_assert(!has_any(aparts, msdu__apart_differs));
        drop(aparts);
    }
}
END_TEST

/* A schedule that is told: whatever the rate does, two calls at one rate end it. */
START_TEST(rate_that_changes_on_the_way_takes_longer)
{
    const double rates[] = {0.1, 0.0, 0.04, 0.03, 0.03};
    trainer ranks[RANKS];
    msdu__apart *aparts[RANKS];
    msdu__optimizer o = optimizers[_i];
    unsigned state = 3;
    make(aparts, 2);
    scatter(ranks, aparts, 2);
    for (int i = 0; i < 5; i++) {
        o.lr = rates[i];
        ck_assert_int_eq(call(&o, ranks, aparts, &state), i == 4);
    }
    ck_assert_double_lt(spread(ranks, false), 1e-13);
    ck_assert_double_lt(spread(ranks, true), 1e-12);
    drop(aparts);
}
END_TEST

/* As AMP does it: no update where a sum is not finite. */
START_TEST(a_step_that_is_skipped_changes_nothing)
{
    for (int32_t kind = 1; kind <= 2; kind++) {
        trainer ranks[RANKS];
        msdu__apart *aparts[RANKS];
        unsigned state = 3;
        make(aparts, kind);
        scatter(ranks, aparts, kind);
        ck_assert(!call(&optimizers[_i], ranks, aparts, &state));
        for (int r = 0; r < RANKS; r++) {
            double wide[COUNT] = {1, (double)INFINITY, 2, -1, (double)NAN};
            float narrow[COUNT] = {1, INFINITY, 2, -1, NAN};
            ck_assert(!msdu__rejoin(&optimizers[_i], aparts[r],
                                    kind == 2 ? (void *)wide : (void *)narrow));
            ck_assert(kind == 2 ? wide[0] == 1 && wide[3] == -1
                                : narrow[0] == 1 && narrow[3] == -1);
        }
        ck_assert(call(&optimizers[_i], ranks, aparts, &state));
        ck_assert_double_lt(spread(ranks, false), kind == 2 ? 1e-13 : 1e-5);
        drop(aparts);
    }
}
END_TEST

START_TEST(behind_a_synchronization_nothing_has_moved)
{
    for (int32_t kind = 1; kind <= 2; kind++) {
        msdu__apart *apart = msdu__apart_new(COUNT, kind);
        ck_assert_ptr_nonnull(apart);
        ck_assert_double_eq(msdu__apart_largest(apart), 0);
        if (kind == 1) {
            ((float *)apart->parameter)[COUNT - 1] = -0.5F;
        } else {
            ((double *)apart->parameter)[COUNT - 1] = -0.5;
        }
        ck_assert_double_eq(msdu__apart_largest(apart), 0.5);
        if (kind == 1) {
            ((float *)apart->parameter)[0] = NAN;
            ck_assert(msdu__apart_largest(apart) != 0);
        }
        msdu__apart_free(apart);
    }
    ck_assert_double_eq(msdu__apart_largest(NULL), 0);
}
END_TEST

START_TEST(equal_kinds_are_found_in_turn)
{
    msdu__apart *a = msdu__apart_new(7, 1);
    msdu__apart *b = msdu__apart_new(8, 1);
    msdu__apart *c = msdu__apart_new(7, 1);
    ck_assert(a != NULL && b != NULL && c != NULL);
    a->next = b;
    b->next = c;
    ck_assert_ptr_null(msdu__apart_find(a, 7, 2, 64));
    ck_assert_ptr_null(msdu__apart_find(a, 9, 1, 64));
    ck_assert_ptr_eq(msdu__apart_find(a, 8, 1, 64), b);
    ck_assert_ptr_eq(msdu__apart_find(a, 7, 1, 64), a);
    a->calls = 1;
    ck_assert_ptr_eq(msdu__apart_find(a, 7, 1, 64), c);
    c->is_busy = true;
    ck_assert_ptr_eq(msdu__apart_find(a, 7, 1, 64), a);
    msdu__apart_free(a);
}
END_TEST

/* Equal layers: neither order nor number of calls tells which one it is. */
START_TEST(what_has_a_place_is_found_there_alone)
{
    msdu__apart *a = msdu__apart_new(7, 1);
    msdu__apart *b = msdu__apart_new(7, 1);
    ck_assert(a != NULL && b != NULL);
    a->next = b;
    a->memory = 64;
    b->memory = 128;
    b->calls = 1;
    ck_assert_ptr_eq(msdu__apart_find(a, 7, 1, 128), b);
    ck_assert_ptr_eq(msdu__apart_find(a, 7, 1, 64), a);
    ck_assert_ptr_null(msdu__apart_find(a, 7, 1, 192));
    ck_assert(!msdu__apart_differs(a));
    ((float *)b->parameter)[6] = 1e-30F;
    ck_assert(msdu__apart_differs(b));
    ck_assert(!msdu__apart_differs(a));
    ((float *)a->momentum)[3] = 1;
    ck_assert(!msdu__apart_differs(a) && msdu__apart_drifts(a));
    a->is_unsure = true; /* a sum from other memory may have been its own */
    ck_assert(msdu__apart_differs(a));
    msdu__apart_free(a);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("apart");
    TCase *tcase = suite_case(suite, "apart", 0, NULL, NULL);
    tcase_add_loop_test(tcase, two_calls_make_parameters_and_momentum_equal, 0, OPTIMIZERS);
    tcase_add_loop_test(tcase, rate_that_changes_on_the_way_takes_longer, 0, OPTIMIZERS);
    tcase_add_loop_test(tcase, a_step_that_is_skipped_changes_nothing, 0, OPTIMIZERS);
    tcase_add_test(tcase, equal_kinds_are_found_in_turn);
    tcase_add_test(tcase, what_has_a_place_is_found_there_alone);
    tcase_add_test(tcase, behind_a_synchronization_nothing_has_moved);
    return suite_run(suite);
}
