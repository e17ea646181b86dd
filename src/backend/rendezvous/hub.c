/* SPDX-License-Identifier: Apache-2.0 */
/* The hub as its owner sees it: open, store, abort, verdict, close. */
#include "hub.h"

#include "backend/rank_list.h"
#include "impl.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CONNECT_NS   UINT64_C(3000000000) /* longest single attempt to connect */
#define GRACE_NS     UINT64_C(3000000000) /* rank 0's verdict comes this much after a deadline */
#define RETRY_MIN_NS UINT64_C(10000000)
#define RETRY_MAX_NS UINT64_C(250000000)
#define REMIND_NS    UINT64_C(10000000000) /* a rank that waits longer says so once */
#define SPAN_BYTES   32

static uint64_t earlier(uint64_t left, uint64_t right)
{
    return left < right ? left : right;
}

static msdu_status fail_place(const struct msdu__hub *hub, msdu_status status, const char *what,
                              const char *cause)
{
    char text[MSDU__HUB_TEXT_BYTES];
    (void)snprintf(text, sizeof(text), "rendezvous %.160s: %s%s%.200s", hub->find.shown, what,
                   cause[0] != '\0' ? ": " : "", cause);
    return hub->host->fail(status, text);
}

static void hub_free(struct msdu__hub *hub)
{
    if (hub->fd >= 0) {
        (void)close(hub->fd);
    }
    (void)pthread_cond_destroy(&hub->changed);
    (void)pthread_mutex_destroy(&hub->lock);
    (void)pthread_mutex_destroy(&hub->send_lock);
    (void)pthread_mutex_destroy(&hub->watch_lock);
    free(hub->value);
    free(hub->has_left);
    explicit_bzero(&hub->find, sizeof(hub->find)); /* Redis' password */
    free(hub);
}

static struct msdu__hub *hub_new(const msdu_host *host)
{
    struct msdu__hub *hub = calloc(1, sizeof(*hub));
    if (hub == NULL) {
        return NULL;
    }
    hub->host = host;
    hub->fd = -1;
    msdu__cond_init(&hub->changed);
    (void)pthread_mutex_init(&hub->lock, NULL);
    (void)pthread_mutex_init(&hub->send_lock, NULL);
    (void)pthread_mutex_init(&hub->watch_lock, NULL);
    hub->has_left = calloc((size_t)host->ranks, sizeof(bool));
    if (hub->has_left == NULL) {
        hub_free(hub);
        return NULL;
    }
    return hub;
}

/* Rank 0: listen at the first of its addresses that can be had. */
static msdu_status listen_own(struct msdu__hub *hub, int *fd_out)
{
    struct msdu__address addresses[MSDU__NET_ADDRESSES];
    char cause[MSDU__CAUSE_BYTES];
    char place[MSDU__NET_TEXT_BYTES];
    size_t count = msdu__find_own(&hub->find, hub->host, addresses, cause);
    int fd = -1;
    for (size_t i = 0; i < count && fd < 0; i++) {
        fd = msdu__net_listen(&addresses[i]);
        if (fd < 0) {
            int error = errno;
            msdu__net_text(&addresses[i], true, place);
            (void)snprintf(cause, sizeof(cause), "%s: %s", place, strerror(error));
        }
    }
    if (fd < 0) {
        return fail_place(hub, MSDU_ERR_IO, "rank 0 cannot listen there", cause);
    }
    *fd_out = fd;
    return MSDU_OK;
}

static msdu_status publish(struct msdu__hub *hub, int listen_fd, const uint8_t *id)
{
    struct msdu__address own;
    char cause[MSDU__CAUSE_BYTES] = "no address";
    if (!msdu__net_own(listen_fd, &own)) {
        return fail_place(hub, MSDU_ERR_IO, "rank 0 cannot listen there", cause);
    }
    msdu__net_text(&own, false, hub->address);
    if (!msdu__find_publish(&hub->find, &own, id, hub->host->deadline_ns, cause)) {
        return fail_place(hub, MSDU_ERR_IO, "rank 0 cannot tell its address", cause);
    }
    return MSDU_OK;
}

