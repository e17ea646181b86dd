/* SPDX-License-Identifier: Apache-2.0 */
/* Corrections, recursion, sums and conversions as kernels of `msdu bench kernels`. */
#include "kernels.h"

#include <math.h>
#include <stdlib.h>

#include "correct/correct.h"
#include "simd/vec.h"

#define BIT(array) (1U << (array))

/* With these, repeated passes neither grow nor die out. */
#define OUTER_LR   0.5
#define OUTER_MU   0.5
#define ALPHA      0.25
#define KEEP       0.75
#define CLIP_SCALE 0.5
#define RANKS      4
#define STALENESS  1
#define FACTOR     0.999

static const msdu__recursion_args recursion = {
    .lr = 0.1, .momentum = 0.9, .factor = 1.0, .weight_decay = 1e-3, .is_nesterov = false};

static const msdu__correct_args correct_args = {
    .elastic_alpha = ALPHA,
    .outer_lr = OUTER_LR,
    .outer_momentum = OUTER_MU,
    .outer_is_nesterov = true,
    .delayed_keep = KEEP,
    .clip_scale = CLIP_SCALE,
    .staleness = STALENESS,
    .groups = RANKS,
};

static const char *const chains[] = {
    "average", "elastic", "delayed", "outer,average", "clip,outer,delayed", "blend"};

/* --- correction --- */

static msdu_arrays arrays_of(msdu__kernel_arrays *a, bool has_snapshot)
{
    return (msdu_arrays){
        .param = a->array[MSDU__PARAM],
        .anchor = a->array[MSDU__ANCHOR],
        .update = a->array[MSDU__UPDATE],
        .momentum = a->array[MSDU__MOMENTUM],
        .snapshot = has_snapshot ? a->array[MSDU__SNAPSHOT] : NULL,
    };
}

static void run_capture(const msdu__kernel *kernel, msdu__kernel_arrays *a)
{
    msdu__sums sums = {0};
    msdu_arrays arrays = arrays_of(a, kernel->variant != 0);
    msdu__correct_capture(&arrays, a->count, MSDU_FLOAT32, &sums);
    a->sink += sums.update_sq + sums.weight_sq;
}

static void expect_capture(msdu__kernel_point *p)
{
    p->value[MSDU__UPDATE] = p->value[MSDU__ANCHOR] - p->value[MSDU__PARAM];
    p->value[MSDU__SNAPSHOT] = p->value[MSDU__PARAM];
}

static void run_apply(const msdu__kernel *kernel, msdu__kernel_arrays *a)
{
    msdu__chain chain;
    char why[128];
    msdu__sums sums = {0};
    msdu_arrays arrays = arrays_of(a, true);
    if (!msdu__chain_parse(chains[kernel->variant], false, &chain, why, sizeof(why))) {
        abort(); /* the names are ours */
    }
    const msdu_rules rules = msdu__chain_numbers(&chain, &correct_args, false);
    msdu__correct_apply(&rules, &arrays, a->count, MSDU_FLOAT32, &sums);
    a->sink += sums.update_sq + sums.weight_sq;
}

/* A <- A - d; returns it. */
static float expect_anchor(msdu__kernel_point *p)
{
    p->value[MSDU__ANCHOR] -= p->value[MSDU__UPDATE];
    return p->value[MSDU__ANCHOR];
}

static void expect_average(msdu__kernel_point *p)
{
    p->value[MSDU__PARAM] = expect_anchor(p);
}

static void expect_elastic(msdu__kernel_point *p)
{
    p->value[MSDU__PARAM] -= (float)ALPHA * (p->value[MSDU__PARAM] - expect_anchor(p));
}

static void expect_delayed(msdu__kernel_point *p)
{
    float kept = (float)KEEP * (p->value[MSDU__PARAM] - p->value[MSDU__SNAPSHOT]);
    p->value[MSDU__PARAM] = expect_anchor(p) + kept;
}

