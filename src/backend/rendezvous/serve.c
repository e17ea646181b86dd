/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of admitted ranks: keys and values, lost ranks, aborts, stalls. */
#include "backend/rank_list.h"
#include "server.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAMES_BYTES 128
#define SPAN_BYTES  32

/* The first verdict is the last word: status and one line for all ranks. */
__attribute__((format(printf, 3, 4))) static void
give_verdict(struct msdu__server *server, msdu_status status, const char *format, ...)
{
    struct msdu__verdict *verdict = &server->verdict;
    if (server->has_verdict) {
        return;
    }
    verdict->status = status;
    va_list args;
    va_start(args, format);
    (void)vsnprintf(verdict->text, sizeof(verdict->text), format, args);
    va_end(args);
    server->has_verdict = true;
    msdu__server_send_all(server, MSDU__SAY_VERDICT, verdict, sizeof(*verdict));
}

void msdu__serve_admitted(struct msdu__server *server, struct msdu__conn *conn)
{
    if (server->has_verdict) {
        msdu__server_send(server, conn, MSDU__SAY_VERDICT, &server->verdict,
                          sizeof(server->verdict));
        return;
    }
    for (int32_t rank = 0; rank < server->host->ranks; rank++) {
        if (server->by_rank[rank] == NULL) {
            return;
        }
    }
    server->has_started = true;
    msdu__server_send_all(server, MSDU__SAY_START, server->nonce, sizeof(server->nonce));
}

void msdu__serve_lost(struct msdu__server *server, struct msdu__conn *conn, const char *cause)
{
    int32_t rank = conn->rank;
    bool is_in_peace = server->has_left[rank];
    server->by_rank[rank] = NULL;
    msdu__conn_close(conn);
    if (!is_in_peace) {
        give_verdict(server, MSDU_ERR_PEER_LOST, "rank %" PRId32 " was lost (%s)", rank, cause);
    }
}

static struct msdu__entry *find_entry(struct msdu__server *server, const char *key)
{
    struct msdu__entry *entry = server->entries;
    while (entry != NULL && strcmp(entry->key, key) != 0) {
        entry = entry->next;
    }
    return entry;
}

static void send_entry(struct msdu__server *server, int32_t rank, const struct msdu__entry *entry)
{
    size_t key_bytes = strlen(entry->key) + 1;
    unsigned char *body = malloc(key_bytes + entry->bytes);
    if (body == NULL || server->by_rank[rank] == NULL) {
        free(body);
        return;
    }
    memcpy(body, entry->key, key_bytes);
    memcpy(body + key_bytes, entry->value, entry->bytes);
    msdu__server_send(server, server->by_rank[rank], MSDU__SAY_VALUE, body,
                      key_bytes + entry->bytes);
    free(body);
}

static void answer_waiters(struct msdu__server *server, const struct msdu__entry *entry)
{
    struct msdu__waiter **at = &server->waiters;
    while (*at != NULL) {
        struct msdu__waiter *waiter = *at;
        if (strcmp(waiter->key, entry->key) != 0) {
            at = &waiter->next;
            continue;
        }
        *at = waiter->next;
        send_entry(server, waiter->rank, entry);
        free(waiter);
    }
}

static void take_set(struct msdu__server *server, const char *key, const unsigned char *value,
                     size_t bytes)
{
    if (find_entry(server, key) != NULL || server->entries_bytes + bytes > MSDU__STORE_BYTES) {
        return; /* a key is set once */
    }
    struct msdu__entry *entry = calloc(1, sizeof(*entry));
    if (entry == NULL) {
        return;
    }
    entry->key = strdup(key);
    entry->value = malloc(bytes + 1);
    if (entry->key == NULL || entry->value == NULL) {
        free(entry->key);
        free(entry->value);
        free(entry);
        return;
    }
    memcpy(entry->value, value, bytes);
    entry->bytes = bytes;
    entry->next = server->entries;
    server->entries = entry;
    server->entries_bytes += bytes;
    answer_waiters(server, entry);
}

