/* SPDX-License-Identifier: Apache-2.0 */
/* Model profiles: JSON to layers and tensors, with one line for what is wrong with it. */
#include "profile.h"

#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "base/base.h"
#include "json_file.h"

#include <msdu/msdu.h>

/* What the parts of the reader hand on. */
typedef struct reader {
    msdu__profile *out;
    int32_t dtype; /* of layers that name none */
    uint64_t total;
    char *why;
    size_t why_bytes;
} reader;

/* false, where the reader sees it */
#define refuse(r, ...) (msdu__json_refuse((r)->why, (r)->why_bytes, __VA_ARGS__), false)

/* --- members --- */

/* Names go into tables, records and errors, so they are short and printable. */
static bool is_name(const cJSON *item)
{
    if (!cJSON_IsString(item) || item->valuestring[0] == '\0' ||
        strlen(item->valuestring) > MSDU__PROFILE_NAME_MAX) {
        return false;
    }
    for (const char *c = item->valuestring; *c != '\0'; c++) {
        if ((unsigned char)*c <= ' ' || (unsigned char)*c >= 0x7f) {
            return false;
        }
    }
    return true;
}

static bool read_dtype(reader *r, const cJSON *object, const char *of, int32_t *dtype)
{
    static const struct {
        const char *name;
        int32_t dtype;
    } known[] = {{"float32", MSDU_FLOAT32},
                 {"float64", MSDU_FLOAT64},
                 {"float16", MSDU_FLOAT16},
                 {"bfloat16", MSDU_BFLOAT16}};
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, "dtype");
    if (item == NULL) {
        return true;
    }
    for (size_t i = 0; cJSON_IsString(item) && i < sizeof(known) / sizeof(known[0]); i++) {
        if (strcmp(item->valuestring, known[i].name) == 0) {
            *dtype = known[i].dtype;
            return true;
        }
    }
    return refuse(r, "%s: dtype is not float32, float64, float16 or bfloat16", of);
}

static bool read_time(reader *r, const cJSON *object, const char *layer, const char *key,
                      double *ns_out)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    if (!cJSON_IsNumber(item)) {
        return refuse(r, "layer '%s': %s is missing or no number", layer, key);
    }
    /* written so that NaN fails as well */
    if (!(item->valuedouble >= 0 && item->valuedouble <= MSDU__PROFILE_US_MAX)) {
        return refuse(r, "layer '%s': %s %g is not in 0 .. %g", layer, key, item->valuedouble,
                      MSDU__PROFILE_US_MAX);
    }
    *ns_out = item->valuedouble * 1e3;
    return true;
}

/* A number that may be missing, which leaves *out as it is. */
static bool read_optional(reader *r, const cJSON *object, const char *of, const char *key,
                          double most, double *out)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    if (item == NULL) {
        return true;
    }
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0 && item->valuedouble <= most)) {
        return refuse(r, "%s: %s is no number in 0 .. %g", of, key, most);
    }
    *out = item->valuedouble;
    return true;
}

/* A part of a time of the layer; in us, as the time is in ns. */
static bool read_part(reader *r, const cJSON *object, const char *layer, const char *key,
                      double whole_ns, double *ns_out)
{
    double us = -1;
    if (!read_optional(r, object, layer, key, MSDU__PROFILE_US_MAX, &us)) {
        return false;
    }
    if (us * 1e3 > whole_ns) {
        return refuse(r, "layer '%s': %s %g is more than the time that it is part of", layer, key,
                      us);
    }
    *ns_out = us < 0 ? *ns_out : us * 1e3;
    return true;
}

/* What only pipelines need. */
static bool read_pipeline(reader *r, const cJSON *item, msdu__profile_layer *layer)
{
    const double most = MSDU__PROFILE_BYTES_MAX;
    layer->output_bytes = -1;
    layer->kept_bytes = -1;
    layer->state_bytes = -1;
    layer->weight_ns = -1;
    return read_optional(r, item, layer->name, "output_bytes", most, &layer->output_bytes) &&
           read_optional(r, item, layer->name, "kept_bytes", most, &layer->kept_bytes) &&
           read_optional(r, item, layer->name, "state_bytes", most, &layer->state_bytes) &&
           read_part(r, item, layer->name, "weight_us", layer->backward_ns, &layer->weight_ns) &&
           read_part(r, item, layer->name, "fixed_forward_us", layer->forward_ns,
                     &layer->fixed_forward_ns) &&
           read_part(r, item, layer->name, "fixed_backward_us", layer->backward_ns,
                     &layer->fixed_backward_ns);
}

static const char *text_or_empty(const cJSON *root, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(root, key);
    return cJSON_IsString(item) ? item->valuestring : "";
}

/* --- tensors and layers --- */

