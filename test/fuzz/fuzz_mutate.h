/* SPDX-License-Identifier: Apache-2.0 */
/* Mutated inputs for fuzzers that run as ordinary tests: the same ones in every run. */
#ifndef FUZZ_MUTATE_H
#define FUZZ_MUTATE_H

#include <stddef.h>
#include <stdint.h>

typedef int (*fuzz_target)(const uint8_t *data, size_t bytes);

/* A file of the corpus, at most `most` bytes of it; the number of bytes. Ends the process if there
 * is none. */
size_t fuzz_read(const char *path, uint8_t *data, size_t most);
/*
 * Run `count` mutations of data[0 .. bytes): each a few changes of bytes, of pieces (cut out,
 * doubled, moved), or of words that readers stumble over. They depend on seed, data and count only.
 */
void fuzz_mutations(fuzz_target target, const uint8_t *data, size_t bytes, uint64_t seed,
                    uint32_t count);

#endif
