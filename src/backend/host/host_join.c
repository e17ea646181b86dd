/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the ranks of a host meet: at a socket in the abstract namespace, which ends with its process
 * and belongs to the network namespace. Rank 0 makes the segment and the bells and hands them out.
 * None of them has a name in a file system, so nothing is left behind, however a process ends.
 */
#include "backend/rank_list.h"
#include "host_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define RETRY_NS     5000000L    /* until rank 0 listens */
#define ANSWER_NS    2000000000U /* rank 0 answers so long after its own deadline, at most */
#define SECRET_BYTES 128

/* What a rank says when it comes. */
struct hello {
    int32_t rank;
    int32_t ranks;
    uint32_t lanes;
    uint32_t requests;
    char job[SECRET_BYTES];
    char secret[SECRET_BYTES];
};

/* What rank 0 answers when all are there, or never will be; with the files. */
struct answer {
    int32_t status;
    char text[MSDU__TEXT_BYTES];
};

static msdu_status fail_errno(struct msdu_comm *comm, const char *what)
{
    (void)snprintf(comm->why, sizeof(comm->why), "host: rank %" PRId32 ": %s: %s", comm->rank, what,
                   strerror(errno));
    return comm->host->fail(MSDU_ERR_BACKEND, comm->why);
}

static uint64_t hash_text(uint64_t hash, const char *text)
{
    for (; text != NULL && *text != '\0'; text++) {
        hash = (hash ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
    }
    return hash;
}

/* The same for all ranks of a job. The first byte is zero: not a file. */
static socklen_t address_of(const struct msdu_comm *comm, struct sockaddr_un *out)
{
    uint64_t hash = hash_text(UINT64_C(0xcbf29ce484222325), comm->host->job);
    hash = hash_text(hash * 31, comm->host->secret);
    hash = hash_text(hash * 31, comm->host->rendezvous);
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    int length = snprintf(out->sun_path + 1, sizeof(out->sun_path) - 1, "msdu-%u-%016" PRIx64,
                          (unsigned)geteuid(), hash);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

static struct hello hello_of(const struct msdu_comm *comm)
{
    const msdu_host *host = comm->host;
    struct hello hello = {comm->rank, comm->ranks, host->lanes, host->requests, "", ""};
    (void)snprintf(hello.job, sizeof(hello.job), "%s", host->job);
    (void)snprintf(hello.secret, sizeof(hello.secret), "%s",
                   host->secret == NULL ? "" : host->secret);
    return hello;
}

/* Only processes of the same user share memory. */
static bool is_same_user(int file)
{
    struct ucred peer;
    socklen_t bytes = sizeof(peer);
    return getsockopt(file, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && peer.uid == geteuid();
}

/* Wait until there is something to read; false: not before. */
static bool await(int file, uint64_t until_ns)
{
    struct pollfd poll_one = {.fd = file, .events = POLLIN};
    uint64_t now = msdu__clock_now();
    int code = 0;
    do {
        uint64_t left_ms = now < until_ns ? (until_ns - now) / 1000000 + 1 : 0;
        code = poll(&poll_one, 1, (int)(left_ms < 1000000 ? left_ms : 1000000));
        now = msdu__clock_now();
    } while (code <= 0 && now < until_ns);
    return code > 0;
}

/* --- the segment --- */

static msdu_status map(struct msdu_comm *comm, int file)
{
    comm->bytes = msdu__host_bytes(comm);
    void *memory = mmap(NULL, comm->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) {
        return fail_errno(comm, "mapping shared memory");
    }
    comm->head = memory;
    return MSDU_OK;
}

/* Sealed: no rank can make it shorter under the others. Reserved: no page is missing later. */
static msdu_status make_segment(struct msdu_comm *comm, int *file_out)
{
    int file = memfd_create("msdu", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (file < 0) {
        return fail_errno(comm, "making shared memory");
    }
    *file_out = file;
    errno = posix_fallocate(file, 0, (off_t)msdu__host_bytes(comm));
    if (errno != 0 || fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        return fail_errno(comm, "reserving shared memory");
    }
    for (int32_t rank = 0; rank < comm->ranks; rank++) {
        comm->bells[rank] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (comm->bells[rank] < 0) {
            return fail_errno(comm, "making bells");
        }
    }
    return map(comm, file);
}

/* --- rank 0 --- */

/* One who comes: in, or turned away. */
static void admit(struct msdu_comm *comm, int file, uint64_t until_ns)
{
    struct hello hello;
    struct hello own = hello_of(comm);
    bool is_said = is_same_user(file) && await(file, until_ns) &&
                   recv(file, &hello, sizeof(hello), 0) == (ssize_t)sizeof(hello);
    bool is_good =
        is_said && hello.rank > 0 && hello.rank < comm->ranks && comm->peers[hello.rank] < 0;
    own.rank = is_good ? hello.rank : 0;
    if (is_good && memcmp(&own, &hello, sizeof(own)) == 0) {
        comm->peers[hello.rank] = file;
    } else {
        (void)close(file);
    }
}

static int32_t count_peers(const struct msdu_comm *comm)
{
    int32_t count = 0;
    for (int32_t rank = 1; rank < comm->ranks; rank++) {
        count += comm->peers[rank] >= 0 ? 1 : 0;
    }
    return count;
}

static msdu_status admit_all(struct msdu_comm *comm, int listener)
{
    char names[128];
    char span[32];
    bool is_missing[MSDU__HOST_RANKS] = {false};
    uint64_t until_ns = msdu__clock_now() + comm->host->deadline_ns;
    while (count_peers(comm) < comm->ranks - 1 && await(listener, until_ns)) {
        int file = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (file >= 0) {
            admit(comm, file, until_ns);
        }
    }
    if (count_peers(comm) == comm->ranks - 1) {
        return MSDU_OK;
    }
    for (int32_t rank = 1; rank < comm->ranks; rank++) {
        is_missing[rank] = comm->peers[rank] < 0;
    }
    (void)msdu__host_list(comm, is_missing, names, sizeof(names));
    msdu__span_text(comm->host->deadline_ns, span, sizeof(span));
    (void)snprintf(comm->why, sizeof(comm->why), "host: %s did not join job %.100s within %s",
                   names, comm->host->job, span);
    return comm->host->fail(MSDU_ERR_TIMEOUT, comm->why);
}

/* To one rank: how it went, and the files if well. */
static bool answer_one(const struct msdu_comm *comm, int32_t rank, int segment, msdu_status status)
{
    int files[MSDU__HOST_RANKS + 1];
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(files))];
    } control = {.room = {0}};
    struct answer answer = {.status = status};
    struct iovec part = {&answer, sizeof(answer)};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    size_t bytes = ((size_t)comm->ranks + 1) * sizeof(int);
    (void)snprintf(answer.text, sizeof(answer.text), "%s", comm->why);
    if (status == MSDU_OK) {
        files[0] = segment;
        memcpy(files + 1, comm->bells, (size_t)comm->ranks * sizeof(int));
        message.msg_control = &control;
        message.msg_controllen = CMSG_SPACE(bytes);
        control.head = (struct cmsghdr){
            .cmsg_len = CMSG_LEN(bytes), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(&control.head), files, bytes);
    }
    return sendmsg(comm->peers[rank], &message, MSG_NOSIGNAL) == (ssize_t)sizeof(answer);
}

static msdu_status lead(struct msdu_comm *comm)
{
    struct sockaddr_un address;
    socklen_t length = address_of(comm, &address);
    int segment = -1;
    int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    msdu_status status = make_segment(comm, &segment);
    if (status == MSDU_OK &&
        (listener < 0 || bind(listener, (const struct sockaddr *)&address, length) != 0 ||
         listen(listener, comm->ranks) != 0)) {
        status = fail_errno(comm, "listening for the ranks of this host");
    }
    status = status == MSDU_OK ? admit_all(comm, listener) : status;
    for (int32_t rank = 1; rank < comm->ranks; rank++) {
        if (comm->peers[rank] >= 0 && !answer_one(comm, rank, segment, status)) {
            status = status == MSDU_OK ? fail_errno(comm, "sharing memory") : status;
        }
    }
    if (listener >= 0) {
        (void)close(listener);
    }
    if (segment >= 0) {
        (void)close(segment);
    }
    return status;
}

/* --- the others --- */

static msdu_status call(struct msdu_comm *comm, uint64_t until_ns)
{
    char text[MSDU__TEXT_BYTES];
    char span[32];
    struct sockaddr_un address;
    socklen_t length = address_of(comm, &address);
    const struct timespec pause = {.tv_nsec = RETRY_NS};
    struct hello hello = hello_of(comm);
    int file = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    comm->peers[0] = file;
    if (file < 0) {
        return fail_errno(comm, "a socket");
    }
    while (connect(file, (const struct sockaddr *)&address, length) != 0) {
        if (msdu__clock_now() >= until_ns) {
            msdu__span_text(comm->host->deadline_ns, span, sizeof(span));
            (void)snprintf(text, sizeof(text),
                           "host: rank %" PRId32 " did not join job %.100s within %s",
                           msdu__host_name(comm, 0), comm->host->job, span);
            return comm->host->fail(MSDU_ERR_TIMEOUT, text);
        }
        (void)nanosleep(&pause, NULL);
    }
    if (!is_same_user(file)) {
        return comm->host->fail(MSDU_ERR_DENIED, "host: rank 0 is another user's process");
    }
    return send(file, &hello, sizeof(hello), MSG_NOSIGNAL) == (ssize_t)sizeof(hello)
               ? MSDU_OK
               : fail_errno(comm, "calling rank 0");
}

static msdu_status take_answer(struct msdu_comm *comm, int *segment_out)
{
    int files[MSDU__HOST_RANKS + 1];
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(files))];
    } control;
    struct answer answer;
    struct iovec part = {&answer, sizeof(answer)};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof(control)};
    size_t bytes = ((size_t)comm->ranks + 1) * sizeof(int);
    if (recvmsg(comm->peers[0], &message, MSG_CMSG_CLOEXEC) != (ssize_t)sizeof(answer)) {
        return comm->host->fail(MSDU_ERR_DENIED, "host: rank 0 turned this rank away (job, secret, "
                                                 "ranks or lanes differ), or ended");
    }
    answer.text[sizeof(answer.text) - 1] = '\0';
    if (answer.status != MSDU_OK) {
        return comm->host->fail((msdu_status)answer.status, answer.text);
    }
    const struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    if (head == NULL || head->cmsg_type != SCM_RIGHTS || head->cmsg_len != CMSG_LEN(bytes)) {
        return comm->host->fail(MSDU_ERR_BACKEND, "host: too few open files are allowed");
    }
    memcpy(files, CMSG_DATA(head), bytes);
    *segment_out = files[0];
    memcpy(comm->bells, files + 1, (size_t)comm->ranks * sizeof(int));
    return MSDU_OK;
}

