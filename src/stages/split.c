/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts and devices by dynamic programming; pure but for memory. */
#include "split.h"

#include <assert.h>
#include <math.h>

/* --- classes --- */

static bool same_rows(const double *sums, uint32_t layers, uint32_t d, uint32_t e)
{
    const double *a = &sums[(size_t)d * (layers + 1)];
    const double *b = &sums[(size_t)e * (layers + 1)];
    for (uint32_t l = 0; l <= layers; l++) {
        if (a[l] != b[l]) {
            return false;
        }
    }
    return true;
}

static bool same_links(const msdu__stages_model *m, const double *of, uint32_t d, uint32_t e)
{
    size_t n = m->devices;
    for (size_t x = 0; x < n; x++) {
        bool is_third = x != d && x != e;
        if (is_third && (of[d * n + x] != of[e * n + x] || of[x * n + d] != of[x * n + e])) {
            return false;
        }
    }
    return of[d * n + e] == of[e * n + d];
}

/* Does nothing tell them apart? It is an equivalence: links of two that are alike to a third are
 * alike, so all links inside a class are. */
static bool are_alike(const msdu__stages_model *m, uint32_t d, uint32_t e)
{
    return m->memory[d] == m->memory[e] && m->card[d] == m->card[e] &&
           same_rows(m->forward, m->layers, d, e) && same_rows(m->backward, m->layers, d, e) &&
           same_rows(m->weight, m->layers, d, e) && same_links(m, m->rate, d, e) &&
           same_links(m, m->latency, d, e);
}

static uint32_t find_class(const msdu__split *s, uint32_t device)
{
    for (uint32_t c = 0; c < s->classes; c++) {
        if (are_alike(s->m, s->member[c], device)) {
            return c;
        }
    }
    return s->classes;
}

static void sort_devices(msdu__split *s, bool has_classes)
{
    for (uint32_t d = 0; d < s->m->devices; d++) {
        uint32_t c = has_classes ? find_class(s, d) : s->classes;
        if (c == s->classes) {
            s->member[c] = d;
            s->next_member[c] = d;
            s->classes++;
        } else if (s->devices_of[c] == 1) {
            s->next_member[c] = d;
        }
        s->class_of[d] = c;
        s->devices_of[c]++;
    }
}

/* False: more than can be tried. */
static bool count_sets(msdu__split *s)
{
    uint64_t sets = 1;
    uint64_t most = MSDU__SPLIT_CELLS_MAX / ((uint64_t)s->classes * (s->m->layers + 1));
    for (uint32_t c = 0; c < s->classes; c++) {
        s->stride[c] = (uint32_t)sets;
        sets *= s->devices_of[c] + 1;
        if (sets > most) {
            return false;
        }
    }
    s->sets = (uint32_t)sets;
    return true;
}

msdu__split_outcome msdu__split_make(const msdu__stages_model *model, bool has_classes,
                                     msdu__stages_memory *memory, msdu__split *out)
{
    *out = (msdu__split){.m = model};
    sort_devices(out, has_classes);
    if (!count_sets(out)) {
        return MSDU__SPLIT_TOO_MANY;
    }
    size_t layers = (size_t)model->layers + 1;
    size_t cells = layers * out->classes * out->sets;
    out->value = msdu__stages_take(memory, cells, sizeof(*out->value));
    out->next_layer = msdu__stages_take(memory, cells, sizeof(*out->next_layer));
    out->next_class = msdu__stages_take(memory, cells, sizeof(*out->next_class));
    out->rest = msdu__stages_take(memory, layers, sizeof(*out->rest));
    out->rest_class = msdu__stages_take(memory, layers, sizeof(*out->rest_class));
    return memory->is_short ? MSDU__SPLIT_SHORT : MSDU__SPLIT_OK;
}

/* --- the table --- */

static size_t cell(const msdu__split *s, uint32_t set, uint32_t class, uint32_t layer)
{
    return ((size_t)set * s->classes + class) * (s->m->layers + 1) + layer;
}

static uint32_t members(const msdu__split *s, uint32_t set, uint32_t class)
{
    return set / s->stride[class] % (s->devices_of[class] + 1);
}

