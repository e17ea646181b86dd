/* SPDX-License-Identifier: Apache-2.0 */
/* What public functions check first: is there such a context, and may it be called now? */
#ifndef MSDU_GUARD_H
#define MSDU_GUARD_H

#include "context.h"

/* Number of forks that led to this process; a context remembers that of its own. */
msdu_status msdu__guard_process(uint32_t *forks_out);
/* Was it made before the fork() that made this process? Its threads are not here, and its sockets
 * are the parent's. */
bool msdu__guard_is_parents(const msdu_ctx *ctx);
/* ERR_INVALID: NULL, or a parent's. */
msdu_status msdu__guard(const msdu_ctx *ctx);
/* That, and ERR_STATE: not between start and finish. */
msdu_status msdu__guard_open(const msdu_ctx *ctx);
/* That, but the context's failure first: it stays the answer until destroy. */
msdu_status msdu__guard_running(msdu_ctx *ctx);
/* That, and ERR_STATE: something of the present step was announced. */
msdu_status msdu__guard_between_steps(msdu_ctx *ctx);

#endif
