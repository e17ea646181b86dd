/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that meet by a store of the caller's: a good one, and every way in which one may fail. */
#include "backend/rendezvous/net.h"
#include "hub_fixture.h"
#include "suite.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define SECOND_NS UINT64_C(1000000000)

/* What a store does instead of its work. */
typedef enum fault {
    FAULT_NONE,
    FAULT_SET,
    FAULT_GET,
    FAULT_GARBAGE, /* bytes that no rank wrote */
    FAULT_LONG,    /* more of them than there is room for, it says */
    FAULT_MUTE,    /* no reason, and a status that is none */
    FAULT_WILD,    /* a reason without an end */
} fault;

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    fault fault;
    int sets;
    char key[256]; /* the last one set */
    char value[MSDU_STORE_VALUE_BYTES];
    size_t bytes;
} kept = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static msdu_status keep(void *user, const char *key, const void *value, size_t bytes,
                        uint64_t timeout_ns, char *why)
{
    ck_assert_ptr_eq(user, &kept);
    ck_assert_uint_gt(timeout_ns, 0);
    ck_assert_uint_le(bytes, MSDU_STORE_VALUE_BYTES);
    if (kept.fault == FAULT_SET) {
        (void)snprintf(why, MSDU_STORE_WHY_BYTES, "disk\nfull");
        return MSDU_ERR_TIMEOUT;
    }
    (void)pthread_mutex_lock(&kept.lock);
    kept.sets++;
    (void)snprintf(kept.key, sizeof(kept.key), "%s", key);
    memcpy(kept.value, value, bytes);
    kept.bytes = bytes;
    (void)pthread_cond_broadcast(&kept.changed);
    (void)pthread_mutex_unlock(&kept.lock);
    return MSDU_OK;
}

static msdu_status refuse(char *why)
{
    if (kept.fault == FAULT_WILD) {
        memset(why, 'w', MSDU_STORE_WHY_BYTES);
    } else if (kept.fault == FAULT_GET) {
        (void)snprintf(why, MSDU_STORE_WHY_BYTES, "the server is gone");
    }
    return kept.fault == FAULT_MUTE ? (msdu_status)77 : MSDU_ERR_BACKEND;
}

static msdu_status look(void *user, const char *key, void *value, size_t *bytes,
                        uint64_t timeout_ns, char *why)
{
    msdu_status status = MSDU_ERR_TIMEOUT;
    uint64_t until_ns = msdu__clock_now() + timeout_ns;
    ck_assert_ptr_eq(user, &kept);
    if (kept.fault == FAULT_GARBAGE || kept.fault == FAULT_LONG) {
        memset(value, 'g', *bytes);
        *bytes += kept.fault == FAULT_LONG ? 1 : 0;
        return MSDU_OK;
    }
    if (kept.fault > FAULT_SET) {
        return refuse(why);
    }
    while (status != MSDU_OK && msdu__clock_now() < until_ns) {
        msdu__net_sleep(SECOND_NS / 1000);
        (void)pthread_mutex_lock(&kept.lock);
        if (strcmp(kept.key, key) == 0 && kept.bytes <= *bytes) {
            memcpy(value, kept.value, kept.bytes);
            *bytes = kept.bytes;
            status = MSDU_OK;
        }
        (void)pthread_mutex_unlock(&kept.lock);
    }
    (void)snprintf(why, MSDU_STORE_WHY_BYTES, "nobody set it");
    return status;
}

static msdu_store store = {.size = sizeof(store), .user = &kept, .set = keep, .get = look};

static void make(struct job *job, int32_t ranks, fault what)
{
    job_make(job, ranks);
    kept.fault = what;
    kept.key[0] = '\0';
    kept.sets = 0;
    (void)snprintf(job->url, sizeof(job->url), "store://localhost");
    for (int32_t rank = 0; rank < ranks; rank++) {
        job->members[rank].host.store = &store;
    }
}

START_TEST(groups_meet_by_a_store_one_after_the_other)
{
    struct job job;
    for (uint64_t epoch = 0; epoch < 3; epoch++) {
        char key[64];
        make(&job, 4, FAULT_NONE);
        store.epoch = epoch;
        job_open(&job);
        (void)snprintf(key, sizeof(key), "msdu/digits/%" PRIu64, epoch);
        ck_assert_str_eq(kept.key, key);
        ck_assert_int_eq(kept.sets, 1);
        ck_assert_str_eq(msdu__hub_address(job.members[3].hub), "127.0.0.1");
        job_close(&job);
        ck_assert_int_eq(log_count(""), 0);
    }
}
END_TEST

