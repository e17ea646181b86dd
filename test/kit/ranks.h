/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A toy trainer for tests: ranks as threads over the backend "local", a quadratic model of several
 * tensors, SGD with momentum, and a record of all parameters as every forward pass saw them.
 *
 * Nothing here asserts, because Check cannot take a failure from a thread: the first failing call
 * of a rank is kept in its ranks_self and the rank leaves.
 */
#ifndef TEST_RANKS_H
#define TEST_RANKS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <msdu/msdu.h>

#define RANKS_MOST         8
#define RANKS_TENSORS_MOST 16

typedef struct ranks_tensor {
    uint64_t count;
    int32_t dtype;
    int32_t role;
    int32_t priority;
} ranks_tensor;

/* How the trainer talks to the library. */
typedef enum ranks_style {
    RANKS_IN_ORDER, /* announces everything, waits tensor by tensor */
    RANKS_SILENT,   /* announces nothing, waits for everything at once */
    RANKS_THREADS,  /* gradients come from several threads in random order */
    RANKS_DEFERRED, /* the optimizer runs in the next forward pass */
    RANKS_ALONE,    /* waits for each gradient before it computes the next */
} ranks_style;

typedef struct ranks_self ranks_self;

typedef struct ranks_job {
    int ranks;
    int steps;      /* with epochs: more than all of them take, those of msdu_join() included */
    int first_step; /* of a resumed run; `started` puts everything in its place */
    int epochs;     /* each ends with msdu_join(); 0: no epochs */
    int (*batches)(int rank, int epoch); /* steps of a rank in an epoch */
    const ranks_tensor *tensors;
    uint32_t tensor_count;
    msdu_config config; /* size, ranks, rank and backend are filled in */
    ranks_style style;
    bool hides_parameters;      /* the library gets no parameter pointers */
    bool hides_gradients;       /* nor gradient pointers */
    bool has_constant_gradient; /* g does not depend on step and parameters */
    bool is_dyadic;     /* g depends on the step only; sums and means of 2^k ranks have few bits */
    const char *hosts;  /* letters by rank: the ranks of one average their gradients in local steps;
                           NULL: they do not */
    bool starts_apart;  /* initial parameters differ by rank */
    bool needs_lr;      /* tell the library lr_at() at every step */
    bool is_unfinished; /* leave without msdu_finish() */
    bool goes_on;       /* a step whose gradients are refused is not applied, no failure */
    bool looks;         /* nor is one whose gradients hold NaN or infinity */
    int missing;        /* 1 + a step that is left out altogether, 0: none */
    double (*lr_at)(const struct ranks_job *job, int step); /* NULL: config.lr */
    /* Weight of a rank in means, told before every step; NULL: 1, and not told. */
    double (*weight_at)(const struct ranks_job *job, int rank, int step);
    /* Called by every rank, if not NULL: before create; after create; before a tensor is added;
     * after start; before every backward pass; after a gradient was computed; after the last step;
     * after a failure. */
    void (*configured)(const ranks_self *self, msdu_config *config);
    void (*created)(ranks_self *self);
    void (*described)(const ranks_self *self, uint32_t tensor, msdu_tensor_desc *desc);
    void (*started)(ranks_self *self);
    void (*stepped)(ranks_self *self, int step);
    bool (*syncs_at)(int step); /* msdu_synchronize() before this step; NULL: never */
    void (*computed)(ranks_self *self, int step, uint32_t tensor);
    void (*ended)(ranks_self *self);
    void (*failed)(ranks_self *self);
    void *user;
} ranks_job;

struct ranks_self {
    const ranks_job *job;
    int rank;
    msdu_ctx *ctx;
    uint64_t elements; /* of all tensors */
    const char *rendezvous;
    atomic_int *gone; /* ranks that are done with training */
    void *parameter[RANKS_TENSORS_MOST];
    void *gradient[RANKS_TENSORS_MOST];
    double *velocity;
    double *history; /* steps + 1 rows of elements: before each step, and after finish */
    int *fragment;   /* of every element, -1: in no slice */
    int refused;     /* steps that were not applied, and ... */
    int refused_at;  /* the latest */
    msdu_status status;
    char text[512];
    msdu_summary summary; /* before destroy */
};

typedef struct ranks_run {
    ranks_self selves[RANKS_MOST];
    atomic_int gone;
    char rendezvous[128];
} ranks_run;

/* All of setting overlap; those that wait in the round's own step first. */
#define RANKS_OVERLAPS 5
extern const char *const ranks_overlaps[RANKS_OVERLAPS];

/* Exact means every 4 steps; slices and fragments so small that tensors are cut and fused. */
msdu_config ranks_config(const char *domain, const char *overlap);

/* Run a job to its end; false: no memory or no thread. */
bool ranks_go(const ranks_job *job, ranks_run *run);
void ranks_free(ranks_run *run);

/* First failing rank, -1 if none failed. */
int ranks_failed(const ranks_run *run, int ranks);

/* Elements of all tensors. */
uint64_t ranks_elements(const ranks_job *job);
/* Row of a rank's history. */
const double *ranks_row(const ranks_self *self, int step);

/* --- the model and its optimizer, shared with the reference --- */

/* x in the precision of a type. */
double ranks_round(int32_t dtype, double x);
double ranks_get(int32_t dtype, const void *array, uint64_t i);
void ranks_put(int32_t dtype, void *array, uint64_t i, double value);
/* Values of element `at` (counted over all tensors), already in the tensor's precision. */
double ranks_initial(const ranks_job *job, int rank, int32_t dtype, uint64_t at);
double ranks_gradient(const ranks_job *job, int rank, int step, int32_t dtype, uint64_t at,
                      double parameter);
/* Next value of optimizer state or a buffer, which drifts apart by rank. */
double ranks_state(int rank, int step, int32_t dtype, uint64_t at, double state);
double ranks_lr(const ranks_job *job, int step);
double ranks_weight(const ranks_job *job, int rank, int step);
/* One step of SGD with the config's momentum, dampening, weight decay and nesterov; velocity is NaN
 * before the first. */
double ranks_update(const ranks_job *job, int step, int32_t dtype, double parameter,
                    double gradient, double *velocity);

#endif
