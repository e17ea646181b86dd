/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What happens once, before the communication thread exists: settings become arguments, ranks
 * agree, tensors are cut into slices and get their memory. cut.c and start.c are used again where
 * slices change size (retune.c), agree.c where ranks compare states.
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

/* --- agree.c --- */
msdu_status msdu__agree(msdu__pipeline *p); /* ranks compare tensors and settings */
/* Hash of the bytes of all tensors of a role, as far as they have a parameter. */
uint64_t msdu__agree_hash(msdu__pipeline *p, msdu_role role);
/* What ranks must have in common, a fact a line, with or without hashes of the parameters; to be
 * freed. NULL: no memory. */
char *msdu__agree_describe(msdu__pipeline *p, bool has_values);
/* Two texts, and the first lines in which they differ. */
typedef struct msdu__lines {
    const char *a;
    const char *a_end;
    const char *b;
    const char *b_end;
    int a_length;
    int b_length;
} msdu__lines;
/* Move a and b to the first difference and set the lengths; false: there is none. */
bool msdu__agree_first_difference(msdu__lines *lines);
/* Run one operation to its end, before the communication thread exists. */
msdu_status msdu__agree_run(msdu__pipeline *p, msdu_op *op, uint32_t lane);

/* --- start.c: slices, tables, memory --- */
msdu_status msdu__start_build(msdu__pipeline *p); /* slice and allocate */
/* Slices, their tables and memory, as p->tuning says: what start_build does, and retune.c again. */
msdu_status msdu__start_tables(msdu__pipeline *p);
msdu_status msdu__start_no_memory(const msdu__pipeline *p, const char *what);
/* cut.c, parts of the above: slices of all tensors; the slices of each tensor. */
msdu_status msdu__cut_tensors(msdu__pipeline *p);
msdu_status msdu__cut_list(msdu__pipeline *p);
/* Most slices that any cut of this context may have. */
msdu_status msdu__cut_bound(msdu__pipeline *p, uint32_t *slices_out);
/* Names of slices, for the trace, to be freed; NULL: no memory. */
const char **msdu__start_names(const msdu__pipeline *p);
/* Bytes of what is synchronized, in the types of the tensors, and in the formats in which they
 * travel in a round of this wire. */
uint64_t msdu__start_bytes(const msdu__pipeline *p);
uint64_t msdu__start_wire_bytes(const msdu__pipeline *p, int wire);
void msdu__start_free(msdu__pipeline *p);
/* Zeroed memory, aligned to 64 bytes, freed by start_free; NULL if there is none. Pages are touched
 * on first use only. */
void *msdu__start_block(msdu__pipeline *p, uint64_t bytes);
/* As msdu__start_block(), where the tensors are; freed by start_release, before the group is left.
 */
void *msdu__start_slice_block(msdu__pipeline *p, uint64_t bytes);
void msdu__start_release(msdu__pipeline *p);

#endif
