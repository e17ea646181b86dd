/* SPDX-License-Identifier: Apache-2.0 */
/* Small values among the members of an epoch: who sets one sends it to all others. */
#include "impl.h"

#include <stdio.h>
#include <string.h>

static struct msdu__value *find(struct msdu__mail *mail, const char *key)
{
    for (uint32_t i = 0; i < MSDU__VALUES_MOST; i++) {
        if (mail->values[i].key[0] != '\0' && strcmp(mail->values[i].key, key) == 0) {
            return &mail->values[i];
        }
    }
    return NULL;
}

/* The value of a key, which is made if need be. Lock held. */
static struct msdu__value *place_for(struct msdu__mail *mail, const char *key)
{
    struct msdu__value *value = find(mail, key);
    if (value == NULL) {
        value = &mail->values[mail->values_count++ % MSDU__VALUES_MOST];
    }
    memset(value, 0, sizeof(*value));
    (void)snprintf(value->key, sizeof(value->key), "%s", key);
    return value;
}

static bool is_missing(const struct msdu__council *council, const struct msdu__value *value,
                       uint32_t rank)
{
    return value->number == council->record.number && council->rank >= 0 &&
           (int32_t)rank != council->rank && !value->has_it[rank] &&
           council->peers[rank].seen != MSDU__SEEN_DEAD;
}

bool msdu__values_are_pending(struct msdu__members *members)
{
    const struct msdu__council *council = &members->standby.council;
    bool is_pending = false;
    (void)pthread_mutex_lock(&members->mail.lock);
    for (uint32_t i = 0; i < MSDU__VALUES_MOST; i++) {
        for (uint32_t rank = 0; rank < council->record.count; rank++) {
            is_pending = is_pending || is_missing(council, &members->mail.values[i], rank);
        }
    }
    (void)pthread_mutex_unlock(&members->mail.lock);
    return is_pending;
}

static void push(struct msdu__standby *standby, const struct msdu__value *value, uint32_t rank)
{
    unsigned char body[MSDU__VALUE_KEY + MSDU_STORE_VALUE_BYTES];
    size_t length = strlen(value->key) + 1;
    struct msdu__line *line = msdu__lines_to(standby, &standby->council.record.members[rank]);
    memcpy(body, value->key, length);
    memcpy(body + length, value->data, value->bytes);
    if (line != NULL && msdu__lines_has_room(line)) {
        msdu__line_send(line, MSDU__FRAME_VALUE, body, length + value->bytes);
    }
}

void msdu__values_push(struct msdu__members *members)
{
    struct msdu__standby *standby = &members->standby;
    (void)pthread_mutex_lock(&members->mail.lock);
    for (uint32_t i = 0; i < MSDU__VALUES_MOST; i++) {
        for (uint32_t rank = 0; rank < standby->council.record.count; rank++) {
            if (is_missing(&standby->council, &members->mail.values[i], rank)) {
                push(standby, &members->mail.values[i], rank);
            }
        }
    }
    (void)pthread_mutex_unlock(&members->mail.lock);
}

static void take_value(struct msdu__mail *mail, const char *key, const unsigned char *data,
                       size_t bytes)
{
    struct msdu__value *value = place_for(mail, key);
    value->bytes = (uint32_t)bytes;
    memcpy(value->data, data, bytes);
    (void)pthread_cond_broadcast(&mail->changed);
}

void msdu__values_take(struct msdu__members *members, struct msdu__line *line, bool is_reply,
                       const unsigned char *body, size_t bytes)
{
    struct msdu__mail *mail = &members->mail;
    const char *key = (const char *)body;
    size_t limit = bytes < MSDU__VALUE_KEY ? bytes : MSDU__VALUE_KEY;
    int32_t rank = msdu__record_find(&members->standby.council.record, &line->id);
    if (limit == 0 || memchr(body, 0, limit) == NULL) {
        return;
    }
    size_t length = strlen(key) + 1;
    (void)pthread_mutex_lock(&mail->lock);
    struct msdu__value *own = find(mail, key);
    if (is_reply && own != NULL && rank >= 0) {
        own->has_it[rank] = true;
    } else if (!is_reply && bytes - length <= MSDU_STORE_VALUE_BYTES) {
        take_value(mail, key, body + length, bytes - length);
    }
    (void)pthread_mutex_unlock(&mail->lock);
    if (!is_reply) {
        msdu__line_send(line, MSDU__FRAME_HAS_VALUE, key, length);
    }
}

/* --- the owner's side: include/msdu/store.h --- */

static msdu_status set(void *user, const char *key, const void *data, size_t bytes,
                       uint64_t timeout_ns, char *why)
{
    struct msdu__members *members = user;
    (void)timeout_ns;
    if (strlen(key) >= MSDU__VALUE_KEY || bytes > MSDU_STORE_VALUE_BYTES) {
        (void)snprintf(why, MSDU_STORE_WHY_BYTES, "the key or the value is too long");
        return MSDU_ERR_INVALID;
    }
    (void)pthread_mutex_lock(&members->mail.lock);
    struct msdu__value *value = place_for(&members->mail, key);
    value->bytes = (uint32_t)bytes;
    value->number = members->mail.record.number;
    memcpy(value->data, data, bytes);
    (void)pthread_mutex_unlock(&members->mail.lock);
    msdu__mail_wake(members);
    return MSDU_OK;
}

/* Why nobody will set a key any more; false: somebody may. Lock held. */
static bool is_in_vain(struct msdu__members *members, char *why)
{
    const char *cause = NULL;
    if (members->mail.status != MSDU_OK) {
        cause = "this process left the job";
    } else if (members->mail.is_lost) {
        cause = "rank 0 was lost";
    } else if (msdu__flag_get(&members->mail.is_awaited)) {
        cause = "another member has left this epoch already";
    }
    if (cause != NULL) {
        (void)snprintf(why, MSDU_STORE_WHY_BYTES, "%s", cause);
    }
    return cause != NULL;
}

static msdu_status get(void *user, const char *key, void *data, size_t *bytes, uint64_t timeout_ns,
                       char *why)
{
    struct msdu__members *members = user;
    struct msdu__mail *mail = &members->mail;
    struct timespec until = msdu__clock_spec(msdu__clock_now() + timeout_ns);
    msdu_status status = MSDU_OK;
    (void)pthread_mutex_lock(&mail->lock);
    mail->getters++;
    msdu__mail_wake(members);
    struct msdu__value *value = find(mail, key);
    while (value == NULL && status == MSDU_OK) {
        if (is_in_vain(members, why)) {
            status = MSDU_ERR_PEER_LOST;
        } else if (pthread_cond_timedwait(&mail->changed, &mail->lock, &until) != 0) {
            (void)snprintf(why, MSDU_STORE_WHY_BYTES, "no member has set it yet");
            status = MSDU_ERR_TIMEOUT;
        }
        value = find(mail, key);
    }
    if (value != NULL) {
        status = MSDU_OK;
        memcpy(data, value->data, value->bytes < *bytes ? value->bytes : *bytes);
        *bytes = value->bytes;
    }
    mail->getters--;
    (void)pthread_mutex_unlock(&mail->lock);
    return status;
}

msdu_store msdu__members_store(msdu__members *members)
{
    msdu_store store = MSDU_STORE_INIT;
    store.user = members;
    store.epoch = members->number;
    store.set = set;
    store.get = get;
    return store;
}
