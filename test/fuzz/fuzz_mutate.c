/* SPDX-License-Identifier: Apache-2.0 */
/* Mutated inputs for fuzzers that run as ordinary tests. */
#include "fuzz_mutate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "random.h"

#define INPUT_BYTES  65536
#define CHANGES_MOST 6
#define PIECE_MOST   64
#define GROWTH       (CHANGES_MOST * PIECE_MOST)

/* Numbers at limits, brackets, escapes, line ends, names that mean something. */
static const char *const words[] = {
    "-1",
    "0",
    "1e999",
    "-0.0",
    "NaN",
    "18446744073709551616",
    "1e-320",
    "4398046511105",
    "{",
    "}",
    "[",
    "]",
    "\"",
    "\\u0000",
    "\\ud800",
    ",",
    ":",
    "null",
    "true",
    "\xff\xfe",
    "\r\n",
    "\n",
    "[msdu]",
    "=",
    ";",
    "#",
    "layers",
    "count",
    "tensors",
    "interval",
    "slice_bytes=1GiB",
    "ranks=0",
};

typedef struct text {
    uint8_t *data;
    size_t bytes;
    size_t most;
} text;

static size_t below(uint64_t *random, size_t limit)
{
    return limit > 0 ? (size_t)(random_next(random) % limit) : 0;
}

static void insert(text *t, size_t at, const void *piece, size_t bytes)
{
    if (t->bytes + bytes <= t->most) {
        memmove(t->data + at + bytes, t->data + at, t->bytes - at);
        memcpy(t->data + at, piece, bytes);
        t->bytes += bytes;
    }
}

static void cut_out(text *t, size_t at, size_t bytes)
{
    bytes = bytes < t->bytes - at ? bytes : t->bytes - at;
    memmove(t->data + at, t->data + at + bytes, t->bytes - at - bytes);
    t->bytes -= bytes;
}

static void change(text *t, uint64_t *random)
{
    uint8_t piece[PIECE_MOST];
    size_t at = below(random, t->bytes);
    size_t from = below(random, t->bytes);
    size_t length = 1 + below(random, PIECE_MOST);
    const char *word = words[below(random, sizeof(words) / sizeof(words[0]))];
    length = length < t->bytes - from ? length : t->bytes - from;
    memcpy(piece, t->data + from, length);
    switch (below(random, 6)) {
    case 0:
        if (t->bytes > 0) {
            t->data[at] ^= (uint8_t)(1U << below(random, 8));
        }
        break;
    case 1:
        cut_out(t, at, length);
        break;
    case 2:
        insert(t, at, piece, length);
        break;
    case 3:
        insert(t, at, word, strlen(word));
        break;
    case 4: /* instead of what is there */
        cut_out(t, at, 1 + below(random, 8));
        insert(t, at < t->bytes ? at : t->bytes, word, strlen(word));
        break;
    default:
        t->bytes = at;
    }
}

void fuzz_mutations(fuzz_target target, const uint8_t *data, size_t bytes, uint64_t seed,
                    uint32_t count)
{
    uint64_t random = seed * 0x9e3779b97f4a7c15U + 1;
    text t = {.data = malloc(bytes + GROWTH), .most = bytes + GROWTH};
    if (t.data == NULL) {
        abort();
    }
    for (uint32_t i = 0; i < count; i++) {
        size_t changes = 1 + below(&random, CHANGES_MOST);
        memcpy(t.data, data, bytes);
        t.bytes = bytes;
        while (changes-- > 0) {
            change(&t, &random);
        }
        (void)target(t.data, t.bytes);
    }
    free(t.data);
}

char *fuzz_copy(const uint8_t *data, size_t bytes)
{
    char *copy = malloc(bytes > 0 ? bytes : 1);
    if (copy == NULL) {
        abort();
    }
    memcpy(copy, data, bytes);
    return copy;
}

static size_t read_file(const char *path, uint8_t *data, size_t most)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        perror(path);
        exit(EXIT_FAILURE);
    }
    size_t bytes = fread(data, 1, most, file);
    (void)fclose(file);
    return bytes;
}

int fuzz_corpus(fuzz_target target, int argc, char **argv, size_t beginnings, size_t mutated)
{
    static uint8_t data[INPUT_BYTES];
    for (int i = 1; i < argc; i++) {
        size_t bytes = read_file(argv[i], data, sizeof(data));
        size_t length = bytes > beginnings ? bytes - beginnings : 0;
        for (; length <= bytes; length++) {
            (void)target(data, length);
        }
        fuzz_mutations(target, data, bytes, (uint64_t)i, (uint32_t)(mutated / (bytes + 100)));
    }
    printf("%d inputs and their mutations\n", argc - 1);
    return argc > 1 ? 0 : 1;
}