static void take_get(struct msdu__server *server, int32_t rank, const char *key)
{
    const struct msdu__entry *entry = find_entry(server, key);
    if (entry != NULL) {
        send_entry(server, rank, entry);
        return;
    }
    struct msdu__waiter *waiter = calloc(1, sizeof(*waiter));
    if (waiter != NULL) {
        waiter->rank = rank;
        (void)snprintf(waiter->key, sizeof(waiter->key), "%s", key);
        waiter->next = server->waiters;
        server->waiters = waiter;
    }
}

/* Which ranks have not started the operation, by their answers or for want of one. */
static int32_t find_laggards(const struct msdu__server *server, uint32_t index, bool *is_behind)
{
    int32_t ranks = server->host->ranks;
    int32_t count = 0;
    for (int32_t rank = 0; rank < ranks; rank++) {
        size_t at = (size_t)index * (size_t)ranks + (size_t)rank;
        is_behind[rank] =
            !server->has_here[at] || server->heres[at].started <= server->stalls[index].sequence;
        count += is_behind[rank];
    }
    return count;
}

static void name_laggards(struct msdu__server *server, uint32_t index, const bool *is_behind)
{
    char names[NAMES_BYTES];
    char span[SPAN_BYTES];
    const struct msdu__stall *stall = &server->stalls[index];
    (void)msdu__rank_list(is_behind, true, server->host->ranks, names, sizeof(names));
    msdu__span_text(server->host->deadline_ns, span, sizeof(span));
    give_verdict(server, MSDU_ERR_TIMEOUT,
                 "%s did not reach operation %" PRIu64 " of lane %" PRIu32 " within %s", names,
                 stall->sequence, stall->lane, span);
}

static void tell_difference(struct msdu__server *server, const struct msdu__stall *stall,
                            struct msdu__said a, struct msdu__said b)
{
    char text[MSDU__HUB_TEXT_BYTES];
    msdu__differ_text(a, b, stall->sequence, stall->lane, text, sizeof(text));
    give_verdict(server, MSDU_ERR_MISMATCH, "%s", text);
}

/* All ranks started the operation; do they mean the same one? */
static void compare_prints(struct msdu__server *server, uint32_t index)
{
    int32_t ranks = server->host->ranks;
    const struct msdu__here *heres = server->heres + (size_t)index * (size_t)ranks;
    int32_t first = -1;
    for (int32_t rank = 0; rank < ranks; rank++) {
        if (heres[rank].print == 0) {
            continue;
        }
        if (first >= 0 && heres[rank].print != heres[first].print) {
            tell_difference(server, &server->stalls[index],
                            (struct msdu__said){first, heres[first].print},
                            (struct msdu__said){rank, heres[rank].print});
            return;
        }
        first = first >= 0 ? first : rank;
    }
}

static bool has_all_answers(const struct msdu__server *server, uint32_t index)
{
    int32_t ranks = server->host->ranks;
    for (int32_t rank = 0; rank < ranks; rank++) {
        if (!server->has_here[(size_t)index * (size_t)ranks + (size_t)rank]) {
            return false;
        }
    }
    return true;
}

/* Judge a stall once all have answered, or finally when the time for answers is over. */
static void judge_stall(struct msdu__server *server, uint32_t index, bool is_final)
{
    bool *is_behind = calloc((size_t)server->host->ranks, sizeof(bool));
    if (is_behind == NULL || server->has_verdict ||
        (!is_final && !has_all_answers(server, index))) {
        free(is_behind);
        return;
    }
    if (find_laggards(server, index, is_behind) > 0) {
        name_laggards(server, index, is_behind);
    } else {
        compare_prints(server, index);
    }
    free(is_behind);
}