static uint32_t size_of(const msdu__split *s, uint32_t set)
{
    uint32_t size = 0;
    for (uint32_t c = 0; c < s->classes; c++) {
        size += members(s, set, c);
    }
    return size;
}

/* What is looked for: the smallest of these. */
typedef enum measure { BOTTLENECK, FILL, STEP } measure;

typedef struct goal {
    measure of;
    msdu__split_way way;
    double limit; /* of the bottleneck; INFINITY unless it is a fill */
    double times; /* that a stage is passed: M in a step, else once */
} goal;

static double larger(double a, double b) /* fmax() is a call */
{
    return a > b ? a : b;
}

/* The rest with one more link in front. */
static double behind_link(const msdu__split *s, const goal *aim, uint32_t class, uint32_t next,
                          uint32_t layer, double value)
{
    uint32_t from = s->member[class];
    uint32_t to = class == next ? s->next_member[next] : s->member[next];
    double bytes = s->m->cross[layer];
    double link = msdu__stages_link(s->m, from, to, bytes);
    if (aim->of == BOTTLENECK) {
        return larger(value, link);
    }
    if (link > aim->limit || link == (double)INFINITY) {
        return (double)INFINITY;
    }
    double back = aim->way == MSDU__SPLIT_THERE ? 0 : msdu__stages_way(s->m, to, from, bytes);
    double alone = value + msdu__stages_way(s->m, from, to, bytes) + back;
    return aim->of == FILL ? alone : larger(alone, aim->times * link);
}

/* For every layer, the best that may follow on the devices of `set` behind one of `class`. */
static void set_rest(msdu__split *s, const goal *aim, uint32_t set, uint32_t class)
{
    uint32_t layers = s->m->layers;
    for (uint32_t l = 0; l <= layers; l++) {
        s->rest[l] = set == 0 && l == layers ? 0 : (double)INFINITY;
    }
    for (uint32_t p = 0; p < s->classes; p++) {
        const double *values = &s->value[cell(s, set, p, 0)];
        for (uint32_t l = 1; members(s, set, p) > 0 && l < layers; l++) {
            double value = values[l] < s->rest[l] ? behind_link(s, aim, class, p, l, values[l])
                                                  : (double)INFINITY;
            if (value < s->rest[l]) {
                s->rest[l] = value;
                s->rest_class[l] = (uint8_t)p;
            }
        }
    }
}

/* A stage: what it computes for each micro-batch, and what one that goes on to later stages waits
 * for. */
typedef struct stage_cost {
    double busy;
    double alone;
} stage_cost;

/* With what follows, its card left out. */
static double with_rest(const goal *aim, const stage_cost *cost, double rest)
{
    switch (aim->of) {
    case BOTTLENECK:
        return larger(cost->busy, rest);
    case FILL:
        return cost->alone + rest;
    case STEP:
        break;
    }
    return larger(aim->times * cost->busy, cost->alone + rest);
}

static stage_cost cost_of(const msdu__stages_model *m, const goal *aim, size_t from, size_t end)
{
    double forward = m->forward[end] - m->forward[from];
    double backward = m->backward[end] - m->backward[from];
    if (aim->way == MSDU__SPLIT_INPUTS) {
        backward -= m->weight[end] - m->weight[from];
    }
    return (stage_cost){.busy = forward + backward,
                        .alone = aim->way == MSDU__SPLIT_THERE ? forward : forward + backward};
}

/* The best stage from `first` on: where it ends. A longer stage takes longer, so the search ends
 * with the first whose computing alone is no better. What else a stage costs is looked at only
 * where it may be the best. */
