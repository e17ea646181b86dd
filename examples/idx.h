/* SPDX-License-Identifier: Apache-2.0 */
/* Labeled images from the idx files in which MNIST is distributed (unpacked, not gzip). */
#ifndef EXAMPLE_IDX_H
#define EXAMPLE_IDX_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#define IDX_ERROR_BYTES (PATH_MAX + 128)

struct idx_set {
    size_t count;    /* images */
    size_t pixels;   /* inputs of one image */
    size_t classes;  /* largest label + 1 */
    float *images;   /* count rows of pixels, 0 .. 1 */
    uint8_t *labels; /* count */
};

/*
 * Read DIR/PREFIX-images-idx3-ubyte and DIR/PREFIX-labels-idx1-ubyte; release with idx_free().
 * Returns 0, or -1 with one line in error (IDX_ERROR_BYTES) that names the file and the cause.
 */
int idx_load(const char *dir, const char *prefix, struct idx_set *set_out, char *error);
void idx_free(struct idx_set *set);

#endif