static void expect_blend(msdu__kernel_point *p)
{
    const double own = 2.0 * STALENESS;
    const float weights[2] = {(float)(own / (own + RANKS)), (float)(RANKS / (own + RANKS))};
    float kept = weights[0] * p->value[MSDU__PARAM];
    p->value[MSDU__PARAM] = kept + weights[1] * expect_anchor(p);
}

static void expect_nesterov(msdu__kernel_point *p)
{
    float *d = &p->value[MSDU__UPDATE];
    float *u = &p->value[MSDU__MOMENTUM];
    *u = (float)OUTER_MU * *u + *d;
    *d = (float)OUTER_LR * (*d + (float)OUTER_MU * *u);
}

static void expect_outer(msdu__kernel_point *p)
{
    expect_nesterov(p);
    expect_average(p);
}

static void expect_clip(msdu__kernel_point *p)
{
    p->value[MSDU__UPDATE] *= (float)CLIP_SCALE;
    expect_nesterov(p);
    expect_delayed(p);
}

/* --- recursion: heavy ball, f = 1 --- */

static msdu_recursion_state state_of(msdu__kernel_arrays *a)
{
    return (msdu_recursion_state){.drift = a->array[MSDU__ANCHOR],
                                  .velocity = a->array[MSDU__UPDATE],
                                  .trace = a->array[MSDU__MOMENTUM]};
}

static void run_recursion_local(const msdu__kernel *kernel, msdu__kernel_arrays *a)
{
    (void)kernel;
    msdu__sums sums = {0};
    msdu_recursion c = msdu__recursion_numbers(&recursion);
    msdu_recursion_state state = state_of(a);
    msdu__recursion_local(&c, &state, a->array[MSDU__PARAM], a->count, MSDU_FLOAT32, &sums);
    a->sink += sums.update_sq;
}

static void run_recursion_capture(const msdu__kernel *kernel, msdu__kernel_arrays *a)
{
    (void)kernel;
    msdu__sums sums = {0};
    msdu_recursion c = msdu__recursion_numbers(&recursion);
    msdu_recursion_state state = state_of(a);
    msdu__recursion_capture(&c, &state, a->array[MSDU__PARAM], a->array[MSDU__SNAPSHOT], a->count,
                            MSDU_FLOAT32, &sums);
    a->sink += sums.update_sq;
}

static void run_recursion_apply(const msdu__kernel *kernel, msdu__kernel_arrays *a)
{
    (void)kernel;
    msdu_recursion c = msdu__recursion_numbers(&recursion);
    msdu_recursion_state state = state_of(a);
    msdu__recursion_apply(&c, &state, a->array[MSDU__SNAPSHOT], a->array[MSDU__PARAM], a->count,
                          MSDU_FLOAT32);
}

static void expect_advance(msdu__kernel_point *p)
{
    float *drift = &p->value[MSDU__ANCHOR];
    float *velocity = &p->value[MSDU__UPDATE];
    float u = p->value[MSDU__PARAM] + (float)recursion.weight_decay * *drift;
    *velocity = (float)recursion.momentum * *velocity + u;
    *drift -= (float)recursion.lr * *velocity;
    p->value[MSDU__SNAPSHOT] = *drift;
}

/* K = T - mu r; r <- mu r + K; g <- g + K */
static void expect_target(msdu__kernel_point *p, float target)
{
    float *trace = &p->value[MSDU__MOMENTUM];
    float k = target - (float)recursion.momentum * *trace;
    *trace = (float)recursion.momentum * *trace + k;
    p->value[MSDU__PARAM] += k;
}

static void expect_recursion_local(msdu__kernel_point *p)
{
    expect_advance(p);
    expect_target(p, 0.0F);
}

static void expect_recursion_apply(msdu__kernel_point *p)
{
    float away = p->value[MSDU__ANCHOR] - p->value[MSDU__SNAPSHOT];
    p->value[MSDU__ANCHOR] = 0.0F;
    expect_target(p, away * (float)(1.0 / recursion.lr));
}

/* --- sums and scaling of gradients --- */

static void run_sum_sq(const msdu__kernel *kernel, msdu__kernel_arrays *a)
{
    (void)kernel;
    bool has_bad = false;
    a->sink += msdu__vec_sum_sq(a->array[MSDU__PARAM], MSDU_FLOAT32, a->count, &has_bad);
}

