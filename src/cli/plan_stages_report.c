/* SPDX-License-Identifier: Apache-2.0 */
/* What `msdu plan --stages` says: a table or a JSON object, and files for torch and its users. */
#include "plan_stages.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#define NS_PER_S  1e9
#define NS_PER_US 1e3

static const char *const kind_names[] = {"F",      "B",      "I",      "W",
                                         "SEND_F", "RECV_F", "SEND_B", "RECV_B"};

typedef msdu__plan_stages_case stages_case;

/* --- numbers --- */

static const msdu_stages_stage *stage_of(const stages_case *c, uint32_t stage)
{
    return &c->plan->stages[stage];
}

static const char *machine_of(const stages_case *c, uint32_t device)
{
    return c->machines.list[device].name;
}

/* Bytes a second of a message between two machines, cards considered. */
static double rate_of(const stages_case *c, uint32_t from, uint32_t to)
{
    double rate = c->machines.link_rate[(size_t)from * c->machines.count + to];
    double up = c->machines.list[from].card_rate;
    double down = c->machines.list[to].card_rate;
    rate = up > 0 ? fmin(rate, up) : rate;
    return down > 0 ? fmin(rate, down) : rate;
}

/* Of a step, what messages of a stage to the next take of the link. 0: none. */
static double link_share(const stages_case *c, uint32_t stage)
{
    const msdu_stages_stage *s = stage_of(c, stage);
    const msdu_stages_question *q = &c->question;
    if (stage + 1 == c->plan->stage_count || stage_of(c, stage + 1)->device == s->device) {
        return 0;
    }
    double bytes = q->output_bytes[s->end - 1] * c->plan->micro_batches;
    if (q->samples > 0) {
        bytes *= (double)q->batch / c->plan->micro_batches / q->samples;
    }
    return bytes / rate_of(c, s->device, stage_of(c, stage + 1)->device) * NS_PER_S /
           c->plan->step_ns;
}

static bool is_used(const stages_case *c, uint32_t device)
{
    for (uint32_t s = 0; s < c->plan->stage_count; s++) {
        if (stage_of(c, s)->device == device) {
            return true;
        }
    }
    return false;
}

/* Of the machine with a rank's actions. */
static uint32_t device_of(const stages_case *c, uint32_t rank)
{
    uint32_t s = 0;
    while (stage_of(c, s)->rank != rank) {
        s++;
    }
    return stage_of(c, s)->device;
}

/* --- text --- */

static void print_bytes(double bytes, char *out, size_t size)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int unit = 0;
    while (bytes >= 1024 && unit < 4) {
        bytes /= 1024;
        unit++;
    }
    snprintf(out, size, "%.*f %s", unit == 0 ? 0 : 1, bytes, units[unit]);
}

static void print_stage(const stages_case *c, uint32_t stage)
{
    const msdu_stages_stage *s = stage_of(c, stage);
    char layers[32];
    char memory[32];
    char link[64] = "";
    double share = link_share(c, stage);
    snprintf(layers, sizeof(layers), "%u-%u (%u)", s->first, s->end - 1, s->end - s->first);
    print_bytes(s->memory_bytes, memory, sizeof(memory));
    if (share > 0) {
        double mbit = rate_of(c, s->device, stage_of(c, stage + 1)->device) * 8 / 1e6;
        bool is_fast = mbit >= 1000;
        snprintf(link, sizeof(link), "%.0f %% of %g %cbit/s", 100 * share,
                 is_fast ? mbit / 1000 : mbit, is_fast ? 'G' : 'M');
    }
    printf("%6u %5u  %-16s %-14s %6u %6.0f %% %11s   %s\n", stage, s->rank,
           machine_of(c, s->device), layers, s->holds, 100 * s->busy_ns / c->plan->step_ns, memory,
           link);
}

static void print_torch(const char *what, double step_ns)
{
    if (step_ns > 0) {
        printf("%s %.4g s", what, step_ns / NS_PER_S);
    } else {
        printf("%s not possible", what);
    }
}

