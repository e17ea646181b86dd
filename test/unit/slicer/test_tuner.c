/* SPDX-License-Identifier: Apache-2.0 */
/* Tuner: against worlds whose cost is known, with and without noise. */
#include "random.h"
#include "slicer/tuner.h"
#include "suite.h"

#include <check.h>
#include <math.h>

#define KIB    1024ULL
#define MIB    (1024ULL * 1024ULL)
#define WORLDS 2000
#define ROUNDS 64
#define MANY   50000 /* worlds, and the most of them */
#define MISSES 6     /* in which a slicing may stay well behind the best */

static uint64_t seed_now = 11;

/* Log-uniform. */
static double draw(double low, double high)
{
    double at = (random_signed(&seed_now) + 1) / 2;
    return low * pow(high / low, at);
}

/* A model on a link: what a round takes under every cut is known. */
typedef struct world {
    msdu__tuner_args args;
    msdu__tuner_cost cost;  /* the truth */
    double wire;            /* bytes that a rank sends for a byte of the model */
    double noise;           /* rounds take up to this share more, and one in ten twice that */
    const double *by_lanes; /* how much longer rounds take with 1, 2, 4, 8 lanes; NULL: no longer */
} world;

/* One draw after the other: the order within an initializer is the compiler's. */
static world draw_world(double noise)
{
    world w = {.wire = 1.5, .noise = noise};
    uint64_t model = (uint64_t)draw(1e6, 4e9);
    double latency = draw(2e4, 5e6);
    w.args = (msdu__tuner_args){.model_bytes = model,
                                .latency_ns = latency,
                                .slice_least = msdu__tuner_slice_least(model),
                                .slice_most = msdu__tuner_slice_most(model),
                                .window_least = 2,
                                .window_most = 8};
    w.args.is_whole = random_next(&seed_now) % 2 == 0;
    w.args.is_single = random_next(&seed_now) % 4 == 0;
    w.cost.latency_ns = latency;
    w.cost.bytes_per_ns = draw(1e-3, 10);
    w.cost.slice_ns = latency * draw(1.0 / 16, 4);
    return w;
}

static msdu__tuner_round round_of(const world *w, msdu__tuning tuning)
{
    double slices = ceil((double)w->args.model_bytes / (double)tuning.slice_bytes);
    msdu__tuner_round round = {.bytes = (uint64_t)((double)w->args.model_bytes * w->wire),
                               .slices = (uint32_t)slices,
                               .window = tuning.window};
    round.link_ns = msdu__tuner_busy_ns(&w->cost, &round);
    if (w->by_lanes != NULL) {
        round.link_ns *= w->by_lanes[(int)log2(tuning.lanes)];
    }
    double late = w->noise * (random_signed(&seed_now) + 1) / 2;
    late *= random_next(&seed_now) % 10 == 0 ? 2 : 1;
    round.link_ns *= 1 + late;
    return round;
}

/* What a step loses under a slicing, in truth. */
static double loss_of(const world *w, msdu__tuning tuning)
{
    double slices = ceil((double)w->args.model_bytes / (double)tuning.slice_bytes);
    msdu__tuner_round round = {.bytes = (uint64_t)((double)w->args.model_bytes * w->wire),
                               .slices = (uint32_t)slices,
                               .window = tuning.window};
    uint32_t ahead = w->args.is_single ? 0 : w->args.is_whole ? 1 : round.window;
    return msdu__tuner_loss_ns(&w->cost, &round, ahead, (double)round.bytes / slices);
}

static double least_loss(const world *w)
{
    double least = (double)INFINITY;
    for (uint64_t bytes = w->args.slice_least; bytes <= w->args.slice_most; bytes *= 2) {
        for (uint32_t window = w->args.window_least; window <= w->args.window_most; window++) {
            least = fmin(least, loss_of(w, (msdu__tuning){bytes, window, 2}));
        }
    }
    return least;
}

