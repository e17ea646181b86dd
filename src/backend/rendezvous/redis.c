/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Redis as a store. hiredis writes commands and reads replies; the bytes travel over our own
 * sockets, because hiredis has a deadline for each read only, and its writes may raise SIGPIPE.
 */
#include "redis.h"

#include "net.h"

#include <ctype.h>
#include <errno.h>
#include <hiredis/hiredis.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WAIT_NS     UINT64_C(2000000000) /* longest wait for an answer that is asked for again */
#define REPLY_BYTES 2048                 /* longest reply */

/* --- the URL --- */

/* Copy up to `end`, without %XX; false if it does not fit or is malformed. */
static bool decode(const char *text, const char *end, char *out, size_t room)
{
    size_t used = 0;
    for (; text < end && used + 1 < room; text++) {
        char digits[] = {text[0], '\0', '\0'};
        if (text[0] == '%') {
            if (end - text < 3 || !isxdigit((unsigned char)text[1]) ||
                !isxdigit((unsigned char)text[2])) {
                return false;
            }
            memcpy(digits, text + 1, 2);
            digits[0] = (char)strtol(digits, NULL, 16);
            text += 2;
        }
        if (digits[0] == '\0') {
            return false;
        }
        out[used++] = digits[0];
    }
    out[used] = '\0';
    return text == end;
}

static bool parse_login(const char *text, const char *end, struct msdu__redis *redis)
{
    const char *colon = memchr(text, ':', (size_t)(end - text));
    return colon != NULL && decode(text, colon, redis->user, sizeof(redis->user)) &&
           decode(colon + 1, end, redis->password, sizeof(redis->password)) &&
           redis->password[0] != '\0';
}

static bool parse(const char *url, struct msdu__redis *redis)
{
    const char *at = strrchr(url, '@');
    memset(redis, 0, sizeof(*redis));
    if (at != NULL && !parse_login(url, at, redis)) {
        return false;
    }
    const char *place = at != NULL ? at + 1 : url;
    const char *slash = strrchr(place, '/');
    size_t db_bytes = slash != NULL ? strlen(slash + 1) : 0;
    if (db_bytes >= sizeof(redis->db) ||
        (db_bytes > 0 && strspn(slash + 1, "0123456789") < db_bytes)) {
        return false;
    }
    memcpy(redis->db, slash != NULL ? slash + 1 : "", db_bytes + 1);
    return msdu__net_place(place, redis->host, sizeof(redis->host), redis->port,
                           sizeof(redis->port));
}

/* --- one exchange --- */

/* An open connection to a server. */
struct line {
    struct msdu__redis *redis;
    int fd;
    uint64_t until_ns;
    redisReader *reader;
    redisReply *reply; /* of the latest command */
    char *why;
};

static msdu_status fail(const struct line *line, msdu_status status, const char *cause)
{
    (void)snprintf(line->why, MSDU_STORE_WHY_BYTES, "Redis at %.80s:%s: %.120s", line->redis->host,
                   line->redis->port, cause);
    return status;
}

static msdu_status send_command(const struct line *line, int count, const char *const *words)
{
    const char *parts[4];
    size_t bytes[4];
    char *command = NULL;
    for (int i = 0; i < count; i++) {
        parts[i] = words[i];
        bytes[i] = strlen(words[i]);
    }
    int length = (int)redisFormatCommandArgv(&command, count, parts, bytes);
    if (length < 0) {
        return fail(line, MSDU_ERR_NO_MEMORY, "no memory");
    }
    bool is_sent = msdu__net_send(line->fd, command, (size_t)length, line->until_ns);
    int error = errno;
    explicit_bzero(command, (size_t)length);
    redisFreeCommand(command);
    return is_sent ? MSDU_OK : fail(line, MSDU_ERR_TIMEOUT, strerror(error));
}

/* Nothing that we ask is answered by more than a line and a short value. */
static msdu_status read_reply(struct line *line)
{
    void *reply = NULL;
    for (size_t used = 0; reply == NULL; used++) {
        char one = 0;
        if (!msdu__net_recv(line->fd, &one, 1, line->until_ns)) {
            return fail(line, MSDU_ERR_TIMEOUT, errno == 0 ? "it hung up" : strerror(errno));
        }
        bool is_redis = used > 0 ? used < REPLY_BYTES : strchr("+-$:", one) != NULL && one != '\0';
        if (!is_redis || redisReaderFeed(line->reader, &one, 1) != REDIS_OK ||
            redisReaderGetReply(line->reader, &reply) != REDIS_OK) {
            return fail(line, MSDU_ERR_IO, "its answer is not Redis'");
        }
    }
    line->reply = reply;
    return MSDU_OK;
}

/* A server that is starting, or moving, will answer otherwise soon. */
static bool is_passing(const char *error)
{
    const char *const passing[] = {"LOADING", "BUSY", "MASTERDOWN", "TRYAGAIN"};
    for (size_t i = 0; i < sizeof(passing) / sizeof(passing[0]); i++) {
        if (strncmp(error, passing[i], strlen(passing[i])) == 0) {
            return true;
        }
    }
    return false;
}

