/* SPDX-License-Identifier: Apache-2.0 */
/* Random trainers as streams of calls, with the truth that a recognizer does not see. */
#ifndef TEST_RECOGNIZE_ZOO_H
#define TEST_RECOGNIZE_ZOO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "attach/recognize.h"

#define ZOO_TENSORS_MAX 2600 /* of all models of a trainer */
#define ZOO_EVENTS_MAX  (6 * ZOO_TENSORS_MAX)
#define ZOO_NO_TENSOR   UINT32_MAX

/* Where results lie. */
typedef enum zoo_memory {
    ZOO_OWN,      /* each tensor in its own place */
    ZOO_ONE,      /* all are copied through one place */
    ZOO_BY_SHAPE, /* one place for each size */
    ZOO_BY_KIND,  /* layers take turns on one set, as where each is updated at once */
    ZOO_DOUBLE,   /* two places in turn */
    ZOO_MOVING,   /* places alternate from step to step */
    ZOO_MIXED,    /* tensors of one size change places from step to step */
    ZOO_FRESH,    /* never the same place */
    ZOO_MEMORIES,
} zoo_memory;

typedef struct zoo_trainer {
    uint64_t random;
    zoo_memory memory;
    uint32_t layers, tensors_per_layer, stages, buckets; /* buckets: 0, or fused into so many */
    bool has_embedding, has_head, is_tied, is_reverse, has_layer_marks, has_small;
    uint32_t loss_every, norm_calls, barrier_every, evaluation_every, evaluation_calls;
    bool is_evaluation_large, has_startup_average, has_startup_large, has_startup_small;
    uint32_t micro_steps;  /* reduced each */
    uint32_t critic_steps; /* of the first of two models for one of the second; 0: one model */
    uint32_t change_step, change_kind;
    uint32_t steps;
    bool is_said;    /* and how many gradients a step has */
    bool has_swap;   /* equal ones may change places */
    bool is_counted; /* the user says how many steps there are */
    bool is_unseen;  /* nothing but equal layers in shared memory: calls alone do not tell */
    /* tensors, in the order of their calls; those of the second model behind the first's */
    uint32_t count, first_count;
    uint64_t sizes[ZOO_TENSORS_MAX];
    uint32_t ids[ZOO_TENSORS_MAX];
    uint32_t slots[ZOO_TENSORS_MAX]; /* in the layer */
    bool is_in_layer[ZOO_TENSORS_MAX];
    uint64_t calls;
} zoo_trainer;

typedef struct zoo_event {
    msdu__call call;
    bool is_mark;    /* not on this communicator */
    uint32_t tensor; /* ZOO_NO_TENSOR: no gradient */
} zoo_event;

/* A trainer drawn by a number. */
void zoo_draw(zoo_trainer *t, uint64_t seed);
/* What rank `rank` calls in a step, or before the first one (step UINT32_MAX). All ranks are asked
 * for a step before the next one. */
uint32_t zoo_step(zoo_trainer *t, uint32_t step, uint32_t rank, zoo_event *events);
/* One line. */
void zoo_describe(const zoo_trainer *t, char *text, size_t bytes);

#endif
