/* SPDX-License-Identifier: Apache-2.0 */
/* The ladder of formats, and the walk over blocks that they share; pure. */
#include "wire.h"

#include <assert.h>
#include <float.h>
#include <string.h>

#include <msdu/msdu.h>

#include "base/dtype.h"
#include "block.h"

static const msdu__wire *const wires[MSDU__WIRE_COUNT] = {
    [MSDU__WIRE_FLOAT32] = &msdu__wire_float32, [MSDU__WIRE_BFLOAT16] = &msdu__wire_bfloat16,
    [MSDU__WIRE_FLOAT16] = &msdu__wire_float16, [MSDU__WIRE_INT8] = &msdu__wire_int8,
    [MSDU__WIRE_INT4] = &msdu__wire_int4,       [MSDU__WIRE_INT2] = &msdu__wire_int2,
    [MSDU__WIRE_SPARSE] = &msdu__wire_sparse,
};

const msdu__wire *msdu__wire_at(int index)
{
    return index >= 0 && index < MSDU__WIRE_COUNT ? wires[index] : NULL;
}

int msdu__wire_find(const char *name)
{
    for (int i = 0; i < MSDU__WIRE_COUNT; i++) {
        if (strcmp(wires[i]->name, name) == 0) {
            return i;
        }
    }
    return -1;
}

int msdu__wire_of(int32_t dtype, int wire)
{
    const msdu__wire *format = msdu__wire_at(wire);
    if (dtype == MSDU_FLOAT64) {
        return MSDU__WIRE_FLOAT32;
    }
    if (msdu__dtype_is_half(dtype) && (format == NULL || !format->has_feedback)) {
        return dtype == MSDU_FLOAT16 ? MSDU__WIRE_FLOAT16 : MSDU__WIRE_BFLOAT16;
    }
    return wire;
}

/* --- blocks --- */

#define PIECE  256  /* elements decoded at a time; whole groups of packed codes, see vec.h */
#define SUMMED 2048 /* residuals summed up at a time: they are in the L1 cache still */

static uint64_t header_bytes(const msdu__codec *codec)
{
    return codec->fit != NULL ? sizeof(uint16_t) : 0;
}

static uint64_t code_bytes(const msdu__codec *codec, uint64_t count)
{
    return codec->bytes != NULL ? codec->bytes(count) : (count * codec->bits + 7) / 8;
}

