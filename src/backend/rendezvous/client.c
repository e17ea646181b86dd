/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's side of the hub: a thread that reads what the hub says and looks after stalls. */
#include "backend/rank_list.h"
#include "impl.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SAY_NS      UINT64_C(2000000000) /* longest time to hand a message over */
#define TICK_MIN_MS 5
#define SILENT_NS   UINT64_C(2000000000) /* the hub's verdict on a stall takes it one second */
#define TICK_MAX_MS 200

bool msdu__client_wait(struct msdu__hub *hub, uint64_t until_ns)
{
    struct timespec until = msdu__clock_spec(until_ns);
    return pthread_cond_timedwait(&hub->changed, &hub->lock, &until) != ETIMEDOUT;
}

bool msdu__client_say(struct msdu__hub *hub, uint32_t type, const void *body, size_t bytes)
{
    struct msdu__head head = {.type = type, .bytes = (uint32_t)bytes};
    (void)pthread_mutex_lock(&hub->send_lock);
    uint64_t until_ns = msdu__clock_now() + SAY_NS;
    bool is_sent = msdu__net_send(hub->fd, &head, sizeof(head), until_ns) &&
                   (bytes == 0 || msdu__net_send(hub->fd, body, bytes, until_ns));
    (void)pthread_mutex_unlock(&hub->send_lock);
    return is_sent;
}

void msdu__client_fail(struct msdu__hub *hub, msdu_status status, const char *text)
{
    (void)pthread_mutex_lock(&hub->lock);
    bool is_first = hub->status == MSDU_OK;
    if (is_first) {
        hub->status = status;
        (void)snprintf(hub->text, sizeof(hub->text), "%s", text);
        (void)pthread_cond_broadcast(&hub->changed);
    }
    (void)pthread_mutex_unlock(&hub->lock);
    if (is_first) {
        (void)pthread_mutex_lock(&hub->watch_lock);
        if (hub->watch != NULL) {
            hub->watch->failed(hub->watch->user);
        }
        (void)pthread_mutex_unlock(&hub->watch_lock);
    }
}

static void take_value(struct msdu__hub *hub, const unsigned char *body, size_t bytes)
{
    const unsigned char *zero = memchr(body, 0, bytes);
    if (zero == NULL) {
        return;
    }
    size_t length = (size_t)(zero - body) + 1;
    (void)pthread_mutex_lock(&hub->lock);
    if (hub->value == NULL && strcmp(hub->key, (const char *)body) == 0) {
        hub->value_bytes = bytes - length;
        hub->value = malloc(hub->value_bytes + 1);
        if (hub->value != NULL) {
            memcpy(hub->value, body + length, hub->value_bytes);
        }
        (void)pthread_cond_broadcast(&hub->changed);
    }
    (void)pthread_mutex_unlock(&hub->lock);
}

static void take_ask(struct msdu__hub *hub, const struct msdu__stall *ask)
{
    struct msdu__here here = {.index = ask->index};
    (void)pthread_mutex_lock(&hub->watch_lock);
    if (hub->watch != NULL) {
        here.started =
            hub->watch->progress(hub->watch->user, ask->lane, ask->sequence, &here.print);
    }
    (void)pthread_mutex_unlock(&hub->watch_lock);
    (void)msdu__client_say(hub, MSDU__SAY_HERE, &here, sizeof(here));
}

static void take_start(struct msdu__hub *hub, const unsigned char *nonce)
{
    (void)pthread_mutex_lock(&hub->lock);
    memcpy(hub->nonce, nonce, sizeof(hub->nonce));
    hub->has_started = true;
    (void)pthread_cond_broadcast(&hub->changed);
    (void)pthread_mutex_unlock(&hub->lock);
}

static void take_left(struct msdu__hub *hub, uint32_t rank)
{
    (void)pthread_mutex_lock(&hub->lock);
    if (rank < (uint32_t)hub->host->ranks && !hub->has_left[rank]) {
        hub->has_left[rank] = true;
        hub->left_count++;
        (void)pthread_cond_broadcast(&hub->changed);
    }
    (void)pthread_mutex_unlock(&hub->lock);
}

static void take_message(struct msdu__hub *hub, uint32_t type, const unsigned char *body,
                         size_t bytes)
{
    struct msdu__verdict verdict;
    struct msdu__stall ask;
    uint32_t rank = 0;
    if (type == MSDU__SAY_START && bytes == sizeof(hub->nonce)) {
        take_start(hub, body);
    } else if (type == MSDU__SAY_VALUE) {
        take_value(hub, body, bytes);
    } else if (type == MSDU__SAY_VERDICT && bytes == sizeof(verdict)) {
        memcpy(&verdict, body, sizeof(verdict));
        verdict.text[sizeof(verdict.text) - 1] = '\0';
        msdu__client_fail(hub, (msdu_status)verdict.status, verdict.text);
    } else if (type == MSDU__SAY_ASK && bytes == sizeof(ask)) {
        memcpy(&ask, body, sizeof(ask));
        take_ask(hub, &ask);
    } else if (type == MSDU__SAY_LEFT && bytes == sizeof(rank)) {
        memcpy(&rank, body, sizeof(rank));
        take_left(hub, rank);
    }
}

