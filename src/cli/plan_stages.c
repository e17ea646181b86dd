/* SPDX-License-Identifier: Apache-2.0 */
/* `msdu plan --stages`: the question about a pipeline, made of a profile and a list of machines. */
#include "plan_stages.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Parameters, gradients and state of the optimizer, in sizes of an element: Adam has two values
 * beside them, SGD its momentum. Half-precision training keeps float32 copies, which is as much. */
#define STATE_OF_ADAM 4
#define STATE_OF_SGD  3
#define ELEMENT_BYTES 4.0

/* Arrays of the question; freed together. */
typedef struct arrays {
    double *forward;
    double *backward;
    double *weight;
    double *fixed_forward;
    double *fixed_backward;
    double *output;
    double *kept;
    double *state;
    double *memory;
    double *card;
    const char **layer_names;
    const char **device_names;
} arrays;

static bool take_arrays(arrays *a, size_t layers, size_t devices)
{
    double **const matrices[] = {&a->forward, &a->backward, &a->weight, &a->fixed_forward,
                                 &a->fixed_backward};
    double **const rows[] = {&a->output, &a->kept, &a->state};
    bool is_fine = true;
    for (size_t i = 0; i < sizeof(matrices) / sizeof(matrices[0]); i++) {
        *matrices[i] = calloc(layers * devices, sizeof(double));
        is_fine = is_fine && *matrices[i] != NULL;
    }
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        *rows[i] = calloc(layers, sizeof(double));
        is_fine = is_fine && *rows[i] != NULL;
    }
    a->memory = calloc(devices, sizeof(double));
    a->card = calloc(devices, sizeof(double));
    a->layer_names = calloc(layers, sizeof(*a->layer_names));
    a->device_names = calloc(devices, sizeof(*a->device_names));
    return is_fine && a->memory != NULL && a->card != NULL && a->layer_names != NULL &&
           a->device_names != NULL;
}

static void free_arrays(arrays *a)
{
    double *const all[] = {a->forward, a->backward, a->weight, a->fixed_forward, a->fixed_backward,
                           a->output,  a->kept,     a->state,  a->memory,        a->card};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        free(all[i]);
    }
    free(a->layer_names);
    free(a->device_names);
}

/* --- layers --- */

static double state_of(const msdu__plan_request *r, const msdu__profile_layer *layer)
{
    double elements = 0;
    double bytes = layer->dtype == MSDU_FLOAT64 ? 2 * ELEMENT_BYTES : ELEMENT_BYTES;
    for (uint32_t i = 0; i < layer->tensor_count; i++) {
        elements += (double)r->profile.tensors[layer->first_tensor + i].count;
    }
    return elements * bytes * (r->is_sgd ? STATE_OF_SGD : STATE_OF_ADAM);
}

static bool has_memory(const msdu__machines *machines)
{
    for (uint32_t d = 0; d < machines->count; d++) {
        if (machines->list[d].memory_bytes > 0) {
            return true;
        }
    }
    return false;
}

static bool set_layers(const msdu__plan_stages_case *c, arrays *a, char *why, size_t why_bytes)
{
    const msdu__profile *p = &c->request->profile;
    for (uint32_t l = 0; l < p->layer_count; l++) {
        const msdu__profile_layer *layer = &p->layers[l];
        const char *lacks = layer->output_bytes < 0 && l + 1 < p->layer_count   ? "output_bytes"
                            : layer->kept_bytes < 0 && has_memory(&c->machines) ? "kept_bytes"
                                                                                : NULL;
        if (lacks != NULL) {
            snprintf(why, why_bytes, "profile %s: layer '%s': %s is missing%s", p->name,
                     layer->name, lacks,
                     strcmp(lacks, "kept_bytes") == 0 ? ", and machines have a memory" : "");
            return false;
        }
        a->layer_names[l] = layer->name;
        a->output[l] = fmax(layer->output_bytes, 0);
        a->kept[l] = fmax(layer->kept_bytes, 0);
        a->state[l] = layer->state_bytes >= 0 ? layer->state_bytes : state_of(c->request, layer);
    }
    return true;
}

/* --- machines --- */

static void set_times(const msdu__profile *p, double speed, arrays *a, uint32_t device)
{
    for (uint32_t l = 0; l < p->layer_count; l++) {
        const msdu__profile_layer *layer = &p->layers[l];
        size_t at = (size_t)device * p->layer_count + l;
        a->forward[at] = layer->forward_ns / speed;
        a->backward[at] = layer->backward_ns / speed;
        a->weight[at] = layer->weight_ns >= 0 ? fmin(layer->weight_ns / speed, a->backward[at])
                                              : a->backward[at] / 2;
        a->fixed_forward[at] = layer->fixed_forward_ns / speed;
        a->fixed_backward[at] = layer->fixed_backward_ns / speed;
    }
}

