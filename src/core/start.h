/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is called where the communication thread does not run, or stands still: settings become
 * arguments, tensors are cut into slices, memory is taken and given back.
 */
#ifndef MSDU_START_H
#define MSDU_START_H

#include "pipeline.h"

/* --- derive.c --- */
/* Policy, correction and their arguments from the settings. */
msdu_status msdu__derive(msdu__pipeline *p);
/* Formats, and which of them wire auto may choose: once slices are cut, only those that send less.
 */
void msdu__derive_wires(msdu__pipeline *p);
void msdu__derive_host(msdu__pipeline *p);

/* --- cores.c --- */
typedef struct msdu__place_name {
    uint64_t host; /* 0: not known */
    uint64_t process;
} msdu__place_name;
msdu__place_name msdu__cores_name(void); /* of the calling process */
/* From the names of all ranks: do those of this host outnumber its cores? */
void msdu__cores_count(msdu__pipeline *p, const msdu__place_name *names);
/* Of a time, in which a hypervisor had taken at least one of the cores, if each by itself: ranks on
 * the others wait for the one that was to run there. `stolen_ns`: from all cores. */
double msdu__cores_halted_ns(long cores, double time_ns, double stolen_ns);

/* --- blocking.c --- */
/* Run one operation to its end: before the communication thread exists, or on it while nothing is
 * under way. */
msdu_status msdu__blocking_run(msdu__pipeline *p, msdu_op *op, uint32_t lane);

/* --- cut.c --- */
/* Slices of all tensors; the slices of each tensor. */
msdu_status msdu__cut_tensors(msdu__pipeline *p);
msdu_status msdu__cut_list(msdu__pipeline *p);
/* Most slices that any cut of this context may have. */
msdu_status msdu__cut_bound(msdu__pipeline *p, uint32_t *slices_out);
/* Bytes of what is synchronized, in the types of the tensors, and in the formats in which they
 * travel in a round of this wire. */
uint64_t msdu__cut_bytes(const msdu__pipeline *p);
uint64_t msdu__cut_wire_bytes(const msdu__pipeline *p, int wire);

/* --- memory.c --- */
/* Zeroed memory, aligned to 64 bytes, freed by msdu__memory_free(); NULL if there is none. Pages
 * are touched on first use only. */
void *msdu__memory_block(msdu__pipeline *p, uint64_t bytes);
void msdu__memory_free(msdu__pipeline *p);
/* Likewise where the tensors are; freed by msdu__memory_release(), before the group is left. */
void *msdu__memory_slices(msdu__pipeline *p, uint64_t bytes);
/* Likewise for what passes find: the host's, and within the device's reach. */
void *msdu__memory_shared(msdu__pipeline *p, uint64_t bytes);
/* Likewise for what narrow slices are sent from and received into. */
msdu_status msdu__memory_exchange(msdu__pipeline *p, uint64_t bytes, char **out);
void msdu__memory_release(msdu__pipeline *p);
msdu_status msdu__memory_none(const msdu__pipeline *p, const char *what);

#endif
