/* SPDX-License-Identifier: Apache-2.0 */
/* Files of JSON: found, loaded, parsed, and refused in one line. */
#include "json_file.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

void msdu__json_refuse(char *why, size_t why_bytes, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    /* NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): it has just been started */
    vsnprintf(why, why_bytes, format, args);
    va_end(args);
}

/* The whole file, to be freed; it has no zero at its end. */
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

bool msdu__json_read(const char *path, const char *what, msdu__json_reader reader, void *out,
                     char *why, size_t why_bytes)
{
    char cause[512] = "";
    size_t bytes = 0;
    FILE *file = fopen(path, "rbe");
    if (file == NULL) {
        msdu__json_refuse(why, why_bytes, "%s: %s", path, strerror(errno));
        return false;
    }
    char *text = load(path, what, file, &bytes, why, why_bytes);
    (void)fclose(file);
    if (text == NULL) {
        return false;
    }
    bool is_read = reader(text, bytes, out, cause, sizeof(cause));
    free(text);
    if (!is_read) {
        msdu__json_refuse(why, why_bytes, "%s: %s", path, cause);
    }
    return is_read;
}

/* Number of the line in which `end` stands. */
static unsigned line_of(const char *text, const char *end)
{
    unsigned line = 1;
    for (; text < end; text++) {
        line += *text == '\n' ? 1 : 0;
    }
    return line;
}

cJSON *msdu__json_parse(const char *text, size_t bytes, char *why, size_t why_bytes)
{
    const char *end = text;
    cJSON *root = cJSON_ParseWithLengthOpts(text, bytes, &end, 0);
    if (root == NULL) {
        msdu__json_refuse(why, why_bytes, "no JSON: line %u", line_of(text, end));
    }
    return root;
}
