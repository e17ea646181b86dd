/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Before training: all ranks compare settings, tensors and parameters, as text, so that the first
 * difference can be shown as it stands. Runs on the API thread, before the communication thread
 * exists.
 */
#include "startup.h"

#include "base/serial.h"
#include "core/blocking.h"
#include "core/cores.h"
#include "core/costs.h"
#include "core/kernels.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LINE_BYTES  400
#define SHOWN_BYTES 120       /* of a line in an error */
#define PIECE_BYTES (4 << 20) /* of a device's memory, looked at on the host */

static msdu_status no_memory(const msdu__engine *e)
{
    return msdu__fail(MSDU_ERR_NO_MEMORY, "rank %d: no memory to compare ranks", e->job->rank);
}

/* Of a parameter, wherever it lies. A copy that fails is the context's failure. */
static uint64_t hash_parameter(msdu__engine *e, const msdu__tensor *t)
{
    uint64_t bytes = t->count * msdu__dtype_bytes(t->dtype);
    uint64_t hash = msdu__serial_hash(NULL, 0);
    uint64_t piece = bytes < PIECE_BYTES ? bytes : PIECE_BYTES;
    if (e->job->device == NULL) {
        return msdu__serial_hash(t->parameter, bytes);
    }
    char *copy = malloc(piece);
    msdu_status status = copy != NULL ? MSDU_OK : no_memory(e);
    for (uint64_t at = 0; at < bytes && status == MSDU_OK; at += piece) {
        uint64_t count = bytes - at < piece ? bytes - at : piece;
        status = msdu__kernels_copy(e, copy, (const char *)t->parameter + at, count);
        hash = status == MSDU_OK ? msdu__serial_hash_more(hash, copy, count) : hash;
    }
    free(copy);
    if (status != MSDU_OK) {
        msdu__handover_fail_last(e->hand, status);
    }
    return hash;
}

uint64_t msdu__agree_hash(msdu__engine *e, msdu_role role)
{
    uint64_t hash = 0;
    for (uint32_t i = 0; i < e->model->tensor_count; i++) {
        const msdu__tensor *t = &e->model->tensors[i];
        if (t->role == (int32_t)role && t->parameter != NULL) {
            hash = hash * 31 + hash_parameter(e, t);
        }
    }
    return hash;
}

static int describe_tensor(const msdu__engine *e, uint32_t id, char *line)
{
    static const char *const types[] = {"float32", "float64", "float16", "bfloat16"};
    static const char *const roles[] = {"model", "state", "buffer", "fixed"};
    const msdu__tensor *t = &e->model->tensors[id];
    return snprintf(
        line, LINE_BYTES, "tensor %u '%s' count %" PRIu64 " dtype %s role %s priority %d%s%s\n", id,
        t->name, t->count, types[t->dtype], roles[t->role], t->priority,
        t->parameter != NULL ? " parameter" : "", t->gradient != NULL ? " gradient" : "");
}

/* Ranks that start from different parameters would train different models. */
static int describe_value(msdu__engine *e, uint32_t id, char *line)
{
    const msdu__tensor *t = &e->model->tensors[id];
    bool is_compared = t->role == MSDU_ROLE_MODEL || t->role == MSDU_ROLE_FIXED;
    if (!is_compared || t->parameter == NULL || e->job->settings.broadcast || e->job->is_later) {
        return 0;
    }
    uint64_t hash = hash_parameter(e, t);
    return snprintf(line, LINE_BYTES,
                    "values of tensor %u (see setting broadcast) hash %016" PRIx64 ", '%s'\n", id,
                    hash, t->name);
}

char *msdu__agree_describe(msdu__engine *e, bool has_values)
{
    size_t settings = msdu__settings_describe(&e->job->settings, NULL, 0);
    size_t bytes = settings + LINE_BYTES + 2 * LINE_BYTES * (size_t)e->model->tensor_count;
    char *text = settings > 0 ? malloc(bytes) : NULL;
    if (text == NULL || msdu__settings_describe(&e->job->settings, text, bytes) != settings) {
        free(text);
        return NULL;
    }
    char *at = text + strlen(text);
    at += snprintf(at, LINE_BYTES, "tensors %u\n", e->model->tensor_count);
    for (uint32_t i = 0; i < e->model->tensor_count; i++) {
        at += describe_tensor(e, i, at);
    }
    for (uint32_t i = 0; has_values && i < e->model->tensor_count; i++) {
        at += describe_value(e, i, at);
    }
    return text;
}

/* Length of the line at `text`, which ends at `end`. */
static int line_length(const char *text, const char *end)
{
    const char *at = memchr(text, '\n', (size_t)(end - text));
    return (int)((at == NULL ? end : at) - text);
}