static void print_text(const stages_case *c)
{
    const msdu_stages *p = c->plan;
    const char *word = "\nnot used:";
    printf("%6s %5s  %-16s %-14s %6s %8s %11s   %s\n", "stage", "rank", "machine", "layers",
           "holds", "busy", "memory", "link to the next");
    for (uint32_t s = 0; s < p->stage_count; s++) {
        print_stage(c, s);
    }
    for (uint32_t d = 0; d < c->machines.count; d++) {
        if (!is_used(c, d)) {
            printf("%s %s", word, machine_of(c, d));
            word = ",";
        }
    }
    printf("\n%u micro-batches: step %.4g s, at least %.4g s\n", p->micro_batches,
           p->step_ns / NS_PER_S, p->bound_ns / NS_PER_S);
    print_torch("torch with equal layers on all machines: 1F1B", p->torch.equal_1f1b_ns);
    print_torch(", GPipe", p->torch.equal_gpipe_ns);
    if (p->stage_count == p->rank_count) {
        print_torch("\ntorch with these cuts: 1F1B", p->torch.cuts_1f1b_ns);
        print_torch(", GPipe", p->torch.cuts_gpipe_ns);
    }
    printf("\n");
}

/* --- one object --- */

static cJSON *stage_record(const stages_case *c, uint32_t stage)
{
    const msdu_stages_stage *s = stage_of(c, stage);
    const msdu__profile *profile = &c->request->profile;
    const struct {
        const char *name;
        double value;
    } fields[] = {
        {"rank", s->rank},
        {"first", s->first},
        {"end", s->end},
        {"holds", s->holds},
        {"busy_us", s->busy_ns / NS_PER_US},
        {"memory_bytes", s->memory_bytes},
        {"link_share", link_share(c, stage)},
    };
    cJSON *record = cJSON_CreateObject();
    cJSON_AddStringToObject(record, "machine", machine_of(c, s->device));
    cJSON_AddStringToObject(record, "first_layer", profile->layers[s->first].name);
    cJSON_AddStringToObject(record, "last_layer", profile->layers[s->end - 1].name);
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        cJSON_AddNumberToObject(record, fields[i].name, fields[i].value);
    }
    return record;
}

static cJSON *rank_record(const stages_case *c, uint32_t rank)
{
    const msdu_stages *p = c->plan;
    cJSON *record = cJSON_CreateObject();
    cJSON_AddStringToObject(record, "machine", machine_of(c, device_of(c, rank)));
    cJSON *actions = cJSON_AddArrayToObject(record, "actions");
    for (uint32_t i = p->rank_begin[rank]; i < p->rank_begin[rank + 1]; i++) {
        const msdu_stages_action *a = &p->actions[i];
        cJSON *action = cJSON_CreateObject();
        cJSON_AddStringToObject(action, "kind", kind_names[a->kind]);
        cJSON_AddNumberToObject(action, "stage", a->stage);
        cJSON_AddNumberToObject(action, "micro_batch", a->micro_batch);
        cJSON_AddNumberToObject(action, "begin_us", a->begin_ns / NS_PER_US);
        cJSON_AddNumberToObject(action, "end_us", a->end_ns / NS_PER_US);
        cJSON_AddItemToArray(actions, action);
    }
    return record;
}

static void add_times(const msdu_stages *p, cJSON *root)
{
    const struct {
        const char *name;
        double value_ns;
    } times[] = {
        {"step_us", p->step_ns},
        {"bound_us", p->bound_ns},
        {"beta_us", p->beta_ns},
        {"equal_1f1b_us", p->torch.equal_1f1b_ns},
        {"equal_gpipe_us", p->torch.equal_gpipe_ns},
        {"cuts_1f1b_us", p->torch.cuts_1f1b_ns},
        {"cuts_gpipe_us", p->torch.cuts_gpipe_ns},
    };
    for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++) {
        cJSON_AddNumberToObject(root, times[i].name, times[i].value_ns / NS_PER_US);
    }
}

