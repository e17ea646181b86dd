/* SPDX-License-Identifier: Apache-2.0 */
/* The group of ranks is joined: what the backend is told, and what it may call. */
#include "startup.h"

static const char *or_null(const char *text)
{
    return text[0] == '\0' ? NULL : text;
}

static void host_notify(void *user)
{
    msdu__handover *h = user;
    msdu__worker_kick(&h->worker);
}

static void host_log(void *user, msdu_log_level level, const char *text)
{
    const msdu__handover *h = user;
    msdu__log_line(&h->job->log, level, "%s", text);
}

static msdu_status host_fail(msdu_status status, const char *text)
{
    return msdu__fail_text(status, text);
}

msdu_host msdu__start_host(msdu__engine *e)
{
    const msdu__settings *s = &e->job->settings;
    return (msdu_host){
        .size = sizeof(msdu_host),
        .rank = e->job->rank,
        .ranks = e->job->ranks,
        .job = s->job,
        .secret = or_null(s->secret),
        .rendezvous = or_null(s->rendezvous),
        .interface = or_null(s->interface),
        .tls_key = or_null(s->tls_key),
        .tls_cert = or_null(s->tls_cert),
        .tls_ca = or_null(s->tls_ca),
        .deadline_ns = (uint64_t)s->deadline_ms * 1000000ULL,
        /* first phase, second phase, control, plan */
        .lanes = (uint32_t)(2 * s->lanes + 2),
        .requests =
            (s->window < 0 ? MSDU__WINDOW_TUNED : (uint32_t)s->window) + 2 * MSDU__FRAGMENTS_MAX,
        .user = e->hand,
        .notify = host_notify,
        .log = host_log,
        .fail = host_fail,
        .store = s->store.size > 0 ? &s->store : NULL,
        .names = e->job->levels.names, /* of a host's own context */
    };
}

msdu_status msdu__start_join(msdu__engine *e)
{
    msdu__job *job = e->job;
    job->host = msdu__start_host(e);
    msdu_status status = job->backend->open(&job->host, &job->comm);
    if (status != MSDU_OK) {
        job->comm = NULL;
    }
    return status;
}