static bool is_sum_right(const msdu__kernel *kernel, msdu__kernel_arrays *a,
                         const msdu__kernel_point *points, uint64_t stride)
{
    (void)points;
    (void)stride;
    double plain = 0;
    for (uint64_t i = 0; i < a->count; i++) {
        plain += (double)a->array[MSDU__PARAM][i] * (double)a->array[MSDU__PARAM][i];
    }
    a->sink = 0;
    kernel->run(kernel, a);
    return fabs(a->sink - plain) <= 1e-10 * plain;
}

static void run_sketch(const msdu__kernel *kernel, msdu__kernel_arrays *a)
{
    (void)kernel;
    float sketch[MSDU__VEC_PROJECTS] = {0};
    msdu__vec_get()->project(a->array[MSDU__PARAM], a->count, 1, sketch);
    for (int k = 0; k < MSDU__VEC_PROJECTS; k++) {
        a->sink += (double)sketch[k] * (double)sketch[k];
    }
}

/* Its square is that of the array, times 1 +- sqrt(2 / 64). */
static bool is_sketch_right(const msdu__kernel *kernel, msdu__kernel_arrays *a,
                            const msdu__kernel_point *points, uint64_t stride)
{
    (void)points;
    (void)stride;
    bool has_bad = false;
    double plain = msdu__vec_sum_sq(a->array[MSDU__PARAM], MSDU_FLOAT32, a->count, &has_bad);
    a->sink = 0;
    kernel->run(kernel, a);
    return fabs(a->sink / plain - 1) <= 0.7;
}

static void run_scale(const msdu__kernel *kernel, msdu__kernel_arrays *a)
{
    (void)kernel;
    msdu__vec_scale(a->array[MSDU__PARAM], MSDU_FLOAT32, FACTOR, a->count);
}

static void expect_scale(msdu__kernel_point *p)
{
    p->value[MSDU__PARAM] *= (float)FACTOR;
}

/* --- 16-bit types --- */

static void run_narrow(const msdu__kernel *kernel, msdu__kernel_arrays *a)
{
    msdu__vec_narrow(a->array[MSDU__PARAM], kernel->variant, a->codes, a->count);
}

static void run_widen(const msdu__kernel *kernel, msdu__kernel_arrays *a)
{
    msdu__vec_widen(a->codes, kernel->variant, a->array[MSDU__UPDATE], a->count);
}

/* There and back: within half a unit in the last place of the 16-bit type. */
static bool is_conversion_right(const msdu__kernel *kernel, msdu__kernel_arrays *a,
                                const msdu__kernel_point *points, uint64_t stride)
{
    const float unit = kernel->variant == MSDU_FLOAT16 ? 0x1p-11F : 0x1p-8F;
    msdu__vec_widen(a->codes, kernel->variant, a->array[MSDU__UPDATE], a->count);
    for (uint64_t i = 0; i * stride < a->count; i++) {
        float x = points[i].value[MSDU__PARAM];
        if (fabsf(a->array[MSDU__UPDATE][i * stride] - x) > unit * fabsf(x) + 0x1p-25F) {
            return false;
        }
    }
    return true;
}

/* --- the list --- */

#define CAPTURED (BIT(MSDU__UPDATE))
#define MERGED   (BIT(MSDU__PARAM) | BIT(MSDU__ANCHOR))
#define TRACED   (BIT(MSDU__PARAM) | BIT(MSDU__MOMENTUM))
#define ADVANCED (BIT(MSDU__ANCHOR) | BIT(MSDU__UPDATE))

