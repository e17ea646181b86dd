/* SPDX-License-Identifier: Apache-2.0 */
/* The host's kernels: the stages' loops, carried out at once. */
#include "kernels.h"

#include <string.h>

#include "correct/correct.h"
#include "interval/sketch.h"
#include "simd/vec.h"
#include "wire/wire.h"

/* Elements scaled and summed while they are in the first cache levels. */
#define SCALED_CHUNK 1024

static int32_t working_dtype(int32_t dtype)
{
    return dtype == MSDU_FLOAT64 ? MSDU_FLOAT64 : MSDU_FLOAT32;
}

static msdu_status give(const msdu__sums *found, msdu_sums *sums)
{
    if (sums != NULL) {
        *sums = (msdu_sums){found->update_sq, found->weight_sq, found->has_bad ? 1 : 0};
    }
    return MSDU_OK;
}

static msdu_status fill(const msdu_launch *at, void *out, int32_t byte)
{
    memset(out, byte, at->count);
    return MSDU_OK;
}

static msdu_status copy(const msdu_launch *at, void *out, const void *in)
{
    memcpy(out, in, at->count);
    return MSDU_OK;
}

static msdu_status norm_of(const void *x, int32_t dtype, uint64_t count, msdu_sums *sums)
{
    msdu__sums found = {0};
    if (sums != NULL) {
        found.update_sq = msdu__vec_sum_sq(x, dtype, count, &found.has_bad);
    }
    return give(&found, sums);
}

static msdu_status load(const msdu_launch *at, void *out, const void *in, msdu_sums *sums)
{
    if (msdu__dtype_is_half(at->dtype)) {
        msdu__vec_widen(in, at->dtype, out, at->count);
    } else {
        memcpy(out, in, at->count * msdu__dtype_working_bytes(at->dtype));
    }
    return norm_of(out, working_dtype(at->dtype), at->count, sums);
}

static msdu_status store(const msdu_launch *at, void *out, const void *in)
{
    if (msdu__dtype_is_half(at->dtype)) {
        msdu__vec_narrow(in, at->dtype, out, at->count);
    } else {
        memcpy(out, in, at->count * msdu__dtype_working_bytes(at->dtype));
    }
    return MSDU_OK;
}

static msdu_status norm(const msdu_launch *at, const void *in, msdu_sums *sums)
{
    return norm_of(in, at->dtype, at->count, sums);
}

static msdu_status scale(const msdu_launch *at, void *x, double factor, msdu_sums *sums)
{
    int32_t dtype = working_dtype(at->dtype);
    msdu__sums found = {0};
    for (uint64_t done = 0; done < at->count; done += SCALED_CHUNK) {
        uint64_t count = at->count - done < SCALED_CHUNK ? at->count - done : SCALED_CHUNK;
        void *part = (char *)x + done * msdu__dtype_working_bytes(dtype);
        if (factor != 1) {
            msdu__vec_scale(part, dtype, factor, count);
        }
        if (sums != NULL) {
            found.update_sq += msdu__vec_sum_sq(part, dtype, count, &found.has_bad);
        }
    }
    return give(&found, sums);
}

static msdu_status add(const msdu_launch *at, float *x, const float *y, double factor)
{
    const float by = (float)factor;
    for (uint64_t i = 0; i < at->count; i++) {
        x[i] += by * y[i];
    }
    return MSDU_OK;
}

static msdu_status capture(const msdu_launch *at, const msdu_arrays *arrays, msdu_sums *sums,
                           uint64_t *hash)
{
    msdu__sums found = {.hash = *hash};
    msdu__correct_capture(arrays, at->count, at->dtype, &found);
    *hash = found.hash;
    return give(&found, sums);
}

static msdu_status apply(const msdu_launch *at, const msdu_arrays *arrays, const msdu_rules *rules,
                         msdu_sums *sums)
{
    msdu__sums found = {0};
    msdu__correct_apply(rules, arrays, at->count, at->dtype, &found);
    return give(&found, sums);
}

static msdu_status local(const msdu_launch *at, const msdu_recursion *recursion,
                         const msdu_recursion_state *state, void *gradient)
{
    msdu__sums unused = {0};
    msdu__recursion_local(recursion, state, gradient, at->count, at->dtype, &unused);
    return MSDU_OK;
}

static msdu_status drift(const msdu_launch *at, const msdu_recursion *recursion,
                         const msdu_recursion_state *state, const void *gradient, void *out,
                         msdu_sums *sums)
{
    msdu__sums found = {0};
    msdu__recursion_capture(recursion, state, gradient, out, at->count, at->dtype, &found);
    return give(&found, sums);
}

static msdu_status meet(const msdu_launch *at, const msdu_recursion *recursion,
                        const msdu_recursion_state *state, const void *mean, void *gradient)
{
    msdu__recursion_apply(recursion, state, mean, gradient, at->count, at->dtype);
    return MSDU_OK;
}

static msdu_status encode(const msdu_launch *at, const msdu_exchange *exchange, const float *in,
                          float *residual, void *out, msdu_sums *sums)
{
    msdu__sums found = {.update_sq = msdu__exchange_encode(exchange, at->count, in, residual, out)};
    return give(&found, sums);
}

static msdu_status reduce(const msdu_launch *at, const msdu_exchange *exchange, const void *in,
                          float *residual, float *sum, void *out)
{
    (void)msdu__exchange_reduce(exchange, at->count, in, residual, sum, out);
    return MSDU_OK;
}

static msdu_status decode(const msdu_launch *at, const msdu_exchange *exchange, const void *in,
                          float *out)
{
    msdu__exchange_decode(exchange, at->count, in, out);
    return MSDU_OK;
}

_Static_assert(MSDU__SKETCH == MSDU__VEC_PROJECTS, "a sketch is what one call projects");

static msdu_status sketch(const msdu_launch *at, const float *in, uint64_t seed, float *out)
{
    memset(out, 0, MSDU__SKETCH * sizeof(*out));
    msdu__vec_get()->project(in, at->count, seed, out);
    return MSDU_OK;
}

static msdu_status shift(const msdu_launch *at, void *param, const void *shift)
{
    msdu__shift_take(param, shift, at->count, at->dtype);
    return MSDU_OK;
}

static msdu_status follow(const msdu_launch *at, void *anchor, void *shift, const void *update)
{
    msdu__shift_follow(anchor, shift, update, at->count, at->dtype);
    return MSDU_OK;
}

const msdu_kernels msdu__kernels_host = {
    .size = sizeof(msdu_kernels),
    .fill = fill,
    .copy = copy,
    .load = load,
    .store = store,
    .norm = norm,
    .scale = scale,
    .add = add,
    .capture = capture,
    .apply = apply,
    .local = local,
    .drift = drift,
    .meet = meet,
    .encode = encode,
    .reduce = reduce,
    .decode = decode,
    .sketch = sketch,
    .shift = shift,
    .follow = follow,
};