static void set_cell(msdu__split *s, const goal *aim, uint32_t device, uint32_t first, double holds,
                     size_t at)
{
    const msdu__stages_model *m = s->m;
    size_t row = (size_t)device * (m->layers + 1);
    double best = (double)INFINITY;
    for (uint32_t end = first + 1; end <= m->layers; end++) {
        stage_cost cost = cost_of(m, aim, row + first, row + end);
        double value = with_rest(aim, &cost, s->rest[end]);
        if (aim->times * cost.busy >= best || cost.busy > aim->limit) {
            break;
        }
        if (value >= best) {
            continue;
        }
        double card = (m->cross[first] + m->cross[end]) / m->card[device];
        value = aim->of == FILL ? value : larger(value, aim->times * card);
        if (value < best && card <= aim->limit &&
            msdu__stages_bytes(m, first, end, holds) <= m->memory[device]) {
            best = value;
            s->next_layer[at] = (uint16_t)end;
            s->next_class[at] = s->rest_class[end];
        }
    }
    s->value[at] = best;
}

static void fill_table(msdu__split *s, const goal *aim)
{
    for (uint32_t set = 1; set < s->sets; set++) {
        uint32_t stages = size_of(s, set);
        double holds = s->is_frugal ? 1 : fmin(stages, s->m->micro_batches);
        for (uint32_t c = 0; c < s->classes; c++) {
            if (members(s, set, c) == 0) {
                continue;
            }
            set_rest(s, aim, set - s->stride[c], c);
            for (uint32_t l = 0; l < s->m->layers; l++) {
                set_cell(s, aim, s->member[c], l, holds, cell(s, set, c, l));
            }
        }
    }
}

/* --- the answer --- */

/* The best of all sets; of equals, the one with fewer devices. */
static double find_best(const msdu__split *s, uint32_t *set_out, uint32_t *class_out)
{
    double best = (double)INFINITY;
    for (uint32_t set = 1; set < s->sets; set++) {
        for (uint32_t c = 0; c < s->classes; c++) {
            double value = members(s, set, c) > 0 ? s->value[cell(s, set, c, 0)] : (double)INFINITY;
            bool is_fewer =
                value == best && value < (double)INFINITY && size_of(s, set) < size_of(s, *set_out);
            if (value < best || is_fewer) {
                best = value;
                *set_out = set;
                *class_out = c;
            }
        }
    }
    return best;
}

/* The next device of a class that has none of the stages before. */
static uint32_t take_member(const msdu__split *s, uint32_t class, bool *is_taken)
{
    uint32_t d = s->member[class];
    while (is_taken[d] || s->class_of[d] != class) {
        d++;
        assert(d < s->m->devices);
    }
    is_taken[d] = true;
    return d;
}

static void trace(const msdu__split *s, uint32_t set, uint32_t class, msdu__stages_layout *out)
{
    bool is_taken[MSDU_STAGES_DEVICES_MAX] = {false};
    uint32_t layer = 0;
    out->count = 0;
    while (set > 0 && layer < s->m->layers) {
        size_t at = cell(s, set, class, layer);
        out->device[out->count] = take_member(s, class, is_taken);
        out->rank[out->count] = out->count;
        out->first[out->count++] = layer;
        layer = s->next_layer[at];
        set -= s->stride[class];
        class = s->next_class[at];
    }
    assert(layer == s->m->layers && set == 0);
    out->first[out->count] = layer;
    out->ranks = out->count;
}

static double search(msdu__split *s, const goal *aim, msdu__stages_layout *layout_out)
{
    uint32_t set = 0;
    uint32_t class = 0;
    fill_table(s, aim);
    double best = find_best(s, &set, &class);
    if (layout_out != NULL && best < (double)INFINITY) {
        trace(s, set, class, layout_out);
    }
    return best;
}

double msdu__split_bottleneck(msdu__split *split, msdu__stages_layout *layout_out)
{
    goal aim = {.of = BOTTLENECK, .limit = (double)INFINITY, .times = 1};
    return search(split, &aim, layout_out);
}

double msdu__split_fill(msdu__split *split, double limit, msdu__stages_layout *layout_out)
{
    goal aim = {.of = FILL, .limit = limit, .times = 1};
    return search(split, &aim, layout_out);
}

double msdu__split_step(msdu__split *split, msdu__split_way way, msdu__stages_layout *layout_out)
{
    goal aim = {
        .of = STEP, .way = way, .limit = (double)INFINITY, .times = split->m->micro_batches};
    return search(split, &aim, layout_out);
}