static void take_stall(struct msdu__server *server, const struct msdu__stall *said)
{
    for (uint32_t i = 0; i < server->stalls_count; i++) {
        const struct msdu__stall *known = &server->stalls[i];
        if (known->lane == said->lane && known->sequence == said->sequence) {
            return;
        }
    }
    if (server->stalls_count == MSDU__STALLS_MAX || server->has_verdict) {
        return;
    }
    struct msdu__stall *stall = &server->stalls[server->stalls_count];
    *stall = *said;
    stall->index = server->stalls_count++;
    if (server->stall_until_ns == 0) {
        server->stall_until_ns = msdu__clock_now() + MSDU__COLLECT_NS;
    }
    msdu__server_send_all(server, MSDU__SAY_ASK, stall, sizeof(*stall));
}

/*
 * Long before the deadline: ranks that started different operations in one place wait in vain. Who
 * has not come so far is only slow. One question at a time, whatever how many ask.
 */
static void take_wonder(struct msdu__server *server, const struct msdu__stall *said)
{
    uint64_t now_ns = msdu__clock_now();
    if (server->has_verdict || now_ns < server->wondered_ns + MSDU__WONDER_NS) {
        return;
    }
    uint32_t count = server->wonder.index + 1;
    server->wonder = *said;
    server->wonder.index = count < MSDU__STALLS_MAX ? MSDU__STALLS_MAX : count;
    server->wonder_first.print = 0;
    server->wondered_ns = now_ns;
    msdu__server_send_all(server, MSDU__SAY_ASK, &server->wonder, sizeof(server->wonder));
}

static void compare_wonder(struct msdu__server *server, int32_t rank, const struct msdu__here *here)
{
    if (here->print == 0) {
        return;
    }
    if (server->wonder_first.print == 0) {
        server->wonder_first = *here;
        server->wonder_rank = rank;
    } else if (here->print != server->wonder_first.print) {
        tell_difference(server, &server->wonder,
                        (struct msdu__said){server->wonder_rank, server->wonder_first.print},
                        (struct msdu__said){rank, here->print});
    }
}

static void take_here(struct msdu__server *server, int32_t rank, const struct msdu__here *here)
{
    if (here->index >= MSDU__STALLS_MAX && here->index == server->wonder.index) {
        compare_wonder(server, rank, here);
        return;
    }
    if (here->index < server->stalls_count) {
        size_t at = (size_t)here->index * (size_t)server->host->ranks + (size_t)rank;
        server->heres[at] = *here;
        server->has_here[at] = true;
        judge_stall(server, here->index, false);
    }
}

static void take_bye(struct msdu__server *server, int32_t rank)
{
    uint32_t left = (uint32_t)rank;
    server->has_left[rank] = true;
    msdu__server_send_all(server, MSDU__SAY_LEFT, &left, sizeof(left));
}

/* A message of text or key must have its zero. */
static bool has_text(const unsigned char *body, size_t bytes, size_t limit)
{
    const void *zero = memchr(body, 0, bytes < limit ? bytes : limit);
    return zero != NULL;
}

/* "STATUS cause": what all ranks find by themselves is passed on as it is, whoever was first. */
static void take_abort(struct msdu__server *server, int32_t rank, const char *text)
{
    char *why = NULL;
    long status = strtol(text, &why, 10);
    why += *why == ' ' ? 1 : 0;
    if (status == MSDU_ERR_NOT_FINITE || status == MSDU_ERR_MISMATCH) {
        give_verdict(server, (msdu_status)status, "%s", why);
    } else {
        give_verdict(server, MSDU_ERR_PEER_LOST, "rank %" PRId32 " was lost (it aborted: %s)", rank,
                     why);
    }
}

static bool take_text(struct msdu__server *server, const struct msdu__conn *conn, uint32_t type,
                      const unsigned char *body, size_t bytes)
{
    const char *text = (const char *)body;
    if (!has_text(body, bytes, MSDU__KEY_BYTES)) {
        return false;
    }
    size_t length = strlen(text) + 1;
    if (type == MSDU__SAY_SET) {
        take_set(server, text, body + length, bytes - length);
    } else if (type == MSDU__SAY_GET) {
        take_get(server, conn->rank, text);
    } else {
        take_abort(server, conn->rank, text);
    }
    return true;
}

