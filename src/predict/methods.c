/* SPDX-License-Identifier: Apache-2.0 */
/* The methods that `msdu bench overlap` compares, as settings of the library. */
#include "methods.h"

#include <stdlib.h>
#include <string.h>

#include "wire/wire.h"

#define EXACT "domain=gradient\ninterval=fixed\ninterval_steps=1\nwarmup_steps=0\n"
#define LOCAL "domain=parameter\ninterval=fixed\nwarmup_steps=0\nwire=float32\n"
#define FREE  EXACT "commit=tensor\n"
#define NARROW(format, number)                                                                     \
    {                                                                                              \
        .name = format, .kind = MSDU__OVERLAP_GRADIENT, .settings = FREE "wire=" format "\n",      \
        .wire = (number), .has_priority = true, .is_free = true                                    \
    }

static const msdu__overlap_method methods[] = {
    {.name = "compute", .kind = MSDU__OVERLAP_COMPUTE},
    {.name = "blocking",
     .kind = MSDU__OVERLAP_GRADIENT,
     .settings = EXACT "wire=float32\noverlap=blocking\n"},
    {.name = "buckets",
     .kind = MSDU__OVERLAP_GRADIENT,
     .settings = EXACT "wire=float32\nwindow=2\n",
     .is_bucketed = true},
    {.name = "slices", .kind = MSDU__OVERLAP_GRADIENT, .settings = EXACT "wire=float32\n"},
    {.name = "priority",
     .kind = MSDU__OVERLAP_GRADIENT,
     .settings = FREE "wire=float32\n",
     .has_priority = true},
    {.name = "free-fifo",
     .kind = MSDU__OVERLAP_GRADIENT,
     .settings = FREE "wire=float32\n",
     .is_free = true},
    {.name = "free",
     .kind = MSDU__OVERLAP_GRADIENT,
     .settings = FREE "wire=float32\n",
     .has_priority = true,
     .is_free = true},
    NARROW("int8", MSDU__WIRE_INT8),
    NARROW("int4", MSDU__WIRE_INT4),
    NARROW("int2", MSDU__WIRE_INT2),
    {.name = "local",
     .kind = MSDU__OVERLAP_LOCAL,
     .settings = LOCAL "overlap=blocking\n",
     .has_priority = true},
    {.name = "local-delayed",
     .kind = MSDU__OVERLAP_LOCAL,
     .settings = LOCAL "overlap=delayed\ndelay_steps=1\n",
     .has_priority = true,
     .delay = 1},
    {.name = "local-streamed",
     .kind = MSDU__OVERLAP_LOCAL,
     .settings = LOCAL "overlap=streamed\ndelay_steps=1\n",
     .has_priority = true,
     .is_streamed = true,
     .delay = 1},
    {.name = "defaults",
     .kind = MSDU__OVERLAP_DEFAULTS,
     .settings = "",
     .has_priority = true,
     .is_streamed = true},
};

const msdu__overlap_method *msdu__overlap_method_at(uint32_t index)
{
    return index < sizeof(methods) / sizeof(methods[0]) ? &methods[index] : NULL;
}

bool msdu__overlap_is_wanted(const char *list, const char *name)
{
    size_t length = strlen(name);
    for (const char *at = list; at != NULL; at = strchr(at, ',')) {
        at += *at == ',' ? 1 : 0;
        if (strncmp(at, name, length) == 0 && (at[length] == ',' || at[length] == '\0')) {
            return true;
        }
    }
    return list == NULL;
}

const msdu__overlap_method *msdu__overlap_method_find(const char *name)
{
    const msdu__overlap_method *method = NULL;
    for (uint32_t i = 0; (method = msdu__overlap_method_at(i)) != NULL; i++) {
        if (strcmp(method->name, name) == 0) {
            break;
        }
    }
    return method;
}

char *msdu__overlap_unknown(const char *list)
{
    char *copy = strdup(list);
    char *rest = copy;
    char *unknown = NULL;
    const char *word = NULL;
    while (unknown == NULL && (word = strsep(&rest, ",")) != NULL) {
        unknown = msdu__overlap_method_find(word) != NULL ? NULL : strdup(word);
    }
    free(copy);
    return unknown;
}
