/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks agree upon under way, as sums of float64 on the trainer's own communicator and stream:
 * whole numbers below 2^53 are exact.
 */
#include "attach_nccl.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "attach/address.h"

#define PAUSE_NS     50000L
#define TURNS_PER_MS 20
#define SECRET_HEX   32 /* digits */

static void pause_shortly(void)
{
    const struct timespec span = {.tv_nsec = PAUSE_NS};
    (void)nanosleep(&span, NULL);
}

/* --- sums --- */

static uint64_t deadline_ms(void)
{
    return msdu__attach_number("deadline_ms", 60000);
}

void msdu__talk_close(msdu__track *track)
{
    if (track->is_stuck) {
        return; /* NCCL may still write there */
    }
    if (track->summed != NULL) {
        (void)cudaEventDestroy(track->summed);
    }
    (void)cudaFreeHost(track->pinned);
    (void)cudaFree(track->staging);
    track->summed = NULL;
    track->pinned = track->staging = NULL;
    track->room = 0;
}

static bool make_room(msdu__track *track, size_t count)
{
    void *pinned = NULL;
    void *staging = NULL;
    if (count <= track->room || track->is_stuck) {
        return !track->is_stuck;
    }
    msdu__talk_close(track);
    bool is_good =
        cudaHostAlloc(&pinned, count * sizeof(double), cudaHostAllocPortable) == cudaSuccess &&
        cudaMalloc(&staging, count * sizeof(double)) == cudaSuccess &&
        cudaEventCreateWithFlags(&track->summed, cudaEventDisableTiming) == cudaSuccess;
    track->pinned = pinned;
    track->staging = staging;
    track->room = is_good ? count : 0;
    return is_good;
}

static bool is_taken(ncclResult_t result)
{
    return result == ncclSuccess || result == ncclInProgress;
}

/* A nonblocking communicator has launched what it was given. */
static bool settle(const msdu__track *track, uint64_t limit_ms)
{
    ncclResult_t result = ncclInProgress;
    for (uint64_t turn = 0; turn < limit_ms * TURNS_PER_MS; turn++) {
        if (track->library->async_error((ncclComm_t)track->comm, &result) != ncclSuccess ||
            result != ncclInProgress) {
            break;
        }
        pause_shortly();
    }
    return result == ncclSuccess;
}

bool msdu__talk_settle(const msdu__track *track)
{
    return settle(track, deadline_ms());
}

static bool wait_for(cudaEvent_t event, uint64_t limit_ms)
{
    cudaError_t error = cudaErrorNotReady;
    for (uint64_t turn = 0; turn < limit_ms * TURNS_PER_MS && error == cudaErrorNotReady; turn++) {
        error = cudaEventQuery(event);
        if (error == cudaErrorNotReady) {
            pause_shortly();
        }
    }
    return error == cudaSuccess;
}

bool msdu__talk_reached(cudaEvent_t event, uint64_t limit_ms)
{
    return wait_for(event, limit_ms);
}

static bool give(msdu__track *track, const double *values, size_t count)
{
    const size_t bytes = count * sizeof(double);
    memcpy(track->pinned, values, bytes);
    if (cudaMemcpyAsync(track->staging, track->pinned, bytes, cudaMemcpyHostToDevice,
                        track->stream) != cudaSuccess) {
        return false;
    }
    int code = track->reduce(track->staging, track->staging, count, (int)ncclFloat64, (int)ncclSum,
                             track->comm, (uintptr_t)track->stream);
    return is_taken((ncclResult_t)code);
}

static bool take(msdu__track *track, double *values, size_t count, uint64_t limit_ms)
{
    const size_t bytes = count * sizeof(double);
    bool is_good = settle(track, limit_ms) &&
                   cudaMemcpyAsync(track->pinned, track->staging, bytes, cudaMemcpyDeviceToHost,
                                   track->stream) == cudaSuccess &&
                   cudaEventRecord(track->summed, track->stream) == cudaSuccess &&
                   wait_for(track->summed, limit_ms);
    if (is_good) {
        memcpy(values, track->pinned, bytes);
    }
    track->is_stuck = track->is_stuck || !is_good;
    return is_good;
}

/* The values of a track are `count` behind those of the one before. */
static bool sum(msdu__track *const *tracks, size_t track_count, double *values, size_t count,
                uint64_t limit_ms)
{
    bool is_good = true;
    for (size_t i = 0; i < track_count; i++) {
        (void)cudaSetDevice(tracks[i]->device);
        /* what the trainer gave it last, which the trainer has not asked about yet */
        is_good = make_room(tracks[i], count) && settle(tracks[i], limit_ms) && is_good;
    }
    if (!is_good) {
        return false;
    }
    is_good = is_taken(tracks[0]->library->group_start());
    for (size_t i = 0; i < track_count; i++) {
        (void)cudaSetDevice(tracks[i]->device);
        is_good = give(tracks[i], values + i * count, count) && is_good;
    }
    is_good = is_taken(tracks[0]->library->group_end()) && is_good;
    for (size_t i = 0; i < track_count; i++) {
        (void)cudaSetDevice(tracks[i]->device);
        is_good = is_good && take(tracks[i], values + i * count, count, limit_ms);
    }
    return is_good;
}

