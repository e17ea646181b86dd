/* SPDX-License-Identifier: Apache-2.0 */
/* Machines of a pipeline: JSON to numbers, with one line for what is wrong with it. */
#include "machines.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include <msdu/stages.h>

#include "predict/json_file.h"
#include "units.h"

#define SPEED_LEAST     1e-6
#define SPEED_MOST      1e6
#define LATENCY_US_MOST 1e9
#define NAME_MOST       63
#define BYTES_OF_MBIT   (1e6 / 8)

typedef struct reader {
    msdu__machines *out;
    char *why;
    size_t why_bytes;
} reader;

/* false, where the reader sees it */
#define refuse(r, ...) (msdu__json_refuse((r)->why, (r)->why_bytes, __VA_ARGS__), false)

/* --- members --- */

/* An object with members of a list only, which ends with NULL. */
static bool check_members(reader *r, const cJSON *object, const char *of, const char *const *known)
{
    const cJSON *item = NULL;
    if (!cJSON_IsObject(object)) {
        return refuse(r, "%s: no object", of);
    }
    cJSON_ArrayForEach(item, object)
    {
        bool is_known = false;
        for (int i = 0; known[i] != NULL; i++) {
            is_known = is_known || strcmp(item->string, known[i]) == 0;
        }
        if (!is_known) {
            return refuse(r, "%s: unknown member '%.64s'", of, item->string);
        }
        if (cJSON_GetObjectItemCaseSensitive(object, item->string) != item) {
            return refuse(r, "%s: '%.64s' is there twice", of, item->string);
        }
    }
    return true;
}

static bool is_name(const cJSON *item)
{
    if (!cJSON_IsString(item) || item->valuestring[0] == '\0' ||
        strlen(item->valuestring) > NAME_MOST) {
        return false;
    }
    for (const char *c = item->valuestring; *c != '\0'; c++) {
        if ((unsigned char)*c <= ' ' || (unsigned char)*c >= 0x7f) {
            return false;
        }
    }
    return true;
}

/* A number that may be missing, which leaves *out as it is. */
static bool read_number(reader *r, const cJSON *object, const char *of, const char *key, double low,
                        double high, double *out)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    if (item == NULL) {
        return true;
    }
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= low && item->valuedouble <= high)) {
        return refuse(r, "%s: %s is no number in %g .. %g", of, key, low, high);
    }
    *out = item->valuedouble;
    return true;
}

/* Likewise a rate, in bytes a second. */
static bool read_rate(reader *r, const cJSON *object, const char *of, double *out)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, "rate");
    double mbit = 0;
    if (item == NULL) {
        return true;
    }
    if (!cJSON_IsString(item) || !msdu__units_rate(item->valuestring, &mbit)) {
        return refuse(r, "%s: rate is none: such as \"200mbit\" or \"2.5gbit\"", of);
    }
    *out = mbit * BYTES_OF_MBIT;
    return true;
}

static bool read_memory(reader *r, const cJSON *object, const char *of, double *out)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, "memory");
    if (item == NULL) {
        return true;
    }
    if (cJSON_IsNumber(item) && item->valuedouble > 0 &&
        item->valuedouble <= MSDU__UNITS_BYTES_MOST) {
        *out = item->valuedouble;
        return true;
    }
    if (cJSON_IsString(item) && msdu__units_bytes(item->valuestring, out)) {
        return true;
    }
    return refuse(r, "%s: memory is no size above 0: such as \"16GiB\", or bytes", of);
}

/* --- machines --- */

