/* SPDX-License-Identifier: Apache-2.0 */
/* Values with a unit, in options and files. */
#include "units.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <strings.h>

#define RATE_LEAST 1e-3 /* Mbit/s, as --rate-mbit */
#define RATE_MOST  1e9

bool msdu__units_rate(const char *text, double *mbit)
{
    static const struct {
        const char *name;
        double mbit;
    } units[] = {{"kbit", 1e-3}, {"mbit", 1}, {"gbit", 1e3}};
    char *unit = NULL;
    double value = strtod(text, &unit);
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]) && unit != text; i++) {
        *mbit = value * units[i].mbit;
        if (strcasecmp(unit, units[i].name) == 0) {
            return *mbit >= RATE_LEAST && *mbit <= RATE_MOST;
        }
    }
    return false;
}

bool msdu__units_bytes(const char *text, double *bytes)
{
    static const char *const units[] = {"", "k", "M", "G", "T", "KiB", "MiB", "GiB", "TiB"};
    char *unit = NULL;
    double value = strtod(text, &unit);
    for (int i = 0; i < 9 && unit != text; i++) {
        if (strcasecmp(unit, units[i]) == 0) {
            *bytes = ldexp(value, 10 * (i <= 4 ? i : i - 4));
            return *bytes > 0 && *bytes <= MSDU__UNITS_BYTES_MOST;
        }
    }
    return false;
}
