/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the toy trainer's tensors are, and which backend its ranks use: the host and "local"
 * (ranks_place.c), or, in programs of test/standin, device memory and the module nccl over a
 * stand-in (standin/ranks_place.c).
 */
#ifndef TEST_RANKS_PLACE_H
#define TEST_RANKS_PLACE_H

#include <stddef.h>

#include <msdu/msdu.h>

/* A job begins: what its ranks' rendezvous is, "" if none is needed. ranks_place_end() ends it. */
void ranks_place_begin(char *rendezvous, size_t bytes);
void ranks_place_end(const char *rendezvous);
/* Backend and what it needs. */
void ranks_place_config(msdu_config *config, const char *rendezvous);

int32_t ranks_place(void);            /* msdu_place */
void *ranks_place_take(size_t bytes); /* zeroed; NULL: no memory */
void ranks_place_give(void *memory);

#endif
