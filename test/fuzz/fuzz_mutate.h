/* SPDX-License-Identifier: Apache-2.0 */
/* Mutated inputs for fuzzers that run as ordinary tests: the same ones in every run. */
#ifndef FUZZ_MUTATE_H
#define FUZZ_MUTATE_H

#include <stddef.h>
#include <stdint.h>

typedef int (*fuzz_target)(const uint8_t *data, size_t bytes);

/*
 * Run `count` mutations of data[0 .. bytes): each a few changes of bytes, of pieces (cut out,
 * doubled, moved), or of words that readers stumble over. They depend on seed, data and count only.
 */
void fuzz_mutations(fuzz_target target, const uint8_t *data, size_t bytes, uint64_t seed,
                    uint32_t count);

/* A copy of data that has exactly its size, so that a sanitizer sees every byte read past it; to be
 * freed. Ends the process where there is no memory. */
char *fuzz_copy(const uint8_t *data, size_t bytes);
/* The files named as arguments once each, the last `beginnings` beginnings of them, and as many
 * mutations as read about `mutated` bytes of each; the exit status. */
int fuzz_corpus(fuzz_target target, int argc, char **argv, size_t beginnings, size_t mutated);

#endif