static uint64_t minimum(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

uint64_t msdu__wire_bytes(const msdu__wire *wire, uint64_t count, uint32_t block)
{
    assert(block > 0);
    const msdu__codec *codec = wire->codec;
    const uint64_t whole = count / block * (header_bytes(codec) + code_bytes(codec, block));
    const uint64_t rest = count % block;
    return whole + (rest > 0 ? header_bytes(codec) + code_bytes(codec, rest) : 0);
}

/* What the walks below carry along. */
typedef struct walk {
    const msdu__codec *codec;
    const msdu__vec *vec;
} walk;

/* sum += sign * decoded */
static void add_decoded(const walk *w, uint16_t header, const unsigned char *codes, float *sum,
                        uint64_t count, float sign)
{
    float decoded[PIECE];
    if (w->codec->add != NULL) {
        w->codec->add(w->vec, header, codes, sum, count, sign);
        return;
    }
    for (uint64_t done = 0; done < count; done += PIECE) {
        const uint64_t n = minimum(count - done, PIECE);
        w->codec->decode(w->vec, header, codes + code_bytes(w->codec, done), decoded, n);
        if (sign < 0.0F) {
            w->vec->real[0]->subtract(sum + done, decoded, n);
        } else {
            w->vec->wire->add(sum + done, decoded, n);
        }
    }
}

/* A block with a NaN or infinity: its bytes are those of any other. */
static void encode_bad(float *residual, uint64_t count, unsigned char *out, uint64_t bytes)
{
    const uint16_t header = MSDU__BLOCK_BAD;
    memset(out, 0, bytes);
    memcpy(out, &header, sizeof(header));
    if (residual != NULL) {
        memset(residual, 0, count * sizeof(*residual));
    }
}

/* Header and codes of one block; returns their bytes. */
static uint64_t encode_block(const walk *w, const float *value, float *residual, uint64_t count,
                             unsigned char *out)
{
    const msdu__codec *codec = w->codec;
    const uint64_t bytes = header_bytes(codec) + code_bytes(codec, count);
    float largest = 0.0F;
    bool is_finite = true;
    if (residual != NULL) {
        /* The sum lives in the residual's place: no copy, and what is lost remains there. */
        is_finite = w->vec->wire->add_clamped(residual, value, count, &largest);
    } else if (codec->fit != NULL) {
        is_finite = w->vec->wire->absmax(value, count, &largest);
    }
    if (codec->fit != NULL && !is_finite) {
        encode_bad(residual, count, out, bytes);
        return bytes;
    }
    const float *x = residual != NULL ? residual : value;
    const uint16_t header = codec->fit != NULL ? codec->fit(w->vec, x, count, largest) : 0;
    unsigned char *codes = out + header_bytes(codec);
    memcpy(out, &header, header_bytes(codec));
    if (residual != NULL && codec->take != NULL) {
        codec->take(w->vec, header, residual, codes, count);
        return bytes;
    }
    codec->encode(w->vec, header, x, codes, count);
    if (residual != NULL) {
        add_decoded(w, header, codes, residual, count, -1.0F);
    }
    return bytes;
}

double msdu__wire_encode(const msdu__wire *wire, const float *value, float *residual,
                         uint64_t count, uint32_t block, void *out)
{
    const walk w = {wire->codec, msdu__vec_get()};
    unsigned char *bytes = out;
    double energy = 0.0;
    bool has_bad = false;
    uint64_t summed = 0;
    for (uint64_t done = 0; done < count; done += block) {
        const uint64_t n = minimum(count - done, block);
        float *lost = residual != NULL ? residual + done : NULL;
        bytes += encode_block(&w, value + done, lost, n, bytes);
        /* several blocks at a time: adding up its partial sums costs as much as summing a block */
        if (lost != NULL && (done + n - summed >= SUMMED || done + n == count)) {
            energy += w.vec->real[0]->sum_sq(residual + summed, done + n - summed, &has_bad);
            summed = done + n;
        }
    }
    return energy;
}

/* Header of a block; *in is moved to its codes. */
static uint16_t read_header(const msdu__codec *codec, const unsigned char **in)
{
    uint16_t header = 0;
    memcpy(&header, *in, header_bytes(codec));
    *in += header_bytes(codec);
    return header;
}

void msdu__wire_decode_add(const msdu__wire *wire, const void *in, uint64_t count, uint32_t block,
                           float *sum)
{
    const msdu__codec *codec = wire->codec;
    const walk w = {codec, msdu__vec_get()};
    const unsigned char *bytes = in;
    for (uint64_t done = 0; done < count; done += block) {
        const uint64_t n = minimum(count - done, block);
        const uint16_t header = read_header(codec, &bytes);
        add_decoded(&w, header, bytes, sum + done, n, 1.0F);
        bytes += code_bytes(codec, n);
    }
}

void msdu__wire_decode(const msdu__wire *wire, const void *in, uint64_t count, uint32_t block,
                       float *value)
{
    const msdu__codec *codec = wire->codec;
    const msdu__vec *vec = msdu__vec_get();
    const unsigned char *bytes = in;
    for (uint64_t done = 0; done < count; done += block) {
        const uint64_t n = minimum(count - done, block);
        const uint16_t header = read_header(codec, &bytes);
        codec->decode(vec, header, bytes, value + done, n);
        bytes += code_bytes(codec, n);
    }
}

/* --- scales --- */
