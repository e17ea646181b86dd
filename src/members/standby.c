/* SPDX-License-Identifier: Apache-2.0 */
/* The thread that answers other members: a poll loop around the council, never blocked by any one
 * connection. It sleeps while nobody asks and nothing is waited for. */
#include "gather.h"
#include "impl.h"
#include "port.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TICK_MIN_NS    UINT64_C(5000000)
#define TICK_MAX_NS    UINT64_C(100000000)
#define FENCE_SILENCES 120 /* a fence that has held for so many times `silence` is old */
#define FIRST_FDS      4   /* stop, wake, standby port, rendezvous' port */

/* --- what comes --- */

static void take_request(struct msdu__standby *standby, struct msdu__line *line)
{
    line->id = standby->in.from;
    line->has_id = true;
    if (msdu__council_answer(&standby->council, &standby->in, &standby->out)) {
        msdu__line_say(line, MSDU__FRAME_REPLY, &standby->out);
    }
}

static void take(void *user, struct msdu__line *line, uint32_t type, const unsigned char *body,
                 size_t bytes)
{
    struct msdu__members *members = user;
    struct msdu__standby *standby = &members->standby;
    bool is_reply = type == MSDU__FRAME_REPLY || type == MSDU__FRAME_HAS_VALUE;
    if (is_reply != line->is_outgoing) {
        return;
    }
    if (type == MSDU__FRAME_VALUE || type == MSDU__FRAME_HAS_VALUE) {
        msdu__values_take(members, line, is_reply, body, bytes);
    } else if (msdu__line_read(body, bytes, &standby->in) && is_reply) {
        if (standby->council.phase == MSDU__PHASE_JOINING) {
            standby->patient_ns = standby->now_ns;
        }
        msdu__council_hear(&standby->council, &standby->in);
    } else if (standby->in.kind != 0 && !is_reply) {
        take_request(standby, line);
    }
    standby->in.kind = 0;
}

/* --- the clock --- */

static uint64_t tick_span(const struct msdu__members *members)
{
    uint64_t span_ns = members->settings.silence_ns / 50;
    span_ns = span_ns < TICK_MIN_NS ? TICK_MIN_NS : span_ns;
    return span_ns > TICK_MAX_NS ? TICK_MAX_NS : span_ns;
}

static bool has_untold(const struct msdu__council *council)
{
    for (uint32_t i = 0; council->is_teller && i < council->record.count; i++) {
        const struct msdu__peer *peer = &council->peers[i];
        if ((int32_t)i != council->rank && !peer->is_told && peer->seen != MSDU__SEEN_DEAD) {
            return true;
        }
    }
    return false;
}

static bool has_getters(struct msdu__members *members)
{
    (void)pthread_mutex_lock(&members->mail.lock);
    bool is_so = members->mail.getters > 0;
    (void)pthread_mutex_unlock(&members->mail.lock);
    return is_so && members->standby.council.rank > 0;
}

/* Is there something that has to be asked again and again? */
static bool is_busy(struct msdu__members *members)
{
    const struct msdu__council *council = &members->standby.council;
    return council->phase != MSDU__PHASE_TRAINING || has_untold(council) ||
           msdu__values_are_pending(members) || has_getters(members);
}

/* Waiting is bounded, but for trainers and newcomers. */
static void look_at_deadline(struct msdu__members *members)
{
    struct msdu__standby *standby = &members->standby;
    const struct msdu__council *council = &standby->council;
    char text[MSDU__HUB_TEXT_BYTES];
    uint64_t span_ns = members->host->deadline_ns;
    if (council->phase == MSDU__PHASE_TRAINING || council->phase == MSDU__PHASE_STOPPED) {
        return;
    }
    if (council->has_left) {
        span_ns += members->settings.silence_ns;
        if (msdu__council_is_patient(council)) {
            standby->patient_ns = standby->now_ns;
        }
    }
    if (standby->now_ns < standby->patient_ns + span_ns) {
        return;
    }
    if (council->has_left) {
        (void)msdu__explain_stop(members, text);
    } else {
        msdu__explain_launch(members, text);
    }
    msdu__mail_fail(members, MSDU_ERR_TIMEOUT, text);
}

/* Too few members: how long newcomers are waited for. */
static void look_at_patience(struct msdu__members *members)
{
    struct msdu__standby *standby = &members->standby;
    struct msdu__council *council = &standby->council;
    if (!council->is_short) {
        standby->short_ns = 0;
    } else if (standby->short_ns == 0) {
        standby->short_ns = standby->now_ns;
        standby->tend_ns = 0; /* newcomers must find this process */
    } else if (standby->now_ns >= standby->short_ns + members->settings.join_wait_ns) {
        msdu__council_waited(council);
    }
}

