/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of an MPI family's attach module share. */
#ifndef MSDU_ATTACH_MPI_H
#define MSDU_ATTACH_MPI_H

#include <mpi.h>

#include <pthread.h>

#include "attach/attach.h"
#include "attach/engine.h"
#include "attach/gain.h"
#include "attach/ledger.h"
#include "attach/part.h"
#include "attach/recognize.h"
#include "attach/settings.h"

#if defined(OPEN_MPI) && OPEN_MPI
#define MSDU__HANDLE(type, integer) ((type)(integer))
#define MSDU__INTEGER(handle)       ((uintptr_t)(handle))
#else
#define MSDU__HANDLE(type, integer) ((type)(unsigned)(integer))
#define MSDU__INTEGER(handle)       ((uintptr_t)(unsigned)(handle))
#endif

enum {
    MSDU__KIND_FLOAT32 = 1,
    MSDU__KIND_FLOAT64 = 2,
    MSDU__KIND_OTHER = 16,
};

/* Why a reduction was left to MPI. */
enum {
    MSDU__PASSED_TYPE = 0,    /* not a sum of float32 or float64 */
    MSDU__PASSED_SMALL = 1,   /* below MSDU_ATTACH_MIN_BYTES */
    MSDU__PASSED_DENIED = 2,  /* by MSDU_ATTACH_ALLOW, MSDU_ATTACH_DENY */
    MSDU__PASSED_UNKNOWN = 3, /* while learning, or in no pattern */
    MSDU__PASSED_PLAIN = 4,   /* a gradient, but there is nothing to gain, or no engine */
    MSDU__PASSED_JOINING = 5, /* a gradient, on the way back from local steps */
    MSDU__PASSED_FORM = 6,    /* by a call that is not taken */
    MSDU__PASSED_WATCHED = 7, /* a gradient, before there is an engine, or between two */
};

/* One communicator. */
typedef struct msdu__stream {
    pthread_mutex_t lock; /* of all below */
    MPI_Comm comm;
    MPI_Comm own;   /* for what ranks agree upon under way; since the first engine */
    uint64_t order; /* among this process's communicators; is_met: the same on all ranks */
    int rank;
    int ranks;
    msdu__attach_comm place;
    bool is_left_alone;  /* one rank, or an intercommunicator */
    bool is_plain;       /* passed through on purpose, or because there is no engine */
    bool was_local;      /* local steps were taken */
    bool is_deserted;    /* another rank is at its end already */
    bool is_overwritten; /* what may be parameters was made equal between local steps */
    bool has_strayed;
    bool has_failed;
    bool is_failure_told;
    char why[256]; /* has_failed */
    msdu__recognizer recognizer;
    msdu__gain gain;
    msdu__attach_engine engine; /* ctx NULL: none */
    msdu__part part;            /* of ranks after local steps */
    msdu__ledger ledger;
    bool is_met;          /* ranks have compared their settings */
    bool is_proven;       /* the pattern is enough for local steps, on all ranks */
    bool is_told;         /* what was recognized */
    bool is_doubt_told;   /* that it is not enough for local steps */
    bool unmet_told;      /* that MSDU_ATTACH_TENSORS is something else */
    bool is_timed;        /* plain calls are timed for this one */
    uint64_t marks;       /* calls that are no candidates, in all, when the latest call came */
    uint64_t waits_ns;    /* time in reductions, in all, when the present step began */
    uint64_t candidates;  /* so far */
    uint32_t step_length; /* candidates of a step of the engine */
    uint64_t step_calls;  /* candidates before the present step of an engine */
    uint64_t ended_calls; /* step_calls when the last engine ended, and its steps */
    uint64_t ended_steps;
    struct msdu__stream *next; /* streams_lock */
} msdu__stream;

/* comm.c */
/* Before the first sum of floats, on all ranks: with different settings nothing is taken. */
void msdu__stream_meet(msdu__stream *stream);
/* Ranks are to agree on what a step is: all are behind the same call. */
void msdu__stream_vote(msdu__stream *stream);
/* A step begins whose gradients are known: is there to be an engine? Make it, or end it. */
void msdu__stream_step(msdu__stream *stream);
/* A call that does not fit: end the engine, loudly. */
void msdu__stream_break(msdu__stream *stream, const msdu__call *seen);
/* One that does not fit while local steps are taken: told once, and left to MPI. */
void msdu__stream_stray(msdu__stream *stream, const msdu__call *seen);
/* The sum of a gradient that joins the ranks is there. */
void msdu__stream_join(msdu__stream *stream, msdu__apart *apart, void *sum);
/* A line on standard error that gets out before the job is ended by its launcher. */
void msdu__stream_tell_failure(msdu__stream *stream, const char *why);
/* Finish, and tell what happened; once. */
void msdu__stream_end(msdu__stream *stream);

