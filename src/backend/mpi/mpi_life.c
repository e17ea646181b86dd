/* SPDX-License-Identifier: Apache-2.0 */
/* Begin and end: MPI itself, and the communicators of a group. */
#include "mpi_impl.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LEAVE_NS        UINT64_C(700000000)
#define ALONE_NS        UINT64_C(100000000) /* then the others are told that this rank leaves */
#define FINALIZE_LATE_S 5 /* how long the end of the process waits for MPI after a failure */

static bool is_ours;                                          /* this module initialized MPI */
static pthread_mutex_t life_lock = PTHREAD_MUTEX_INITIALIZER; /* a leaf lock */

/* --- MPI itself --- */

static void *finalize(void *unused)
{
    (void)PMPI_Finalize();
    return unused;
}

/* After a failure the others may never come: then the process ends without, and mpirun says so. */
static void finalize_at_exit(void)
{
    int is_final = 0;
    pthread_t thread;
    struct timespec until;
    if (PMPI_Finalized(&is_final) != MPI_SUCCESS || is_final) {
        return;
    }
    if (!mpi__is_broken()) {
        (void)PMPI_Finalize();
        return;
    }
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += FINALIZE_LATE_S;
    if (pthread_create(&thread, NULL, finalize, NULL) == 0) {
        (void)pthread_timedjoin_np(thread, NULL, &until);
    }
}

static const char *level_name(int level)
{
    return level == MPI_THREAD_SINGLE     ? "MPI_THREAD_SINGLE"
           : level == MPI_THREAD_FUNNELED ? "MPI_THREAD_FUNNELED"
                                          : "MPI_THREAD_SERIALIZED";
}

static msdu_status check_level(const msdu_host *host, int level, bool is_trainers)
{
    char text[MPI__TEXT_BYTES];
    if (level == MPI_THREAD_MULTIPLE) {
        return MSDU_OK;
    }
    (void)snprintf(text, sizeof(text),
                   is_trainers ? "mpi: the trainer initialized MPI with %s; the library's thread "
                                 "needs MPI_Init_thread(.., MPI_THREAD_MULTIPLE, ..)"
                               : "mpi: this MPI library gives %s only; MPI_THREAD_MULTIPLE is "
                                 "needed",
                   level_name(level));
    return host->fail(MSDU_ERR_UNSUPPORTED, text);
}

static msdu_status initialize(const msdu_host *host)
{
    int level = MPI_THREAD_SINGLE;
    int code = PMPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
    if (code != MPI_SUCCESS) {
        return mpi__error(host, "MPI_Init_thread", code);
    }
    is_ours = true;
    if (atexit(finalize_at_exit) != 0) {
        return host->fail(MSDU_ERR_NO_MEMORY, "mpi: no memory to end MPI at exit");
    }
    return check_level(host, level, false);
}

static msdu_status begin_locked(const msdu_host *host)
{
    int is_init = 0;
    int is_final = 0;
    int level = MPI_THREAD_SINGLE;
    (void)PMPI_Initialized(&is_init);
    (void)PMPI_Finalized(&is_final);
    if (is_final) {
        return host->fail(MSDU_ERR_STATE, "mpi: MPI_Finalize() was called already");
    }
    if (!is_init) {
        return initialize(host);
    }
    (void)PMPI_Query_thread(&level);
    return check_level(host, level, !is_ours);
}

msdu_status mpi__life_begin(const msdu_host *host)
{
    (void)pthread_mutex_lock(&life_lock);
    msdu_status status = begin_locked(host);
    (void)pthread_mutex_unlock(&life_lock);
    return status;
}

/* --- the group --- */

/* The handle in "mpi:HANDLE"; false: the rendezvous is another's, and not used. */
static bool is_handle(const char *rendezvous, MPI_Fint *handle_out)
{
    static const char scheme[] = "mpi:";
    char *end = NULL;
    if (rendezvous == NULL || strncmp(rendezvous, scheme, sizeof(scheme) - 1) != 0) {
        return false;
    }
    *handle_out = (MPI_Fint)strtol(rendezvous + sizeof(scheme) - 1, &end, 10);
    return *end == '\0' && end != rendezvous + sizeof(scheme) - 1;
}