START_TEST(interface_says_which_address_is_told)
{
    struct job job;
    make(&job, 2, FAULT_NONE);
    (void)snprintf(job.url, sizeof(job.url), "store://192.0.2.9");
    for (int32_t rank = 0; rank < job.ranks; rank++) {
        job.members[rank].host.interface = "lo";
    }
    job_open(&job);
    ck_assert_int_eq(strncmp(kept.value, "msdu1 127.0.0.1 ", 16), 0);
    job_close(&job);
}
END_TEST

START_TEST(without_a_host_ranks_of_one_machine_meet)
{
    struct job job;
    make(&job, 3, FAULT_NONE);
    (void)snprintf(job.url, sizeof(job.url), "store://");
    job_open(&job);
    job_close(&job);
}
END_TEST

/* What an earlier group left under the key leads nowhere, until rank 0 writes over it. */
START_TEST(stale_value_is_waited_out)
{
    struct job job;
    make(&job, 2, FAULT_NONE);
    kept.bytes =
        (size_t)snprintf(kept.value, sizeof(kept.value),
                         "msdu1 127.0.0.1 %d 00112233445566778899aabbccddeeff\n", free_port());
    store.epoch = 0;
    (void)snprintf(kept.key, sizeof(kept.key), "msdu/digits/0");
    member_open(&job.members[1]);
    msdu__net_sleep(SECOND_NS / 10);
    member_open(&job.members[0]);
    member_admitted(&job.members[0]);
    member_admitted(&job.members[1]);
    job_close(&job);
}
END_TEST

static const struct {
    fault fault;
    int32_t rank;
    msdu_status status;
    const char *cause;
} failures[] = {
    {FAULT_SET, 0, MSDU_ERR_IO, "rank 0: the store's set of \"msdu/digits/7\": disk?full"},
    {FAULT_GET, 1, MSDU_ERR_IO, "rank 1: the store's get of \"msdu/digits/7\": the server is gone"},
    {FAULT_MUTE, 1, MSDU_ERR_IO, "rank 1: the store's get of \"msdu/digits/7\" failed"},
    {FAULT_WILD, 1, MSDU_ERR_IO, "rank 1: the store's get of \"msdu/digits/7\": wwwwwwww"},
    {FAULT_GARBAGE, 1, MSDU_ERR_TIMEOUT, "the notice of rank 0 is not readable"},
    {FAULT_LONG, 1, MSDU_ERR_TIMEOUT, "the notice of rank 0 is not readable"},
    {FAULT_NONE, 1, MSDU_ERR_TIMEOUT, "the store's get of \"msdu/digits/7\": nobody set it"},
    {FAULT_NONE, 0, MSDU_ERR_TIMEOUT, "rank 1"}, /* did not come */
};

START_TEST(store_that_fails_is_an_error_within_the_deadline)
{
    struct job job;
    make(&job, 2, failures[_i].fault);
    store.epoch = 7;
    struct member *member = &job.members[failures[_i].rank];
    member->host.deadline_ns = SECOND_NS / 2;
    uint64_t start_ns = msdu__clock_now();
    member_refused(member, failures[_i].status, failures[_i].cause);
    expect_refused(member, failures[_i].status,
                   failures[_i].status == MSDU_ERR_TIMEOUT ? "within 500 ms" : job.url);
    ck_assert_uint_lt(msdu__clock_now() - start_ns, 5 * SECOND_NS); /* of sixty by default */
    ck_assert_int_eq(rmdir(job.folder), 0);
}
END_TEST

TCase *hub_store(void)
{
    TCase *cases = tcase_create("store");
    tcase_set_timeout(cases, 60);
    tcase_add_test(cases, groups_meet_by_a_store_one_after_the_other);
    tcase_add_test(cases, interface_says_which_address_is_told);
    tcase_add_test(cases, without_a_host_ranks_of_one_machine_meet);
    tcase_add_test(cases, stale_value_is_waited_out);
    suite_table(cases, store_that_fails_is_an_error_within_the_deadline, failures);
    return cases;
}