static msdu_status follow(struct msdu_comm *comm)
{
    char text[MSDU__TEXT_BYTES];
    uint64_t until_ns = msdu__clock_now() + comm->host->deadline_ns;
    int segment = -1;
    msdu_status status = call(comm, until_ns);
    if (status == MSDU_OK && !await(comm->peers[0], until_ns + ANSWER_NS)) {
        (void)snprintf(text, sizeof(text), "host: rank 0 of job %.100s does not answer",
                       comm->host->job);
        status = comm->host->fail(MSDU_ERR_TIMEOUT, text);
    }
    status = status == MSDU_OK ? take_answer(comm, &segment) : status;
    if (status == MSDU_OK) {
        status = map(comm, segment);
        (void)close(segment);
    }
    return status;
}

msdu_status msdu__host_join(struct msdu_comm *comm)
{
    return comm->rank == 0 ? lead(comm) : follow(comm);
}

void msdu__host_part(struct msdu_comm *comm)
{
    for (int32_t rank = 0; rank < MSDU__HOST_RANKS; rank++) {
        if (comm->bells[rank] >= 0) {
            (void)close(comm->bells[rank]);
        }
        if (comm->peers[rank] >= 0) {
            (void)close(comm->peers[rank]);
        }
    }
    if (comm->head != NULL) {
        (void)munmap(comm->head, comm->bytes);
    }
}