/* Times of a machine's own profile, which must be of the same layers. */
static bool set_own_times(const msdu__plan_stages_case *c, arrays *a, uint32_t device, char *why,
                          size_t why_bytes)
{
    const msdu__machine *machine = &c->machines.list[device];
    const msdu__profile *model = &c->request->profile;
    char path[MSDU__PROFILE_PATH_BYTES];
    msdu__profile own;
    msdu__profile_path(machine->profile, path, sizeof(path));
    if (!msdu__profile_read(path, &own, why, why_bytes)) {
        return false;
    }
    bool is_same = own.layer_count == model->layer_count && own.samples == model->samples;
    for (uint32_t l = 0; is_same && l < own.layer_count; l++) {
        is_same = strcmp(own.layers[l].name, model->layers[l].name) == 0;
    }
    if (is_same) {
        msdu__profile_scale(&own, c->request->scale, c->request->scale);
        set_times(&own, machine->speed, a, device);
    } else {
        snprintf(why, why_bytes, "machine '%s': profile: %s has other layers or samples than %s",
                 machine->name, path, model->name);
    }
    msdu__profile_free(&own);
    return is_same;
}

static bool set_machines(const msdu__plan_stages_case *c, arrays *a, char *why, size_t why_bytes)
{
    for (uint32_t d = 0; d < c->machines.count; d++) {
        const msdu__machine *machine = &c->machines.list[d];
        a->device_names[d] = machine->name;
        a->memory[d] = machine->memory_bytes;
        a->card[d] = machine->card_rate;
        if (machine->profile == NULL) {
            set_times(&c->request->profile, machine->speed, a, d);
        } else if (!set_own_times(c, a, d, why, why_bytes)) {
            return false;
        }
    }
    return true;
}

/* --- the question --- */

static void set_question(msdu__plan_stages_case *c, const arrays *a)
{
    const msdu__plan_pipeline *p = &c->request->pipeline;
    c->question = (msdu_stages_question){
        .size = sizeof(c->question),
        .layers = c->request->profile.layer_count,
        .devices = c->machines.count,
        .micro_batches = (uint32_t)p->micro_batches,
        .may = (p->may_split ? (uint32_t)MSDU_STAGES_SPLIT : 0) |
               (p->may_two ? (uint32_t)MSDU_STAGES_TWO : 0),
        .batch = (uint32_t)p->batch,
        .samples = p->batch > 0 ? c->request->profile.samples : 0,
        .forward_ns = a->forward,
        .backward_ns = a->backward,
        .weight_ns = a->weight,
        .fixed_forward_ns = a->fixed_forward,
        .fixed_backward_ns = a->fixed_backward,
        .output_bytes = a->output,
        .kept_bytes = a->kept,
        .state_bytes = a->state,
        .memory_bytes = a->memory,
        .card_rate = a->card,
        .link_rate = c->machines.link_rate,
        .latency_ns = c->machines.latency_ns,
        .layer_names = a->layer_names,
        .device_names = a->device_names,
    };
}

static bool check_batch(const msdu__plan_stages_case *c, char *why, size_t why_bytes)
{
    const msdu__plan_pipeline *p = &c->request->pipeline;
    if (p->micro_batches == 0 && (p->batch == 0 || c->request->profile.samples == 0)) {
        snprintf(why, why_bytes, "--micro-batches auto needs --batch, and samples in the profile");
        return false;
    }
    if (p->micro_batches > 0 && p->batch > 0 && fmod(p->batch, p->micro_batches) != 0) {
        snprintf(why, why_bytes, "--micro-batches %.0f does not divide --batch %.0f",
                 p->micro_batches, p->batch);
        return false;
    }
    return true;
}

static bool answer(msdu__plan_stages_case *c, char *why, size_t why_bytes)
{
    msdu_stages *plan = NULL;
    if (msdu_stages_plan(&c->question, &plan) != MSDU_OK) {
        snprintf(why, why_bytes, "%s, %s: %s", c->request->pipeline.machines,
                 c->request->profile.name, msdu_last_error());
        return false;
    }
    c->plan = plan;
    bool is_done = msdu__plan_stages_report(c, why, why_bytes);
    msdu_stages_free(plan);
    return is_done;
}

bool msdu__plan_stages(const msdu__plan_request *request, char *why, size_t why_bytes)
{
    msdu__plan_stages_case c = {.request = request};
    arrays a = {.forward = NULL};
    if (!msdu__machines_read(request->pipeline.machines, &c.machines, why, why_bytes)) {
        return false;
    }
    bool is_done = check_batch(&c, why, why_bytes);
    if (is_done && !take_arrays(&a, request->profile.layer_count, c.machines.count)) {
        snprintf(why, why_bytes, "out of memory");
        is_done = false;
    }
    is_done = is_done && set_layers(&c, &a, why, why_bytes) && set_machines(&c, &a, why, why_bytes);
    if (is_done) {
        set_question(&c, &a);
        is_done = answer(&c, why, why_bytes);
    }
    free_arrays(&a);
    msdu__machines_free(&c.machines);
    return is_done;
}