/* Rounds until it is settled. */
static uint32_t listen(const world *w, msdu__tuner *tuner)
{
    uint32_t changes = 0;
    msdu__tuner_begin(tuner, msdu__tuner_first(w->args.model_bytes, 4, 2));
    for (int i = 0; i < ROUNDS; i++) {
        msdu__tuner_round round = round_of(w, tuner->present);
        changes += msdu__tuner_hear(tuner, &w->args, &round) ? 1 : 0;
    }
    return changes;
}

/* The same, asserted; how often it changed. */
static uint32_t run(const world *w, msdu__tuner *tuner)
{
    uint32_t changes = listen(w, tuner);
    ck_assert(tuner->is_settled);
    ck_assert_uint_eq(changes, tuner->changes);
    return changes;
}

START_TEST(the_best_cut_follows_the_square_root)
{
    /* W = 2 and a latency that never shows: n g + W s / R has its least at n^2 = B W / (g R); where
     * all slices are waited for alike, at B / (g R) */
    world w = {.args = {.model_bytes = 1024 * MIB, .slice_least = 32 * KIB, .slice_most = 64 * MIB},
               .cost = {.bytes_per_ns = 1},
               .wire = 1};
    w.args.window_least = w.args.window_most = 2;
    for (uint64_t slices = 64; slices <= 8192; slices *= 2) {
        w.args.is_whole = _i == 1;
        w.cost.slice_ns = (double)w.args.model_bytes * (2 - _i) / (double)(slices * slices);
        msdu__tuning present = {.slice_bytes = MIB, .window = 2};
        msdu__tuner_round now = round_of(&w, present);
        msdu__tuning best = msdu__tuner_best(&w.args, &w.cost, &now, present);
        ck_assert_uint_eq(best.slice_bytes, w.args.model_bytes / slices);
    }
}
END_TEST

START_TEST(a_long_latency_takes_more_slices_in_flight)
{
    world w = {.args = {.model_bytes = 64 * MIB,
                        .slice_least = MIB,
                        .slice_most = MIB,
                        .window_least = 2,
                        .window_most = 8},
               .cost = {.bytes_per_ns = 1},
               .wire = 1};
    msdu__tuning present = {.slice_bytes = MIB, .window = 4};
    msdu__tuner_round now = round_of(&w, present);
    /* a slice takes 1 MiB ns; W - 1 of them hide a */
    for (uint32_t window = 2; window <= 8; window++) {
        w.cost.latency_ns = (window - 1.0) * (double)MIB;
        ck_assert_uint_eq(msdu__tuner_best(&w.args, &w.cost, &now, present).window, window);
    }
}
END_TEST

/* Nothing waits behind a slice of the only tensor: just enough of them to hide the latency. */
START_TEST(a_single_tensor_is_cut_into_few)
{
    world w = {.args = {.model_bytes = MIB, .slice_least = 32 * KIB, .slice_most = MIB},
               .cost = {.bytes_per_ns = 0.124, .slice_ns = 10000, .latency_ns = 100000},
               .wire = 1};
    w.args.window_least = w.args.window_most = 4;
    msdu__tuning present = {.slice_bytes = 256 * KIB, .window = 4};
    msdu__tuner_round now = round_of(&w, present);
    w.args.is_single = true;
    ck_assert_uint_eq(msdu__tuner_best(&w.args, &w.cost, &now, present).slice_bytes, 512 * KIB);
    w.args.is_single = false;
    ck_assert_uint_lt(msdu__tuner_best(&w.args, &w.cost, &now, present).slice_bytes, 256 * KIB);
}
END_TEST

/* Two measurements often allow two explanations; only a third can tell. */
START_TEST(finds_the_best_of_a_known_world)
{
    int misses = 0;
    for (int i = 0; i < MANY; i++) {
        world w = draw_world(0);
        msdu__tuner tuner;
        (void)listen(&w, &tuner); /* an assertion for each world would take seconds */
        double loss = loss_of(&w, tuner.present);
        double allowed = 1.25 * least_loss(&w) + 0.03 * round_of(&w, tuner.present).link_ns;
        misses += loss > allowed + 50000 ? 1 : 0;
    }
    ck_assert_int_le(misses, MISSES);
}
END_TEST

