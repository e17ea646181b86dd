/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What libmsdu_preload.so adds to a reduction that it passes through: the same call by the real
 * function and through the library, by turns, in one process. Reductions are of no elements, for
 * which Open MPI and NCCL communicate nothing: what is measured is the call.
 */
#ifndef BENCH_PASSTHROUGH_H
#define BENCH_PASSTHROUGH_H

#include <stdbool.h>

typedef enum passthrough_kind {
    PASSTHROUGH_INTEGERS, /* no gradient's type */
    PASSTHROUGH_FLOATS,
} passthrough_kind;

/* The calls of one interface; each returns true if it went well. */
typedef struct passthrough_calls {
    const char *over;
    int ranks;           /* of a communicator; a single one is left alone after one look */
    bool (*begin)(void); /* a communicator that the library has not seen yet */
    bool (*plain)(passthrough_kind kind);
    bool (*ours)(passthrough_kind kind);
    bool (*end)(void);
} passthrough_calls;

/* Measures all cases and prints a list of records (JSON) if is_loud. --smoke: few calls. Returns an
 * exit status. */
int passthrough_run(const passthrough_calls *calls, bool is_loud, int argc, char **argv);

#endif