static void look_at_fence(struct msdu__members *members)
{
    struct msdu__standby *standby = &members->standby;
    uint32_t fence = standby->council.record.fence;
    if (fence != standby->fence) {
        standby->fence = fence;
        standby->fence_ns = standby->now_ns;
    }
    if (fence != 0 &&
        standby->now_ns >= standby->fence_ns + FENCE_SILENCES * members->settings.silence_ns) {
        msdu__council_fence_is_old(&standby->council);
    }
}

static void look_at_clock(struct msdu__members *members)
{
    struct msdu__standby *standby = &members->standby;
    struct msdu__council *council = &standby->council;
    msdu__lines_look(members);
    if (standby->met != MSDU__LINE_GOES_ON) {
        msdu__meet_ended(members);
    }
    look_at_patience(members);
    look_at_fence(members);
    if (standby->now_ns >= standby->tick_ns && is_busy(members)) {
        standby->tick_ns = standby->now_ns + tick_span(members);
        if (council->phase == MSDU__PHASE_JOINING) {
            msdu__meet_join(members);
        }
        msdu__council_tick(council);
        msdu__values_push(members);
        if (has_getters(members)) { /* is rank 0 alive? The answer does not matter. */
            msdu__gather_send(council, MSDU__SAY_COMMIT, 0);
        }
    }
    look_at_deadline(members);
    msdu__meet_tend(members);
}

/* This process itself did not run for a while: others had no chance to be heard. */
static void forgive(struct msdu__standby *standby, uint64_t gap_ns)
{
    standby->patient_ns += gap_ns;
    for (struct msdu__line *line = standby->lines; line != NULL; line = line->next) {
        line->asked_ns += line->asked_ns != 0 ? gap_ns : 0;
    }
}

/* --- the owner --- */

static void read_mail(struct msdu__members *members)
{
    struct msdu__mail *mail = &members->mail;
    struct msdu__standby *standby = &members->standby;
    uint64_t count = 0;
    while (read(mail->wake_fd, &count, sizeof(count)) < 0 && errno == EINTR) {
    }
    (void)pthread_mutex_lock(&mail->lock);
    bool has_report = mail->has_report;
    bool has_answer = mail->has_answer;
    struct msdu__report report = mail->report;
    mail->has_report = false;
    (void)pthread_mutex_unlock(&mail->lock);
    if (has_answer && standby->council.phase == MSDU__PHASE_JOINING) {
        msdu__meet_join(members);
    }
    if (has_report && standby->council.phase == MSDU__PHASE_TRAINING) {
        standby->patient_ns = standby->now_ns;
        look_at_fence(members);
        msdu__council_leave(&standby->council, &report);
    }
    msdu__values_push(members);
}

static void tell_epoch(struct msdu__members *members)
{
    struct msdu__mail *mail = &members->mail;
    struct msdu__standby *standby = &members->standby;
    const struct msdu__council *council = &standby->council;
    bool is_lost = council->rank > 0 && council->peers[0].seen == MSDU__SEEN_DEAD;
    msdu__flag_set(&mail->has_newcomer, msdu__council_has_newcomer(council));
    msdu__flag_set(&mail->is_awaited, council->is_awaited);
    (void)pthread_mutex_lock(&mail->lock);
    if (is_lost != mail->is_lost || (council->is_awaited && mail->getters > 0)) {
        mail->is_lost = is_lost;
        (void)pthread_cond_broadcast(&mail->changed);
    }
    if (council->phase == MSDU__PHASE_TRAINING && council->record.number != standby->told) {
        standby->told = council->record.number;
        standby->tend_ns = 0;
        mail->record = council->record;
        mail->rank = council->rank;
        (void)pthread_cond_broadcast(&mail->changed);
    }
    (void)pthread_mutex_unlock(&mail->lock);
}

/* Out of the job: from now on the others find that this process is gone. */
static void shut(struct msdu__standby *standby)
{
    msdu__lines_sweep(standby, true);
    msdu__port_close(standby->fd);
    msdu__port_close(standby->meet_fd);
    standby->fd = -1;
    standby->meet_fd = -1;
}

static void tell_owner(struct msdu__members *members)
{
    struct msdu__standby *standby = &members->standby;
    char text[MSDU__HUB_TEXT_BYTES];
    tell_epoch(members);
    if (standby->council.phase == MSDU__PHASE_STOPPED) {
        if (standby->council.stop != MSDU__STOP_NONE) {
            msdu_status status = msdu__explain_stop(members, text);
            msdu__mail_fail(members, status, text);
        }
        shut(standby);
    }
}

