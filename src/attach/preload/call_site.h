/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Real functions of NCCL by the place that calls: there may be two NCCLs in a process, each known
 * to a part of it alone, and what our own backend calls must reach the real one untouched.
 */
#ifndef MSDU_CALL_SITE_H
#define MSDU_CALL_SITE_H

#include "symbol_lookup.h"

typedef struct msdu__site {
    msdu__function real; /* NULL: there is none, perhaps not yet */
    const void *library; /* where that is loaded */
    bool is_own;         /* the caller is a module of ours */
} msdu__site;

/* Of the call of `name`, one string for each function, that returns to `caller`. Looked up once for
 * a place; no lock after that. Said on standard error where there is no real function. Thread: any.
 */
msdu__site msdu__site_of(const char *name, const void *caller);

#endif
