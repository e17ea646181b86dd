/* SPDX-License-Identifier: Apache-2.0 */
/* Questions about pipelines: every value is checked, and what is wrong is said in one line. */
#include "stages_check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"

/* --- values --- */

msdu__stages_name msdu__stages_name_of(const char *kind, const char *const *names, uint32_t index)
{
    msdu__stages_name out;
    if (names != NULL && names[index] != NULL) {
        snprintf(out.text, sizeof(out.text), "%s '%.64s'", kind, names[index]);
    } else {
        snprintf(out.text, sizeof(out.text), "%s %u", kind, index);
    }
    return out;
}

typedef enum array_shape { BY_DEVICE_AND_LAYER, BY_LAYER, BY_DEVICE, BY_TWO_DEVICES } array_shape;

typedef struct array_row {
    const char *name;
    const double *values;
    array_shape shape;
    bool is_needed;
    bool may_be_infinite;
} array_row;

static void place_of(const msdu_stages_question *q, array_shape shape, uint32_t at, char *out,
                     size_t bytes)
{
    uint32_t columns = shape == BY_DEVICE_AND_LAYER ? q->layers : q->devices;
    msdu__stages_name first =
        msdu__stages_name_of("device", q->device_names, shape == BY_LAYER ? 0 : at / columns);
    switch (shape) {
    case BY_LAYER:
        snprintf(out, bytes, "%s", msdu__stages_name_of("layer", q->layer_names, at).text);
        break;
    case BY_DEVICE:
        snprintf(out, bytes, "%s", msdu__stages_name_of("device", q->device_names, at).text);
        break;
    case BY_DEVICE_AND_LAYER:
        snprintf(out, bytes, "%s, %s", first.text,
                 msdu__stages_name_of("layer", q->layer_names, at % columns).text);
        break;
    case BY_TWO_DEVICES:
        snprintf(out, bytes, "%s to %s", first.text,
                 msdu__stages_name_of("device", q->device_names, at % columns).text);
        break;
    }
}

static uint32_t count_of(const msdu_stages_question *q, array_shape shape)
{
    switch (shape) {
    case BY_LAYER:
        return q->layers;
    case BY_DEVICE:
        return q->devices;
    case BY_TWO_DEVICES:
        return q->devices * q->devices;
    case BY_DEVICE_AND_LAYER:
        break;
    }
    return q->devices * q->layers;
}

static msdu_status refuse_value(const msdu_stages_question *q, const array_row *row, uint32_t at,
                                const char *what)
{
    char place[2 * sizeof(msdu__stages_name) + 8];
    place_of(q, row->shape, at, place, sizeof(place));
    return msdu__fail(MSDU_ERR_INVALID, "stages: %s: %s: %g %s", row->name, place, row->values[at],
                      what);
}

static msdu_status check_array(const msdu_stages_question *q, const array_row *row)
{
    if (row->values == NULL) {
        return row->is_needed ? msdu__fail(MSDU_ERR_INVALID, "stages: %s is NULL", row->name)
                              : MSDU_OK;
    }
    for (uint32_t i = 0; i < count_of(q, row->shape); i++) {
        bool is_own = row->shape == BY_TWO_DEVICES && i / q->devices == i % q->devices;
        bool is_fine = row->values[i] >= 0 && (row->may_be_infinite || isfinite(row->values[i]));
        if (!is_fine && !is_own) { /* NaN is not fine either */
            return refuse_value(q, row, i, "is negative or not finite");
        }
    }
    return MSDU_OK;
}

static msdu_status check_arrays(const msdu_stages_question *q)
{
    const array_row rows[] = {
        {"forward_ns", q->forward_ns, BY_DEVICE_AND_LAYER, true, false},
        {"backward_ns", q->backward_ns, BY_DEVICE_AND_LAYER, true, false},
        {"weight_ns", q->weight_ns, BY_DEVICE_AND_LAYER, false, false},
        {"fixed_forward_ns", q->fixed_forward_ns, BY_DEVICE_AND_LAYER, false, false},
        {"fixed_backward_ns", q->fixed_backward_ns, BY_DEVICE_AND_LAYER, false, false},
        {"output_bytes", q->output_bytes, BY_LAYER, true, false},
        {"kept_bytes", q->kept_bytes, BY_LAYER, false, false},
        {"state_bytes", q->state_bytes, BY_LAYER, false, false},
        {"memory_bytes", q->memory_bytes, BY_DEVICE, false, false},
        {"card_rate", q->card_rate, BY_DEVICE, false, false},
        {"link_rate", q->link_rate, BY_TWO_DEVICES, q->devices > 1, true},
        {"latency_ns", q->latency_ns, BY_TWO_DEVICES, false, false},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        msdu_status status = check_array(q, &rows[i]);
        if (status != MSDU_OK) {
            return status;
        }
    }
    return MSDU_OK;
}

