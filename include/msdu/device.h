/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device.h - memory that is not the host's: what a backend offers beside communication, so that
 * tensors in a device's memory are captured, reduced and corrected where they lie.
 *
 * All work on tensor data is a *pass*: one loop over the elements of a slice, described by an
 * msdu_pass. The library runs the same passes over host memory itself. A device runs them later, in
 * the order of the calls, and the library asks by marks how far it is.
 */
#ifndef MSDU_DEVICE_H
#define MSDU_DEVICE_H

#include <msdu/msdu.h>

#ifdef __cplusplus
extern "C" {
#endif

/* "Working type" below: double where dtype is MSDU_FLOAT64, else float. */
typedef enum msdu_pass_kind {
    MSDU_PASS_FILL = 0, /* out <- count bytes of value `byte` */
    MSDU_PASS_COPY,     /* out <- count bytes of in */
    MSDU_PASS_LOAD,     /* out (working type) <- in (dtype); sums: |in|^2 */
    MSDU_PASS_STORE,    /* out (dtype) <- in (working type) */
    MSDU_PASS_NORM,     /* sums: |in|^2, in of dtype */
    MSDU_PASS_SCALE,    /* out *= factor, of working type; sums: |out|^2 */
    MSDU_PASS_ADD,      /* out += factor * in, floats */
    MSDU_PASS_CAPTURE,  /* update <- anchor - param; snapshot <- param; sums |update|^2, |anchor|^2
                         */
    MSDU_PASS_APPLY,    /* rules in order; sums: |update|^2 before, |anchor|^2 after */
    MSDU_PASS_LOCAL,    /* recursion of a call without meeting, on out (gradient); sums: |out|^2 */
    MSDU_PASS_DRIFT,    /* recursion takes in `in` (gradient); out <- drift; sums: |drift|^2 */
    MSDU_PASS_MEET,     /* recursion meets `in` (mean drift), on out (gradient) */
    MSDU_PASS_ENCODE,   /* out <- codes of in (+ residual, floats); sums: |residual|^2 after */
    MSDU_PASS_REDUCE,   /* of `in`, codes by rank: sum (floats), out <- its codes (+ residual) */
    MSDU_PASS_DECODE,   /* out (floats) <- codes at in */
    MSDU_PASS_SKETCH,   /* sketch[k] = sum of signed in[i], i = k mod 64 (interval/sketch.h) */
} msdu_pass_kind;

/* What a pass found, added up over its elements in an order that depends on nothing but count. */
typedef struct msdu_sums {
    double update_sq; /* the first that the kind names */
    double weight_sq; /* the second */
    double bad;       /* not 0: a NaN or infinity was met */
} msdu_sums;

/* Rules of MSDU_PASS_APPLY (src/correct): d update, A anchor, w param, u momentum, y snapshot. */
typedef enum msdu_pass_rule {
    MSDU_RULE_AVERAGE = 0, /* A -= d, w = A */
    MSDU_RULE_ELASTIC,     /* A -= d, w -= alpha (w - A) */
    MSDU_RULE_DELAYED,     /* A -= d, w = A + keep (w - y) */
    MSDU_RULE_BLEND,       /* A -= d, w = own w + other A */
    MSDU_RULE_COPY,        /* u = d, d = lr d */
    MSDU_RULE_HEAVY_BALL,  /* u = mu u + d, d = lr u */
    MSDU_RULE_NESTEROV,    /* u = mu u + d, d = lr (d + mu u) */
    MSDU_RULE_SCALE,       /* d *= factor */
} msdu_pass_rule;

/* Wire formats of MSDU_PASS_ENCODE, REDUCE and DECODE (src/wire). */
typedef enum msdu_pass_format {
    MSDU_FORMAT_FLOAT32 = 0,
    MSDU_FORMAT_BFLOAT16,
    MSDU_FORMAT_FLOAT16,
    MSDU_FORMAT_INT8,
    MSDU_FORMAT_INT4,
    MSDU_FORMAT_TERNARY,
    MSDU_FORMAT_SPARSE,
} msdu_pass_format;

typedef struct msdu_rule_step {
    int32_t rule;     /* msdu_pass_rule */
    int32_t reserved; /* zero */
    double a;         /* alpha, keep, own, lr or factor */
    double b;         /* other or mu */
} msdu_rule_step;

#define MSDU_PASS_RULES 6

/* Coefficients of the accumulated domain (src/correct/recursion.c). */
typedef struct msdu_pass_recursion {
    double decay;
    double momentum;
    double factor;
    double lr;
    double lr_inverse; /* 0: nothing moves */
    double of_input;
    double of_velocity;
    double of_target;
    double of_trace;
} msdu_pass_recursion;

/* What a pass has to wait for, beside the announcement that it names. */
typedef enum msdu_pass_stage {
    MSDU_STAGE_EARLY = 0, /* all passes so far: it reads what the trainer announced */
    MSDU_STAGE_LATE = 1,  /* late passes so far: it works on what arrived, whatever is announced */
} msdu_pass_stage;

/* One loop over a slice, or over a piece of it. What the kind does not name is zero. */
typedef struct msdu_pass {
    size_t size;    /* sizeof(msdu_pass) of the library */
    int32_t kind;   /* msdu_pass_kind */
    int32_t dtype;  /* msdu_dtype of the tensor */
    uint64_t count; /* elements (FILL, COPY: bytes) */
    int32_t stage;  /* msdu_pass_stage */
    int32_t byte;
    double factor;
    const void *in;
    void *out;
    void *param;  /* dtype */
    void *anchor; /* this and the rest: working type */
    void *update;
    void *momentum;
    void *snapshot; /* APPLY: NULL is param */
    void *drift;
    void *velocity;
    void *trace;
    float *residual;       /* ENCODE, REDUCE: error feedback, or NULL */
    float *sum;            /* REDUCE: count floats */
    msdu_sums *sums;       /* written, in shared memory; NULL: not wanted */
    float *sketch;         /* 64 floats, written, in shared memory */
    uint64_t seed;         /* SKETCH */
    int32_t format;        /* ENCODE, REDUCE, DECODE: msdu_pass_format */
    uint32_t block;        /* elements of a block of codes */
    int32_t ranks;         /* REDUCE: contributions, one behind the other, and their distance */
    uint32_t announcement; /* 1 + what after() recorded of the trainer's memory; 0: none */
    uint64_t stride;
    msdu_pass_recursion recursion;
    uint32_t rule_count;
    uint32_t reserved2; /* zero */
    msdu_rule_step rules[MSDU_PASS_RULES];
} msdu_pass;

struct msdu_comm;

/*
 * Memory and loops of a device. As in backend.h: negative statuses come with a text by
 * host->fail(), nothing throws, prints or exits. One thread at a time calls run, mark, reached and
 * exchange: before msdu_start() returns the thread that called it, then the context's communication
 * thread, and once that stands still after a failure the owner. What any thread may call beside it
 * says so, and is locked by the backend.
 */
typedef struct msdu_device {
    size_t size;      /* sizeof(msdu_device) when the backend was built */
    const char *name; /* static: "cuda" */
    /* Zeroed memory, aligned to 64 bytes. is_shared: both sides reach it, for results of passes;
     * NULL: there is none. Blocks. */
    void *(*allocate)(struct msdu_comm *comm, uint64_t bytes, int32_t is_shared);
    void (*release)(struct msdu_comm *comm, void *memory, int32_t is_shared);
    /* Between any two memories, behind everything run so far. Blocks. Thread: any. */
    msdu_status (*copy)(struct msdu_comm *comm, void *to, const void *from, uint64_t bytes);
    /* Launch a pass; it is copied. Never blocks. */
    msdu_status (*run)(struct msdu_comm *comm, const msdu_pass *pass);
    /* Number the point behind all passes launched so far; rising. The library asks for one mark
     * after the other; the backend calls host->notify() when one is reached. */
    msdu_status (*mark)(struct msdu_comm *comm, uint64_t *mark_out);
    /* MSDU_OK, MSDU_IN_PROGRESS, or what failed. Never blocks. */
    msdu_status (*reached)(struct msdu_comm *comm, uint64_t mark);
    /* Announcement `index` is what `stream` (a cudaStream_t) was given so far: passes that name it
     * wait for that. An index that was never recorded is not waited for. Never blocks; allocates
     * for an index used the first time. Thread: any. */
    msdu_status (*after)(struct msdu_comm *comm, uint32_t index, void *stream);
    /* `stream` waits for all passes launched so far; is_host: the calling thread does, up to the
     * deadline. Thread: any. */
    msdu_status (*before)(struct msdu_comm *comm, void *stream, int32_t is_host);
    /* Optional from here on: NULL or beyond size means "not provided". */
    /* Zeroed memory, aligned to 64 bytes, for what all ranks send and receive, and nothing else:
     * the backend may prepare it. Asked for once, by all ranks alike, and released like the rest.
     * NULL: allocate() will do. Blocks. */
    msdu_status (*exchange)(struct msdu_comm *comm, uint64_t bytes, void **memory_out);
} msdu_device;

#ifdef __cplusplus
}
#endif

#endif