bool msdu__talk_sum(msdu__track *const *tracks, size_t track_count,
                    double (*values)[MSDU__SUM_ROOM], uint64_t limit_ms)
{
    return sum(tracks, track_count, values[0], MSDU__SUM_ROOM, limit_ms);
}

bool msdu__talk_add(msdu__track *track, double *values, size_t count, uint64_t limit_ms)
{
    return sum(&track, 1, values, count, limit_ms);
}

/* --- where to meet --- */

static uint32_t hash(uint32_t seed, const char *text)
{
    for (; *text != '\0'; text++) {
        seed = (seed ^ (unsigned char)*text) * 16777619U;
    }
    return seed;
}

double msdu__talk_host(void)
{
    char name[256] = "";
    char files[256] = "";
    (void)gethostname(name, sizeof(name) - 1);
    (void)!readlink("/proc/self/ns/mnt", files, sizeof(files) - 1);
    return hash(hash(2166136261U, name), files);
}

static void pack(double *values, size_t count, const char *text)
{
    size_t length = strlen(text);
    for (size_t i = 0; i < count; i++) {
        uint32_t four = 0;
        for (size_t k = 0; k < 4; k++) {
            size_t at = 4 * i + k;
            four = four << 8 | (at < length ? (unsigned char)text[at] : 0U);
        }
        values[i] = four;
    }
}

static void unpack(const double *values, size_t count, char *text)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t four = (uint32_t)values[i];
        for (size_t k = 0; k < 4; k++) {
            text[4 * i + k] = (char)(four >> (24 - 8 * k) & 0xffU);
        }
    }
    text[4 * count] = '\0';
}

bool msdu__talk_secret(msdu__track *track, char *secret)
{
    double values[1][MSDU__SUM_ROOM] = {{0}};
    const size_t count = SECRET_HEX / 4;
    if (track->rank == 0 && msdu__address_secret(secret, SECRET_HEX)) {
        pack(values[0], count, secret);
    } else if (track->rank == 0) { /* all ranks see that there is none */
        (void)fprintf(stderr, "msdu: rank 0: no random numbers for a secret: %s\n",
                      strerror(errno));
    }
    if (!msdu__talk_sum(&track, 1, values, deadline_ms())) {
        return false;
    }
    unpack(values[0], count, secret);
    return secret[0] != '\0';
}

/* The sum that tells all ranks what rank 0 says; on every rank once. It cannot be taken back, so it
 * may last as long as the deadline. */
static bool meet(msdu__meeting *meeting, const char *text)
{
    double values[MSDU_STORE_VALUE_BYTES / 4] = {0};
    const size_t count = sizeof(values) / sizeof(values[0]);
    meeting->has_met = true;
    pack(values, count, text);
    if (!msdu__talk_add(meeting->track, values, count, deadline_ms())) {
        return false;
    }
    unpack(values, count, meeting->text);
    return true;
}

static msdu_status fail(msdu_status status, const char *cause, char *why)
{
    (void)snprintf(why, MSDU_STORE_WHY_BYTES, "%s", cause);
    return status;
}

static msdu_status meeting_set(void *user, const char *key, const void *value, size_t bytes,
                               uint64_t timeout_ns, char *why)
{
    char text[MSDU_STORE_VALUE_BYTES + 1] = "";
    (void)key;
    (void)timeout_ns;
    memcpy(text, value, bytes < sizeof(text) ? bytes : sizeof(text) - 1);
    return meet(user, text) ? MSDU_OK
                            : fail(MSDU_ERR_TIMEOUT, "ranks did not meet on the communicator", why);
}

static msdu_status meeting_get(void *user, const char *key, void *value, size_t *bytes,
                               uint64_t timeout_ns, char *why)
{
    msdu__meeting *meeting = user;
    (void)key;
    (void)timeout_ns;
    if (!meeting->has_met && !meet(meeting, "")) {
        return fail(MSDU_ERR_IO, "ranks did not meet on the communicator", why);
    }
    size_t length = strlen(meeting->text);
    if (length == 0 || length > *bytes) {
        return fail(MSDU_ERR_IO, "rank 0 could not listen", why);
    }
    memcpy(value, meeting->text, length);
    *bytes = length;
    return MSDU_OK;
}

void msdu__meeting_begin(msdu__meeting *meeting, msdu__track *track, double hosts)
{
    char address[INET_ADDRSTRLEN] = "127.0.0.1";
    if (hosts != msdu__talk_host() * track->ranks &&
        !msdu__address_find(address, sizeof(address))) {
        address[0] = '\0';
    }
    *meeting = (msdu__meeting){
        .track = track,
        .store = {.size = sizeof(msdu_store),
                  .user = meeting,
                  .set = meeting_set,
                  .get = meeting_get},
    };
    (void)snprintf(meeting->url, sizeof(meeting->url), "store://%s", address);
}

void msdu__meeting_end(msdu__meeting *meeting)
{
    if (!meeting->has_met) {
        (void)meet(meeting, "");
    }
}