START_TEST(is_stable_under_noise)
{
    for (int i = 0; i < WORLDS; i++) {
        world w = draw_world(0.15);
        msdu__tuner tuner;
        msdu__tuning first = msdu__tuner_first(w.args.model_bytes, 4, 2);
        uint32_t changes = run(&w, &tuner);
        ck_assert_uint_le(changes, MSDU__TUNER_CHANGES);
        /* whatever noise does to the fit, no round may become much worse than it was */
        double busy = round_of(&w, tuner.present).link_ns;
        double allowed = fmax(loss_of(&w, first), 4 * least_loss(&w)) + 0.3 * busy;
        ck_assert_double_le(loss_of(&w, tuner.present), allowed + 50000);
        msdu__tuning settled = tuner.present;
        for (int k = 0; k < ROUNDS; k++) {
            msdu__tuner_round round = round_of(&w, tuner.present);
            ck_assert(!msdu__tuner_hear(&tuner, &w.args, &round));
        }
        ck_assert_mem_eq(&settled, &tuner.present, sizeof(settled));
    }
}
END_TEST

START_TEST(equal_values_give_equal_decisions)
{
    for (int i = 0; i < WORLDS; i++) {
        world w = draw_world(0.5);
        msdu__tuner a;
        msdu__tuner b;
        msdu__tuner_begin(&a, msdu__tuner_first(w.args.model_bytes, 4, 2));
        msdu__tuner_begin(&b, msdu__tuner_first(w.args.model_bytes, 4, 2));
        for (int k = 0; k < ROUNDS; k++) {
            msdu__tuner_round round = round_of(&w, a.present);
            bool changes = msdu__tuner_hear(&a, &w.args, &round);
            ck_assert(changes == msdu__tuner_hear(&b, &w.args, &round));
            ck_assert_uint_eq(a.present.slice_bytes, b.present.slice_bytes);
            ck_assert_uint_eq(a.present.window, b.present.window);
        }
    }
}
END_TEST

START_TEST(keeps_within_its_bounds)
{
    for (int i = 0; i < WORLDS; i++) {
        world w = draw_world(1);
        msdu__tuner tuner;
        w.args.window_least = w.args.window_most = 4;
        run(&w, &tuner);
        ck_assert_uint_eq(tuner.present.window, 4);
        ck_assert_uint_le(tuner.present.slice_bytes, w.args.slice_most);
        bool is_first = tuner.changes == 0;
        ck_assert(is_first || tuner.present.slice_bytes >= w.args.slice_least);
        ck_assert_uint_eq(tuner.present.slice_bytes & (tuner.present.slice_bytes - 1), 0);
    }
}
END_TEST

/* Rates of 1, 2, 4 and 8 channels, how many there are, and which are found from 2 on. */
static const struct {
    double by_lanes[4];
    uint32_t most;
    uint32_t best;
    uint32_t changes; /* of channels */
} lane_cases[] = {
    {{1, 1, 1, 1}, 8, 2, 3},       {{2, 1.5, 1, 1}, 8, 4, 3},     {{2, 1.5, 1.2, 1}, 8, 8, 2},
    {{2, 1.5, 1.2, 1}, 4, 4, 1},   {{1, 1.2, 1.3, 1.4}, 8, 1, 2}, {{1, 1.2, 1.3, 1.4}, 2, 1, 1},
    {{1, 1.04, 1.01, 1}, 8, 2, 3}, {{2, 1, 1, 1}, 3, 2, 2},
};
#define LANE_CASES (int)(sizeof(lane_cases) / sizeof(lane_cases[0]))