/* The connection ended; unless rank 0 or this rank left in peace, that is a loss. */
static void take_end(struct msdu__hub *hub, const char *cause)
{
    char text[MSDU__HUB_TEXT_BYTES];
    (void)pthread_mutex_lock(&hub->lock);
    bool is_in_peace = hub->is_leaving || hub->has_left[0];
    (void)pthread_mutex_unlock(&hub->lock);
    if (!is_in_peace) {
        (void)snprintf(text, sizeof(text), "rank 0 was lost (%s)", cause);
        msdu__client_fail(hub, MSDU_ERR_PEER_LOST, text);
    }
    /* Only now, so that nobody who waits for a cause gives up before it is there. */
    (void)pthread_mutex_lock(&hub->lock);
    hub->is_over = true;
    (void)pthread_cond_broadcast(&hub->changed);
    (void)pthread_mutex_unlock(&hub->lock);
}

/* A stall was told and no verdict came: rank 0 itself does not run. */
static void blame_hub(struct msdu__hub *hub, const struct msdu__stall *stall)
{
    char text[MSDU__HUB_TEXT_BYTES];
    char span[32];
    msdu__span_text(hub->host->deadline_ns, span, sizeof(span));
    (void)snprintf(text, sizeof(text),
                   "rank 0 did not answer within %s: operation %" PRIu64 " of lane %" PRIu32
                   " did not end, and its hub is silent",
                   span, stall->sequence, stall->lane);
    msdu__client_fail(hub, MSDU_ERR_TIMEOUT, text);
}

/* Long before the deadline, now and then: does what takes so long end at all? */
static void wonder(struct msdu__hub *hub)
{
    struct msdu__stall stall = {.index = 0};
    uint64_t now_ns = msdu__clock_now();
    uint64_t deadline_ns = hub->host->deadline_ns;
    bool is_long = false;
    if (deadline_ns < 2 * MSDU__WONDER_NS || now_ns < hub->wondered_ns + MSDU__WONDER_NS) {
        return;
    }
    (void)pthread_mutex_lock(&hub->watch_lock);
    if (hub->watch != NULL) { /* stalled, if it were that much later */
        is_long = hub->watch->is_stalled(hub->watch->user, now_ns + deadline_ns - MSDU__WONDER_NS,
                                         &stall.lane, &stall.sequence);
    }
    (void)pthread_mutex_unlock(&hub->watch_lock);
    if (is_long) {
        hub->wondered_ns = now_ns;
        (void)msdu__client_say(hub, MSDU__SAY_WONDER, &stall, sizeof(stall));
    }
}

/* Ask the watch whether this rank waits for another one longer than it may, and tell the hub. */
static void report_stall(struct msdu__hub *hub)
{
    struct msdu__stall stall = {.index = 0};
    bool is_new = false;
    bool is_silent = false;
    uint64_t now_ns = msdu__clock_now();
    (void)pthread_mutex_lock(&hub->watch_lock);
    if (hub->watch != NULL &&
        hub->watch->is_stalled(hub->watch->user, now_ns, &stall.lane, &stall.sequence)) {
        is_new = !hub->has_reported || hub->reported.lane != stall.lane ||
                 hub->reported.sequence != stall.sequence;
        hub->reported_ns = is_new ? now_ns : hub->reported_ns;
        is_silent = hub->host->rank != 0 && now_ns > hub->reported_ns + SILENT_NS;
        hub->has_reported = true;
        hub->reported = stall;
    }
    (void)pthread_mutex_unlock(&hub->watch_lock);
    if (is_new) {
        (void)msdu__client_say(hub, MSDU__SAY_STALL, &stall, sizeof(stall));
    }
    if (is_silent) {
        blame_hub(hub, &stall);
    }
}

/* Read one message. The body was announced, so the hub is about to send all of it. */
static bool read_message(struct msdu__hub *hub)
{
    struct msdu__head head;
    uint64_t until_ns = msdu__clock_now() + hub->host->deadline_ns;
    if (!msdu__net_recv(hub->fd, &head, sizeof(head), until_ns)) {
        return false;
    }
    unsigned char *body = head.bytes <= MSDU__MESSAGE_BYTES ? malloc((size_t)head.bytes + 1) : NULL;
    bool is_read =
        body != NULL && (head.bytes == 0 || msdu__net_recv(hub->fd, body, head.bytes, until_ns));
    if (is_read) {
        take_message(hub, head.type, body, head.bytes);
    }
    free(body);
    return is_read;
}

static int tick_ms(const struct msdu__hub *hub)
{
    uint64_t tick = hub->host->deadline_ns / UINT64_C(16000000);
    tick = tick < TICK_MIN_MS ? TICK_MIN_MS : tick;
    return tick > TICK_MAX_MS ? TICK_MAX_MS : (int)tick;
}

static void *read_all(void *argument)
{
    struct msdu__hub *hub = argument;
    int wait_ms = tick_ms(hub);
    for (;;) {
        struct pollfd polls[] = {{.fd = hub->thread.stop_fd, .events = POLLIN},
                                 {.fd = hub->fd, .events = POLLIN}};
        if (poll(polls, 2, wait_ms) < 0 && errno != EINTR) {
            break;
        }
        if (polls[0].revents != 0) {
            break;
        }
        if (polls[1].revents != 0 && !read_message(hub)) {
            take_end(hub, errno == 0 ? "connection closed" : strerror(errno));
            break;
        }
        wonder(hub);
        report_stall(hub);
    }
    return NULL;
}

bool msdu__client_start(struct msdu__hub *hub)
{
    return msdu__thread_start(&hub->thread, read_all, hub);
}