/* A part of a time is no longer than it. */
static msdu_status check_parts(const msdu_stages_question *q)
{
    const struct {
        array_row part;
        const double *whole;
    } rows[] = {
        {{"weight_ns", q->weight_ns, BY_DEVICE_AND_LAYER, false, false}, q->backward_ns},
        {{"fixed_forward_ns", q->fixed_forward_ns, BY_DEVICE_AND_LAYER, false, false},
         q->forward_ns},
        {{"fixed_backward_ns", q->fixed_backward_ns, BY_DEVICE_AND_LAYER, false, false},
         q->backward_ns},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const array_row *part = &rows[i].part;
        for (uint32_t at = 0; part->values != NULL && at < q->devices * q->layers; at++) {
            if (part->values[at] > rows[i].whole[at]) {
                return refuse_value(q, part, at, "is more than the whole time");
            }
        }
    }
    for (uint32_t d = 0; d < q->devices; d++) {
        double sum = 0;
        for (uint32_t l = 0; l < q->layers; l++) {
            size_t at = (size_t)d * q->layers + l;
            sum += q->forward_ns[at] + q->backward_ns[at];
        }
        if (!(sum > 0 && isfinite(sum))) {
            return msdu__fail(MSDU_ERR_INVALID,
                              "stages: forward_ns, backward_ns: %s: all layers "
                              "together take %g",
                              msdu__stages_name_of("device", q->device_names, d).text, sum);
        }
    }
    return MSDU_OK;
}

/* --- questions --- */

msdu_status msdu__stages_check_range(const char *name, uint32_t value, uint32_t low, uint32_t high)
{
    if (value < low || value > high) {
        return msdu__fail(MSDU_ERR_INVALID, "stages: %s: %u is not in %u .. %u", name, value, low,
                          high);
    }
    return MSDU_OK;
}

msdu_status msdu__stages_check_batch(const msdu_stages_question *q)
{
    if (q->micro_batches == 0 && (q->batch == 0 || q->samples == 0)) {
        return msdu__fail(MSDU_ERR_INVALID, "stages: micro_batches is 0: to find the best, batch "
                                            "and samples must be given");
    }
    if (q->samples != 0 && q->batch == 0) {
        return msdu__fail(MSDU_ERR_INVALID, "stages: samples without batch");
    }
    if (q->micro_batches != 0 && q->batch % q->micro_batches != 0) {
        return msdu__fail(MSDU_ERR_INVALID, "stages: %u micro-batches do not divide a batch of %u",
                          q->micro_batches, q->batch);
    }
    return MSDU_OK;
}

/* The caller's struct may be shorter than ours (older header), or longer if the rest is zero. */
static msdu_status copy_question(const msdu_stages_question *question, msdu_stages_question *out)
{
    memset(out, 0, sizeof(*out));
    if (question == NULL || question->size == 0) {
        return msdu__fail(MSDU_ERR_INVALID, "question is NULL, or its size is 0: use "
                                            "MSDU_STAGES_QUESTION_INIT");
    }
    const unsigned char *bytes = (const unsigned char *)question;
    for (size_t i = sizeof(*out); i < question->size; i++) {
        if (bytes[i] != 0) {
            return msdu__fail(MSDU_ERR_UNSUPPORTED, "msdu_stages_question is from a newer header");
        }
    }
    memcpy(out, question, question->size < sizeof(*out) ? question->size : sizeof(*out));
    return MSDU_OK;
}

msdu_status msdu__stages_check(const msdu_stages_question *question, msdu_stages_question *out)
{
    const uint32_t known = MSDU_STAGES_SPLIT | MSDU_STAGES_TWO;
    msdu_status status = copy_question(question, out);
    status = status == MSDU_OK
                 ? msdu__stages_check_range("layers", out->layers, 1, MSDU_STAGES_LAYERS_MAX)
                 : status;
    status = status == MSDU_OK
                 ? msdu__stages_check_range("devices", out->devices, 1, MSDU_STAGES_DEVICES_MAX)
                 : status;
    status = status == MSDU_OK ? msdu__stages_check_range("micro_batches", out->micro_batches, 0,
                                                          MSDU_STAGES_MICRO_MAX)
                               : status;
    if (status == MSDU_OK && (out->may & ~known) != 0) {
        return msdu__fail(MSDU_ERR_UNSUPPORTED, "stages: may: %u has unknown bits", out->may);
    }
    status = status == MSDU_OK ? check_arrays(out) : status;
    return status == MSDU_OK ? check_parts(out) : status;
}
