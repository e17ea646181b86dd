/* SPDX-License-Identifier: Apache-2.0 */
/* Epochs of membership as their owner sees them. */
#include "members.h"

#include "impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define SILENCE_NS UINT64_C(5000000000)

static msdu_status read_settings(const msdu_host *host, const msdu__members_settings *given,
                                 msdu__members_settings *settings_out)
{
    *settings_out = *given;
    msdu__members_settings *settings = settings_out;
    settings->silence_ns = settings->silence_ns == 0 ? SILENCE_NS : settings->silence_ns;
    settings->ranks_least = settings->ranks_least == 0 ? 1 : settings->ranks_least;
    settings->ranks_most = settings->ranks_most == 0 ? MSDU__MEMBERS_MOST : settings->ranks_most;
    if (host->ranks > MSDU__MEMBERS_MOST || settings->ranks_most > MSDU__MEMBERS_MOST) {
        char text[96];
        (void)snprintf(text, sizeof(text), "members: at most %d ranks can come and go",
                       MSDU__MEMBERS_MOST);
        return host->fail(MSDU_ERR_INVALID, text);
    }
    if (settings->ranks_least < 1 || settings->ranks_most < settings->ranks_least) {
        return host->fail(MSDU_ERR_INVALID, "members: ranks_least is above ranks_most, or below 1");
    }
    return MSDU_OK;
}

static void members_free(struct msdu__members *members)
{
    if (members->mail.wake_fd >= 0) {
        (void)close(members->mail.wake_fd);
    }
    (void)pthread_cond_destroy(&members->mail.changed);
    (void)pthread_mutex_destroy(&members->mail.lock);
    explicit_bzero(&members->find, sizeof(members->find)); /* Redis' password */
    free(members);
}

static struct msdu__members *members_new(const msdu_host *host)
{
    struct msdu__members *members = calloc(1, sizeof(*members));
    if (members == NULL) {
        return NULL;
    }
    members->host = host;
    members->meet_host = *host;
    members->meet_host.job = members->job;
    (void)snprintf(members->job, sizeof(members->job), "%.240s members", host->job);
    members->standby.fd = -1;
    members->standby.meet_fd = -1;
    msdu__cond_init(&members->mail.changed);
    (void)pthread_mutex_init(&members->mail.lock, NULL);
    members->mail.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (members->mail.wake_fd < 0) {
        members_free(members);
        return NULL;
    }
    return members;
}

/* What the owner learns of an epoch. */
static void describe(struct msdu__members *members, msdu__epoch *epoch_out)
{
    const struct msdu__record *record = &members->mail.record;
    memset(epoch_out, 0, sizeof(*epoch_out));
    epoch_out->number = record->number;
    epoch_out->rank = members->mail.rank;
    epoch_out->ranks = (int32_t)record->count;
    epoch_out->is_newcomer = record->number > 1 && !members->has_state;
    epoch_out->round = record->round;
    epoch_out->step = record->step;
    epoch_out->behind = record->behind;
    epoch_out->lost = record->lost;
    epoch_out->joined = record->joined;
    members->number = record->number;
}

/* Wait for an epoch after the one that was returned last. */
static msdu_status await_epoch(struct msdu__members *members, msdu__epoch *epoch_out)
{
    struct msdu__mail *mail = &members->mail;
    char text[MSDU__HUB_TEXT_BYTES];
    (void)pthread_mutex_lock(&mail->lock);
    while (mail->status == MSDU_OK && mail->record.number == members->number) {
        if (mail->wish != MSDU__WISH_NONE) {
            msdu__meet_grant(members);
            msdu__mail_wake(members);
        } else {
            (void)pthread_cond_wait(&mail->changed, &mail->lock);
        }
    }
    mail->wish = MSDU__WISH_NONE; /* too late */
    msdu_status status = mail->status;
    memcpy(text, mail->text, sizeof(text));
    if (status == MSDU_OK) {
        describe(members, epoch_out);
    }
    (void)pthread_mutex_unlock(&mail->lock);
    return status == MSDU_OK ? MSDU_OK : members->host->fail(status, text);
}

