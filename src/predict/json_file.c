/* SPDX-License-Identifier: Apache-2.0 */
/* Files of JSON, before they are parsed. */
#include "json_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static char *load(const char *path, const char *what, FILE *file, size_t *bytes_out, char *why,
                  size_t why_bytes)
{
    struct stat status;
    if (fstat(fileno(file), &status) != 0 || !S_ISREG(status.st_mode)) {
        snprintf(why, why_bytes, "%s is no file", path);
        return NULL;
    }
    if (status.st_size > (off_t)MSDU__JSON_FILE_MAX) {
        snprintf(why, why_bytes, "%s has %lld bytes, which is no %s (at most %u)", path,
                 (long long)status.st_size, what, MSDU__JSON_FILE_MAX);
        return NULL;
    }
    size_t size = (size_t)status.st_size;
    char *text = malloc(size + 1);
    if (text == NULL) {
        snprintf(why, why_bytes, "out of memory");
        return NULL;
    }
    *bytes_out = fread(text, 1, size, file); /* what was cut off meanwhile fails as JSON */
    return text;
}

char *msdu__json_load(const char *path, const char *what, size_t *bytes_out, char *why,
                      size_t why_bytes)
{
    FILE *file = fopen(path, "rbe");
    if (file == NULL) {
        snprintf(why, why_bytes, "%s: %s", path, strerror(errno));
        return NULL;
    }
    char *text = load(path, what, file, bytes_out, why, why_bytes);
    (void)fclose(file);
    return text;
}

unsigned msdu__json_line(const char *text, const char *end)
{
    unsigned line = 1;
    for (; text < end; text++) {
        line += *text == '\n' ? 1 : 0;
    }
    return line;
}