START_TEST(as_many_lanes_as_measured_best)
{
    for (int i = 0; i < WORLDS / 10; i++) {
        world w = draw_world(0);
        w.by_lanes = lane_cases[_i].by_lanes;
        w.args.lanes_most = lane_cases[_i].most;
        msdu__tuner tuner;
        uint32_t changes = listen(&w, &tuner);
        ck_assert(tuner.is_settled);
        ck_assert_uint_eq(tuner.present.lanes, lane_cases[_i].best);
        ck_assert_uint_eq(tuner.lane_changes, lane_cases[_i].changes);
        ck_assert_uint_le(tuner.changes, MSDU__TUNER_CHANGES);
        ck_assert_uint_le(changes, tuner.changes + tuner.lane_changes);
    }
}
END_TEST

START_TEST(another_wire_is_measured_anew)
{
    world w = {.args = {.model_bytes = 400 * MIB,
                        .latency_ns = 4e5,
                        .slice_least = 32 * KIB,
                        .slice_most = 4 * MIB,
                        .window_least = 2,
                        .window_most = 8},
               .cost = {.bytes_per_ns = 0.125, .slice_ns = 1e5, .latency_ns = 4e5},
               .wire = 1.5};
    msdu__tuner tuner;
    run(&w, &tuner);
    uint64_t wide = tuner.present.slice_bytes;
    w.wire = 1.5 / 8;
    for (int k = 0; k < ROUNDS; k++) {
        msdu__tuner_round round = round_of(&w, tuner.present);
        (void)msdu__tuner_hear(&tuner, &w.args, &round);
    }
    ck_assert_uint_gt(tuner.present.slice_bytes, wide); /* by about the root of 8 */
    ck_assert_uint_le(tuner.present.slice_bytes, 8 * wide);
}
END_TEST

START_TEST(rounds_that_tell_nothing_are_passed_over)
{
    world w = draw_world(0);
    msdu__tuner tuner;
    const msdu__tuner_round empty[] = {{.bytes = 0, .slices = 4, .link_ns = 1},
                                       {.bytes = 8, .slices = 0, .link_ns = 1},
                                       {.bytes = 8, .slices = 4, .link_ns = 0},
                                       {.bytes = 8, .slices = 4, .link_ns = (double)NAN}};
    msdu__tuner_begin(&tuner, msdu__tuner_first(w.args.model_bytes, 4, 2));
    for (int k = 0; k < ROUNDS; k++) {
        ck_assert(!msdu__tuner_hear(&tuner, &w.args, &empty[k % 4]));
    }
    ck_assert_uint_eq(tuner.count, 0);
}
END_TEST

START_TEST(the_first_cut_has_many_slices_but_no_small_ones)
{
    ck_assert_uint_eq(msdu__tuner_first(1, 4, 2).slice_bytes, 256 * KIB);
    ck_assert_uint_eq(msdu__tuner_first(40 * MIB, 4, 2).slice_bytes, 512 * KIB);
    ck_assert_uint_eq(msdu__tuner_first(100 * MIB, 4, 2).slice_bytes, MIB);
    ck_assert_uint_eq(msdu__tuner_first(1ULL << 40, 4, 2).slice_bytes, MIB);
    ck_assert_uint_eq(msdu__tuner_slice_most(1), 256 * KIB);
    ck_assert_uint_eq(msdu__tuner_slice_most(3 * MIB), 2 * MIB);
    ck_assert_uint_eq(msdu__tuner_slice_most(10240 * MIB), 4 * MIB);
    ck_assert_uint_eq(msdu__tuner_slice_least(0), 32 * KIB);
    ck_assert_uint_eq(msdu__tuner_slice_least(10240 * MIB), 4 * MIB);
}
END_TEST

