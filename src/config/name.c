/* SPDX-License-Identifier: Apache-2.0 */
#include "name.h"

#include <stdint.h>
#include <string.h>

#define NAME_MAX_BYTES 64

size_t msdu__name_distance(const char *a, const char *b)
{
    size_t row[NAME_MAX_BYTES];
    size_t columns = strlen(b);
    if (columns >= NAME_MAX_BYTES || strnlen(a, NAME_MAX_BYTES) == NAME_MAX_BYTES) {
        return SIZE_MAX;
    }
    for (size_t j = 0; j <= columns; j++) {
        row[j] = j;
    }
    for (size_t i = 1; a[i - 1] != '\0'; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= columns; j++) {
            size_t change = diagonal + (a[i - 1] != b[j - 1]);
            size_t insert = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
            diagonal = row[j];
            row[j] = change < insert ? change : insert;
        }
    }
    return row[columns];
}
