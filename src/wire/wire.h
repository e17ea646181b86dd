/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Wire formats: how a slice of float32 values becomes bytes and back. Pure: no I/O, locks, clock,
 * allocation, globals. One file per format; wire.c lists them.
 *
 * A narrow allreduce has two phases (src/wire/exchange.c): every rank encodes the share of each
 * owner, the owner adds the decoded contributions in float32 in rank order, encodes the result
 * once, and all decode the same bytes. Error feedback: residual is added before encoding and
 * receives what the encoding lost.
 */
#ifndef MSDU_WIRE_H
#define MSDU_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <msdu/device.h>

typedef struct msdu__wire {
    const char *name;
    const char *help;  /* one line for `msdu info` */
    double bits;       /* bits per element, scales included, at a block of 256 */
    bool has_feedback; /* keeps a residual; false: float32, bfloat16, float16 */
    /* Steady-state energy of the residual relative to the energy of one contribution, with error
     * feedback, as test_wire.c measures on Gaussian values; what the controller predicts with. */
    double residual_ratio;
    const struct msdu__codec *codec; /* how a block is coded, see block.h */
} msdu__wire;

/* Ladder of formats, widest first; index is the wire's number everywhere. */
enum {
    MSDU__WIRE_FLOAT32 = MSDU_FORMAT_FLOAT32,
    MSDU__WIRE_BFLOAT16 = MSDU_FORMAT_BFLOAT16,
    MSDU__WIRE_FLOAT16 = MSDU_FORMAT_FLOAT16,
    MSDU__WIRE_INT8 = MSDU_FORMAT_INT8,
    MSDU__WIRE_INT4 = MSDU_FORMAT_INT4,
    MSDU__WIRE_INT2 = MSDU_FORMAT_INT2,
    MSDU__WIRE_SPARSE = MSDU_FORMAT_SPARSE,
    MSDU__WIRE_COUNT
};

const msdu__wire *msdu__wire_at(int index);
/* Index of a name, -1 if there is none. */
int msdu__wire_find(const char *name);
/* The format in which a tensor of an msdu_dtype really travels in a round of this wire: 16-bit
 * tensors keep theirs unless the round's is narrower, float64 has none narrower. */
int msdu__wire_of(int32_t dtype, int wire);

/* Bytes of count elements in blocks of block. Exact, and at least 1 if count > 0. */
uint64_t msdu__wire_bytes(const msdu__wire *wire, uint64_t count, uint32_t block);
/*
 * Encode value (+ residual if not NULL). residual is replaced by what was lost. value and residual
 * do not overlap; both hold count elements. Returns the energy (sum of squares) of the new
 * residual, 0 if there is none. NaN and infinity are decoded as such by formats without feedback;
 * others decode the whole block as NaN, and its residual becomes 0: what it held is lost. So what
 * decodes as finite on one rank does on all, and nothing that is not finite is ever held back.
 */
double msdu__wire_encode(const msdu__wire *wire, const float *value, float *residual,
                         uint64_t count, uint32_t block, void *out);
/* sum += decoded */
void msdu__wire_decode_add(const msdu__wire *wire, const void *in, uint64_t count, uint32_t block,
                           float *sum);
/* value = decoded */
void msdu__wire_decode(const msdu__wire *wire, const void *in, uint64_t count, uint32_t block,
                       float *value);

/* --- exchange.c: the two-phase allreduce of one slice, as pure steps around backend calls --- */

/*
 * Split count elements into one share per rank: multiples of block, as equal as that allows, in
 * rank order; share_count and share_start have `ranks` entries.
 */
void msdu__exchange_shares(uint64_t count, uint32_t block, int32_t ranks, uint64_t *share_count,
                           uint64_t *share_start);

/* Upper bound for sizing buffers: bytes of one rank's whole encoded slice, and of the contributions
 * an owner receives. */
uint64_t msdu__exchange_bytes(const msdu__wire *wire, uint64_t count, uint32_t block,
                              int32_t ranks);

/* Bytes that the first owner sends, who has most to send: all others' shares once, then its own to
 * every other rank. */
uint64_t msdu__exchange_sent(const msdu__wire *wire, const uint64_t *share_count, uint32_t block,
                             int32_t ranks);

/* Phase 1, before the all-to-all: encode the slice's count values (+ residual, may be NULL) for all
 * owners, one after another. Returns residual energy. */
double msdu__exchange_encode(const msdu_exchange *x, uint64_t count, const float *value,
                             float *residual, void *send);
/*
 * Between the phases, at the owner of a share of count elements: add `ranks` contributions in rank
 * order in float32, times factor, (+ owner_residual, may be NULL), encode into `out`. sum is
 * scratch of count floats. Returns residual energy.
 */
double msdu__exchange_reduce(const msdu_exchange *x, uint64_t count, const void *received,
                             float *owner_residual, float *sum, void *out);
/* After the all-gather: decode all owners' shares into the slice's count values. */
void msdu__exchange_decode(const msdu_exchange *x, uint64_t count, const void *gathered,
                           float *value);

#endif