static msdu_status open_first(struct msdu__hub *hub)
{
    uint8_t id[MSDU__ID_BYTES];
    int pair[2];
    int listen_fd = -1;
    msdu_status status = listen_own(hub, &listen_fd);
    if (status != MSDU_OK) {
        return status;
    }
    if (!msdu__net_random(id, sizeof(id)) ||
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0) {
        (void)close(listen_fd);
        return fail_place(hub, MSDU_ERR_IO, "no socket", strerror(errno));
    }
    hub->fd = pair[0];
    status = publish(hub, listen_fd, id);
    if (status != MSDU_OK) {
        (void)close(listen_fd);
        (void)close(pair[1]);
        return status;
    }
    return msdu__server_start(hub->host, listen_fd, pair[1], id, &hub->server);
}

/* One address: connect and shake hands. ERR_IO with a cause means: try again. */
static msdu_status try_address(struct msdu__hub *hub, const struct msdu__address *to,
                               const uint8_t *id, uint64_t until_ns, char cause[MSDU__CAUSE_BYTES])
{
    struct msdu__address source;
    char place[MSDU__NET_TEXT_BYTES];
    const char *interface = hub->host->interface;
    bool has_source = interface != NULL && interface[0] != '\0';
    if (has_source && !msdu__net_interface(interface, 0, &source)) {
        (void)snprintf(cause, MSDU__CAUSE_BYTES, "interface %.80s has no address", interface);
        return MSDU_ERR_IO;
    }
    int fd = msdu__net_connect(to, has_source ? &source : NULL,
                               earlier(until_ns, msdu__clock_now() + CONNECT_NS));
    if (fd < 0) {
        int error = errno;
        msdu__net_text(to, true, place);
        (void)snprintf(cause, MSDU__CAUSE_BYTES, "%s: %s", place, strerror(error));
        return MSDU_ERR_IO;
    }
    msdu__net_tune(fd, hub->host->deadline_ns);
    uint64_t end_ns = earlier(until_ns, msdu__clock_now() + MSDU__HANDSHAKE_NS);
    msdu_status status = msdu__auth_client(fd, hub->host, id, end_ns, cause);
    if (status != MSDU_OK) {
        (void)close(fd);
        return status;
    }
    hub->fd = fd;
    if (msdu__net_own(fd, &source)) {
        msdu__net_text(&source, false, hub->address);
    }
    return MSDU_OK;
}

/* MSDU_IN_PROGRESS with a cause means: try again. */
static msdu_status try_once(struct msdu__hub *hub, uint64_t until_ns, char cause[MSDU__CAUSE_BYTES])
{
    struct msdu__rank0_place found;
    msdu_status status = msdu__find_lookup(&hub->find, until_ns, &found, cause);
    if (status != MSDU_OK) {
        return status;
    }
    status = MSDU_ERR_IO;
    for (size_t i = 0; i < found.count && status == MSDU_ERR_IO; i++) {
        const uint8_t *id = found.has_id ? found.id : NULL;
        status = try_address(hub, &found.addresses[i], id, until_ns, cause);
    }
    return status == MSDU_ERR_IO ? MSDU_IN_PROGRESS : status;
}

/* Say once, while there is still time to do something, what this rank waits for. */
static void remind(const struct msdu__hub *hub, uint64_t *remind_ns, const char *cause)
{
    const msdu_host *host = hub->host;
    char text[MSDU__HUB_TEXT_BYTES];
    if (msdu__clock_now() < *remind_ns || host->log == NULL) {
        return;
    }
    *remind_ns = UINT64_MAX;
    (void)snprintf(text, sizeof(text), "rendezvous %.160s: still waiting for rank 0: %.200s",
                   hub->find.shown, cause);
    host->log(host->user, MSDU_LOG_WARN, text);
}

static msdu_status open_other(struct msdu__hub *hub)
{
    uint64_t remind_ns = msdu__clock_now() + REMIND_NS;
    char cause[MSDU__CAUSE_BYTES] = "";
    char what[96];
    char span[SPAN_BYTES];
    uint64_t until_ns = msdu__clock_now() + hub->host->deadline_ns;
    uint64_t pause_ns = RETRY_MIN_NS;
    for (;;) {
        msdu_status status = try_once(hub, until_ns, cause);
        if (status == MSDU_OK) {
            return MSDU_OK;
        }
        if (status != MSDU_IN_PROGRESS) {
            (void)snprintf(what, sizeof(what),
                           status == MSDU_ERR_DENIED ? "it refused rank %" PRId32
                                                     : "rank %" PRId32
                                                       " cannot learn where rank 0 is",
                           hub->host->rank);
            return fail_place(hub, status, what, cause);
        }
        /* An attempt in the last moments would only replace the cause by "timed out". */
        if (msdu__clock_now() + 2 * pause_ns >= until_ns) {
            msdu__span_text(hub->host->deadline_ns, span, sizeof(span));
            (void)snprintf(what, sizeof(what), "rank 0 was not reached within %s", span);
            return fail_place(hub, MSDU_ERR_TIMEOUT, what, cause);
        }
        remind(hub, &remind_ns, cause);
        msdu__net_sleep(pause_ns);
        pause_ns = earlier(2 * pause_ns, RETRY_MAX_NS);
    }
}

