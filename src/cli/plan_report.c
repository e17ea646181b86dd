/* SPDX-License-Identifier: Apache-2.0 */
/* What `msdu plan` says: methods, the controller's choice, a table over ranks; text or records. */
#include "plan_cmd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "wire/wire.h"

#define TABLE_METHOD "free" /* float32 in every step, exactly, with all that hides it */
#define BENCH_FROM   64     /* steps that `msdu bench overlap` measures of method defaults */
#define BENCH_UNTIL  88

typedef struct report {
    msdu__plan_request *request;
    cJSON *records; /* NULL: text */
    char *why;
    size_t why_bytes;
} report;

/* --- records --- */

static cJSON *add_record(const report *r, const char *name, const msdu__whatif_question *q)
{
    cJSON *record = cJSON_CreateObject();
    cJSON_AddStringToObject(record, "name", name);
    cJSON_AddStringToObject(record, "profile", r->request->profile.name);
    cJSON_AddStringToObject(record, "topology",
                            msdu__whatif_topology_name((int)q->network.topology));
    cJSON_AddNumberToObject(record, "ranks", q->network.ranks);
    cJSON_AddNumberToObject(record, "nodes", q->network.nodes);
    cJSON_AddItemToArray(r->records, record);
    return record;
}

static void add_answer(cJSON *record, const msdu__whatif_way *way, const msdu__whatif_answer *a)
{
    const struct {
        const char *name;
        double value;
    } fields[] = {
        {"step_us", a->step_ns / 1e3},
        {"bound_us", a->bound_ns / 1e3},
        {"compute_us", a->compute_ns / 1e3},
        {"exposed_share", a->exposed_share},
        {"bytes", a->bytes},
        {"interval", way->interval},
        {"delay", way->delay},
        {"bits", msdu__wire_at(way->wire)->bits},
        {"slices", a->slices},
    };
    cJSON_AddStringToObject(record, "method", way->method->name);
    cJSON_AddStringToObject(record, "wire", msdu__wire_at(way->wire)->name);
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        cJSON_AddNumberToObject(record, fields[i].name, fields[i].value);
    }
}

/* --- head --- */

static void print_head(const report *r)
{
    const msdu__plan_request *q = r->request;
    const msdu__profile *p = &q->profile;
    printf("profile %s: %u layers, %llu parameters, computing %.3f ms a step\n", p->name,
           p->layer_count, (unsigned long long)msdu__profile_elements(p),
           msdu__profile_compute_ns(p) / 1e6);
    printf("%.0f ranks on %.0f machines, %g Mbit/s and %g us between them", q->ranks, q->nodes,
           q->rate_mbit, q->latency_us);
    if (q->ranks > q->nodes) {
        printf(", %g Mbit/s and %g us inside", q->inner_rate_mbit, q->inner_latency_us);
    }
    printf("; exchange %s\n\n", msdu__whatif_topology_name(q->topology));
}

/* --- methods --- */

static void print_answer(const msdu__whatif_way *way, const msdu__whatif_answer *a)
{
    printf("%16s %10.3f %10.3f %7.3f %7.1f%% %11.3f %4u  %s\n", way->method->name, a->step_ns / 1e6,
           a->bound_ns / 1e6, a->step_ns / a->bound_ns, 100 * a->exposed_share, a->bytes / 1e6,
           way->interval, msdu__wire_at(way->wire)->name);
}

static bool report_methods(const report *r)
{
    const msdu__whatif_question *q = &r->request->question;
    const msdu__overlap_method *method = NULL;
    msdu__whatif_answer answer;
    if (r->records == NULL) {
        printf("%16s %10s %10s %7s %8s %11s %4s  %s\n", "method", "step ms", "bound ms", "ratio",
               "exposed", "MB a step", "h", "wire");
    }
    for (uint32_t i = 0; (method = msdu__overlap_method_at(i)) != NULL; i++) {
        msdu__whatif_way way = msdu__whatif_way_of(q, method);
        if (!msdu__overlap_is_wanted(r->request->methods, method->name) ||
            method->kind == MSDU__OVERLAP_DEFAULTS) {
            continue; /* the controller has a part of its own */
        }
        if (!msdu__whatif_predict(q, &way, &answer, r->why, r->why_bytes)) {
            return false;
        }
        if (r->records != NULL) {
            add_answer(add_record(r, "method", q), &way, &answer);
        } else {
            print_answer(&way, &answer);
        }
    }
    return true;
}

/* --- the controller --- */

static bool choose(const report *r, const msdu__whatif_question *q, msdu__whatif_choice *choice)
{
    msdu__whatif_wish wish = {.settings = r->request->controller,
                              .is_sgd = r->request->is_sgd,
                              .from_step = BENCH_FROM,
                              .until_step = BENCH_UNTIL};
    return msdu__whatif_control(q, &wish, choice, r->why, r->why_bytes);
}

