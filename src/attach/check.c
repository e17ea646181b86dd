/* SPDX-License-Identifier: Apache-2.0 */
/* What is wrong with the settings, before anything is attached by them. */
#include "settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/name.h"

#define PREFIX     "MSDU_"
#define SLIP_MOST  2 /* letters: two that changed places, one too many ... */
#define NAME_LEAST 4 /* behind the prefix: in shorter names two letters make another word */
#define NAME_BYTES 64
#define FAR_SHARE  3 /* more than a third changed is another word */

/* --- names --- */

/* The known variables one after the other; NULL past the last. */
static const char *known_name(size_t index)
{
    static const char *const others[] = {"MSDU_MODULE_PATH", "MSDU_LIBRARY"}; /* of no table */
    const size_t other_count = sizeof(others) / sizeof(others[0]);
    msdu_setting_info info = MSDU_SETTING_INFO_INIT;
    if (index < other_count) {
        return others[index];
    }
    bool is_known = msdu_setting_get((uint32_t)(index - other_count), &info) == MSDU_OK;
    return is_known ? info.environment : NULL;
}

static const char *nearest(const char *name, size_t *distance_out)
{
    const char *best = NULL;
    const char *known = NULL;
    size_t limit = strlen(name) / FAR_SHARE + 1;
    for (size_t i = 0; (known = known_name(i)) != NULL; i++) {
        size_t distance = msdu__name_distance(name, known);
        if (distance < limit) {
            limit = distance;
            best = known;
        }
    }
    *distance_out = limit;
    return best;
}

bool msdu__attach_unknown(size_t *at, char *text, size_t bytes, bool *is_slip_out)
{
    for (; environ != NULL && environ[*at] != NULL; (*at)++) {
        char name[NAME_BYTES];
        size_t distance = 0;
        const char *entry = environ[*at];
        if (strncmp(entry, PREFIX, sizeof(PREFIX) - 1) != 0) {
            continue;
        }
        (void)snprintf(name, sizeof(name), "%.*s", (int)strcspn(entry, "="), entry);
        const char *near = nearest(name, &distance);
        if (near != NULL && distance == 0) {
            continue;
        }
        size_t length = strlen(name) - (sizeof(PREFIX) - 1);
        *is_slip_out = near != NULL && distance <= SLIP_MOST && length >= NAME_LEAST;
        (void)snprintf(text, bytes, "%s: there is no such setting%s%s%s", name,
                       near == NULL ? "" : ", did you mean ", near == NULL ? "" : near,
                       near == NULL ? "" : "?");
        (*at)++;
        return true;
    }
    return false;
}

static bool has_slip(char *text, size_t bytes)
{
    bool is_slip = false;
    for (size_t at = 0; !is_slip && msdu__attach_unknown(&at, text, bytes, &is_slip);) {
    }
    return is_slip;
}

/* --- values --- */

/* Without a slash the loader searches for it. */
static bool has_bad_file(char *text, size_t bytes)
{
    static const char *const names[] = {"MSDU_ATTACH_LIBRARY", "MSDU_ATTACH_NCCL_LIBRARY"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const char *path = msdu__attach_setting(names[i]);
        if (strchr(path, '/') != NULL && access(path, R_OK) != 0) {
            (void)snprintf(text, bytes, "%s: '%.60s' cannot be read", names[i], path);
            return true;
        }
    }
    return false;
}

/* What attaching gives a context itself. */
static const struct {
    const char *name;
    const char *value; /* which it may be; NULL: none */
    const char *why;
} owned[] = {
    {"backend", NULL, "the backend is the trainer's own MPI or NCCL"},
    {"rendezvous", NULL, "ranks meet over the trainer's own communicators"},
    {"ranks", NULL, "the size is that of the trainer's communicator"},
    {"rank", NULL, "the rank is that in the trainer's communicator"},
    {"reduce", NULL, "the trainer's own calls say whether they sum up"},
    {"overlap", "backward", "each reduction is the trainer's own call"},
    {"commit", "tensor", "each reduction is given back by itself"},
    {"fuse_bytes", "0", "the trainer may wait for each reduction before the next"},
    {"broadcast", "no", "parameters are not known"},
};

static bool has_owned(char *text, size_t bytes)
{
    for (size_t i = 0; i < sizeof(owned) / sizeof(owned[0]); i++) {
        const char *value = msdu__attach_setting(owned[i].name);
        bool is_allowed = owned[i].value != NULL && strcmp(value, owned[i].value) == 0;
        if (msdu__attach_is_given(owned[i].name) && !is_allowed) {
            (void)snprintf(text, bytes,
                           "%s: '%.60s' cannot hold for a trainer that is attached: %s",
                           msdu__attach_origin(owned[i].name), value, owned[i].why);
            return true;
        }
    }
    return false;
}

/* As the context would say it. */
static bool has_refusal(char *text, size_t bytes)
{
    int end = 0;
    msdu_config config = msdu__attach_config(msdu__attach_is_local());
    config.ranks = 65536;
    config.rendezvous = "attached";
    if (msdu_setting_resolve(&config, NULL, NULL) == MSDU_OK) {
        return false;
    }
    const char *why = msdu_last_error();
    (void)sscanf(why, "rank %*d: %n", &end); /* who calls knows it better */
    (void)snprintf(text, bytes, "%s", why + end);
    return true;
}

/* As libmsdu_preload reads it: then nothing is attached, whatever else is wrong. */
static bool is_off(void)
{
    const char *text = getenv("MSDU_ATTACH");
    return text != NULL && strcmp(text, "off") == 0;
}

bool msdu__attach_has_bad_setting(const msdu__attach_comm *comm, char *text, size_t bytes)
{
    bool is_found = has_slip(text, bytes);
    if (!is_found && !is_off()) {
        is_found = has_owned(text, bytes) || has_refusal(text, bytes) ||
                   has_bad_file(text, bytes) || msdu__attach_has_bad_list(comm, text, bytes);
    }
    msdu__attach_set_bad(is_found);
    return is_found;
}
