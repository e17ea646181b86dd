/* SPDX-License-Identifier: Apache-2.0 */
/* In place of redis.c where hiredis was not there at configure time. */
#include "redis.h"

#include <stdio.h>

msdu_status msdu__redis_open(const char *url, struct msdu__redis *redis, msdu_store *store_out,
                             char cause[MSDU__CAUSE_BYTES])
{
    (void)url;
    (void)redis;
    (void)store_out;
    (void)snprintf(cause, MSDU__CAUSE_BYTES, "redis:// needs hiredis, which this build is without");
    return MSDU_ERR_UNSUPPORTED;
}

void msdu__redis_delete(struct msdu__redis *redis, const char *key, const char *value)
{
    (void)redis;
    (void)key;
    (void)value;
}