static msdu_status fail_difference(int32_t other, const msdu__lines *l)
{
    int a_length = l->a_length < SHOWN_BYTES ? l->a_length : SHOWN_BYTES;
    int b_length = l->b_length < SHOWN_BYTES ? l->b_length : SHOWN_BYTES;
    return msdu__fail(MSDU_ERR_MISMATCH,
                      "ranks 0 and %d disagree: rank 0 has '%.*s', rank %d '%.*s'", other, a_length,
                      l->a, other, b_length, l->b);
}

bool msdu__agree_first_difference(msdu__lines *l)
{
    for (;;) {
        l->a_length = line_length(l->a, l->a_end);
        l->b_length = line_length(l->b, l->b_end);
        if (l->a_length != l->b_length || memcmp(l->a, l->b, (size_t)l->a_length) != 0) {
            return true;
        }
        if (l->a == l->a_end && l->b == l->b_end) {
            return false;
        }
        l->a += l->a_length + (l->a + l->a_length < l->a_end ? 1 : 0);
        l->b += l->b_length + (l->b + l->b_length < l->b_end ? 1 : 0);
    }
}

/* What a rank says of itself. */
typedef struct said {
    uint64_t hash; /* of its text */
    uint64_t bytes;
} said;

/* Texts differ: gather them all and name the first difference. Every rank comes here. */
static msdu_status find_difference(msdu__engine *e, const char *own, const said *facts)
{
    uint64_t *shares = calloc((size_t)e->job->ranks, sizeof(*shares));
    uint64_t total = 0;
    int32_t other = 0;
    for (int32_t i = 0; i < e->job->ranks; i++) {
        total += facts[i].bytes;
        other = other == 0 && facts[i].hash != facts[0].hash ? i : other;
    }
    char *texts = malloc(total + 1);
    msdu_status status = MSDU_OK;
    if (shares == NULL || texts == NULL) {
        status = no_memory(e);
        goto err_free;
    }
    for (int32_t i = 0; i < e->job->ranks; i++) {
        shares[i] = facts[i].bytes;
    }
    msdu_op op = {.kind = MSDU_OP_ALLGATHER, .send = own, .recv = texts, .shares = shares};
    status = msdu__blocking_run(e, &op, 0);
    if (status == MSDU_OK) {
        msdu__lines lines = {.a = texts, .a_end = texts + shares[0], .b = texts};
        for (int32_t i = 0; i < other; i++) {
            lines.b += shares[i];
        }
        lines.b_end = lines.b + shares[other];
        (void)msdu__agree_first_difference(&lines);
        status = fail_difference(other, &lines);
    }

err_free:
    free(texts);
    free(shares);
    return status;
}

static msdu_status compare(msdu__engine *e, const char *text)
{
    said own = {.hash = msdu__serial_hash(text, strlen(text)), .bytes = strlen(text)};
    void *all = NULL;
    msdu_status status = msdu__blocking_gather(e, &own, sizeof(own), 0, 0, &all);
    const said *facts = all;
    for (int32_t i = 1; status == MSDU_OK && i < e->job->ranks; i++) {
        if (facts[i].hash != facts[0].hash || facts[i].bytes != facts[0].bytes) {
            status = find_difference(e, text, facts);
        }
    }
    free(all);
    return status;
}

/* Where ranks run, and what coding takes there: the same numbers for all of them. */
static msdu_status know_machines(msdu__engine *e)
{
    msdu__place_name own = msdu__cores_name();
    msdu__wire_costs own_costs = msdu__costs_own(e);
    void *names = NULL;
    void *costs = NULL;
    msdu_status status = msdu__blocking_gather(e, &own, sizeof(own), 0, 0, &names);
    if (status == MSDU_OK) {
        msdu__cores_count(e, names);
        status = msdu__blocking_gather(e, &own_costs, sizeof(own_costs), 0, 0, &costs);
    }
    if (status == MSDU_OK) {
        msdu__costs_agree(e, costs);
    }
    free(names);
    free(costs);
    return status;
}

static msdu_status broadcast(msdu__engine *e)
{
    for (uint32_t i = 0; i < e->model->tensor_count; i++) {
        const msdu__tensor *t = &e->model->tensors[i];
        if (t->parameter == NULL) {
            continue;
        }
        msdu_op op = {
            .kind = MSDU_OP_BROADCAST,
            .place = msdu__place(e->job),
            .count = t->count * msdu__dtype_bytes(t->dtype),
            .recv = t->parameter,
        };
        msdu_status status = msdu__blocking_run(e, &op, 0);
        if (status != MSDU_OK) {
            return status;
        }
    }
    return MSDU_OK;
}

msdu_status msdu__agree(msdu__engine *e)
{
    char *text = msdu__agree_describe(e, true);
    if (text == NULL) {
        return no_memory(e);
    }
    msdu_status status = compare(e, text);
    free(text);
    status = status == MSDU_OK ? msdu__handover_status(e->hand) : status; /* a device's copies */
    status = status == MSDU_OK ? know_machines(e) : status;
    bool is_broadcast = e->job->settings.broadcast && !e->job->is_later;
    return status == MSDU_OK && is_broadcast ? broadcast(e) : status;
}