static bool read_tensor(reader *r, const cJSON *item, const char *layer)
{
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(item, "name");
    const cJSON *count = cJSON_GetObjectItemCaseSensitive(item, "count");
    if (!is_name(name)) {
        return refuse(r, "layer '%s': a tensor without a name of 1 to %u printable characters",
                      layer, MSDU__PROFILE_NAME_MAX);
    }
    double wanted = cJSON_IsNumber(count) ? count->valuedouble : 0;
    if (!(wanted >= 1 && wanted <= (double)MSDU__PROFILE_COUNT_MAX) || wanted != floor(wanted)) {
        return refuse(r, "tensor '%s': count is not a whole number in 1 .. %llu", name->valuestring,
                      MSDU__PROFILE_COUNT_MAX);
    }
    r->total += (uint64_t)wanted;
    if (r->total > MSDU__PROFILE_COUNT_MAX) {
        return refuse(r, "more than %llu elements in all tensors together",
                      MSDU__PROFILE_COUNT_MAX);
    }
    r->out->tensors[r->out->tensor_count++] =
        (msdu__profile_tensor){.name = name->valuestring, .count = (uint64_t)wanted};
    return true;
}

static bool read_layer(reader *r, const cJSON *item)
{
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(item, "name");
    const cJSON *tensors = cJSON_GetObjectItemCaseSensitive(item, "tensors");
    msdu__profile_layer layer = {.dtype = r->dtype, .first_tensor = r->out->tensor_count};
    if (!is_name(name)) {
        return refuse(r, "layer %u has no name of 1 to %u printable characters",
                      r->out->layer_count, MSDU__PROFILE_NAME_MAX);
    }
    layer.name = name->valuestring;
    if (!read_time(r, item, layer.name, "forward_us", &layer.forward_ns) ||
        !read_time(r, item, layer.name, "backward_us", &layer.backward_ns) ||
        !read_dtype(r, item, layer.name, &layer.dtype) || !read_pipeline(r, item, &layer)) {
        return false;
    }
    if (!cJSON_IsArray(tensors)) {
        return refuse(r, "layer '%s': tensors is missing or no array", layer.name);
    }
    const cJSON *tensor = NULL;
    cJSON_ArrayForEach(tensor, tensors)
    {
        if (!read_tensor(r, tensor, layer.name)) {
            return false;
        }
    }
    layer.tensor_count = r->out->tensor_count - layer.first_tensor;
    r->out->layers[r->out->layer_count++] = layer;
    return true;
}