/* --- the loop --- */

struct polls {
    struct pollfd *fds;
    struct msdu__line **lines; /* of fds[FIRST_FDS + i] */
    size_t count;              /* lines */
    size_t capacity;
};

static bool grow(struct polls *polls)
{
    size_t wanted = polls->capacity == 0 ? 64 : 2 * polls->capacity;
    struct pollfd *fds = realloc(polls->fds, (FIRST_FDS + wanted) * sizeof(*fds));
    polls->fds = fds != NULL ? fds : polls->fds;
    struct msdu__line **lines = realloc(polls->lines, wanted * sizeof(struct msdu__line *));
    polls->lines = lines != NULL ? lines : polls->lines;
    polls->capacity = fds != NULL && lines != NULL ? wanted : polls->capacity;
    return fds != NULL && lines != NULL;
}

static void fill_polls(const struct msdu__members *members, struct polls *polls)
{
    const struct msdu__standby *standby = &members->standby;
    polls->count = 0;
    polls->fds[0] = (struct pollfd){.fd = standby->thread.stop_fd, .events = POLLIN};
    polls->fds[1] = (struct pollfd){.fd = members->mail.wake_fd, .events = POLLIN};
    polls->fds[2] = (struct pollfd){.fd = standby->fd, .events = POLLIN};
    polls->fds[3] = (struct pollfd){.fd = standby->meet_fd, .events = POLLIN};
    for (struct msdu__line *line = standby->lines; line != NULL; line = line->next) {
        if (line->fd >= 0 && (polls->count < polls->capacity || grow(polls))) {
            polls->lines[polls->count] = line;
            polls->fds[FIRST_FDS + polls->count] =
                (struct pollfd){.fd = line->fd, .events = msdu__line_events(line)};
            polls->count++;
        }
    }
}

/* Until when to sleep. */
static uint64_t next_time(struct msdu__members *members)
{
    const struct msdu__standby *standby = &members->standby;
    uint64_t next_ns = msdu__lines_next(members);
    if (standby->council.phase == MSDU__PHASE_STOPPED) {
        return UINT64_MAX;
    }
    if (is_busy(members) && standby->tick_ns < next_ns) {
        next_ns = standby->tick_ns;
    }
    if (standby->council.rank >= 0 && standby->tend_ns < next_ns) {
        next_ns = standby->tend_ns;
    }
    /* so often that a standstill of this process is seen */
    uint64_t look_ns = standby->now_ns + members->settings.silence_ns / 4;
    next_ns = look_ns < next_ns ? look_ns : next_ns;
    return next_ns;
}

static int timeout_ms(uint64_t span_ns)
{
    return span_ns > UINT64_C(3600000000000) ? -1 : (int)((span_ns + 999999) / 1000000);
}

/* Sleep, and look at the time. */
static bool sleep_until_something(struct msdu__members *members, struct polls *polls)
{
    struct msdu__standby *standby = &members->standby;
    uint64_t next_ns = next_time(members);
    uint64_t before_ns = standby->now_ns;
    uint64_t span_ns = next_ns > before_ns ? next_ns - before_ns : 0;
    fill_polls(members, polls);
    bool is_fine = poll(polls->fds, (nfds_t)(FIRST_FDS + polls->count), timeout_ms(span_ns)) >= 0 ||
                   errno == EINTR;
    standby->now_ns = msdu__clock_now();
    uint64_t slept_ns = standby->now_ns - before_ns;
    uint64_t late_ns = slept_ns > span_ns ? slept_ns - span_ns : 0;
    if (next_ns != UINT64_MAX && late_ns > members->settings.silence_ns / 4) {
        forgive(standby, late_ns);
    }
    if (next_ns != UINT64_MAX && late_ns > members->settings.silence_ns / 2) {
        standby->away_ns = standby->now_ns;
    }
    if (standby->away_ns != 0 &&
        standby->now_ns < standby->away_ns + members->settings.silence_ns) {
        msdu__council_was_away(&standby->council); /* of the record that had come meanwhile, too */
    }
    return is_fine && polls->fds[0].revents == 0;
}