START_TEST(a_narrow_slice_sends_no_more_and_leaves_room_for_order)
{
    for (int i = 0; i < WORLDS; i++) {
        uint64_t model = (uint64_t)draw(1e5, 4e9);
        double share = draw(1.0 / 50, 1);
        uint32_t fragments = 1 + (uint32_t)(random_next(&seed_now) % 32);
        uint64_t sent = (uint64_t)((double)model * share);
        uint64_t first = msdu__tuner_first(model, 4, 2).slice_bytes;
        uint64_t bytes = msdu__tuner_compressed(first, model, sent, fragments);
        uint64_t slices = fragments > 1 ? 4 * (uint64_t)fragments : 16;
        uint64_t few = fragments > 1 ? UINT64_MAX : 8; /* of slices up to 1 MiB */
        ck_assert_uint_ge(bytes, first);
        ck_assert_uint_eq(bytes & (bytes - 1), 0);
        ck_assert_uint_le(bytes, 2 * MIB);
        bool is_small = fragments == 1 && share * (double)bytes <= 80.1 * KIB;
        if (bytes > first && !is_small) {
            ck_assert(share * (double)bytes <= 1.25 * (double)first);
            ck_assert_uint_ge(model / bytes, bytes <= MIB && few < slices ? few : slices);
        }
        /* and nothing keeps it from doubling once more */
        uint64_t wanted = 2 * bytes <= MIB && few < slices ? few : slices;
        bool is_full =
            2 * share * (double)bytes > 1.24 * (double)first || model / (2 * bytes) < wanted;
        ck_assert((is_full && (fragments > 1 || 2 * share * (double)bytes > 79.9 * KIB)) ||
                  bytes >= model || bytes == 2 * MIB);
    }
    uint64_t resnet = 4 * 25557032ULL;
    ck_assert_uint_eq(msdu__tuner_compressed(MIB, resnet, resnet, 1), MIB);
    ck_assert_uint_eq(msdu__tuner_compressed(MIB, resnet, resnet / 2, 1), 2 * MIB);
    ck_assert_uint_eq(msdu__tuner_compressed(MIB, resnet, (uint64_t)((double)resnet / 7.9), 1),
                      2 * MIB);
    ck_assert_uint_eq(msdu__tuner_compressed(256 * KIB, resnet / 10, resnet / 79, 1), MIB);
    uint64_t vgg = 4 * 2225284ULL; /* a round of 9 slices, not 17 */
    ck_assert_uint_eq(msdu__tuner_compressed(256 * KIB, vgg, (uint64_t)((double)vgg / 7.9), 1),
                      MIB);
    uint64_t middle = 16 * MIB; /* 16 of 1 MiB, not 8 of 2 */
    ck_assert_uint_eq(msdu__tuner_compressed(256 * KIB, middle, middle / 8, 1), MIB);
    uint64_t small = 4 * 126084; /* in four bits one slice, not four */
    ck_assert_uint_eq(msdu__tuner_compressed(256 * KIB, small, small / 2, 1), 256 * KIB);
    ck_assert_uint_eq(msdu__tuner_compressed(256 * KIB, small, (uint64_t)((double)small / 7.75), 1),
                      512 * KIB);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tuner");
    TCase *cases = suite_case(suite, "tuner", 0, NULL, NULL);
    tcase_set_timeout(cases, 60); /* under a sanitizer, on a busy machine */
    tcase_add_loop_test(cases, the_best_cut_follows_the_square_root, 0, 2);
    tcase_add_test(cases, a_long_latency_takes_more_slices_in_flight);
    tcase_add_test(cases, a_single_tensor_is_cut_into_few);
    tcase_add_test(cases, finds_the_best_of_a_known_world);
    tcase_add_test(cases, is_stable_under_noise);
    tcase_add_test(cases, equal_values_give_equal_decisions);
    tcase_add_test(cases, keeps_within_its_bounds);
    tcase_add_loop_test(cases, as_many_lanes_as_measured_best, 0, LANE_CASES);
    tcase_add_test(cases, another_wire_is_measured_anew);
    tcase_add_test(cases, rounds_that_tell_nothing_are_passed_over);
    tcase_add_test(cases, a_narrow_slice_sends_no_more_and_leaves_room_for_order);
    tcase_add_test(cases, the_first_cut_has_many_slices_but_no_small_ones);
    return suite_run(suite);
}