static msdu_status wait_start(struct msdu__hub *hub)
{
    char text[MSDU__HUB_TEXT_BYTES] = "rank 0 did not say that all ranks are there";
    uint64_t until_ns = msdu__clock_now() + hub->host->deadline_ns + GRACE_NS;
    bool is_late = false;
    (void)pthread_mutex_lock(&hub->lock);
    while (!hub->has_started && hub->status == MSDU_OK && !hub->is_over && !is_late) {
        is_late = !msdu__client_wait(hub, until_ns);
    }
    msdu_status status = hub->has_started ? MSDU_OK : MSDU_ERR_TIMEOUT;
    if (!hub->has_started && hub->status != MSDU_OK) {
        status = hub->status;
        memcpy(text, hub->text, sizeof(text));
    }
    (void)pthread_mutex_unlock(&hub->lock);
    return status == MSDU_OK ? MSDU_OK : hub->host->fail(status, text);
}

msdu_status msdu__hub_open(const msdu_host *host, msdu__hub **hub_out)
{
    if (strlen(host->job) >= MSDU__JOB_BYTES) {
        return host->fail(MSDU_ERR_INVALID, "job: the name is longer than 255 bytes");
    }
    struct msdu__hub *hub = hub_new(host);
    if (hub == NULL) {
        return host->fail(MSDU_ERR_NO_MEMORY, "no memory for the rendezvous");
    }
    msdu_status status = msdu__find_parse(host, &hub->find);
    if (status == MSDU_OK) {
        status = host->rank == 0 ? open_first(hub) : open_other(hub);
    }
    if (status == MSDU_OK && !msdu__client_start(hub)) {
        status = host->fail(MSDU_ERR_NO_MEMORY, "no thread for the rendezvous");
    }
    if (status == MSDU_OK) {
        status = wait_start(hub);
    }
    if (status != MSDU_OK) {
        msdu__hub_close(hub);
        return status;
    }
    *hub_out = hub;
    return MSDU_OK;
}

void msdu__hub_close(msdu__hub *hub)
{
    if (hub == NULL) {
        return;
    }
    msdu__hub_watch_set(hub, NULL);
    if (hub->host->rank == 0) {
        msdu__find_withdraw(&hub->find);
    }
    msdu__thread_stop(&hub->thread);
    msdu__server_stop(hub->server);
    hub_free(hub);
}

void msdu__hub_bye(msdu__hub *hub, uint64_t timeout_ns)
{
    uint64_t until_ns = msdu__clock_now() + timeout_ns;
    bool is_late = false;
    (void)pthread_mutex_lock(&hub->lock);
    hub->is_leaving = true;
    (void)pthread_mutex_unlock(&hub->lock);
    is_late = !msdu__client_say(hub, MSDU__SAY_BYE, NULL, 0);
    (void)pthread_mutex_lock(&hub->lock);
    while (!is_late && !hub->is_over && hub->status == MSDU_OK &&
           hub->left_count < hub->host->ranks) {
        is_late = !msdu__client_wait(hub, until_ns);
    }
    (void)pthread_mutex_unlock(&hub->lock);
}

void msdu__hub_watch_set(msdu__hub *hub, const msdu__hub_watch *watch)
{
    (void)pthread_mutex_lock(&hub->watch_lock);
    hub->watch = watch;
    (void)pthread_mutex_lock(&hub->lock);
    bool has_failed = hub->status != MSDU_OK;
    (void)pthread_mutex_unlock(&hub->lock);
    if (watch != NULL && has_failed) {
        watch->failed(watch->user);
    }
    (void)pthread_mutex_unlock(&hub->watch_lock);
}