static bool read_machine(reader *r, const cJSON *item)
{
    static const char *const known[] = {"name", "speed", "memory", "rate", "profile", NULL};
    char of[NAME_MOST + 32];
    msdu__machine machine = {.speed = 1};
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(item, "name");
    const cJSON *profile = cJSON_GetObjectItemCaseSensitive(item, "profile");
    if (!is_name(name)) {
        return refuse(r, "machines: number %u has no name of 1 to %d printable characters",
                      r->out->count, NAME_MOST);
    }
    machine.name = name->valuestring;
    snprintf(of, sizeof(of), "machine '%s'", machine.name);
    for (uint32_t i = 0; i < r->out->count; i++) {
        const char *other = r->out->list[i].name;
        if (other != NULL && strcmp(other, machine.name) == 0) {
            return refuse(r, "machines: two are called '%s'", machine.name);
        }
    }
    if (!check_members(r, item, of, known) || !read_rate(r, item, of, &machine.card_rate) ||
        !read_number(r, item, of, "speed", SPEED_LEAST, SPEED_MOST, &machine.speed) ||
        !read_memory(r, item, of, &machine.memory_bytes)) {
        return false;
    }
    if (profile != NULL && !cJSON_IsString(profile)) {
        return refuse(r, "%s: profile is no file or name", of);
    }
    machine.profile = profile != NULL ? profile->valuestring : NULL;
    r->out->list[r->out->count++] = machine;
    return true;
}

static bool read_machines(reader *r, const cJSON *machines)
{
    const cJSON *item = NULL;
    int count = cJSON_IsArray(machines) ? cJSON_GetArraySize(machines) : 0;
    if (count < 1 || count > (int)MSDU_STAGES_DEVICES_MAX) {
        return refuse(r, "machines is not an array of 1 to %u machines", MSDU_STAGES_DEVICES_MAX);
    }
    r->out->list = calloc((size_t)count, sizeof(*r->out->list));
    r->out->link_rate = calloc((size_t)count * (size_t)count, sizeof(double));
    r->out->latency_ns = calloc((size_t)count * (size_t)count, sizeof(double));
    if (r->out->list == NULL || r->out->link_rate == NULL || r->out->latency_ns == NULL) {
        return refuse(r, "out of memory");
    }
    cJSON_ArrayForEach(item, machines)
    {
        if (!read_machine(r, item)) {
            return false;
        }
    }
    return true;
}

/* --- links --- */

typedef struct link_values {
    double rate;
    double latency_us;
} link_values;

static void set_link(reader *r, uint32_t a, uint32_t b, const link_values *link)
{
    size_t n = r->out->count;
    r->out->link_rate[a * n + b] = link->rate;
    r->out->link_rate[b * n + a] = link->rate;
    r->out->latency_ns[a * n + b] = link->latency_us * 1e3;
    r->out->latency_ns[b * n + a] = link->latency_us * 1e3;
}

static bool find_machine(reader *r, const cJSON *name, const char *of, uint32_t *out)
{
    for (uint32_t i = 0; cJSON_IsString(name) && i < r->out->count; i++) {
        if (strcmp(r->out->list[i].name, name->valuestring) == 0) {
            *out = i;
            return true;
        }
    }
    return refuse(r, "%s: between: no machine '%.64s'", of,
                  cJSON_IsString(name) ? name->valuestring : "");
}

static bool read_pair(reader *r, const cJSON *item, int number, const link_values *usual)
{
    static const char *const known[] = {"between", "rate", "latency_us", NULL};
    char of[48];
    uint32_t a = 0;
    uint32_t b = 0;
    link_values link = *usual;
    const cJSON *between = cJSON_GetObjectItemCaseSensitive(item, "between");
    snprintf(of, sizeof(of), "links: pairs: number %d", number);
    if (!check_members(r, item, of, known)) {
        return false;
    }
    if (!cJSON_IsArray(between) || cJSON_GetArraySize(between) != 2) {
        return refuse(r, "%s: between is not an array of two names", of);
    }
    if (!find_machine(r, cJSON_GetArrayItem(between, 0), of, &a) ||
        !find_machine(r, cJSON_GetArrayItem(between, 1), of, &b) ||
        !read_rate(r, item, of, &link.rate) ||
        !read_number(r, item, of, "latency_us", 0, LATENCY_US_MOST, &link.latency_us)) {
        return false;
    }
    if (a == b) {
        return refuse(r, "%s: between '%s' and itself", of, r->out->list[a].name);
    }
    set_link(r, a, b, &link);
    return true;
}

