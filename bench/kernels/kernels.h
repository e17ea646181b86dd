/* SPDX-License-Identifier: Apache-2.0 */
/* The passes over memory that `msdu bench kernels` measures, each with the plain arithmetic that
 * says what it must have done. */
#ifndef MSDU_BENCH_KERNELS_H
#define MSDU_BENCH_KERNELS_H

#include "harness/bench.h"

/* Arrays of a bench; the recursion and the wire formats use them under other names. */
enum {
    MSDU__PARAM = 0, /* w; gradient g; value */
    MSDU__ANCHOR,    /* A; drift dl */
    MSDU__UPDATE,    /* d; velocity dv; decoded value */
    MSDU__MOMENTUM,  /* u; trace r; residual */
    MSDU__SNAPSHOT,  /* y; what is sent or the mean; sum */
    MSDU__ARRAYS
};

typedef struct msdu__kernel_arrays {
    float *array[MSDU__ARRAYS];
    uint8_t *codes; /* room for as many bytes as an array */
    uint64_t count; /* elements */
    double sink;    /* of results, so that no pass can be left out */
} msdu__kernel_arrays;

/* One element of every array, before and after a pass. */
typedef struct msdu__kernel_point {
    float value[MSDU__ARRAYS];
} msdu__kernel_point;

typedef struct msdu__kernel msdu__kernel;
struct msdu__kernel {
    const char *name;
    const char *group; /* correct, recursion, reduce, convert, wire */
    const char *moves; /* which streams are counted, in words */
    uint32_t floats;   /* array elements read or written per element */
    uint32_t coded;    /* times the coded bytes are read or written */
    int variant;       /* wire, or rule chain */
    void (*run)(const msdu__kernel *kernel, msdu__kernel_arrays *a);
    /* What a pass does to one element, in plain arithmetic; NULL: see is_right. */
    void (*expect)(msdu__kernel_point *point);
    unsigned changed; /* bits by array: what expect sets */
    /* For what needs more than one element. points were gathered before the pass, at steps of
     * `stride`. */
    bool (*is_right)(const msdu__kernel *kernel, msdu__kernel_arrays *a,
                     const msdu__kernel_point *points, uint64_t stride);
};

/* The index-th pass, NULL past the last. */
const msdu__kernel *msdu__kernel_at(uint32_t index); /* kernel_stages.c */
/* Bytes of the coded array for a pass over all elements. */
uint64_t msdu__kernel_coded_bytes(const msdu__kernel *kernel, uint64_t count);
/* Fill the arrays, and codes where the pass reads them. */
void msdu__kernel_prepare(const msdu__kernel *kernel, msdu__kernel_arrays *a);

extern const msdu__kernel msdu__kernel_wires[]; /* kernel_wires.c; ends with a NULL name */
bool msdu__kernel_reads_codes(const msdu__kernel *kernel);
void msdu__kernel_encode(const msdu__kernel *kernel, msdu__kernel_arrays *a);

#endif
