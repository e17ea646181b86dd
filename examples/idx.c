/* SPDX-License-Identifier: Apache-2.0 */
/* Reading idx files: every header field is checked against the file's real size first. */
#include "idx.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define IDX_DIMS_MAX 3
#define IDX_WORD     4 /* the magic number and each dimension: big endian, 32 bits */

struct idx_file {
    size_t dims[IDX_DIMS_MAX];
    uint8_t *bytes;
};

static int fail(char *error, const char *path, const char *cause)
{
    snprintf(error, IDX_ERROR_BYTES, "%s: %s", path, cause);
    return -1;
}

static uint32_t big_endian(const uint8_t *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

/* Dimensions from the header; -1 if it is not an idx file of unsigned bytes with so many. */
static int read_header(FILE *in, size_t dim_count, size_t *dims, size_t *bytes_out)
{
    uint8_t head[IDX_WORD * (1 + IDX_DIMS_MAX)];
    size_t bytes = 1;

    if (fread(head, IDX_WORD, 1 + dim_count, in) != 1 + dim_count ||
        big_endian(head) != (0x0800 | dim_count)) {
        return -1;
    }
    for (size_t d = 0; d < dim_count; d++) {
        dims[d] = big_endian(head + IDX_WORD * (d + 1));
        if (dims[d] == 0 || bytes > INT32_MAX / dims[d]) {
            return -1;
        }
        bytes *= dims[d];
    }
    *bytes_out = bytes;
    return 0;
}

static int read_body(FILE *in, const char *path, size_t dim_count, struct idx_file *file,
                     char *error)
{
    struct stat info;
    size_t bytes = 0;

    if (read_header(in, dim_count, file->dims, &bytes) != 0) {
        return fail(error, path, "damaged, or not an idx file of the expected kind");
    }
    if (fstat(fileno(in), &info) != 0) {
        return fail(error, path, strerror(errno));
    }
    if ((size_t)info.st_size != bytes + IDX_WORD * (1 + dim_count)) {
        return fail(error, path, "damaged: its size is not the one its header tells");
    }
    file->bytes = malloc(bytes);
    if (file->bytes == NULL) {
        return fail(error, path, "out of memory");
    }
    if (fread(file->bytes, 1, bytes, in) != bytes) {
        free(file->bytes);
        file->bytes = NULL;
        return fail(error, path, "could not be read to its end");
    }
    return 0;
}

static int read_file(const char *path, size_t dim_count, struct idx_file *file, char *error)
{
    FILE *in = fopen(path, "rb");
    int result;

    if (in == NULL) {
        return fail(error, path, strerror(errno));
    }
    result = read_body(in, path, dim_count, file, error);
    fclose(in);
    return result;
}

static int fill(struct idx_set *set, const struct idx_file *images, const char *path, char *error)
{
    const size_t total = set->count * set->pixels;

    set->images = malloc(total * sizeof(float));
    if (set->images == NULL) {
        return fail(error, path, "out of memory");
    }
    for (size_t i = 0; i < total; i++) {
        set->images[i] = (float)images->bytes[i] / 255.0F;
    }
    for (size_t i = 0; i < set->count; i++) {
        if (set->classes <= set->labels[i]) {
            set->classes = (size_t)set->labels[i] + 1;
        }
    }
    return 0;
}

int idx_load(const char *dir, const char *prefix, struct idx_set *set_out, char *error)
{
    char path[PATH_MAX];
    struct idx_file images = {{0}, NULL};
    struct idx_file labels = {{0}, NULL};
    struct idx_set set = {0};
    int result = -1;

    snprintf(path, sizeof(path), "%s/%s-labels-idx1-ubyte", dir, prefix);
    if (read_file(path, 1, &labels, error) != 0) {
        return -1;
    }
    snprintf(path, sizeof(path), "%s/%s-images-idx3-ubyte", dir, prefix);
    if (read_file(path, 3, &images, error) != 0) {
        goto err_labels;
    }
    if (images.dims[0] != labels.dims[0]) {
        fail(error, path, "has another number of images than its label file has labels");
        goto err_images;
    }
    set.count = images.dims[0];
    set.pixels = images.dims[1] * images.dims[2];
    set.labels = labels.bytes;
    result = fill(&set, &images, path, error);
    if (result == 0) {
        *set_out = set;
        labels.bytes = NULL; /* now the set's */
    }

err_images:
    free(images.bytes);
err_labels:
    free(labels.bytes);
    return result;
}

void idx_free(struct idx_set *set)
{
    free(set->images);
    free(set->labels);
    set->images = NULL;
    set->labels = NULL;
}
