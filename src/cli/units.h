/* SPDX-License-Identifier: Apache-2.0 */
/* Values with a unit, in options and files. */
#ifndef MSDU_CLI_UNITS_H
#define MSDU_CLI_UNITS_H

#include <stdbool.h>

#define MSDU__UNITS_BYTES_MOST 1e18

/* "200mbit", "2.5gbit"; false: not a rate. */
bool msdu__units_rate(const char *text, double *mbit);
/* "16GiB", "4096"; suffixes are powers of 1024. False: not a size above 0. */
bool msdu__units_bytes(const char *text, double *bytes);

#endif