static msdu_status call(struct line *line, int count, const char *const *words)
{
    if (line->reply != NULL) {
        freeReplyObject(line->reply);
        line->reply = NULL;
    }
    msdu_status status = send_command(line, count, words);
    status = status == MSDU_OK ? read_reply(line) : status;
    if (status != MSDU_OK || line->reply->type != REDIS_REPLY_ERROR) {
        return status;
    }
    return fail(line, is_passing(line->reply->str) ? MSDU_ERR_TIMEOUT : MSDU_ERR_IO,
                line->reply->str);
}

/* A server may repeat in its refusal what it did not understand: only the error's name is told. */
static msdu_status log_in(struct line *line)
{
    const struct msdu__redis *redis = line->redis;
    const char *named[] = {"AUTH", redis->user, redis->password};
    const char *unnamed[] = {"AUTH", redis->password};
    const char *selected[] = {"SELECT", redis->db};
    msdu_status status = MSDU_OK;
    if (redis->password[0] != '\0') {
        bool has_user = redis->user[0] != '\0';
        status = call(line, has_user ? 3 : 2, has_user ? named : unnamed);
        if (status == MSDU_ERR_IO && line->reply != NULL) {
            char cause[64];
            (void)snprintf(cause, sizeof(cause), "it refuses the login (%.*s)",
                           (int)strspn(line->reply->str, "ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
                           line->reply->str);
            return fail(line, MSDU_ERR_IO, cause);
        }
    }
    return status == MSDU_OK && redis->db[0] != '\0' ? call(line, 2, selected) : status;
}

static void close_line(struct line *line)
{
    if (line->reply != NULL) {
        freeReplyObject(line->reply);
    }
    if (line->reader != NULL) {
        redisReaderFree(line->reader);
    }
    if (line->fd >= 0) {
        (void)close(line->fd);
    }
}

/* On failure there is still something to close. */
static msdu_status open_line(struct line *line)
{
    struct msdu__address addresses[MSDU__NET_ADDRESSES];
    const char *reason = "";
    size_t count = msdu__net_resolve(line->redis->host, line->redis->port, addresses,
                                     MSDU__NET_ADDRESSES, &reason);
    for (size_t i = 0; i < count && line->fd < 0; i++) {
        line->fd = msdu__net_connect(&addresses[i], NULL, line->until_ns);
        reason = line->fd < 0 ? strerror(errno) : "";
    }
    if (line->fd < 0) {
        return fail(line, MSDU_ERR_TIMEOUT, reason);
    }
    line->reader = redisReaderCreate();
    return line->reader == NULL ? fail(line, MSDU_ERR_NO_MEMORY, "no memory") : log_in(line);
}

static struct line new_line(void *user, uint64_t timeout_ns, char *why)
{
    return (struct line){
        .redis = user, .fd = -1, .until_ns = msdu__clock_now() + timeout_ns, .why = why};
}

/* --- the store --- */

static msdu_status redis_set(void *user, const char *key, const void *value, size_t bytes,
                             uint64_t timeout_ns, char *why)
{
    char text[MSDU_STORE_VALUE_BYTES + 1] = "";
    const char *words[] = {"SET", key, text};
    struct line line = new_line(user, timeout_ns, why);
    memcpy(text, value, bytes < sizeof(text) ? bytes : sizeof(text) - 1);
    msdu_status status = open_line(&line);
    status = status == MSDU_OK ? call(&line, 3, words) : status;
    close_line(&line);
    return status;
}

static msdu_status redis_get(void *user, const char *key, void *value, size_t *bytes,
                             uint64_t timeout_ns, char *why)
{
    const char *words[] = {"GET", key};
    struct line line = new_line(user, timeout_ns < WAIT_NS ? timeout_ns : WAIT_NS, why);
    msdu_status status = open_line(&line);
    status = status == MSDU_OK ? call(&line, 2, words) : status;
    if (status == MSDU_OK && line.reply->type == REDIS_REPLY_NIL) {
        status = fail(&line, MSDU_ERR_TIMEOUT, "no such key yet");
    } else if (status == MSDU_OK &&
               (line.reply->type != REDIS_REPLY_STRING || (size_t)line.reply->len > *bytes)) {
        status = fail(&line, MSDU_ERR_IO, "the key is somebody else's");
    } else if (status == MSDU_OK) {
        *bytes = (size_t)line.reply->len;
        memcpy(value, line.reply->str, *bytes);
    }
    close_line(&line);
    return status;
}

void msdu__redis_delete(struct msdu__redis *redis, const char *key, const char *value)
{
    const char *read[] = {"GET", key};
    const char *drop[] = {"DEL", key};
    char why[MSDU_STORE_WHY_BYTES];
    struct line line = new_line(redis, WAIT_NS, why);
    if (open_line(&line) == MSDU_OK && call(&line, 2, read) == MSDU_OK &&
        line.reply->type == REDIS_REPLY_STRING && strcmp(line.reply->str, value) == 0) {
        (void)call(&line, 2, drop);
    }
    close_line(&line);
}

msdu_status msdu__redis_open(const char *url, struct msdu__redis *redis, msdu_store *store_out,
                             char cause[MSDU__CAUSE_BYTES])
{
    cause[0] = '\0';
    if (strncmp(url, "redis://", 8) != 0 || !parse(url + 8, redis)) {
        return MSDU_ERR_INVALID;
    }
    *store_out =
        (msdu_store){.size = sizeof(*store_out), .user = redis, .set = redis_set, .get = redis_get};
    return MSDU_OK;
}
