/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device.h - memory that is not the host's: what a backend offers beside communication, so that
 * tensors in a device's memory are captured, reduced and corrected where they lie.
 *
 * A loop over tensor data is a *kernel*. msdu_kernels is the table of them: the library fills one
 * for the host's memory, whose kernels are carried out at once, a backend one for its device. A
 * device runs them later, in the order of the calls, and the library asks by marks how far it is.
 */
#ifndef MSDU_DEVICE_H
#define MSDU_DEVICE_H

#include <msdu/msdu.h>

#ifdef __cplusplus
extern "C" {
#endif

struct msdu_comm;

/* What a kernel has to wait for, beside the announcement that it names. */
typedef enum msdu_stage {
    MSDU_STAGE_EARLY = 0, /* all kernels so far: it reads what the trainer announced */
    MSDU_STAGE_LATE = 1,  /* late kernels so far: it works on what arrived */
} msdu_stage;

/* What every kernel is told first. */
typedef struct msdu_launch {
    struct msdu_comm *comm;
    uint64_t count;        /* elements, or bytes of fill and copy; 0: nothing is done */
    int32_t dtype;         /* msdu_dtype of the tensor; fill, copy and loops over floats: any */
    int32_t stage;         /* msdu_stage */
    uint32_t announcement; /* 1 + what after() recorded of the trainer's memory; 0: none */
    uint32_t reserved;     /* zero */
} msdu_launch;

/* What a kernel found, added up over its elements in an order that depends on nothing but count. */
typedef struct msdu_sums {
    double update_sq; /* the first that the kernel names */
    double weight_sq; /* the second */
    double bad;       /* not 0: a NaN or infinity was met */
} msdu_sums;

/* "Working type": double where dtype is MSDU_FLOAT64, else float. */

/* Arrays of a slice of parameters. */
typedef struct msdu_arrays {
    void *param;    /* w, of dtype; the others are of working type */
    void *anchor;   /* A */
    void *update;   /* d */
    void *momentum; /* u; NULL: no rule has any */
    void *snapshot; /* y; NULL: none is taken, y is w */
} msdu_arrays;

typedef enum msdu_rule {
    MSDU_RULE_AVERAGE = 0, /* A -= d, w = A */
    MSDU_RULE_ELASTIC,     /* A -= d, w -= alpha (w - A) */
    MSDU_RULE_DELAYED,     /* A -= d, w = A + keep (w - y); not without a snapshot */
    MSDU_RULE_BLEND,       /* A -= d, w = own w + other A */
    MSDU_RULE_COPY,        /* u = d, d = lr d */
    MSDU_RULE_HEAVY_BALL,  /* u = mu u + d, d = lr u */
    MSDU_RULE_NESTEROV,    /* u = mu u + d, d = lr (d + mu u) */
    MSDU_RULE_SCALE,       /* d *= factor */
} msdu_rule;

typedef struct msdu_rule_step {
    int32_t rule;     /* msdu_rule */
    int32_t reserved; /* zero */
    double a;         /* alpha, keep, own, lr or factor */
    double b;         /* other or mu */
} msdu_rule_step;

#define MSDU_RULES_MOST 6

/* What is done with a mean, step by step; the last step, and no other, writes A and w. */
typedef struct msdu_rules {
    uint32_t count;
    uint32_t reserved; /* zero */
    msdu_rule_step steps[MSDU_RULES_MOST];
} msdu_rules;

/* Coefficients of the accumulated domain (src/correct/recursion.c). */
typedef struct msdu_recursion {
    double decay;    /* wd */
    double momentum; /* mu */
    double factor;   /* f */
    double lr;
    double lr_inverse;  /* 1 / lr; 0: nothing moves */
    double of_input;    /* the optimizer's direction is of_input u + of_velocity dv */
    double of_velocity; /* (heavy ball 0 and 1, Nesterov 1 and mu) */
    double of_target;   /* K = of_target T - of_trace r */
    double of_trace;
} msdu_recursion;

/* Its arrays, of working type. */
typedef struct msdu_recursion_state {
    void *drift;    /* dl */
    void *velocity; /* dv */
    void *trace;    /* r */
} msdu_recursion_state;

/* Wire formats (src/wire). */
typedef enum msdu_format {
    MSDU_FORMAT_FLOAT32 = 0,
    MSDU_FORMAT_BFLOAT16,
    MSDU_FORMAT_FLOAT16,
    MSDU_FORMAT_INT8,
    MSDU_FORMAT_INT4,
    MSDU_FORMAT_INT2,
    MSDU_FORMAT_SPARSE,
} msdu_format;

/* How a slice is exchanged: shares of whole blocks, one for each rank, one behind the other. */
typedef struct msdu_exchange {
    int32_t format; /* msdu_format */
    uint32_t block; /* elements of a block of codes */
    int32_t ranks;
    double factor; /* of a sum over ranks */
} msdu_exchange;

/*
 * Kernels. All are told where, how much and when (msdu_launch). Arguments are copied, the memory
 * they point to is the caller's and stays until the kernel has ended. `sums` lies in shared memory
 * and is written, not added to, before a mark behind the kernel is reached; NULL: not wanted. So
 * does `sketch`. Never block. Threads: see msdu_device.
 */
typedef struct msdu_kernels {
    size_t size; /* sizeof(msdu_kernels) when the backend was built */
    /* out <- bytes of value `byte` */
    msdu_status (*fill)(const msdu_launch *at, void *out, int32_t byte);
    /* out <- bytes of in */
    msdu_status (*copy)(const msdu_launch *at, void *out, const void *in);
    /* out (working type) <- in (dtype); sums: |in|^2 */
    msdu_status (*load)(const msdu_launch *at, void *out, const void *in, msdu_sums *sums);
    /* out (dtype) <- in (working type) */
    msdu_status (*store)(const msdu_launch *at, void *out, const void *in);
    /* sums: |in|^2, in of dtype */
    msdu_status (*norm)(const msdu_launch *at, const void *in, msdu_sums *sums);
    /* x (working type) *= factor; sums: |x|^2 after */
    msdu_status (*scale)(const msdu_launch *at, void *x, double factor, msdu_sums *sums);
    /* x += factor * y */
    msdu_status (*add)(const msdu_launch *at, float *x, const float *y, double factor);
    /* update <- anchor - param, snapshot <- param; sums: |update|^2, |anchor|^2. hash, in shared
     * memory: may go on with a hash of param; a device may leave it as it is (0: not known). */
    msdu_status (*capture)(const msdu_launch *at, const msdu_arrays *arrays, msdu_sums *sums,
                           uint64_t *hash);
    /* rules in order; update is spent; sums: |update|^2 before, |anchor|^2 after */
    msdu_status (*apply)(const msdu_launch *at, const msdu_arrays *arrays, const msdu_rules *rules,
                         msdu_sums *sums);
    /* recursion of a call without synchronization, on gradient (dtype) */
    msdu_status (*local)(const msdu_launch *at, const msdu_recursion *recursion,
                         const msdu_recursion_state *state, void *gradient);
    /* recursion takes in gradient (dtype); out (working type) <- drift; sums: |drift|^2 */
    msdu_status (*drift)(const msdu_launch *at, const msdu_recursion *recursion,
                         const msdu_recursion_state *state, const void *gradient, void *out,
                         msdu_sums *sums);
    /* recursion meets mean (working type), of all ranks' drift, on gradient (dtype) */
    msdu_status (*meet)(const msdu_launch *at, const msdu_recursion *recursion,
                        const msdu_recursion_state *state, const void *mean, void *gradient);
    /* out <- codes of in (+ residual, which keeps what is lost, or NULL); sums: |residual|^2 after;
     * count: of the slice */
    msdu_status (*encode)(const msdu_launch *at, const msdu_exchange *exchange, const float *in,
                          float *residual, void *out, msdu_sums *sums);
    /* sum <- factor times what `in` decodes to, a share's codes of all ranks one behind the other,
     * added in rank order; out <- codes of sum (+ residual, or NULL); count: of the share */
    msdu_status (*reduce)(const msdu_launch *at, const msdu_exchange *exchange, const void *in,
                          float *residual, float *sum, void *out);
    /* out <- what the codes at in decode to; count: of the slice */
    msdu_status (*decode)(const msdu_launch *at, const msdu_exchange *exchange, const void *in,
                          float *out);
    /* sketch[k], 64 of them: sum of signed in[i], i = k mod 64 (interval/sketch.h) */
    msdu_status (*sketch)(const msdu_launch *at, const float *in, uint64_t seed, float *sketch);
    /* Optional from here on: NULL or beyond size means "no rounds by the clock". */
    /* param (dtype) += shift (working type) */
    msdu_status (*shift)(const msdu_launch *at, void *param, const void *shift);
    /* anchor -= update, shift -= update; all of working type */
    msdu_status (*follow)(const msdu_launch *at, void *anchor, void *shift, const void *update);
} msdu_kernels;

/*
 * Memory and kernels of a device. As in backend.h: negative statuses come with a text by
 * host->fail(), nothing throws, prints or exits. One thread at a time calls kernels, mark, reached
 * and exchange: before msdu_start() returns the thread that called it, then the context's
 * communication thread, and once that stands still after a failure the owner. What any thread may
 * call beside it says so, and is locked by the backend.
 */
typedef struct msdu_device {
    size_t size;      /* sizeof(msdu_device) when the backend was built */
    const char *name; /* static: "cuda" */
    /* Zeroed memory, aligned to 64 bytes. is_shared: both sides reach it, for results of
     * kernels; NULL: there is none. Blocks. */
    void *(*allocate)(struct msdu_comm *comm, uint64_t bytes, int32_t is_shared);
    void (*release)(struct msdu_comm *comm, void *memory, int32_t is_shared);
    /* Between any two memories, behind everything run so far. Blocks. Thread: any. */
    msdu_status (*copy)(struct msdu_comm *comm, void *to, const void *from, uint64_t bytes);
    const msdu_kernels *kernels;
    /* Number the point behind all kernels launched so far; rising. The library asks for one mark
     * after the other; the backend calls host->notify() when one is reached. */
    msdu_status (*mark)(struct msdu_comm *comm, uint64_t *mark_out);
    /* MSDU_OK, MSDU_IN_PROGRESS, or what failed. Never blocks. */
    msdu_status (*reached)(struct msdu_comm *comm, uint64_t mark);
    /* Announcement `index` is what `stream` (a cudaStream_t) was given so far: kernels that name it
     * wait for that. An index that was never recorded is not waited for. Never blocks; allocates
     * for an index used the first time. Thread: any. */
    msdu_status (*after)(struct msdu_comm *comm, uint32_t index, void *stream);
    /* `stream` waits for all kernels launched so far; is_host: the calling thread does, up to the
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
