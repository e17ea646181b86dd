/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the two-phase allreduce with all ranks in one process. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "random.h"
#include "suite.h"
#include "wire/wire.h"

#define RANKS_MAX 5
#define MOST      4096
#define BLOCK     256
#define GUARD     0x5a

static uint64_t random_state;

static double gaussian(void)
{
    return random_gaussian(&random_state);
}

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static void setup(void)
{
    random_state = 0x853c49e6748fea9bU;
}

/* A group of ranks. Buffers of one rank hold exactly what msdu__exchange_bytes() says, and a guard.
 */
typedef struct group {
    msdu_exchange x;
    const msdu__wire *wire;
    uint64_t count;
    uint64_t share_count[RANKS_MAX];
    uint64_t share_start[RANKS_MAX];
    uint64_t share_bytes[RANKS_MAX];
    float value[RANKS_MAX][MOST];    /* contributions */
    float residual[RANKS_MAX][MOST]; /* phase 1 */
    float owned[RANKS_MAX][MOST];    /* phase 2: the owner's residual */
    float result[RANKS_MAX][MOST];
    unsigned char send[RANKS_MAX][4 * MOST + 4096];
    unsigned char received[RANKS_MAX][4 * MOST + 4096];
    unsigned char gathered[4 * MOST + 4096];
    bool has_feedback;
} group;

static group g;

static void group_start(int wire, int ranks, uint64_t count, double factor)
{
    memset(&g, 0, sizeof(g));
    g.count = count;
    g.x = (msdu_exchange){.format = wire, .block = BLOCK, .ranks = ranks, .factor = factor};
    g.wire = msdu__wire_at(wire);
    g.has_feedback = g.wire->has_feedback;
    msdu__exchange_shares(count, BLOCK, ranks, g.share_count, g.share_start);
    for (int j = 0; j < ranks; j++) {
        g.share_bytes[j] = msdu__wire_bytes(g.wire, g.share_count[j], BLOCK);
    }
}

/* What a backend's all-to-all does: to every owner its share of every rank, in rank order. */
static void all_to_all(void)
{
    for (int owner = 0; owner < g.x.ranks; owner++) {
        uint64_t from = 0;
        for (int j = 0; j < owner; j++) {
            from += g.share_bytes[j];
        }
        for (int j = 0; j < g.x.ranks; j++) {
            memcpy(g.received[owner] + (uint64_t)j * g.share_bytes[owner], g.send[j] + from,
                   g.share_bytes[owner]);
        }
    }
}

static double exchange(void)
{
    static float sum[MOST];
    double energy = 0.0;
    const uint64_t most = msdu__exchange_bytes(g.wire, g.count, BLOCK, g.x.ranks);
    for (int j = 0; j < g.x.ranks; j++) {
        g.send[j][most] = GUARD;
        energy += msdu__exchange_encode(&g.x, g.count, g.value[j],
                                        g.has_feedback ? g.residual[j] : NULL, g.send[j]);
        ck_assert_uint_eq(g.send[j][most], GUARD);
    }
    all_to_all();
    uint64_t at = 0;
    for (int j = 0; j < g.x.ranks; j++) {
        ck_assert_uint_le((uint64_t)g.x.ranks * g.share_bytes[j], most);
        energy += msdu__exchange_reduce(&g.x, g.share_count[j], g.received[j],
                                        g.has_feedback ? g.owned[j] : NULL, sum, g.gathered + at);
        at += g.share_bytes[j];
    }
    ck_assert_uint_le(at, most);
    for (int j = 0; j < g.x.ranks; j++) {
        msdu__exchange_decode(&g.x, g.count, g.gathered, g.result[j]);
    }
    return energy;
}

static void fill(void)
{
    for (int j = 0; j < g.x.ranks; j++) {
        for (uint64_t i = 0; i < g.count; i++) {
            g.value[j][i] = (float)gaussian();
        }
    }
}

static uint64_t ragged(int index, int ranks)
{
    const uint64_t n = (uint64_t)ranks;
    const uint64_t list[] = {1,
                             n > 1 ? n - 1 : 1,
                             BLOCK - 1,
                             BLOCK,
                             BLOCK * n + 3,
                             BLOCK * n,
                             BLOCK * n - 1,
                             2 * BLOCK * n + BLOCK + 17};
    return list[index];
}