/* trust.c: all ranks are at the same call. */
/* Is this rank the one that tells? */
bool msdu__stream_is_teller(const msdu__stream *stream);
/* What one rank cannot do, none does. */
bool msdu__stream_agree(msdu__stream *stream, bool is_good);
/* Do all ranks have the same number? */
bool msdu__stream_is_equal(const msdu__stream *stream, uint64_t number);
/* Local steps are being taken. */
bool msdu__stream_is_local(const msdu__stream *stream);
/* Before a step of an engine: is it still to be trusted? If not the stream is plain from now on, or
 * has failed. */
void msdu__stream_check(msdu__stream *stream);
/* What was taken for a parameter is two of them: the same, by whether local steps were taken. */
void msdu__stream_contradict(msdu__stream *stream);
/* The stream has failed, for one because of more steps than the trainer has, after local ones. */
bool msdu__stream_has_too_many(msdu__stream *stream);
/* Between local steps the trainer may have set parameters, if a gradient or all have this size. */
void msdu__stream_suspect(msdu__stream *stream, uint64_t count, int32_t kind);
/* Local steps begin: rank 0 hears whose ends it may have to wait for. */
void msdu__stream_hear_of_mates(msdu__stream *stream);
/* What is known before the engine ends, by this rank alone. */
typedef struct msdu__last_word {
    bool is_local;
    bool is_over; /* it was the trainer's last step */
    bool has_met; /* and a synchronization */
    bool is_early;
    uint64_t steps;
} msdu__last_word;
msdu__last_word msdu__stream_last_word(msdu__stream *stream);
/* Behind it, so that ranks that are not at their end know: a job whose ranks are not what they must
 * be does not end well. */
void msdu__stream_check_end(msdu__stream *stream, const msdu__last_word *word);

/* pending.c: requests of MPI_Iallreduce, as generalized requests of MPI. */
typedef struct msdu__pending {
    MPI_Request request; /* the trainer's; set by msdu__pending_add() */
    msdu__stream *stream;
    uint32_t at;        /* tensor of the engine, unless ... */
    MPI_Request inner;  /* ... MPI itself reduces; else MPI_REQUEST_NULL */
    msdu__apart *apart; /* and its sum joins the ranks; may be NULL */
    void *recv;         /* where it shall be */
} msdu__pending;

bool msdu__pending_is_any(void);
/* A generalized request for it. */
int msdu__pending_add(const msdu__pending *pending, void *request_out);
bool msdu__pending_find(MPI_Request request, msdu__pending *pending_out);
void msdu__pending_complete(MPI_Request request);

/* calls.c */
/* The list as it is: whoever walks it takes each stream's own lock. */
msdu__stream *msdu__stream_first(void);
/* The stream of a call, locked; NULL: none, or left alone. */
msdu__stream *msdu__stream_enter(const msdu__reduction *call);
/* Who reduces a call? */
typedef struct msdu__call_choice {
    bool is_engine; /* tensor `at`; else MPI ... */
    uint32_t at;
    msdu__apart *apart; /* ... and this is joined by the sum; may be NULL */
} msdu__call_choice;
msdu__call_choice msdu__stream_choose(msdu__stream *stream, const msdu__reduction *call);
/* One rank's values come to all: the same, for every stream. */
void msdu__stream_broadcast(int64_t count, uintptr_t type);
/* A call that is not taken. */
void msdu__stream_observe(const msdu__reduction *call);
/* The engine takes it over: MPI's code. */
int msdu__stream_start(msdu__stream *stream, const msdu__reduction *call, uint32_t at);
/* MPI's way of saying that a call failed; OK: that the stream did. */
int msdu__stream_fail(msdu__stream *stream, msdu_status status);
/* Wait for one, or only look. */
int msdu__stream_settle(const msdu__pending *pending, bool may_block);

/* timing.c */
/* Another call between: on any communicator. */
void msdu__stream_mark(void);
uint64_t msdu__stream_marks(void);
/* Time in plain calls, ns. */
uint64_t msdu__stream_waits(void);
void msdu__stream_waited(uint64_t time_ns);
/* The trainer's plain calls are to be timed, in one stream more or less. */
void msdu__stream_time(int more);
bool msdu__stream_is_timing(void);

#endif