static void add_choice(const report *r, const char *name, const msdu__whatif_question *q,
                       const msdu__whatif_choice *c)
{
    cJSON *record = add_record(r, name, q);
    add_answer(record, &c->way, &c->answer);
    cJSON_AddNumberToObject(record, "settled_step", (double)c->step);
    cJSON_AddNumberToObject(record, "bench_step_us", c->window_ns / 1e3);
    cJSON_AddNumberToObject(record, "bench_bytes", c->window_bytes);
    cJSON_AddStringToObject(record, "reason", c->reason);
}

static bool report_controller(const report *r)
{
    const msdu__whatif_question *q = &r->request->question;
    msdu__whatif_choice c;
    if (!msdu__overlap_is_wanted(r->request->methods, "defaults")) {
        return true;
    }
    if (!choose(r, q, &c)) {
        return false;
    }
    if (r->records != NULL) {
        add_choice(r, "controller", q, &c);
        return true;
    }
    print_answer(&c.way, &c.answer);
    printf("\nthe controller, from step %llu on: h %u, wire %s", (unsigned long long)c.step,
           c.way.interval, msdu__wire_at(c.way.wire)->name);
    if (c.way.delay > 0) {
        printf(", the mean %u step%s late", c.way.delay, c.way.delay > 1 ? "s" : "");
    }
    printf("\n  %s\n", c.reason);
    return true;
}

/* --- over ranks --- */

/* The same machines, more or fewer of them. */
static msdu__whatif_question question_for(const report *r, uint32_t ranks, int topology)
{
    msdu__whatif_question q = r->request->question;
    uint32_t local = q.network.ranks / q.network.nodes;
    q.network.topology = (msdu__whatif_topology)topology;
    q.network.nodes = ranks > local ? (ranks + local - 1) / local : 1;
    q.network.nodes = local > 1 ? q.network.nodes : ranks;
    q.network.ranks = ranks > local ? q.network.nodes * local : ranks;
    return q;
}

static bool report_cell(const report *r, uint32_t ranks, int topology)
{
    msdu__whatif_question q = question_for(r, ranks, topology);
    msdu__whatif_way way = msdu__whatif_way_of(&q, msdu__overlap_method_find(TABLE_METHOD));
    msdu__whatif_answer answer;
    msdu__whatif_choice choice;
    if (!msdu__whatif_predict(&q, &way, &answer, r->why, r->why_bytes) || !choose(r, &q, &choice)) {
        return false;
    }
    if (r->records != NULL) {
        add_answer(add_record(r, "ranks", &q), &way, &answer);
        add_choice(r, "ranks", &q, &choice);
    } else {
        char chosen[32];
        snprintf(chosen, sizeof(chosen), "%u/%s", choice.way.interval,
                 msdu__wire_at(choice.way.wire)->name);
        printf(" %9.1f %9.1f %-11s", answer.step_ns / 1e6, choice.answer.step_ns / 1e6, chosen);
        fflush(stdout);
    }
    return true;
}

static bool report_ranks(const report *r)
{
    if (r->request->up_to >= 2 && r->records == NULL) {
        printf("\nstep ms over ranks: %s (float32 at h 1), the controller's, and its h/wire\n\n%6s",
               TABLE_METHOD, "ranks");
        for (int t = MSDU__WHATIF_RING; t < MSDU__WHATIF_TOPOLOGIES; t++) {
            printf(" %-31s", msdu__whatif_topology_name(t));
        }
        printf("\n");
    }
    for (uint32_t ranks = 2; ranks <= r->request->up_to; ranks *= 2) {
        if (r->records == NULL) {
            printf("%6u", ranks);
        }
        for (int t = MSDU__WHATIF_RING; t < MSDU__WHATIF_TOPOLOGIES; t++) {
            if (!report_cell(r, ranks, t)) {
                return false;
            }
        }
        if (r->records == NULL) {
            printf("\n");
        }
    }
    return true;
}

bool msdu__plan_report(msdu__plan_request *request, char *why, size_t why_bytes)
{
    report r = {.request = request, .why = why, .why_bytes = why_bytes};
    if (request->is_json) {
        r.records = cJSON_CreateArray();
    } else {
        print_head(&r);
    }
    bool is_done =
        report_methods(&r) && report_controller(&r) &&
        (!request->has_groups || msdu__plan_uneven(request, r.records, r.why, r.why_bytes)) &&
        report_ranks(&r);
    if (is_done && r.records != NULL) {
        char *text = cJSON_Print(r.records);
        is_done = text != NULL;
        puts(is_done ? text : "");
        cJSON_free(text);
    }
    cJSON_Delete(r.records);
    return is_done;
}
