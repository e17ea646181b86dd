/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store.h - a key-value store of the caller's by which ranks find rank 0: torch's, for example.
 *
 * The caller fills in a table of functions and points msdu_config.store at it. It is used where
 * nobody set `rendezvous`, or set it to store://HOST. Rank 0 listens at a port that the system
 * picks and sets one key, "msdu/JOB/EPOCH"; the other ranks get it.
 *
 * Rules that hold for every entry:
 *  - The tables of all ranks lead to the same store.
 *  - It is called by the thread that is in msdu_start(), one call at a time, and not after
 *    msdu_start() returned. Entries that are appended later may be called by other threads until
 *    msdu_destroy(); their comments will say so.
 *  - It may block for timeout_ns. The library cannot end a call that lasts longer.
 *  - It does not throw and calls nothing of this context. Failure is a negative status and one
 *    line of text in `why`, with its zero; `why` is empty before the call.
 *  - Keys are printable ASCII without spaces. Keys and values are borrowed for the call.
 *
 * What is not there is not used, so the table grows at its end: a comparing set and a watch, which
 * groups that change while they train will ask for, will be appended and may be left out.
 */
#ifndef MSDU_STORE_H
#define MSDU_STORE_H

#include <msdu/msdu.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MSDU_STORE_VALUE_BYTES 512 /* longest value */
#define MSDU_STORE_WHY_BYTES   256 /* longest text of a failure, with its zero */

typedef struct msdu_store {
    size_t size; /* sizeof(msdu_store); use MSDU_STORE_INIT */
    void *user;  /* first argument of the functions; borrowed until msdu_destroy() */
    /* Which group of this job it is, equal on its ranks. Groups that meet one after the other, or
     * at once, by a store that outlives them have different numbers. */
    uint64_t epoch;
    /* Set a key, whether or not it is there. ERR_TIMEOUT, ERR_IO or another failure ends
     * msdu_start() with ERR_IO. */
    msdu_status (*set)(void *user, const char *key, const void *value, size_t bytes,
                       uint64_t timeout_ns, char *why);
    /* Wait for a key and copy its value. bytes: room in, length out. ERR_TIMEOUT: it was not there
     * in time, and the library may ask again. Any other failure ends msdu_start() with ERR_IO. */
    msdu_status (*get)(void *user, const char *key, void *value, size_t *bytes, uint64_t timeout_ns,
                       char *why);
} msdu_store;

#define MSDU_STORE_INIT MSDU_SIZED(msdu_store)

#ifdef __cplusplus
}
#endif

#endif