static bool allocate(reader *r, const cJSON *layers)
{
    int count = cJSON_IsArray(layers) ? cJSON_GetArraySize(layers) : 0;
    uint64_t tensors = 0;
    const cJSON *layer = NULL;
    if (count < 1 || count > (int)MSDU__PROFILE_LAYERS_MAX) {
        return refuse(r, "layers is not an array of 1 to %u layers", MSDU__PROFILE_LAYERS_MAX);
    }
    cJSON_ArrayForEach(layer, layers)
    {
        const cJSON *list = cJSON_GetObjectItemCaseSensitive(layer, "tensors");
        tensors += cJSON_IsArray(list) ? (uint64_t)cJSON_GetArraySize(list) : 0;
    }
    if (tensors > MSDU__PROFILE_TENSORS_MAX) {
        return refuse(r, "more than %u tensors", MSDU__PROFILE_TENSORS_MAX);
    }
    r->out->layers = calloc((size_t)count, sizeof(*r->out->layers));
    r->out->tensors = calloc(tensors + 1, sizeof(*r->out->tensors));
    return (r->out->layers != NULL && r->out->tensors != NULL) || refuse(r, "out of memory");
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Sorts names; true if two are equal, which is told. */
static bool has_twins(reader *r, const char **names, uint32_t count, const char *kind)
{
    qsort(names, count, sizeof(*names), compare_names);
    for (uint32_t i = 1; i < count; i++) {
        if (strcmp(names[i - 1], names[i]) == 0) {
            (void)refuse(r, "two %ss are called '%s'", kind, names[i]);
            return true;
        }
    }
    return false;
}

static bool check_names(reader *r)
{
    const msdu__profile *p = r->out;
    uint32_t most = p->layer_count > p->tensor_count ? p->layer_count : p->tensor_count;
    const char **names = calloc((size_t)most + 1, sizeof(*names));
    if (names == NULL) {
        return refuse(r, "out of memory");
    }
    for (uint32_t i = 0; i < p->layer_count; i++) {
        names[i] = p->layers[i].name;
    }
    bool is_fine = !has_twins(r, names, p->layer_count, "layer");
    for (uint32_t i = 0; i < p->tensor_count; i++) {
        names[i] = p->tensors[i].name;
    }
    is_fine = is_fine && !has_twins(r, names, p->tensor_count, "tensor");
    free(names);
    return is_fine;
}

static bool read_tree(reader *r, const cJSON *root)
{
    const cJSON *format = cJSON_GetObjectItemCaseSensitive(root, "format");
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(root, "name");
    const cJSON *layers = cJSON_GetObjectItemCaseSensitive(root, "layers");
    if (!cJSON_IsString(format) || strcmp(format->valuestring, MSDU__PROFILE_FORMAT) != 0) {
        return refuse(r, "no JSON object with format \"%s\"", MSDU__PROFILE_FORMAT);
    }
    if (!is_name(name)) {
        return refuse(r, "no name of 1 to %u printable characters", MSDU__PROFILE_NAME_MAX);
    }
    if (!read_dtype(r, root, "profile", &r->dtype) || !allocate(r, layers)) {
        return false;
    }
    const cJSON *layer = NULL;
    cJSON_ArrayForEach(layer, layers)
    {
        if (!read_layer(r, layer)) {
            return false;
        }
    }
    double samples = 0;
    if (!read_optional(r, root, "profile", "samples", MSDU__PROFILE_SAMPLES_MAX, &samples)) {
        return false;
    }
    if (samples != floor(samples)) {
        return refuse(r, "profile: samples is not a whole number");
    }
    r->out->samples = (uint32_t)samples;
    r->out->name = name->valuestring;
    r->out->compute = text_or_empty(root, "compute");
    r->out->source = text_or_empty(root, "source");
    if (!(msdu__profile_compute_ns(r->out) > 0)) {
        return refuse(r, "no layer takes any time");
    }
    return check_names(r);
}

/* --- reading --- */

void msdu__profile_path(const char *name, char *out, size_t bytes)
{
    char own[PATH_MAX];
    if (strchr(name, '/') != NULL || access(name, R_OK) == 0) {
        snprintf(out, bytes, "%s", name);
        return;
    }
    ssize_t length = readlink("/proc/self/exe", own, sizeof(own) - 1);
    own[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(own, '/');
    if (slash != NULL) {
        *slash = '\0';
    }
    snprintf(out, bytes, "%s/../share/msdu/profiles/%s.json", own, name);
}

bool msdu__profile_parse(const char *text, size_t bytes, msdu__profile *out, char *why,
                         size_t why_bytes)
{
    reader r = {.out = out, .dtype = MSDU_FLOAT32, .why = why, .why_bytes = why_bytes};
    *out = (msdu__profile){.name = NULL};
    out->tree = msdu__json_parse(text, bytes, why, why_bytes);
    if (out->tree == NULL) {
        return false;
    }
    if (!read_tree(&r, out->tree)) {
        msdu__profile_free(out);
        return false;
    }
    return true;
}

static bool parse(const char *text, size_t bytes, void *out, char *why, size_t why_bytes)
{
    return msdu__profile_parse(text, bytes, out, why, why_bytes);
}

bool msdu__profile_read(const char *path, msdu__profile *out, char *why, size_t why_bytes)
{
    *out = (msdu__profile){.name = NULL};
    return msdu__json_read(path, "profile", parse, out, why, why_bytes);
}

void msdu__profile_free(msdu__profile *profile)
{
    if (profile != NULL) {
        free(profile->layers);
        free(profile->tensors);
        cJSON_Delete(profile->tree);
        *profile = (msdu__profile){.name = NULL};
    }
}

/* --- what is done with it --- */

void msdu__profile_scale(msdu__profile *profile, double times, double elements)
{
    for (uint32_t i = 0; i < profile->layer_count; i++) {
        msdu__profile_layer *layer = &profile->layers[i];
        layer->forward_ns *= times;
        layer->backward_ns *= times;
        layer->weight_ns *= times; /* below 0 it stays there, here and below */
        layer->fixed_forward_ns *= times;
        layer->fixed_backward_ns *= times;
        layer->output_bytes *= elements;
        layer->kept_bytes *= elements;
        layer->state_bytes *= elements;
    }
    for (uint32_t i = 0; i < profile->tensor_count; i++) {
        double count = round((double)profile->tensors[i].count * elements);
        profile->tensors[i].count = count > 1 ? (uint64_t)count : 1;
    }
}

uint64_t msdu__profile_elements(const msdu__profile *profile)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < profile->tensor_count; i++) {
        sum += profile->tensors[i].count;
    }
    return sum;
}

double msdu__profile_compute_ns(const msdu__profile *profile)
{
    double sum = 0;
    for (uint32_t i = 0; i < profile->layer_count; i++) {
        sum += profile->layers[i].forward_ns + profile->layers[i].backward_ns;
    }
    return sum;
}
