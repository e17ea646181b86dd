/* SPDX-License-Identifier: Apache-2.0 */
/* The hub: rank 0's small TCP server by which the ranks of a job find, admit and watch each other.
 */
#ifndef MSDU_HUB_H
#define MSDU_HUB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <msdu/backend.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MSDU__HUB_TEXT_BYTES  512       /* longest error text, with its zero */
#define MSDU__HUB_NONCE_BYTES 32        /* random, of this run of the job, known to all ranks */
#define MSDU__HUB_VALUE_BYTES (1 << 20) /* largest value of a key */

typedef struct msdu__hub msdu__hub;

/* What the hub asks its owner, from the hub's own thread; none may block or call the hub. */
typedef struct msdu__hub_watch {
    void *user;
    /* Has an operation waited past the deadline? Then it says which. */
    bool (*is_stalled)(void *user, uint64_t now_ns, uint32_t *lane_out, uint64_t *sequence_out);
    /* Operations started in a channel; print_out: what operation `sequence` is, 0 if not known. */
    uint64_t (*progress)(void *user, uint32_t lane, uint64_t sequence, uint32_t *print_out);
    /* The group failed; msdu__hub_verdict() says why. May be called more than once. */
    void (*failed)(void *user);
} msdu__hub_watch;

/*
 * Find rank 0 by host->rendezvous, be admitted, and wait until all ranks were. Blocks up to the
 * deadline. Sets the error text by host->fail. Returns MSDU_OK, ERR_INVALID, ERR_TIMEOUT (names
 * the missing ranks or the address), ERR_DENIED (names the cause), ERR_IO, ERR_PEER_LOST.
 */
msdu_status msdu__hub_open(const msdu_host *host, msdu__hub **hub_out);

/* Leave; NULL is allowed. Rank 0's hub ends with it. */
void msdu__hub_close(msdu__hub *hub);

/* Say that this rank leaves in peace, and wait up to timeout_ns until all others said so. */
void msdu__hub_bye(msdu__hub *hub, uint64_t timeout_ns);

/* From here on the hub asks watch; NULL ends it and waits for a call under way. */
void msdu__hub_watch_set(msdu__hub *hub, const msdu__hub_watch *watch);

/* A key-value store. get waits for the key up to the deadline; release its value with free(). */
msdu_status msdu__hub_set(msdu__hub *hub, const char *key, const void *data, size_t bytes);
msdu_status msdu__hub_get(msdu__hub *hub, const char *key, void **data_out, size_t *bytes_out);

/* End the group: what the other ranks see is said at msdu_backend.abort. Thread: any. */
void msdu__hub_abort(msdu__hub *hub, msdu_status status, const char *why);

/*
 * Why the group failed, waiting up to timeout_ns for it: a negative status and one line of text,
 * or MSDU_OK. A rank that left counts as lost once the time is over. Thread: any.
 */
msdu_status msdu__hub_verdict(msdu__hub *hub, uint64_t timeout_ns, char text[MSDU__HUB_TEXT_BYTES]);

/* Sign data with random bytes of this run, known to admitted ranks only. False if it cannot. */
bool msdu__hub_sign(const msdu__hub *hub, const void *data, size_t bytes,
                    uint8_t mac_out[MSDU__HUB_NONCE_BYTES]);

/* Numeric address of this rank's connection to the hub: where data connections should be bound. */
const char *msdu__hub_address(const msdu__hub *hub);

#ifdef __cplusplus
}
#endif

#endif
