/* SPDX-License-Identifier: Apache-2.0 */
/* The methods that `msdu bench overlap` compares and `msdu plan` predicts. */
#ifndef MSDU_PREDICT_METHODS_H
#define MSDU_PREDICT_METHODS_H

#include <stdbool.h>
#include <stdint.h>

typedef enum msdu__overlap_kind {
    MSDU__OVERLAP_COMPUTE,  /* nothing is exchanged */
    MSDU__OVERLAP_GRADIENT, /* mean gradients in every step */
    MSDU__OVERLAP_LOCAL,    /* parameters, after a fixed number of local steps */
    MSDU__OVERLAP_DEFAULTS, /* the controller's choice of everything */
} msdu__overlap_kind;

typedef struct msdu__overlap_method {
    const char *name;
    msdu__overlap_kind kind;
    const char *settings; /* lines of an ini file */
    int wire;
    bool has_priority; /* slices in the order of need */
    bool is_free;      /* no barrier: each layer waits in the next forward pass */
    bool is_bucketed;  /* slices as large as DDP's buckets */
    bool is_streamed;
    uint32_t delay; /* steps that a mean comes late */
} msdu__overlap_method;

/* NULL past the last. */
const msdu__overlap_method *msdu__overlap_method_at(uint32_t index);
/* NULL: none of that name. */
const msdu__overlap_method *msdu__overlap_method_find(const char *name);
/* Is it asked for (a list of names joined by commas; NULL: all)? */
bool msdu__overlap_is_wanted(const char *list, const char *name);
/* The first name of a list that is no method, NULL if there is none; to be freed. */
char *msdu__overlap_unknown(const char *list);

#endif
