/* SPDX-License-Identifier: Apache-2.0 */
/* Table and records of `msdu bench overlap`. */
#include "overlap.h"

#include <math.h>
#include <stdlib.h>

#include "wire/wire.h"

#define WIRE_BLOCK 256 /* default of setting wire_block */

/* What a rank sends for a layer. */
static double layer_bytes(const msdu__overlap_plan *plan, uint32_t layer, int32_t ranks, int wire)
{
    const msdu__profile_layer *l = &plan->profile.layers[layer];
    double bytes = 0;
    for (uint32_t t = l->first_tensor; t < l->first_tensor + l->tensor_count; t++) {
        bytes += (double)msdu__wire_bytes(msdu__wire_at(wire), plan->profile.tensors[t].count,
                                          WIRE_BLOCK);
    }
    return msdu__bound_ring_bytes(bytes, (uint32_t)ranks);
}

double msdu__overlap_link_bytes(const msdu__overlap_plan *plan, int32_t ranks, int wire)
{
    double bytes = 0;
    for (uint32_t l = 0; l < plan->profile.layer_count; l++) {
        bytes += layer_bytes(plan, l, ranks, wire);
    }
    return bytes;
}

double msdu__overlap_bound_ns(const msdu__overlap_plan *plan, const msdu__overlap_facts *facts,
                              const msdu__overlap_method *method, uint32_t interval, int wire)
{
    const msdu__profile *p = &plan->profile;
    msdu__bound_layer *layers = calloc(p->layer_count, sizeof(*layers));
    if (layers == NULL) {
        return 0;
    }
    for (uint32_t l = 0; l < p->layer_count; l++) {
        bool is_sent = method->kind != MSDU__OVERLAP_COMPUTE;
        layers[l] =
            (msdu__bound_layer){.forward_ns = p->layers[l].forward_ns,
                                .backward_ns = p->layers[l].backward_ns,
                                .bytes = is_sent ? layer_bytes(plan, l, facts->ranks, wire) : 0};
    }
    msdu__bound bound = msdu__bound_of(layers, p->layer_count, &facts->link);
    free(layers);
    bool may_stream = method->is_streamed && interval > 1;
    return may_stream ? msdu__bound_streamed_ns(&bound, interval)
                      : msdu__bound_step_ns(&bound, interval, method->delay);
}

void msdu__overlap_print_head(msdu__bench *bench, const msdu__overlap_plan *plan,
                              const msdu__overlap_facts *facts)
{
    const msdu__profile *p = &plan->profile;
    fprintf(bench->text, "# profile %s: %s (%s)\n", p->name, p->compute, p->source);
    fprintf(bench->text,
            "# scale %g, %u layers, %llu parameters, computing %.0f us a step (%s); %d ranks\n",
            plan->scale, p->layer_count, (unsigned long long)msdu__profile_elements(p),
            msdu__profile_compute_ns(p) / 1e3, plan->is_spinning ? "busy" : "asleep",
            (int)facts->ranks);
    fprintf(bench->text,
            "# link %.1f Mbit/s (%s), an exchange of one slice %.0f us, communication by "
            "computation %.3f\n",
            facts->link.bytes_per_ns * 8e3,
            facts->is_measured ? "measured: the best of several whole exchanges" : "as given",
            facts->exchange_ns / 1e3, facts->ratio);
    fprintf(bench->text, "# %u steps measured, local steps h %u\n", plan->steps, plan->interval);
    fprintf(bench->text, "#%15s %10s %10s %10s %7s %8s %6s %9s %5s %-8s %5s %9s %8s\n", "method",
            "step us", "p90 us", "bound us", "ratio", "exposed", "link", "MB a step", "h", "wire",
            "wrong", "cpu us", "cpu s/GB");
}

/* Processor time of all threads of a rank for what it sent; 0 where nothing is sent. */
static double cpu_s_per_gb(const msdu__overlap_result *r)
{
    return r->bytes > 0 ? r->cpu_ns / r->bytes : 0;
}

static void add_record(msdu__bench *bench, const msdu__overlap_plan *plan,
                       const msdu__overlap_facts *facts, const msdu__overlap_method *method,
                       const double numbers[5], const msdu__overlap_result *r)
{
    cJSON *record = msdu__bench_record(bench, "overlap");
    const struct {
        const char *name;
        double value;
    } fields[] = {
        {"comm_comp_ratio", facts->ratio},
        {"step_us", r->step_ns / 1e3},
        {"bound_us", numbers[0] / 1e3},
        {"exposed_share", numbers[1]},
        {"link_use", numbers[2]},
        {"p90_us", r->p90_ns / 1e3},
        {"compute_us", msdu__profile_compute_ns(&plan->profile) / 1e3},
        {"cpu_us", r->cpu_ns / 1e3},
        {"cpu_s_per_gb", cpu_s_per_gb(r)},
        {"bytes", r->bytes},
        {"interval", r->interval},
        {"link_mbit", facts->link.bytes_per_ns * 8e3},
        {"exchange_us", facts->exchange_ns / 1e3},
        {"slice_cpu_us", facts->slice_cpu_ns / 1e3},
        {"ranks", facts->ranks},
        {"parameters", (double)msdu__profile_elements(&plan->profile)},
        {"scale", plan->scale},
        {"steps", plan->steps},
        {"wrong", r->wrong},
        {"error", r->error},
    };
    cJSON_AddStringToObject(record, "profile", plan->profile.name);
    cJSON_AddStringToObject(record, "method", method->name);
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        cJSON_AddNumberToObject(record, fields[i].name, fields[i].value);
    }
    cJSON_AddStringToObject(record, "wire", msdu__wire_at((int)r->wire)->name);
    cJSON_AddStringToObject(record, "link", facts->is_measured ? "measured" : "given");
    cJSON_AddStringToObject(record, "compute", plan->is_spinning ? "busy" : "asleep");
}

void msdu__overlap_print(msdu__bench *bench, const msdu__overlap_plan *plan,
                         const msdu__overlap_facts *facts, const msdu__overlap_method *method,
                         const msdu__overlap_result *r)
{
    double bound = msdu__overlap_bound_ns(plan, facts, method, (uint32_t)r->interval, (int)r->wire);
    double compute = msdu__profile_compute_ns(&plan->profile);
    double exposed = fmax(0, 1 - compute / r->step_ns);
    double use = r->bytes / (facts->link.bytes_per_ns * r->step_ns);
    fprintf(bench->text,
            "%16s %10.0f %10.0f %10.0f %7.3f %7.1f%% %6.3f %9.3f %5.0f %-8s %5.0f %9.0f %8.3f\n",
            method->name, r->step_ns / 1e3, r->p90_ns / 1e3, bound / 1e3, r->step_ns / bound,
            100 * exposed, use, r->bytes / 1e6, r->interval, msdu__wire_at((int)r->wire)->name,
            r->wrong, r->cpu_ns / 1e3, cpu_s_per_gb(r));
    fflush(bench->text);
    bench->is_wrong = bench->is_wrong || r->wrong > 0;
    add_record(bench, plan, facts, method, (double[5]){bound, exposed, use}, r);
}
