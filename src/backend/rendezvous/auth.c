/* SPDX-License-Identifier: Apache-2.0 */
/* Admission to the hub: the fixed-size messages and the proof that both sides know the secret. */
#include "auth.h"

#include "net.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <string.h>

bool msdu__auth_has_secret(const msdu_host *host)
{
    return host->secret != NULL && host->secret[0] != '\0';
}

bool msdu__auth_hello(const msdu_host *host, struct msdu__hello *hello_out)
{
    memset(hello_out, 0, sizeof(*hello_out));
    memcpy(hello_out->magic, MSDU__HUB_MAGIC, sizeof(hello_out->magic));
    hello_out->version = MSDU__HUB_VERSION;
    hello_out->ranks = (uint32_t)host->ranks;
    hello_out->rank = (uint32_t)host->rank;
    hello_out->has_secret = msdu__auth_has_secret(host);
    (void)snprintf(hello_out->job, sizeof(hello_out->job), "%s", host->job);
    return msdu__net_random(hello_out->nonce, sizeof(hello_out->nonce));
}

bool msdu__auth_sign(const void *key, size_t key_bytes, const void *data, size_t bytes,
                     uint8_t mac_out[MSDU__AUTH_BYTES])
{
    unsigned length = 0;
    return HMAC(EVP_sha256(), key, (int)key_bytes, data, bytes, mac_out, &length) != NULL &&
           length == MSDU__AUTH_BYTES;
}

bool msdu__auth_mac(const char *secret, const char *side, const struct msdu__hello *hello,
                    const struct msdu__challenge *challenge, uint8_t mac_out[MSDU__AUTH_BYTES])
{
    /* Fixed-size parts, so that no two handshakes give the same bytes. */
    struct {
        char side[16];
        struct msdu__hello hello;
        uint8_t id[MSDU__ID_BYTES];
        uint8_t nonce[MSDU__AUTH_BYTES];
    } said;
    const char *key = secret == NULL ? "" : secret;
    memset(&said, 0, sizeof(said));
    (void)snprintf(said.side, sizeof(said.side), "%s", side);
    said.hello = *hello;
    memcpy(said.id, challenge->id, sizeof(said.id));
    memcpy(said.nonce, challenge->nonce, sizeof(said.nonce));
    return msdu__auth_sign(key, strlen(key), &said, sizeof(said), mac_out);
}

bool msdu__auth_is_equal(const uint8_t left[MSDU__AUTH_BYTES],
                         const uint8_t right[MSDU__AUTH_BYTES])
{
    return CRYPTO_memcmp(left, right, MSDU__AUTH_BYTES) == 0;
}

static msdu_status broken(char cause[MSDU__CAUSE_BYTES])
{
    (void)snprintf(cause, MSDU__CAUSE_BYTES, "%s",
                   errno == 0 ? "the connection was closed during the handshake" : strerror(errno));
    return MSDU_ERR_IO;
}

static msdu_status denied(const char *text, char cause[MSDU__CAUSE_BYTES])
{
    (void)snprintf(cause, MSDU__CAUSE_BYTES, "%.*s", MSDU__CAUSE_BYTES - 1, text);
    return MSDU_ERR_DENIED;
}

static msdu_status check_challenge(struct msdu__challenge *challenge, const uint8_t *id,
                                   char cause[MSDU__CAUSE_BYTES])
{
    challenge->cause[MSDU__CAUSE_BYTES - 1] = '\0';
    if (memcmp(challenge->magic, MSDU__HUB_MAGIC, sizeof(challenge->magic)) != 0) {
        (void)snprintf(cause, MSDU__CAUSE_BYTES, "something else answers there");
        return MSDU_ERR_IO;
    }
    if (id != NULL && memcmp(id, challenge->id, MSDU__ID_BYTES) != 0) {
        (void)snprintf(cause, MSDU__CAUSE_BYTES, "another run answers there");
        return MSDU_ERR_IO;
    }
    return challenge->is_denied != 0 ? denied(challenge->cause, cause) : MSDU_OK;
}

static msdu_status prove(int fd, const msdu_host *host, const struct msdu__hello *hello,
                         const struct msdu__challenge *challenge, uint64_t until_ns,
                         char cause[MSDU__CAUSE_BYTES])
{
    struct msdu__proof proof;
    struct msdu__welcome welcome;
    uint8_t wanted[MSDU__AUTH_BYTES];
    if (!msdu__auth_mac(host->secret, "client", hello, challenge, proof.mac) ||
        !msdu__auth_mac(host->secret, "server", hello, challenge, wanted)) {
        return denied("HMAC-SHA256 is not available", cause);
    }
    if (!msdu__net_send(fd, &proof, sizeof(proof), until_ns) ||
        !msdu__net_recv(fd, &welcome, sizeof(welcome), until_ns)) {
        return broken(cause);
    }
    welcome.cause[MSDU__CAUSE_BYTES - 1] = '\0';
    if (welcome.is_denied != 0) {
        return denied(welcome.cause, cause);
    }
    if (!msdu__auth_is_equal(welcome.mac, wanted)) {
        return denied("it does not know the secret of this job", cause);
    }
    return MSDU_OK;
}

msdu_status msdu__auth_client(int fd, const msdu_host *host, const uint8_t *id, uint64_t until_ns,
                              char cause[MSDU__CAUSE_BYTES])
{
    struct msdu__hello hello;
    struct msdu__challenge challenge;
    if (!msdu__auth_hello(host, &hello)) {
        return denied("no random numbers", cause);
    }
    if (!msdu__net_send(fd, &hello, sizeof(hello), until_ns) ||
        !msdu__net_recv(fd, &challenge, sizeof(challenge), until_ns)) {
        return broken(cause);
    }
    msdu_status status = check_challenge(&challenge, id, cause);
    if (status != MSDU_OK) {
        return status;
    }
    return prove(fd, host, &hello, &challenge, until_ns, cause);
}
