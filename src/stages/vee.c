/* SPDX-License-Identifier: Apache-2.0 */
/* Two stages a device; pure. */
#include "vee.h"

#include <math.h>

#define HALVINGS 24 /* of an interval: a ten-millionth is left */

typedef struct vee {
    const msdu__stages_model *m;
    const msdu__stages_layout *plain;
    uint32_t ranks;
    /* (ranks + 1) x (L + 1): f, and the i' that it comes from; f above L: there is none */
    uint32_t *up;
    uint32_t *from;
} vee;

static double time_of(const vee *v, uint32_t rank, uint32_t first, uint32_t end)
{
    uint32_t device = v->plain->device[rank];
    return msdu__stages_forward(v->m, device, first, end) +
           msdu__stages_backward(v->m, device, first, end);
}

static uint32_t *up_of(const vee *v, uint32_t rank, uint32_t layer)
{
    return &v->up[(size_t)rank * (v->m->layers + 1) + layer];
}

/* The smallest j such that the device has layers j .. end - 1 within a time, one of them at least;
 * above L if it cannot. */
static uint32_t reach(const vee *v, uint32_t rank, uint32_t end, double within)
{
    uint32_t low = 0;
    uint32_t high = end;
    while (low < high) { /* t(j, end) falls with j */
        uint32_t middle = low + (high - low) / 2;
        if (time_of(v, rank, middle, end) <= within) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low < end ? low : v->m->layers + 1;
}

static void set_up(vee *v, uint32_t rank, uint32_t layer, double most)
{
    uint32_t none = v->m->layers + 1;
    uint32_t best = none;
    uint32_t least = layer + 2 * (v->ranks - 1 - rank); /* a layer for each stage in between */
    for (uint32_t before = layer; before-- > 0;) {
        uint32_t end = *up_of(v, rank, before);
        double left = most - time_of(v, rank, before, layer);
        if (left < 0) {
            break;
        }
        uint32_t start = end < none ? reach(v, rank, end, left) : none;
        start = start < least ? least : start;
        if (start < end && start < best) {
            best = start;
            v->from[(size_t)(rank + 1) * none + layer] = before;
        }
    }
    *up_of(v, rank + 1, layer) = best;
}

/* The layer at which the arms meet within a time for each device; 0: they do not. */
static uint32_t meet(vee *v, double most)
{
    uint32_t layers = v->m->layers;
    for (uint32_t l = 0; l <= layers; l++) {
        *up_of(v, 0, l) = l == 0 ? layers : layers + 1;
    }
    for (uint32_t r = 0; r < v->ranks; r++) {
        for (uint32_t l = 0; l <= layers; l++) {
            set_up(v, r, l, most);
        }
    }
    for (uint32_t l = 1; l < layers; l++) {
        if (*up_of(v, v->ranks, l) == l) {
            return l;
        }
    }
    return 0;
}

/* From where the arms meet outward. */
static void trace(const vee *v, uint32_t layer, msdu__stages_layout *out)
{
    uint32_t layers = v->m->layers;
    *out = (msdu__stages_layout){.count = 2 * v->ranks, .ranks = v->ranks};
    out->first[v->ranks] = layer;
    for (uint32_t r = v->ranks; r-- > 0;) {
        uint32_t before = v->from[(size_t)(r + 1) * (layers + 1) + layer];
        out->first[r] = before;
        out->first[2 * v->ranks - r] = *up_of(v, r, before);
        layer = before;
    }
    for (uint32_t s = 0; s < out->count; s++) {
        out->rank[s] = s < v->ranks ? s : out->count - 1 - s;
        out->device[s] = v->plain->device[out->rank[s]];
    }
}

size_t msdu__stages_vee_room(const msdu__stages_model *model, uint32_t devices)
{
    return (size_t)2 * (devices + 1) * (model->layers + 1);
}

bool msdu__stages_vee(const msdu__stages_model *model, const msdu__stages_layout *plain,
                      uint32_t *work, msdu__stages_layout *out)
{
    vee v = {.m = model, .plain = plain, .ranks = plain->ranks, .up = work};
    v.from = &work[msdu__stages_vee_room(model, plain->ranks) / 2];
    double low = 0;
    double high = 0;
    for (uint32_t r = 0; r < v.ranks; r++) {
        high = fmax(high, time_of(&v, r, 0, model->layers));
    }
    if (meet(&v, high) == 0) {
        return false;
    }
    for (int i = 0; i < HALVINGS; i++) {
        double middle = (low + high) / 2;
        if (meet(&v, middle) != 0) {
            high = middle;
        } else {
            low = middle;
        }
    }
    trace(&v, meet(&v, high), out);
    return true;
}
