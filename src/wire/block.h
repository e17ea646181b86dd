/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the formats share: a slice is coded block by block, each block as an optional 16-bit header
 * and its codes; pure. Blocks lie one after another, so the bytes of the first k blocks are a
 * prefix, and a slice can be coded in pieces.
 */
#ifndef MSDU_BLOCK_H
#define MSDU_BLOCK_H

#include "simd/vec.h"
#include "wire.h"

/*
 * Header of a block with a NaN or infinity in it, as a scale: a NaN in bfloat16, and in int2's
 * header. Every element is decoded as NaN, and nothing of the block is held back.
 */
#define MSDU__BLOCK_BAD 0xffffU

/* A format as its blocks see it. vec is what msdu__vec_get() gave, looked up once per slice. */
typedef struct msdu__codec {
    uint32_t bits; /* of a code; 0: bytes() says how many bytes count codes take */
    uint64_t (*bytes)(uint64_t count);
    /* The header of a block of finite values, of which the largest magnitude is known: its scale,
     * never MSDU__BLOCK_BAD. NULL: no header. */
    uint16_t (*fit)(const msdu__vec *vec, const float *x, uint64_t count, float largest);
    void (*encode)(const msdu__vec *vec, uint16_t header, const float *x, void *codes,
                   uint64_t count);
    /* NULL, or encode, then x -= decoded, where that is less work at once. */
    void (*take)(const msdu__vec *vec, uint16_t header, float *x, void *codes, uint64_t count);
    void (*decode)(const msdu__vec *vec, uint16_t header, const void *codes, float *value,
                   uint64_t count);
    /* NULL, or sum += sign * decoded, where that is less work; a format without `bits` has it,
     * because its blocks cannot be decoded in pieces. */
    void (*add)(const msdu__vec *vec, uint16_t header, const void *codes, float *sum,
                uint64_t count, float sign);
} msdu__codec;

/*
 * Scale of a uniform format as a bfloat16 header: absmax / levels rounded up, so that the largest
 * value is not cut; 0 for a block of zeros and of values so small that 1 / scale would overflow.
 */
uint16_t msdu__block_scale_fit(float absmax, float levels);
float msdu__block_scale(uint16_t header);

/* The 16-bit formats: what is beyond the largest value is cut, so that nothing finite becomes
 * infinite; infinity stays. */
void msdu__block_narrow(const msdu__vec *vec, float largest,
                        void (*narrow)(const float *in, void *out, uint64_t count), const float *x,
                        void *codes, uint64_t count);

extern const msdu__wire msdu__wire_float32;
extern const msdu__wire msdu__wire_bfloat16;
extern const msdu__wire msdu__wire_float16;
extern const msdu__wire msdu__wire_int8;
extern const msdu__wire msdu__wire_int4;
extern const msdu__wire msdu__wire_int2;
extern const msdu__wire msdu__wire_sparse;

#endif
