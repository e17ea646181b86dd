/* SPDX-License-Identifier: Apache-2.0 */
/* `msdu plan` of hosts with several ranks and of ranks of different speeds. */
#include "plan_cmd.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "wire/wire.h"

#define RANKS_MOST  1e6
#define SPEED_LEAST 1e-3
#define SPEED_MOST  1e3
#define LIST_BYTES  1024

/* --- values of options --- */

bool msdu__plan_read_hosts(const char *text, msdu__plan_request *request)
{
    char *middle = NULL;
    char *end = NULL;
    double hosts = strtod(text, &middle);
    if (middle == text || *middle != 'x' || middle[1] < '0' || middle[1] > '9') {
        return false;
    }
    double local = strtod(middle + 1, &end);
    bool is_whole = hosts == floor(hosts) && local == floor(local);
    if (*end != '\0' || !is_whole || hosts < 1 || local < 1 || !(hosts * local <= RANKS_MOST)) {
        return false;
    }
    request->nodes = hosts;
    request->ranks = hosts * local;
    return true;
}

bool msdu__plan_read_speeds(const char *text, msdu__uneven_speeds *speeds)
{
    const char *at = text;
    for (speeds->count = 0; speeds->count < MSDU__UNEVEN_SPEEDS_MAX;) {
        char *end = NULL;
        double speed = strtod(at, &end);
        if (end == at || !(speed >= SPEED_LEAST && speed <= SPEED_MOST)) {
            return false;
        }
        speeds->of[speeds->count++] = speed;
        if (*end != ',') {
            return *end == '\0';
        }
        at = end + 1;
    }
    return false;
}

/* --- the report --- */

static void list_speeds(const msdu__uneven_speeds *speeds, char *out, size_t bytes)
{
    size_t used = 0;
    out[0] = '\0';
    for (uint32_t i = 0; i < speeds->count && used < bytes; i++) {
        used += (size_t)snprintf(out + used, bytes - used, "%s%g", i > 0 ? "," : "", speeds->of[i]);
    }
}

static void add_record(const msdu__plan_request *r, cJSON *records, msdu__uneven_way way, int wire,
                       const msdu__uneven_answer *a)
{
    char speeds[LIST_BYTES];
    const struct {
        const char *name;
        double value;
    } fields[] = {
        {"ranks", r->ranks},
        {"nodes", r->nodes},
        {"step_us", a->step_ns / 1e3},
        {"batches_us", a->batches_ns / 1e3},
        {"round_us", a->round_ns / 1e3},
        {"interval", a->interval},
        {"bytes", a->bytes},
        {"outer_bytes", a->outer_bytes},
        {"bits", msdu__wire_at(wire)->bits},
    };
    cJSON *record = cJSON_CreateObject();
    list_speeds(&r->speeds, speeds, sizeof(speeds));
    cJSON_AddStringToObject(record, "name", "uneven");
    cJSON_AddStringToObject(record, "profile", r->profile.name);
    cJSON_AddStringToObject(record, "speeds", speeds);
    cJSON_AddStringToObject(record, "method", msdu__uneven_name(way));
    cJSON_AddStringToObject(record, "wire", msdu__wire_at(wire)->name);
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        cJSON_AddNumberToObject(record, fields[i].name, fields[i].value);
    }
    cJSON_AddItemToArray(records, record);
}

static void print_head(const msdu__plan_request *r)
{
    char speeds[LIST_BYTES];
    list_speeds(&r->speeds, speeds, sizeof(speeds));
    printf("\nranks of speeds %s, in turn; batches: until all ranks together took %.0f\n\n", speeds,
           r->ranks);
    printf("%16s %-8s %10s %10s %7s %10s %4s %11s %11s\n", "way", "wire", "step ms", "batches ms",
           "less", "round ms", "h", "MB", "to others");
}

static void print_row(msdu__uneven_way way, int wire, const msdu__uneven_answer *a, double exact_ns)
{
    printf("%16s %-8s %10.3f %10.3f %6.1f%% %10.3f %4u %11.3f %11.3f\n", msdu__uneven_name(way),
           msdu__wire_at(wire)->name, a->step_ns / 1e6, a->batches_ns / 1e6,
           100 * (1 - a->batches_ns / exact_ns), a->round_ns / 1e6, a->interval, a->bytes / 1e6,
           a->outer_bytes / 1e6);
}

bool msdu__plan_uneven(const msdu__plan_request *request, struct cJSON *records, char *why,
                       size_t why_bytes)
{
    static const int wires[] = {MSDU__WIRE_FLOAT32, MSDU__WIRE_INT4};
    double exact_ns = 0;
    if (records == NULL) {
        print_head(request);
    }
    for (int i = 0; i < MSDU__UNEVEN_WAYS * 2; i++) {
        msdu__uneven_way way = (msdu__uneven_way)(i / 2);
        msdu__uneven_answer answer;
        if (!msdu__uneven_applies(&request->question, way)) {
            continue;
        }
        if (!msdu__uneven_predict(&request->question, &request->speeds, way, wires[i % 2], &answer,
                                  why, why_bytes)) {
            return false;
        }
        exact_ns = i == 0 ? answer.batches_ns : exact_ns;
        if (records != NULL) {
            add_record(request, records, way, wires[i % 2], &answer);
        } else {
            print_row(way, wires[i % 2], &answer, exact_ns);
        }
    }
    if (records == NULL) {
        printf("\nnot predicted: what results lose where ranks drift apart (clock, two-level, h > "
               "1)\n");
    }
    return true;
}