/* "mpi:HANDLE" names a communicator of the trainer by its Fortran handle; else all processes. */
static msdu_status find_base(const msdu_host *host, MPI_Comm *base_out)
{
    char text[MPI__TEXT_BYTES];
    MPI_Fint handle = 0;
    int rank = -1;
    int ranks = 0;
    MPI_Comm base = MPI_COMM_WORLD;
    if (is_handle(host->rendezvous, &handle)) {
        base = PMPI_Comm_f2c(handle);
    }
    int code = PMPI_Comm_size(base, &ranks);
    code = code == MPI_SUCCESS ? PMPI_Comm_rank(base, &rank) : code;
    if (code != MPI_SUCCESS) {
        return mpi__error(host, "MPI_Comm_size", code);
    }
    if (ranks != host->ranks || rank != host->rank) {
        (void)snprintf(text, sizeof(text),
                       "mpi: settings say rank %" PRId32 " of %" PRId32
                       ", MPI says rank %d of %d%s",
                       host->rank, host->ranks, rank, ranks,
                       ranks == 1 ? " (was it started by this MPI's own mpirun?)" : "");
        return host->fail(MSDU_ERR_INVALID, text);
    }
    *base_out = base;
    return MSDU_OK;
}

/* Who is there is not known before there is a communicator of our own. */
static msdu_status late_to_join(struct msdu_comm *comm, uint64_t since_ns)
{
    char text[MPI__TEXT_BYTES];
    if (msdu__clock_now() - since_ns < comm->host->deadline_ns) {
        return MSDU_IN_PROGRESS;
    }
    (void)snprintf(text, sizeof(text),
                   "mpi: not all %" PRId32 " ranks joined within %" PRIu64 " ms", comm->host->ranks,
                   comm->host->deadline_ns / UINT64_C(1000000));
    return comm->host->fail(MSDU_ERR_TIMEOUT, text);
}

#if defined(OPEN_MPI) && OPEN_MPI
/*
 * Open MPI gives the error of a nonblocking collective to the handler of MPI_COMM_WORLD, not of the
 * communicator in use (MPI 4.0, section 9.3), and no status tells of it before. That handler is the
 * trainer's and ends the job as a rule: it steps aside for the call that ends the request. (In that
 * moment an error of another thread on MPI_COMM_WORLD is returned as well.)
 */
int mpi__test(MPI_Request *request, int *is_done)
{
    MPI_Errhandler theirs = MPI_ERRHANDLER_NULL;
    int code = PMPI_Request_get_status(*request, is_done, MPI_STATUS_IGNORE);
    if (code != MPI_SUCCESS || !*is_done) {
        return code;
    }
    code = PMPI_Comm_get_errhandler(MPI_COMM_WORLD, &theirs);
    if (code != MPI_SUCCESS) {
        return code;
    }
    (void)PMPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    code = PMPI_Test(request, is_done, MPI_STATUS_IGNORE);
    (void)PMPI_Comm_set_errhandler(MPI_COMM_WORLD, theirs);
    (void)PMPI_Errhandler_free(&theirs);
    return code;
}
#else
int mpi__test(MPI_Request *request, int *is_done)
{
    return PMPI_Test(request, is_done, MPI_STATUS_IGNORE);
}
#endif

static msdu_status finish_join(struct msdu_comm *comm, MPI_Request *request, uint64_t since_ns)
{
    uint64_t pause_ns = 0;
    int is_done = 0;
    int code = mpi__test(request, &is_done);
    while (code == MPI_SUCCESS && !is_done) {
        msdu_status status = late_to_join(comm, since_ns);
        if (status != MSDU_IN_PROGRESS) {
            return status;
        }
        msdu__clock_pause(&pause_ns);
        code = mpi__test(request, &is_done);
    }
    return code == MPI_SUCCESS ? MSDU_OK : mpi__error(comm->host, "MPI_Comm_idup", code);
}

/* One after another: two duplications of one communicator at a time are not allowed. */
static msdu_status duplicate(struct msdu_comm *comm, MPI_Comm from, MPI_Comm *to, uint64_t since_ns)
{
    MPI_Request request = MPI_REQUEST_NULL;
    int code = PMPI_Comm_idup(from, to, &request);
    if (code != MPI_SUCCESS) {
        return mpi__error(comm->host, "MPI_Comm_idup", code);
    }
    msdu_status status = finish_join(comm, &request, since_ns);
    if (status == MSDU_OK) {
        (void)PMPI_Comm_set_errhandler(*to, MPI_ERRORS_RETURN);
    }
    return status;
}

