/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The accumulated-gradient domain: a shadow of the trainer's own linear optimizer; pure.
 *
 * The trainer only ever sees gradients. Beside it we run its recursion on this rank's gradient g,
 * relative to the last common point: dl is the drift of the parameters, dv of the momentum buffer.
 *     u = g + wd dl      dv = mu dv + f u      dl = dl - lr dv      (Nesterov: lr (u + mu dv))
 * To move the parameters by -lr T the returned gradient is g + K. K also enters the trainer's
 * momentum buffer, where its trace r would go on to move them; each call therefore takes back
 * what r would do:
 *     K = (T - mu r) / f      (Nesterov: (T - mu^2 r) / (1 + mu f))      r = mu r + f K
 * so that the trainer's parameters are those of parameter averaging with local momentum.
 */
#include "correct.h"

#include <string.h>

#include "base/dtype.h"
#include "simd/vec.h"

msdu_recursion msdu__recursion_numbers(const msdu__recursion_args *args)
{
    const double mu = args->momentum;
    const double reach = args->is_nesterov ? 1.0 + mu * args->factor : args->factor;
    return (msdu_recursion){
        .decay = args->weight_decay,
        .momentum = mu,
        .factor = args->factor,
        .lr = args->lr,
        .lr_inverse = args->lr > 0.0 ? 1.0 / args->lr : 0.0,
        .of_input = args->is_nesterov ? 1.0 : 0.0,
        .of_velocity = args->is_nesterov ? mu : 1.0,
        .of_target = 1.0 / reach,
        .of_trace = (args->is_nesterov ? mu * mu : mu) / reach,
    };
}

/* One chunk of a call: pointers into the caller's arrays. */
typedef struct piece {
    const msdu__vec_real *loops;
    void *drift;
    void *velocity;
    void *trace;
    uint64_t start;
    uint64_t count;
    size_t bytes;       /* of a working element */
    size_t dtype_bytes; /* of a gradient element */
    int32_t dtype;
} piece;

static void *offset(void *array, uint64_t bytes)
{
    return (unsigned char *)array + bytes;
}

static const void *offset_const(const void *array, uint64_t bytes)
{
    return (const unsigned char *)array + bytes;
}

static piece piece_at(const msdu_recursion_state *state, uint64_t start, uint64_t count,
                      int32_t dtype)
{
    const bool is_double = dtype == MSDU_FLOAT64;
    const size_t bytes = msdu__dtype_working_bytes(dtype);
    return (piece){
        .loops = msdu__vec_get()->real[is_double],
        .drift = offset(state->drift, start * bytes),
        .velocity = offset(state->velocity, start * bytes),
        .trace = offset(state->trace, start * bytes),
        .start = start,
        .count = count - start < MSDU__CHUNK ? count - start : MSDU__CHUNK,
        .bytes = bytes,
        .dtype_bytes = msdu__dtype_bytes(dtype),
        .dtype = dtype,
    };
}

/* The chunk of a gradient in working type: itself, or widened into `wide`. */
static const void *widened(const piece *p, const void *gradient, float *wide)
{
    const void *own = offset_const(gradient, p->start * p->dtype_bytes);
    if (p->dtype_bytes == p->bytes) {
        return own;
    }
    msdu__vec_widen(own, p->dtype, wide, p->count);
    return wide;
}

/* As widened(), for a gradient that will be changed; give_back() ends it. */
static void *borrow(const piece *p, void *gradient, float *wide)
{
    void *own = offset(gradient, p->start * p->dtype_bytes);
    if (p->dtype_bytes == p->bytes) {
        return own;
    }
    msdu__vec_widen(own, p->dtype, wide, p->count);
    return wide;
}

static void give_back(const piece *p, const float *wide, void *gradient)
{
    if (p->dtype_bytes != p->bytes) {
        msdu__vec_narrow(wide, p->dtype, offset(gradient, p->start * p->dtype_bytes), p->count);
    }
}

void msdu__recursion_local(const msdu_recursion *c, const msdu_recursion_state *state,
                           void *gradient, uint64_t count, int32_t dtype, msdu__sums *sums)
{
    float wide[MSDU__CHUNK];
    for (uint64_t start = 0; start < count; start += MSDU__CHUNK) {
        const piece p = piece_at(state, start, count, dtype);
        void *g = borrow(&p, gradient, wide);
        sums->update_sq += p.loops->sum_sq(g, p.count, &sums->has_bad);
        p.loops->advance(c, g, p.drift, p.velocity, p.count);
        p.loops->settle(c, p.trace, g, p.count);
        give_back(&p, wide, gradient);
    }
}

void msdu__recursion_capture(const msdu_recursion *c, const msdu_recursion_state *state,
                             const void *gradient, void *send, uint64_t count, int32_t dtype,
                             msdu__sums *sums)
{
    float wide[MSDU__CHUNK];
    for (uint64_t start = 0; start < count; start += MSDU__CHUNK) {
        const piece p = piece_at(state, start, count, dtype);
        const void *g = widened(&p, gradient, wide);
        p.loops->advance(c, g, p.drift, p.velocity, p.count);
        memcpy(offset(send, start * p.bytes), p.drift, p.count * p.bytes);
        sums->update_sq += p.loops->sum_sq(p.drift, p.count, &sums->has_bad);
    }
}

/* All of K, the part that settles r included; dl starts anew. */
static void meet(const msdu_recursion *c, const piece *p, const void *mean, void *g)
{
    if (c->lr_inverse == 0.0) {
        p->loops->settle(c, p->trace, g, p->count);
        return;
    }
    p->loops->meet(c, p->drift, mean, p->trace, g, p->count);
    memset(p->drift, 0, p->count * p->bytes);
}

/*
 * A learning rate of zero cannot move the trainer: T is left out and the drift kept, on all ranks
 * alike, until a later synchronization.
 */
void msdu__recursion_apply(const msdu_recursion *c, const msdu_recursion_state *state,
                           const void *mean, void *gradient, uint64_t count, int32_t dtype)
{
    float wide[MSDU__CHUNK];
    for (uint64_t start = 0; start < count; start += MSDU__CHUNK) {
        const piece p = piece_at(state, start, count, dtype);
        void *g = borrow(&p, gradient, wide);
        meet(c, &p, offset_const(mean, start * p.bytes), g);
        give_back(&p, wide, gradient);
    }
}