static bool take_message(struct msdu__server *server, const struct msdu__conn *conn, uint32_t type,
                         const unsigned char *body, size_t bytes)
{
    struct msdu__stall stall;
    struct msdu__here here;
    switch (type) {
    case MSDU__SAY_SET:
    case MSDU__SAY_GET:
    case MSDU__SAY_ABORT:
        return take_text(server, conn, type, body, bytes);
    case MSDU__SAY_STALL:
    case MSDU__SAY_WONDER:
        if (bytes == sizeof(stall)) {
            memcpy(&stall, body, sizeof(stall));
            (type == MSDU__SAY_STALL ? take_stall : take_wonder)(server, &stall);
        }
        return bytes == sizeof(stall);
    case MSDU__SAY_HERE:
        if (bytes == sizeof(here)) {
            memcpy(&here, body, sizeof(here));
            take_here(server, conn->rank, &here);
        }
        return bytes == sizeof(here);
    case MSDU__SAY_BYE:
        take_bye(server, conn->rank);
        return true;
    default:
        return false;
    }
}

void msdu__serve_read(struct msdu__server *server, struct msdu__conn *conn)
{
    struct msdu__head head;
    memcpy(&head, conn->rx, sizeof(head));
    if (!take_message(server, conn, head.type, conn->rx + sizeof(head), head.bytes) &&
        conn->state == MSDU__CONN_RANK) {
        msdu__serve_lost(server, conn, "it sent a malformed message");
    }
}

static void expire_join(struct msdu__server *server)
{
    char names[NAMES_BYTES];
    char span[SPAN_BYTES];
    (void)msdu__rank_list(server->was_admitted, false, server->host->ranks, names, sizeof(names));
    msdu__span_text(server->host->deadline_ns, span, sizeof(span));
    give_verdict(server, MSDU_ERR_TIMEOUT, "%s did not join job %.128s within %s", names,
                 server->host->job, span);
}

static void remind_join(struct msdu__server *server)
{
    char names[NAMES_BYTES];
    char text[MSDU__HUB_TEXT_BYTES];
    server->remind_ns = UINT64_MAX;
    (void)msdu__rank_list(server->was_admitted, false, server->host->ranks, names, sizeof(names));
    (void)snprintf(text, sizeof(text), "rendezvous: still waiting for %s", names);
    if (server->host->log != NULL) {
        server->host->log(server->host->user, MSDU_LOG_WARN, text);
    }
}

static void expire_stall(struct msdu__server *server)
{
    char span[SPAN_BYTES];
    for (uint32_t i = 0; i < server->stalls_count; i++) {
        judge_stall(server, i, true);
    }
    msdu__span_text(server->host->deadline_ns, span, sizeof(span));
    give_verdict(server, MSDU_ERR_TIMEOUT,
                 "operation %" PRIu64 " of lane %" PRIu32
                 " did not end within %s although all ranks started it",
                 server->stalls[0].sequence, server->stalls[0].lane, span);
}

void msdu__serve_tick(struct msdu__server *server, uint64_t now_ns)
{
    bool is_joining = !server->has_started && !server->has_verdict;
    if (is_joining && now_ns >= server->join_until_ns) {
        expire_join(server);
    } else if (is_joining && now_ns >= server->remind_ns) {
        remind_join(server);
    }
    if (server->stall_until_ns != 0 && !server->has_verdict && now_ns >= server->stall_until_ns) {
        expire_stall(server);
    }
}

void msdu__serve_free(struct msdu__server *server)
{
    while (server->entries != NULL) {
        struct msdu__entry *entry = server->entries;
        server->entries = entry->next;
        free(entry->key);
        free(entry->value);
        free(entry);
    }
    while (server->waiters != NULL) {
        struct msdu__waiter *waiter = server->waiters;
        server->waiters = waiter->next;
        free(waiter);
    }
}
