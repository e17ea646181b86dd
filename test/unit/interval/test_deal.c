/* SPDX-License-Identifier: Apache-2.0 */
/* Batches dealt to ranks that are in different steps: each has one rank, and who is fast gets more.
 */
#include "interval/deal.h"
#include "random.h"
#include "suite.h"

#include <math.h>

#define RANKS  5
#define ROUNDS 4000
#define MOST   100000

static uint64_t seed = 17;
static uint8_t owners[MOST]; /* by number: 1 + rank */

typedef struct taker {
    double step_ns;
    double clock_ns; /* when its present step ends */
    uint64_t drawn;  /* and by its latest message: */
    uint64_t told;
    uint64_t starved;
} taker;

/* Between two rounds a rank draws a batch at every step's end, if it has one. */
static void draw(taker *t, const msdu__deal *deal, int rank, double until_ns)
{
    while (t->clock_ns < until_ns) {
        if (t->drawn == deal->given[rank]) {
            t->starved++;
            t->clock_ns = until_ns;
            return;
        }
        t->drawn++;
        t->clock_ns += t->step_ns * (1 + 0.3 * random_signed(&seed));
    }
}

static void give(msdu__deal *deal, int rank, const taker *t, double round_ns)
{
    uint64_t stock = msdu__deal_stock(round_ns, t->step_ns);
    uint64_t first = deal->next;
    uint64_t count = msdu__deal_give(deal, rank, t->told, stock);
    ck_assert_uint_le(deal->given[rank] - t->told, MSDU__STOCK_MOST);
    for (uint64_t i = first; i < first + count && i < MOST; i++) {
        ck_assert_uint_eq(owners[i], 0);
        owners[i] = (uint8_t)(1 + rank);
    }
}

START_TEST(every_batch_has_one_rank_and_the_fast_have_more)
{
    uint64_t given[RANKS] = {0};
    msdu__deal deal = {.given = given};
    taker takers[RANKS] = {
        {.step_ns = 1}, {.step_ns = 1}, {.step_ns = 4}, {.step_ns = 0.5}, {.step_ns = 100}};
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < RANKS; i++) {
            takers[i].told = takers[i].drawn; /* as its message leaves, in the middle of a round */
            draw(&takers[i], &deal, i, round + 0.5);
        }
        for (int i = 0; i < RANKS; i++) {
            give(&deal, i, &takers[i], 1);
        }
        for (int i = 0; i < RANKS; i++) {
            draw(&takers[i], &deal, i, round + 1.0);
        }
    }
    for (uint64_t i = 0; i < deal.next && i < MOST; i++) {
        ck_assert_msg(owners[i] > 0, "nobody has batch %llu", (unsigned long long)i);
    }
    for (int i = 0; i < RANKS; i++) {
        double steps = ROUNDS / takers[i].step_ns;
        ck_assert_double_eq_tol((double)takers[i].drawn, steps, 0.05 * steps + 2);
        ck_assert_uint_le(takers[i].starved, 1); /* before the first round */
    }
    ck_assert_uint_le(given[4] - takers[4].drawn, 1); /* who is slow sits on nothing */
}
END_TEST

START_TEST(a_stock_is_for_three_rounds_or_a_step)
{
    ck_assert_uint_eq(msdu__deal_stock(1e6, 1e6), 3);
    ck_assert_uint_eq(msdu__deal_stock(1e6, 4e6), 1);
    ck_assert_uint_eq(msdu__deal_stock(1e6, 1e5), 30);
    ck_assert_uint_eq(msdu__deal_stock(1e9, 1), MSDU__STOCK_MOST);
    ck_assert_uint_eq(msdu__deal_stock(0, 1e6), 1);
    ck_assert_uint_eq(msdu__deal_stock(1e6, 0), 3); /* not told yet */
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("deal");
    TCase *tcase = suite_case(suite, "deal", 0, NULL, NULL);
    tcase_add_test(tcase, every_batch_has_one_rank_and_the_fast_have_more);
    tcase_add_test(tcase, a_stock_is_for_three_rounds_or_a_step);
    return suite_run(suite);
}
