/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Batches for ranks that are in different steps (rounds by the clock). Pure: what all ranks know
 * goes in, so all ranks get the same out.
 *
 * Batches are numbered through all epochs. A rank takes them one at a time, whenever it comes; who
 * is fast takes more. After each round every rank is given the next numbers, as many as fill its
 * stock for the rounds until it can be given more. So every number has one rank, and nobody is
 * asked.
 */
#ifndef MSDU_DEAL_H
#define MSDU_DEAL_H

#include <stdint.h>

#define MSDU__STOCK_MOST 32 /* batches of a rank that it has not drawn */

typedef struct msdu__deal {
    uint64_t next;   /* the first number that no rank has */
    uint64_t *given; /* to each rank, so many */
} msdu__deal;

/* What a rank is to have in stock: for three rounds, or for its next step. Times of a round and of
 * its step; 0: not known. */
uint64_t msdu__deal_stock(double round_ns, double step_ns);
/* How many numbers, from `next` on, this rank gets: it has drawn so many. */
uint64_t msdu__deal_give(msdu__deal *deal, int32_t rank, uint64_t drawn, uint64_t stock);

#endif
