/* SPDX-License-Identifier: Apache-2.0 */
/* What the trainer writes: a line per epoch, a CSV line per step, the result, the parameters. */
#ifndef EXAMPLE_REPORT_H
#define EXAMPLE_REPORT_H

#include <stdint.h>
#include <stdio.h>

#include <msdu/msdu.h>

#include "net.h"

/*
 * Open a file for writing; %r in the pattern becomes the rank. file_out is NULL where this rank
 * writes nothing: no pattern, or no %r and not rank 0. Returns 0, or -1 with a line on stderr.
 */
int report_open(const char *pattern, const msdu_summary *summary, FILE **file_out);
/* Close; -1 with a line on stderr if anything was not written. NULL is allowed. */
int report_close(FILE *file, const char *pattern);

void report_step(FILE *out, const msdu_summary *summary);
void report_epoch(FILE *out, uint64_t epoch, uint64_t epochs, double loss,
                  const msdu_summary *summary);
void report_result(FILE *out, const msdu_summary *summary, double accuracy, double loss,
                   uint64_t seed);
void report_parameters(FILE *out, const struct net *net);

#endif