static bool print_json(const stages_case *c, char *why, size_t why_bytes)
{
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "name", "stages");
    cJSON_AddStringToObject(root, "profile", c->request->profile.name);
    cJSON_AddNumberToObject(root, "micro_batches", c->plan->micro_batches);
    add_times(c->plan, root);
    cJSON *stages = cJSON_AddArrayToObject(root, "stages");
    for (uint32_t s = 0; s < c->plan->stage_count; s++) {
        cJSON_AddItemToArray(stages, stage_record(c, s));
    }
    cJSON *ranks = cJSON_AddArrayToObject(root, "ranks");
    for (uint32_t r = 0; r < c->plan->rank_count; r++) {
        cJSON_AddItemToArray(ranks, rank_record(c, r));
    }
    cJSON *unused = cJSON_AddArrayToObject(root, "unused");
    for (uint32_t d = 0; d < c->machines.count; d++) {
        if (!is_used(c, d)) {
            cJSON_AddItemToArray(unused, cJSON_CreateString(machine_of(c, d)));
        }
    }
    char *text = cJSON_Print(root);
    cJSON_Delete(root);
    if (text == NULL) {
        snprintf(why, why_bytes, "out of memory");
        return false;
    }
    printf("%s\n", text);
    cJSON_free(text);
    return true;
}

/* --- files --- */

/* One row a rank, as torch's _load_csv() reads it. */
static void write_order(const stages_case *c, const msdu_stages_action *actions,
                        const uint32_t *begin, FILE *file)
{
    for (uint32_t r = 0; r < c->plan->rank_count; r++) {
        for (uint32_t i = begin[r]; i < begin[r + 1]; i++) {
            fprintf(file, "%s%u%s%u", i > begin[r] ? "," : "", actions[i].stage,
                    kind_names[actions[i].kind], actions[i].micro_batch);
        }
        fprintf(file, "\n");
    }
}

static void write_csv(const stages_case *c, FILE *file)
{
    write_order(c, c->plan->actions, c->plan->rank_begin, file);
}

static void write_csv_messages(const stages_case *c, FILE *file)
{
    write_order(c, c->plan->lowered, c->plan->lowered_begin, file);
}

/* torchtitan reads module_fqns_per_model_part, NeMo layers_per_stage. Row r of the order runs on
 * machine r. */
static void write_modules(const stages_case *c, FILE *file)
{
    const msdu_stages *p = c->plan;
    cJSON *root = cJSON_CreateObject();
    cJSON *names = cJSON_AddArrayToObject(root, "module_fqns_per_model_part");
    cJSON *counts = cJSON_AddArrayToObject(root, "layers_per_stage");
    cJSON *machines = cJSON_AddArrayToObject(root, "machines");
    for (uint32_t s = 0; s < p->stage_count; s++) {
        cJSON *part = cJSON_CreateArray();
        for (uint32_t l = stage_of(c, s)->first; l < stage_of(c, s)->end; l++) {
            cJSON_AddItemToArray(part, cJSON_CreateString(c->request->profile.layers[l].name));
        }
        cJSON_AddItemToArray(names, part);
        cJSON_AddItemToArray(counts,
                             cJSON_CreateNumber(stage_of(c, s)->end - stage_of(c, s)->first));
    }
    for (uint32_t r = 0; r < p->rank_count; r++) {
        cJSON_AddItemToArray(machines, cJSON_CreateString(machine_of(c, device_of(c, r))));
    }
    char *text = cJSON_Print(root);
    cJSON_Delete(root);
    if (text != NULL) {
        fprintf(file, "%s\n", text);
    }
    cJSON_free(text);
}

static bool write_file(const stages_case *c, const char *path,
                       void (*write)(const stages_case *c, FILE *file), char *why, size_t why_bytes)
{
    if (path == NULL) {
        return true;
    }
    FILE *file = fopen(path, "we");
    bool is_done = file != NULL;
    if (is_done) {
        write(c, file);
        is_done = ferror(file) == 0;
        is_done = fclose(file) == 0 && is_done;
    }
    if (!is_done) {
        snprintf(why, why_bytes, "%s: %s", path, strerror(errno));
    }
    return is_done;
}

bool msdu__plan_stages_report(const msdu__plan_stages_case *c, char *why, size_t why_bytes)
{
    const msdu__plan_pipeline *p = &c->request->pipeline;
    if (!write_file(c, p->csv, write_csv, why, why_bytes) ||
        !write_file(c, p->csv_messages, write_csv_messages, why, why_bytes) ||
        !write_file(c, p->modules, write_modules, why, why_bytes)) {
        return false;
    }
    if (c->request->is_json) {
        return print_json(c, why, why_bytes);
    }
    print_text(c);
    return true;
}