#define RAGGED 8

START_TEST(shares_cover_every_element_once_in_whole_blocks)
{
    for (int32_t ranks = 1; ranks <= 9; ranks++) {
        for (uint64_t count = 0; count < 700; count++) {
            uint64_t counts[9];
            uint64_t starts[9];
            uint64_t next = 0;
            msdu__exchange_shares(count, 16, ranks, counts, starts);
            for (int32_t j = 0; j < ranks; j++) {
                ck_assert(starts[j] == next && counts[j] <= counts[0]);
                ck_assert(counts[j] % 16 == 0 || next + counts[j] == count);
                ck_assert(counts[0] <= counts[j] + 32);
                next += counts[j];
            }
            ck_assert_uint_eq(next, count);
        }
    }
}
END_TEST

START_TEST(all_ranks_decode_the_same_bits)
{
    for (int ranks = 1; ranks <= RANKS_MAX; ranks++) {
        for (int index = 0; index < RAGGED; index++) {
            group_start(_i, ranks, ragged(index, ranks), 1.0 / ranks);
            for (int round = 0; round < 3; round++) {
                fill();
                (void)exchange();
                for (int j = 1; j < ranks; j++) {
                    ck_assert_mem_eq(g.result[0], g.result[j], sizeof(g.result[0]));
                }
            }
        }
    }
}
END_TEST

/* Largest error of the mean, in units of the largest contribution: once per phase. */
static const double worst[MSDU__WIRE_COUNT] = {0.0,       1.0 / 120.0, 1.0 / 1000.0, 1.1 / 127.0,
                                               1.1 / 7.0, 2.0,         2.0};

START_TEST(result_is_the_mean_within_the_formats_error)
{
    for (int index = 0; index < RAGGED; index++) {
        group_start(_i, 4, ragged(index, 4), 0.25);
        fill();
        (void)exchange();
        double error = 0.0;
        for (uint64_t i = 0; i < g.count; i++) {
            double mean = 0.0;
            for (int j = 0; j < 4; j++) {
                mean += 0.25 * (double)g.value[j][i];
            }
            error = fmax(error, fabs((double)g.result[2][i] - mean));
        }
        ck_assert_double_le(error, 4.0 * worst[_i] + 1e-6);
    }
}
END_TEST

START_TEST(float32_equals_a_plain_sum_in_rank_order_bit_for_bit)
{
    for (int ranks = 1; ranks <= RANKS_MAX; ranks++) {
        for (int index = 0; index < RAGGED; index++) {
            group_start(MSDU__WIRE_FLOAT32, ranks, ragged(index, ranks), _i == 0 ? 1.0 : 1.0 / 3.0);
            fill();
            ck_assert_double_eq(exchange(), 0.0);
            int wrong = 0;
            for (uint64_t i = 0; i < g.count; i++) {
                float want = g.value[0][i];
                for (int j = 1; j < ranks; j++) {
                    want += g.value[j][i];
                }
                want *= _i == 0 ? 1.0F : 1.0F / 3.0F;
                wrong += bits_of(g.result[0][i]) != bits_of(want);
            }
            ck_assert_int_eq(wrong, 0);
        }
    }
}
END_TEST

/* Relative distance of the sum of all results to the sum of all true means. */
static double sum_error(int wire, bool has_feedback, int rounds)
{
    static double want[MOST];
    static double got[MOST];
    double error = 0.0;
    double energy = 0.0;
    memset(want, 0, sizeof(want));
    memset(got, 0, sizeof(got));
    group_start(wire, 4, 3000, 0.25);
    g.has_feedback = has_feedback;
    for (int round = 0; round < rounds; round++) {
        for (uint64_t i = 0; i < g.count; i++) {
            for (int j = 0; j < 4; j++) {
                g.value[j][i] = (float)(0.3 + 0.5 * (i % 7 == 0) + gaussian());
                want[i] += 0.25 * (double)g.value[j][i];
            }
        }
        (void)exchange();
        for (uint64_t i = 0; i < g.count; i++) {
            got[i] += (double)g.result[1][i];
        }
    }
    for (uint64_t i = 0; i < g.count; i++) {
        error += (got[i] - want[i]) * (got[i] - want[i]);
        energy += want[i] * want[i];
    }
    return sqrt(error / energy);
}