msdu_status msdu__hub_set(msdu__hub *hub, const char *key, const void *data, size_t bytes)
{
    size_t key_bytes = strlen(key) + 1;
    if (key_bytes > MSDU__KEY_BYTES || bytes > MSDU__HUB_VALUE_BYTES) {
        return hub->host->fail(MSDU_ERR_INVALID, "rendezvous: key or value is too large");
    }
    unsigned char *body = malloc(key_bytes + bytes);
    if (body == NULL) {
        return hub->host->fail(MSDU_ERR_NO_MEMORY, "rendezvous: no memory for a value");
    }
    memcpy(body, key, key_bytes);
    if (bytes > 0) {
        memcpy(body + key_bytes, data, bytes);
    }
    bool is_sent = msdu__client_say(hub, MSDU__SAY_SET, body, key_bytes + bytes);
    free(body);
    return is_sent ? MSDU_OK : hub->host->fail(MSDU_ERR_PEER_LOST, "rank 0 was lost");
}

msdu_status msdu__hub_get(msdu__hub *hub, const char *key, void **data_out, size_t *bytes_out)
{
    char text[MSDU__HUB_TEXT_BYTES] = "";
    uint64_t until_ns = msdu__clock_now() + hub->host->deadline_ns;
    size_t key_bytes = strlen(key) + 1;
    if (key_bytes > MSDU__KEY_BYTES) {
        return hub->host->fail(MSDU_ERR_INVALID, "rendezvous: key is too large");
    }
    (void)pthread_mutex_lock(&hub->lock);
    memcpy(hub->key, key, key_bytes);
    (void)pthread_mutex_unlock(&hub->lock);
    bool is_late = !msdu__client_say(hub, MSDU__SAY_GET, key, key_bytes);
    (void)pthread_mutex_lock(&hub->lock);
    while (hub->value == NULL && hub->status == MSDU_OK && !hub->is_over && !is_late) {
        is_late = !msdu__client_wait(hub, until_ns);
    }
    void *value = hub->value;
    *bytes_out = hub->value_bytes;
    hub->value = NULL;
    hub->key[0] = '\0';
    msdu_status status = hub->status != MSDU_OK ? hub->status : MSDU_ERR_TIMEOUT;
    if (hub->status != MSDU_OK) {
        memcpy(text, hub->text, sizeof(text));
    } else {
        (void)snprintf(text, sizeof(text), "rendezvous: no rank set \"%.128s\" in time", key);
    }
    (void)pthread_mutex_unlock(&hub->lock);
    if (value == NULL) {
        return hub->host->fail(status, text);
    }
    *data_out = value;
    return MSDU_OK;
}

void msdu__hub_abort(msdu__hub *hub, msdu_status status, const char *why)
{
    char text[MSDU__HUB_TEXT_BYTES];
    char said[MSDU__KEY_BYTES];
    (void)snprintf(said, sizeof(said), "%d %s", (int)status, why);
    (void)msdu__client_say(hub, MSDU__SAY_ABORT, said, strlen(said) + 1);
    (void)snprintf(text, sizeof(text), "rank %" PRId32 " was lost (it aborted: %s)",
                   hub->host->rank, why);
    msdu__client_fail(hub, MSDU_ERR_PEER_LOST, text);
}

msdu_status msdu__hub_verdict(msdu__hub *hub, uint64_t timeout_ns, char text[MSDU__HUB_TEXT_BYTES])
{
    uint64_t until_ns = msdu__clock_now() + timeout_ns;
    bool is_late = timeout_ns == 0;
    (void)pthread_mutex_lock(&hub->lock);
    while (hub->status == MSDU_OK && !hub->is_over && !is_late) {
        is_late = !msdu__client_wait(hub, until_ns);
    }
    msdu_status status = hub->status;
    memcpy(text, hub->text, MSDU__HUB_TEXT_BYTES);
    for (int32_t rank = 0; rank < hub->host->ranks && status == MSDU_OK; rank++) {
        if (timeout_ns > 0 && hub->has_left[rank] && rank != hub->host->rank) {
            status = MSDU_ERR_PEER_LOST;
            (void)snprintf(text, MSDU__HUB_TEXT_BYTES,
                           "rank %" PRId32 " was lost (it left the group)", rank);
        }
    }
    (void)pthread_mutex_unlock(&hub->lock);
    return status;
}

bool msdu__hub_sign(const msdu__hub *hub, const void *data, size_t bytes,
                    uint8_t mac_out[MSDU__HUB_NONCE_BYTES])
{
    return msdu__auth_sign(hub->nonce, sizeof(hub->nonce), data, bytes, mac_out);
}

const char *msdu__hub_address(const msdu__hub *hub)
{
    return hub->address;
}