static const msdu__kernel stages[] = {
    {"capture", "correct", "read A w, write d", 3, 0, 0, run_capture, expect_capture, CAPTURED,
     NULL},
    {"capture snapshot", "correct", "read A w, write d y", 4, 0, 1, run_capture, expect_capture,
     CAPTURED | BIT(MSDU__SNAPSHOT), NULL},
    {"apply average", "correct", "read A d, write A w", 4, 0, 0, run_apply, expect_average, MERGED,
     NULL},
    {"apply elastic", "correct", "read A d w, write A w", 5, 0, 1, run_apply, expect_elastic,
     MERGED, NULL},
    {"apply delayed", "correct", "read A d w y, write A w", 6, 0, 2, run_apply, expect_delayed,
     MERGED, NULL},
    {"apply outer,average", "correct", "read A d u, write A w u", 6, 0, 3, run_apply, expect_outer,
     MERGED | BIT(MSDU__MOMENTUM), NULL},
    {"apply clip,outer,delayed", "correct", "read A d u w y, write A w u", 8, 0, 4, run_apply,
     expect_clip, MERGED | BIT(MSDU__MOMENTUM), NULL},
    {"apply blend", "correct", "read A d w, write A w", 5, 0, 5, run_apply, expect_blend, MERGED,
     NULL},
    {"recursion local", "recursion", "read and write g dl dv r", 8, 0, 0, run_recursion_local,
     expect_recursion_local, TRACED | ADVANCED, NULL},
    {"recursion capture", "recursion", "read g dl dv, write dl dv x", 6, 0, 0,
     run_recursion_capture, expect_advance, ADVANCED | BIT(MSDU__SNAPSHOT), NULL},
    {"recursion apply", "recursion", "read dl m r g, write dl r g", 7, 0, 0, run_recursion_apply,
     expect_recursion_apply, TRACED | BIT(MSDU__ANCHOR), NULL},
    {"sum of squares", "reduce", "read g", 1, 0, 0, run_sum_sq, NULL, 0, is_sum_right},
    {"sketch", "reduce", "read d", 1, 0, 0, run_sketch, NULL, 0, is_sketch_right},
    {"scale", "reduce", "read and write g", 2, 0, 0, run_scale, expect_scale, BIT(MSDU__PARAM),
     NULL},
    {"to float16", "convert", "read 4, write 2 bytes", 1, 1, MSDU_FLOAT16, run_narrow, NULL, 0,
     is_conversion_right},
    {"from float16", "convert", "read 2, write 4 bytes", 1, 1, MSDU_FLOAT16, run_widen, NULL, 0,
     is_conversion_right},
    {"to bfloat16", "convert", "read 4, write 2 bytes", 1, 1, MSDU_BFLOAT16, run_narrow, NULL, 0,
     is_conversion_right},
    {"from bfloat16", "convert", "read 2, write 4 bytes", 1, 1, MSDU_BFLOAT16, run_widen, NULL, 0,
     is_conversion_right},
};

#define STAGE_COUNT (sizeof(stages) / sizeof(stages[0]))

const msdu__kernel *msdu__kernel_at(uint32_t index)
{
    if (index < STAGE_COUNT) {
        return &stages[index];
    }
    const msdu__kernel *wire = msdu__kernel_wires;
    for (uint32_t i = (uint32_t)STAGE_COUNT; i < index && wire->name != NULL; i++) {
        wire++;
    }
    return wire->name != NULL ? wire : NULL;
}

/* --- filling --- */

/* Spread evenly over -scale .. scale, the same on every run. */
static void fill(float *x, uint64_t count, uint32_t seed, float scale)
{
    const float unit = scale * 0x1p-31F;
    for (uint64_t i = 0; i < count; i++) {
        uint32_t bits = ((uint32_t)i + seed) * 2654435761U;
        bits = (bits ^ bits >> 15) * 2246822519U;
        x[i] = (float)(int32_t)bits * unit;
    }
}

void msdu__kernel_prepare(const msdu__kernel *kernel, msdu__kernel_arrays *a)
{
    static const float scales[MSDU__ARRAYS] = {0.1F, 0.1F, 0.001F, 0.001F, 0.1F};
    for (uint32_t i = 0; i < MSDU__ARRAYS; i++) {
        fill(a->array[i], a->count, 77777U * i, scales[i]);
    }
    if (kernel->run == run_widen) {
        run_narrow(kernel, a);
    } else if (msdu__kernel_reads_codes(kernel)) {
        msdu__kernel_encode(kernel, a);
    }
}