START_TEST(feedback_in_both_phases_makes_the_sum_converge)
{
    const double early = sum_error(_i, true, 10);
    const double late = sum_error(_i, true, 100);
    ck_assert_double_lt(late, 0.2 * early);
    ck_assert_double_lt(late, _i == MSDU__WIRE_SPARSE ? 0.06 : 0.02);
}
END_TEST

START_TEST(two_bits_without_feedback_do_not_converge)
{
    const double with = sum_error(MSDU__WIRE_INT2, true, 100);
    ck_assert_double_gt(sum_error(MSDU__WIRE_INT2, false, 100), 5.0 * with);
}
END_TEST

START_TEST(bytes_of_a_rank_equal_the_formula)
{
    static const double bits[MSDU__WIRE_COUNT] = {32.0, 16.0, 16.0, 8.0625, 4.0625, 2.0625, 0.8125};
    group_start(_i, 4, 16 * BLOCK, 0.25);
    uint64_t sent = 0; /* phase 1: all shares but its own; phase 2: its own to all others */
    for (int j = 1; j < 4; j++) {
        sent += g.share_bytes[j] + g.share_bytes[0];
    }
    ck_assert_double_eq((double)sent, 2.0 * 0.75 * bits[_i] / 8.0 * 16.0 * BLOCK);
}
END_TEST

/* Of every rank, by the definition: the others' shares once, the own one to each of the others. */
START_TEST(no_rank_sends_more_than_the_first)
{
    for (uint64_t count = 1; count < 3000; count += 1 + count / 7) {
        for (int ranks = 1; ranks <= RANKS_MAX; ranks++) {
            uint64_t shares[RANKS_MAX];
            uint64_t starts[RANKS_MAX];
            const msdu__wire *wire = msdu__wire_at(_i);
            msdu__exchange_shares(count, 256, ranks, shares, starts);
            uint64_t first = msdu__exchange_sent(wire, shares, 256, ranks);
            for (int rank = 0; rank < ranks; rank++) {
                uint64_t sent = 0;
                for (int j = 0; j < ranks; j++) {
                    uint64_t bytes = msdu__wire_bytes(wire, shares[j], 256);
                    sent += j == rank ? bytes * (uint64_t)(ranks - 1) : bytes;
                }
                ck_assert_msg(rank == 0 ? sent == first : sent <= first, "%d of %d ranks", rank,
                              ranks);
            }
        }
    }
}
END_TEST

START_TEST(energy_returned_is_that_of_the_residuals)
{
    group_start(MSDU__WIRE_INT2, 3, 1000, 1.0 / 3.0);
    double energy = 0.0;
    double want = 0.0;
    for (int round = 0; round < 5; round++) {
        fill();
        energy = exchange();
    }
    for (int j = 0; j < 3; j++) {
        for (uint64_t i = 0; i < 1000; i++) {
            want += (double)g.residual[j][i] * (double)g.residual[j][i];
            want += (double)g.owned[j][i] * (double)g.owned[j][i];
        }
    }
    ck_assert_double_gt(want, 1.0);
    ck_assert_double_eq_tol(energy, want, 1e-9 * want);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("exchange");
    TCase *cases = suite_case(suite, "exchange", 60, setup, NULL);
    tcase_add_test(cases, shares_cover_every_element_once_in_whole_blocks);
    tcase_add_loop_test(cases, all_ranks_decode_the_same_bits, 0, MSDU__WIRE_COUNT);
    tcase_add_loop_test(cases, result_is_the_mean_within_the_formats_error, 0, MSDU__WIRE_COUNT);
    tcase_add_loop_test(cases, float32_equals_a_plain_sum_in_rank_order_bit_for_bit, 0, 2);
    tcase_add_loop_test(cases, feedback_in_both_phases_makes_the_sum_converge, MSDU__WIRE_INT8,
                        MSDU__WIRE_COUNT);
    tcase_add_test(cases, two_bits_without_feedback_do_not_converge);
    tcase_add_loop_test(cases, bytes_of_a_rank_equal_the_formula, 0, MSDU__WIRE_COUNT);
    tcase_add_loop_test(cases, no_rank_sends_more_than_the_first, 0, MSDU__WIRE_COUNT);
    tcase_add_test(cases, energy_returned_is_that_of_the_residuals);
    return suite_run(suite);
}
