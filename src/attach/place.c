/* SPDX-License-Identifier: Apache-2.0 */
#include "place.h"

#include <errno.h>
#include <limits.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

int msdu__attach_place(void)
{
    static const char *const names[] = {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const char *text = getenv(names[i]);
        if (text == NULL || *text == '\0' || text[strspn(text, "0123456789")] != '\0') {
            continue;
        }
        errno = 0;
        long place = strtol(text, NULL, 10);
        if (errno == 0 && place < INT_MAX) {
            return (int)place;
        }
    }
    return -1;
}