static msdu_status join_lanes(struct msdu_comm *comm, uint32_t group, MPI_Comm from,
                              uint64_t since_ns)
{
    mpi__lane *lanes = comm->lanes + group * comm->host->lanes;
    msdu_status status = MSDU_OK;
    for (uint32_t i = 0; status == MSDU_OK && i < comm->groups[group].lanes; i++) {
        status = duplicate(comm, from, &lanes[i].comm, since_ns);
    }
    return status;
}

msdu_status mpi__join(struct msdu_comm *comm)
{
    uint64_t since_ns = msdu__clock_now();
    MPI_Comm base = MPI_COMM_NULL;
    msdu_status status = find_base(comm->host, &base);
    if (status == MSDU_OK) {
        status = duplicate(comm, base, &comm->control, since_ns);
    }
    return status == MSDU_OK ? join_lanes(comm, MSDU_GROUP_WORLD, comm->control, since_ns) : status;
}

/* All ranks have come, and mean the same: there is no split that does not block. */
static msdu_status meet(struct msdu_comm *comm, uint64_t print, uint64_t since_ns)
{
    const uint64_t own[2] = {print, ~print};
    uint64_t largest[2] = {0};
    MPI_Request request = MPI_REQUEST_NULL;
    int code = PMPI_Iallreduce(own, largest, 2, MPI_UINT64_T, MPI_MAX, comm->control, &request);
    msdu_status status = code == MPI_SUCCESS ? finish_join(comm, &request, since_ns)
                                             : mpi__error(comm->host, "MPI_Iallreduce", code);
    if (status == MSDU_OK && largest[0] != ~largest[1]) {
        status = comm->host->fail(MSDU_ERR_MISMATCH, "mpi: ranks disagree about who is in a group");
    }
    return status;
}

msdu_status mpi__join_group(struct msdu_comm *comm, uint32_t group, int32_t color, uint64_t print)
{
    uint64_t since_ns = msdu__clock_now();
    MPI_Comm base = MPI_COMM_NULL;
    msdu_status status = meet(comm, print, since_ns);
    if (status != MSDU_OK) {
        return status;
    }
    int code =
        PMPI_Comm_split(comm->control, color < 0 ? MPI_UNDEFINED : color, comm->host->rank, &base);
    if (code != MPI_SUCCESS) {
        return mpi__error(comm->host, "MPI_Comm_split", code);
    }
    if (base != MPI_COMM_NULL) {
        status = join_lanes(comm, group, base, since_ns);
        (void)PMPI_Comm_free(&base);
    }
    return status;
}

static bool all_leave(struct msdu_comm *comm)
{
    MPI_Request request = MPI_REQUEST_NULL;
    uint64_t pause_ns = 0;
    uint64_t began_ns = msdu__clock_now();
    bool is_told = false;
    int is_done = 0;
    if (PMPI_Ibarrier(comm->control, &request) != MPI_SUCCESS) {
        return false;
    }
    while (msdu__clock_now() - began_ns < LEAVE_NS && mpi__watch_poll(comm) == MSDU_OK) {
        if (msdu__clock_now() - began_ns > ALONE_NS && !is_told) {
            mpi__watch_leave(comm);
            is_told = true;
        }
        if (mpi__test(&request, &is_done) != MPI_SUCCESS) {
            return false;
        }
        if (is_done) {
            return true;
        }
        msdu__clock_pause(&pause_ns);
    }
    return false;
}

bool mpi__leave(struct msdu_comm *comm)
{
    int is_final = 0;
    (void)PMPI_Finalized(&is_final);
    if (is_final || !all_leave(comm)) {
        return false;
    }
    mpi__watch_end(comm);
    for (uint32_t i = 0; i < MSDU_GROUPS * comm->host->lanes; i++) {
        if (comm->lanes[i].comm != MPI_COMM_NULL) {
            (void)PMPI_Comm_free(&comm->lanes[i].comm);
        }
    }
    (void)PMPI_Comm_free(&comm->control);
    return true;
}