static bool read_links(reader *r, const cJSON *links)
{
    static const char *const known[] = {"rate", "latency_us", "pairs", NULL};
    link_values usual = {.rate = (double)INFINITY};
    const cJSON *pair = NULL;
    int number = 0;
    if (links != NULL &&
        (!check_members(r, links, "links", known) || !read_rate(r, links, "links", &usual.rate) ||
         !read_number(r, links, "links", "latency_us", 0, LATENCY_US_MOST, &usual.latency_us))) {
        return false;
    }
    for (uint32_t a = 0; a < r->out->count; a++) {
        for (uint32_t b = 0; b < a; b++) {
            set_link(r, a, b, &usual);
        }
    }
    const cJSON *pairs = cJSON_GetObjectItemCaseSensitive(links, "pairs");
    if (pairs != NULL && !cJSON_IsArray(pairs)) {
        return refuse(r, "links: pairs is no array");
    }
    cJSON_ArrayForEach(pair, pairs)
    {
        if (!read_pair(r, pair, number++, &usual)) {
            return false;
        }
    }
    return true;
}

/* A network without any rate is a slip rather than a wish. */
static bool check_rates(reader *r)
{
    const msdu__machines *m = r->out;
    for (uint32_t a = 0; a < m->count; a++) {
        for (uint32_t b = 0; b < a; b++) {
            bool has_rate = m->list[a].card_rate > 0 || m->list[b].card_rate > 0 ||
                            isfinite(m->link_rate[(size_t)a * m->count + b]);
            if (!has_rate) {
                return refuse(r, "links: rate is missing, and so are those of '%s' and '%s'",
                              m->list[b].name, m->list[a].name);
            }
        }
    }
    return true;
}

static bool read_tree(reader *r, const cJSON *root)
{
    static const char *const known[] = {"format", "machines", "links", NULL};
    const cJSON *format = cJSON_GetObjectItemCaseSensitive(root, "format");
    if (!cJSON_IsString(format) || strcmp(format->valuestring, MSDU__MACHINES_FORMAT) != 0) {
        return refuse(r, "no JSON object with format \"%s\"", MSDU__MACHINES_FORMAT);
    }
    return check_members(r, root, "the file", known) &&
           read_machines(r, cJSON_GetObjectItemCaseSensitive(root, "machines")) &&
           read_links(r, cJSON_GetObjectItemCaseSensitive(root, "links")) && check_rates(r);
}

/* --- reading --- */

bool msdu__machines_parse(const char *text, size_t bytes, msdu__machines *out, char *why,
                          size_t why_bytes)
{
    reader r = {.out = out, .why = why, .why_bytes = why_bytes};
    *out = (msdu__machines){.list = NULL};
    out->tree = msdu__json_parse(text, bytes, why, why_bytes);
    if (out->tree == NULL) {
        return false;
    }
    if (!read_tree(&r, out->tree)) {
        msdu__machines_free(out);
        return false;
    }
    return true;
}

static bool parse(const char *text, size_t bytes, void *out, char *why, size_t why_bytes)
{
    return msdu__machines_parse(text, bytes, out, why, why_bytes);
}

bool msdu__machines_read(const char *path, msdu__machines *out, char *why, size_t why_bytes)
{
    *out = (msdu__machines){.list = NULL};
    return msdu__json_read(path, "list of machines", parse, out, why, why_bytes);
}

void msdu__machines_free(msdu__machines *machines)
{
    if (machines != NULL) {
        free(machines->list);
        free(machines->link_rate);
        free(machines->latency_ns);
        cJSON_Delete(machines->tree);
        *machines = (msdu__machines){.list = NULL};
    }
}