static void handle(struct msdu__members *members, const struct polls *polls)
{
    struct msdu__standby *standby = &members->standby;
    for (size_t i = 0; i < polls->count; i++) {
        struct msdu__line *line = polls->lines[i];
        bool is_same = line->fd == polls->fds[FIRST_FDS + i].fd;
        if (is_same && polls->fds[FIRST_FDS + i].revents != 0) {
            enum msdu__line_end end = msdu__line_go_on(line, &standby->setup);
            if (end != MSDU__LINE_GOES_ON) {
                msdu__lines_ended(members, line, end);
            }
        }
    }
    if (polls->fds[2].revents != 0) {
        msdu__lines_accept(standby, standby->fd);
    }
    if (polls->fds[3].revents != 0 && standby->meet_fd >= 0) {
        msdu__lines_accept(standby, standby->meet_fd);
    }
    read_mail(members);
    look_at_clock(members);
}

static void *run(void *argument)
{
    struct msdu__members *members = argument;
    struct msdu__standby *standby = &members->standby;
    struct polls polls = {.fds = NULL};
    bool goes_on = grow(&polls);
    standby->now_ns = msdu__clock_now();
    standby->patient_ns = standby->now_ns;
    while (goes_on) {
        goes_on = sleep_until_something(members, &polls);
        if (goes_on && standby->council.phase != MSDU__PHASE_STOPPED) {
            handle(members, &polls);
            tell_owner(members);
            msdu__lines_sweep(standby, false);
        } else if (goes_on) {
            read_mail(members);
        }
    }
    shut(standby);
    free(polls.fds);
    free(polls.lines);
    return NULL;
}

/* --- start and stop --- */

static msdu_status fail_io(const struct msdu__members *members, const char *what)
{
    char text[MSDU__HUB_TEXT_BYTES];
    (void)snprintf(text, sizeof(text), "members: %s: %s", what, strerror(errno));
    return members->host->fail(MSDU_ERR_IO, text);
}

/* Where the others reach this process. */
static bool find_own(const struct msdu__members *members, struct msdu__address *own_out)
{
    const char *interface = members->host->interface;
    const struct msdu__find *find = &members->find;
    if (interface != NULL && interface[0] != '\0') {
        errno = ENODEV;
        return msdu__net_interface(interface, 0, own_out);
    }
    bool is_here = find->kind == MSDU__FIND_FILE;
    if (is_here || ((find->host[0] == '\0' || !msdu__net_outward(find->host, own_out)) &&
                    !msdu__net_outward(MSDU__NET_NOBODY, own_out))) {
        msdu__net_loopback(own_out);
    }
    msdu__net_set_port(own_out, 0);
    return true;
}

static msdu_status open_ports(struct msdu__members *members, struct msdu__member *self)
{
    struct msdu__standby *standby = &members->standby;
    char cause[MSDU__CAUSE_BYTES];
    if (members->find.kind == MSDU__FIND_TCP) {
        standby->meet_count = msdu__find_own(&members->find, members->host, standby->meet, cause);
        (void)msdu__find_lookup(&members->find, 0, &standby->places, cause);
    }
    if (!find_own(members, &standby->own)) {
        return fail_io(members, "no address of the interface");
    }
    standby->fd = msdu__port_note(msdu__net_listen(&standby->own));
    if (standby->fd < 0 || !msdu__net_own(standby->fd, &standby->own)) {
        return fail_io(members, "no standby port");
    }
    msdu__net_text(&standby->own, true, self->place);
    return msdu__net_random(&self->id, sizeof(self->id)) ? MSDU_OK
                                                         : fail_io(members, "no random numbers");
}

msdu_status msdu__standby_start(struct msdu__members *members)
{
    struct msdu__standby *standby = &members->standby;
    const msdu__members_settings *settings = &members->settings;
    const struct msdu__post post = {.user = standby, .send = msdu__lines_post};
    const struct msdu__rules rules = {.least = (uint32_t)settings->ranks_least,
                                      .most = (uint32_t)settings->ranks_most,
                                      .has_patience = settings->join_wait_ns > 0};
    struct msdu__member self;
    memset(&self, 0, sizeof(self));
    msdu__port_watch_forks();
    msdu_status status = open_ports(members, &self);
    if (status != MSDU_OK) {
        return status;
    }
    msdu__council_init(&standby->council, &post, &rules, &self, members->host->rank,
                       members->host->ranks);
    standby->setup = (struct msdu__line_setup){
        .host = members->meet_host, .id = self.id, .user = members, .take = take};
    if (!msdu__thread_start(&standby->thread, run, members)) {
        return members->host->fail(MSDU_ERR_NO_MEMORY, "members: no thread");
    }
    return MSDU_OK;
}

void msdu__standby_stop(struct msdu__members *members)
{
    msdu__thread_stop(&members->standby.thread);
    shut(&members->standby);
}
