/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Machines of a pipeline and the links between them: a JSON object.
 *
 *     format    "msdu-machines-1"
 *     machines  array of
 *         name     unique
 *         speed    times that of the profile's device; above 0, default 1
 *         memory   as "16GiB", or bytes; default: no limit
 *         rate     of its network card each way, as "1gbit"; default: no limit
 *         profile  times of the layers on this machine: a file or a name, as of --profile
 *     links     optional if every machine has a rate
 *         rate        between any two machines; default: what their cards allow
 *         latency_us  of a message, software included; default 0
 *         pairs       array of: between (two names), rate, latency_us (optional, both)
 *
 * Other members are errors, because a slip in a name would change the plan unseen.
 */
#ifndef MSDU_CLI_MACHINES_H
#define MSDU_CLI_MACHINES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MSDU__MACHINES_FORMAT "msdu-machines-1"

typedef struct msdu__machine {
    const char *name;
    const char *profile; /* NULL: the model's */
    double speed;
    double memory_bytes; /* 0: no limit */
    double card_rate;    /* bytes a second; 0: no limit */
} msdu__machine;

typedef struct msdu__machines {
    msdu__machine *list;
    uint32_t count;
    double *link_rate; /* count x count: bytes a second; INFINITY: as fast as the cards */
    double *latency_ns;
    void *tree; /* holds the strings */
} msdu__machines;

/* From a file, or from text; out is to be released with msdu__machines_free(). False: it is empty,
 * and why holds one line. */
bool msdu__machines_read(const char *path, msdu__machines *out, char *why, size_t why_bytes);
bool msdu__machines_parse(const char *text, size_t bytes, msdu__machines *out, char *why,
                          size_t why_bytes);
void msdu__machines_free(msdu__machines *machines);

#endif
