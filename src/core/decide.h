/* SPDX-License-Identifier: Apache-2.0 */
/* The decision behind a round. */
#ifndef MSDU_DECIDE_H
#define MSDU_DECIDE_H

#include "engine.h"

void msdu__decide(msdu__engine *e, msdu__fragment *f);
/* A round that changed nothing: no statistics, so the latest decision stays. */
void msdu__decide_repeat(msdu__engine *e, msdu__fragment *f);

#endif