/* Redis and the caller's store are for the owner's thread to tell. */
static void tell_store(struct msdu__members *members, const msdu__epoch *epoch)
{
    char cause[MSDU__CAUSE_BYTES] = "";
    char text[MSDU__HUB_TEXT_BYTES];
    const msdu_host *host = members->host;
    bool is_store =
        members->find.kind == MSDU__FIND_REDIS || members->find.kind == MSDU__FIND_STORE;
    if (!is_store || epoch->rank != 0 || epoch->number == 1 ||
        msdu__find_publish(&members->find, &members->standby.own, members->standby.setup.id.bytes,
                           host->deadline_ns, cause)) {
        return;
    }
    (void)snprintf(text, sizeof(text), "members: newcomers will not find this job: %.200s", cause);
    if (host->log != NULL) {
        host->log(host->user, MSDU_LOG_WARN, text);
    }
}

static msdu_status follow(struct msdu__members *members, const msdu__report *report,
                          msdu__epoch *epoch_out)
{
    members->has_state = report->has_state;
    (void)pthread_mutex_lock(&members->mail.lock);
    members->mail.report = *report;
    members->mail.has_report = true;
    (void)pthread_mutex_unlock(&members->mail.lock);
    msdu__mail_wake(members);
    return await_epoch(members, epoch_out);
}

/* A launch of fewer than ranks_least ends its epoch at once, and waits for newcomers. */
static msdu_status await_more(struct msdu__members *members, msdu__epoch *epoch_out)
{
    const msdu__report report = {.has_state = !epoch_out->is_newcomer};
    return follow(members, &report, epoch_out);
}

msdu_status msdu__members_open(const msdu_host *host, const msdu__members_settings *settings,
                               msdu__members **members_out, msdu__epoch *epoch_out)
{
    if (strlen(host->job) > 240) {
        return host->fail(MSDU_ERR_INVALID, "job: the name is longer than 240 bytes");
    }
    struct msdu__members *members = members_new(host);
    if (members == NULL) {
        return host->fail(MSDU_ERR_NO_MEMORY, "members: no memory");
    }
    msdu_status status = read_settings(host, settings, &members->settings);
    if (status == MSDU_OK) {
        status = msdu__find_parse(&members->meet_host, &members->find);
    }
    if (status == MSDU_OK) {
        status = msdu__standby_start(members);
    }
    if (status == MSDU_OK) {
        status = await_epoch(members, epoch_out);
    }
    while (status == MSDU_OK && epoch_out->ranks < members->settings.ranks_least) {
        status = await_more(members, epoch_out);
    }
    if (status != MSDU_OK) {
        msdu__members_close(members);
        return status;
    }
    tell_store(members, epoch_out);
    *members_out = members;
    return MSDU_OK;
}

msdu_status msdu__members_next(msdu__members *members, const msdu__report *report,
                               msdu__epoch *epoch_out)
{
    if (report->is_leaving) {
        msdu__standby_stop(members);
        memset(epoch_out, 0, sizeof(*epoch_out));
        epoch_out->rank = -1;
        return MSDU_OK;
    }
    msdu_status status = follow(members, report, epoch_out);
    if (status == MSDU_OK) {
        tell_store(members, epoch_out);
    }
    return status;
}

bool msdu__members_has_newcomer(msdu__members *members)
{
    return msdu__flag_get(&members->mail.has_newcomer);
}

bool msdu__members_is_awaited(msdu__members *members)
{
    return msdu__flag_get(&members->mail.is_awaited);
}

void msdu__members_close(msdu__members *members)
{
    if (members != NULL) {
        msdu__standby_stop(members);
        if (members->mail.rank == 0) {
            msdu__find_withdraw(&members->find);
        }
        members_free(members);
    }
}
