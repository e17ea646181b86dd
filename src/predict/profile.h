/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Model profiles: what overlap depends on, layer by layer in the order of the forward pass.
 *
 * A JSON object (bench/profiles/make.py writes them):
 *
 *     format   "msdu-profile-1"
 *     name     of the model
 *     compute  what a step computes, in words; optional, as source
 *     source   where shapes and times come from
 *     dtype    "float32", "float64", "float16" or "bfloat16"; default of the layers
 *     samples  of the batch that times and bytes are of; optional
 *     layers   array: name (unique), forward_us, backward_us (at least 0), tensors (array of name,
 *              unique in the profile, and count of elements; may be empty), dtype (optional)
 *
 * For pipelines (`msdu plan --stages`) a layer may have more, all of the same batch:
 *
 *     output_bytes       what it hands to the next layer
 *     kept_bytes         what it keeps from its forward to its backward pass
 *     state_bytes        its parameters, gradients and optimizer state
 *     weight_us          of backward_us: what gradients of weights take; at most that
 *     fixed_forward_us   of forward_us: what a batch of any size takes; at most that
 *     fixed_backward_us  of backward_us, likewise
 *
 * Members that are not named here are ignored.
 */
#ifndef MSDU_BENCH_PROFILE_H
#define MSDU_BENCH_PROFILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MSDU__PROFILE_FORMAT      "msdu-profile-1"
#define MSDU__PROFILE_LAYERS_MAX  16384U
#define MSDU__PROFILE_TENSORS_MAX 65536U
#define MSDU__PROFILE_NAME_MAX    255U         /* bytes of a name, as of a tensor of the library */
#define MSDU__PROFILE_COUNT_MAX   (1ULL << 42) /* elements of all tensors together */
#define MSDU__PROFILE_US_MAX      1e9          /* of a pass over one layer */
#define MSDU__PROFILE_BYTES_MAX   1e15         /* of a layer's output and the like */
#define MSDU__PROFILE_SAMPLES_MAX 1e9
#define MSDU__PROFILE_PATH_BYTES  4160

typedef struct msdu__profile_tensor {
    const char *name;
    uint64_t count; /* elements, at least 1 */
} msdu__profile_tensor;

typedef struct msdu__profile_layer {
    const char *name;
    double forward_ns;
    double backward_ns;
    int32_t dtype; /* msdu_dtype */
    uint32_t first_tensor;
    uint32_t tensor_count;
    double output_bytes; /* negative: it does not say, here and below */
    double kept_bytes;
    double state_bytes;
    double weight_ns;
    double fixed_forward_ns; /* 0 if it does not say */
    double fixed_backward_ns;
} msdu__profile_layer;

typedef struct msdu__profile {
    const char *name;
    const char *compute; /* "" if it does not say */
    const char *source;
    uint32_t samples;            /* 0 if it does not say */
    msdu__profile_layer *layers; /* in the order of the forward pass */
    uint32_t layer_count;        /* at least 1 */
    msdu__profile_tensor *tensors;
    uint32_t tensor_count;
    void *tree; /* holds the strings */
} msdu__profile;

/* Where a profile lies: a path, or a name in the folder of profiles beside the command. */
void msdu__profile_path(const char *name, char *out, size_t bytes);
/*
 * Read a profile from a file, or from `bytes` bytes of text. out is to be released with
 * msdu__profile_free(); on false it is empty, and why holds one line.
 */
bool msdu__profile_read(const char *path, msdu__profile *out, char *why, size_t why_bytes);
bool msdu__profile_parse(const char *text, size_t bytes, msdu__profile *out, char *why,
                         size_t why_bytes);
void msdu__profile_free(msdu__profile *profile);

/* Times by one factor, elements and bytes by another: elements are rounded, and no tensor becomes
 * empty. Both > 0. */
void msdu__profile_scale(msdu__profile *profile, double times, double elements);
uint64_t msdu__profile_elements(const msdu__profile *profile);
double msdu__profile_compute_ns(const msdu__profile *profile); /* both passes of all layers */

#endif
