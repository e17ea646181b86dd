/* SPDX-License-Identifier: Apache-2.0 */
/* What the files that implement members.h share. */
#ifndef MSDU_MEMBERS_IMPL_H
#define MSDU_MEMBERS_IMPL_H

#include "line.h"

#include "backend/rendezvous/find.h"
#include "backend/rendezvous/thread.h"
#include "base/cell.h"

#include <pthread.h>

#define MSDU__VALUES_MOST    8 /* kept; the oldest goes */
#define MSDU__VALUE_KEY      256
#define MSDU__MEMBERS_SAY_NS UINT64_C(500000000) /* longest time to send the last frames */

/* A value of msdu__members_store(). */
struct msdu__value {
    uint32_t bytes;
    uint32_t number;                 /* own: of the epoch whose members get it; 0: another's */
    bool has_it[MSDU__MEMBERS_MOST]; /* own: which of them have */
    char key[MSDU__VALUE_KEY];
    unsigned char data[MSDU_STORE_VALUE_BYTES];
};

/* What the thread asks of the owner while it waits for an epoch: these calls may block. */
enum msdu__wish {
    MSDU__WISH_NONE,
    MSDU__WISH_PLACE,   /* look where the job is */
    MSDU__WISH_PUBLISH, /* tell where the job is */
};

/* Between the owner and the thread; guarded by its lock, but for the flags. */
struct msdu__mail {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int wake_fd; /* eventfd: the thread shall look here */
    /* owner -> thread */
    bool has_report;
    struct msdu__report report;
    bool has_answer; /* to the wish */
    bool is_found;   /* the answer */
    struct msdu__rank0_place place;
    uint32_t getters; /* calls of get that wait */
    /* thread -> owner */
    enum msdu__wish wish;
    struct msdu__record record; /* of the last epoch that began; number 0: none */
    int32_t rank;
    bool is_lost; /* rank 0 of it is known to be dead */
    msdu_status status;
    char text[MSDU__HUB_TEXT_BYTES];
    struct msdu__value values[MSDU__VALUES_MOST];
    uint32_t values_count; /* ever */
    msdu__flag has_newcomer;
    msdu__flag is_awaited;
};

/* The thread's. */
struct msdu__standby {
    struct msdu__thread thread;
    struct msdu__line_setup setup;
    struct msdu__council council;
    int fd;      /* the standby port */
    int meet_fd; /* tcp://: the rendezvous' own port, where this process could have it */
    struct msdu__address own;
    struct msdu__address meet[MSDU__NET_ADDRESSES]; /* where this process might have it */
    size_t meet_count;
    struct msdu__rank0_place places; /* where newcomers look */
    size_t meet_at;                  /* which of them meet_fd is */
    struct msdu__line *lines;
    struct msdu__line *meeting; /* one of them: to whoever answers at the rendezvous */
    enum msdu__line_end met;    /* what became of the last one; GOES_ON: nothing that is news */
    char met_cause[MSDU__CAUSE_BYTES];
    uint64_t now_ns;
    uint64_t tick_ns;    /* next time to ask again */
    uint64_t tend_ns;    /* rank 0: next look whether newcomers find this job */
    uint64_t stand_ns;   /* until when it stands where newcomers look, before it forms; 0: not */
    bool was_found;      /* somebody's notice, before that */
    uint64_t away_ns;    /* when this process had stood still for long; 0: never */
    uint64_t patient_ns; /* when there was last a reason to wait as long as it takes */
    uint64_t short_ns;   /* since when it waits for newcomers; 0: it does not */
    uint64_t fence_ns;   /* since when the present fence holds */
    uint32_t fence;
    uint32_t told; /* number of the last epoch given to the owner */
    struct msdu__letter in;
    struct msdu__letter out;
};

struct msdu__members {
    const msdu_host *host;
    msdu_host meet_host; /* the same, with this job's name among rendezvous */
    char job[MSDU__JOB_BYTES];
    msdu__members_settings settings;
    struct msdu__find find;
    struct msdu__mail mail;
    struct msdu__standby standby;
    uint32_t number; /* owner: of the epoch that was returned last */
    bool has_state;  /* owner: as it last reported */
};

/* standby.c: open the standby port and start the thread. */
msdu_status msdu__standby_start(struct msdu__members *members);
void msdu__standby_stop(struct msdu__members *members);

/* mail.c: wake the thread, there is something in the mail. */
void msdu__mail_wake(struct msdu__members *members);
/* The thread's part in the job ends, with a cause for the owner. */
void msdu__mail_fail(struct msdu__members *members, msdu_status status, const char *text);

/* lines.c: the thread's connections. */
void msdu__lines_post(void *user, const struct msdu__member *to, const struct msdu__letter *letter);
/* The outgoing line to a member, made if need be; NULL: no memory or no address. */
struct msdu__line *msdu__lines_to(struct msdu__standby *standby, const struct msdu__member *to);
/* May another request be queued? The ones before a line is open give way. */
bool msdu__lines_has_room(struct msdu__line *line);
void msdu__lines_accept(struct msdu__standby *standby, int listen_fd);
/* A line came to such an end. */
void msdu__lines_ended(struct msdu__members *members, struct msdu__line *line,
                       enum msdu__line_end end);
/* Handshakes that take too long, lines to be connected again, silence. */
void msdu__lines_look(struct msdu__members *members);
/* Remove lines without a descriptor that nobody needs, or all. */
void msdu__lines_sweep(struct msdu__standby *standby, bool all);
/* The earliest time at which msdu__lines_look() has something to do. */
uint64_t msdu__lines_next(const struct msdu__members *members);

/* meet.c: how newcomers and the job find each other. */
void msdu__meet_join(struct msdu__members *members);
/* The line to the rendezvous came to the end `met`. */
void msdu__meet_ended(struct msdu__members *members);
void msdu__meet_tend(struct msdu__members *members);
/* The owner's part: do what the thread wishes. Called with the lock, which it leaves meanwhile. */
void msdu__meet_grant(struct msdu__members *members);

/* values.c */
void msdu__values_push(struct msdu__members *members);
bool msdu__values_are_pending(struct msdu__members *members);
void msdu__values_take(struct msdu__members *members, struct msdu__line *line, bool is_reply,
                       const unsigned char *body, size_t bytes);

/* explain.c: why the council stopped, in one line. */
msdu_status msdu__explain_stop(const struct msdu__members *members,
                               char text[MSDU__HUB_TEXT_BYTES]);
/* Why a launch did not come about in time. */
void msdu__explain_launch(const struct msdu__members *members, char text[MSDU__HUB_TEXT_BYTES]);

#endif
