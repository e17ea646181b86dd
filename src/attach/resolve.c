/* SPDX-License-Identifier: Apache-2.0 */
/* Settings as attaching sees them: those of the library as it resolves them itself, and its own. */
#include "settings.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HASH_SEED  14695981039346656037U /* FNV-1a */
#define HASH_PRIME 1099511628211U

/* --- one setting --- */

/* What was asked for once; kept for the life of the process. */
typedef struct answer {
    struct answer *next;
    msdu_resolved resolved;
    bool is_given;
    char name[64];
} answer;

static pthread_mutex_t answers_lock = PTHREAD_MUTEX_INITIALIZER;
static answer *answers; /* answers_lock */

/* Nothing about the place in a job is looked for in the environment of launchers. */
static const msdu_config anywhere = {
    .size = sizeof(anywhere), .ranks = 65536, .rendezvous = "attached"};

static bool is_of_struct(const char *origin)
{
    static const char prefix[] = "msdu_config.";
    return strncmp(origin, prefix, sizeof(prefix) - 1) == 0;
}

/* The library's own name of what may be called by its variable. */
static void own_name(const char *name, char *text, size_t bytes)
{
    msdu_setting_info info = MSDU_SETTING_INFO_INIT;
    (void)snprintf(text, bytes, "%s", name);
    for (uint32_t i = 0; msdu_setting_get(i, &info) == MSDU_OK; i++) {
        if (strcmp(info.environment, name) == 0) {
            (void)snprintf(text, bytes, "%s", info.name);
            return;
        }
    }
}

/* answers_lock is held. NULL: no memory. */
static const answer *ask(const char *name)
{
    answer *made = NULL;
    for (const answer *at = answers; at != NULL; at = at->next) {
        if (strcmp(at->name, name) == 0) {
            return at;
        }
    }
    made = calloc(1, sizeof(*made));
    if (made == NULL) {
        return NULL;
    }
    char own[sizeof(made->name)];
    own_name(name, own, sizeof(own));
    (void)snprintf(made->name, sizeof(made->name), "%s", name);
    made->resolved.size = sizeof(made->resolved);
    bool is_good = msdu_setting_resolve(&anywhere, own, &made->resolved) == MSDU_OK;
    made->is_given =
        is_good && made->resolved.origin[0] != '\0' && !is_of_struct(made->resolved.origin);
    made->next = answers;
    answers = made;
    return made;
}

static const answer *answer_of(const char *name)
{
    (void)pthread_mutex_lock(&answers_lock);
    const answer *found = ask(name);
    (void)pthread_mutex_unlock(&answers_lock);
    return found;
}

void msdu__attach_forget(void)
{
    (void)pthread_mutex_lock(&answers_lock);
    while (answers != NULL) {
        answer *gone = answers;
        answers = gone->next;
        free(gone);
    }
    (void)pthread_mutex_unlock(&answers_lock);
}

const char *msdu__attach_setting(const char *name)
{
    const answer *found = answer_of(name);
    return found != NULL && found->is_given ? found->resolved.text : "";
}

bool msdu__attach_is_given(const char *name)
{
    const answer *found = answer_of(name);
    return found != NULL && found->is_given;
}

const char *msdu__attach_origin(const char *name)
{
    const answer *found = answer_of(name);
    return found != NULL && found->is_given ? found->resolved.origin : "";
}

uint64_t msdu__attach_number(const char *name, uint64_t otherwise)
{
    const answer *found = answer_of(name);
    char *end = NULL;
    uint64_t value = found == NULL ? 0 : strtoull(found->resolved.text, &end, 10);
    return end == NULL || end == found->resolved.text || *end != '\0' ? otherwise : value;
}

bool msdu__attach_is_loud(void)
{
    return strcmp(msdu__attach_setting("log_level"), "error") != 0;
}

/* --- those of a context --- */

static bool is_set_to(const char *name, const char *value)
{
    return strcmp(msdu__attach_setting(name), value) == 0;
}

bool msdu__attach_is_local(void)
{
    return msdu__attach_is_given("domain") ? is_set_to("domain", "accumulated")
                                           : is_set_to("optimizer", "sgd");
}

bool msdu__attach_is_exact(void)
{
    bool is_every_step = is_set_to("interval", "fixed") && is_set_to("interval_steps", "1");
    if (!msdu__attach_is_local()) {
        return is_set_to("wire", "float32");
    }
    return is_every_step && (!msdu__attach_is_given("wire") || is_set_to("wire", "float32"));
}

bool msdu__attach_is_asked(void)
{
    static const char *const wishes[] = {"wire", "interval", "interval_steps", "domain",
                                         "delay_steps"};
    bool is_asked = strcmp(msdu__attach_setting("MSDU_ATTACH"), "always") == 0;
    for (size_t i = 0; i < sizeof(wishes) / sizeof(wishes[0]); i++) {
        is_asked = is_asked || msdu__attach_is_given(wishes[i]);
    }
    return is_asked;
}

bool msdu__attach_is_dampened(void)
{
    /* a digit other than 0: strtod() would read it by the trainer's locale */
    return strpbrk(msdu__attach_setting("dampening"), "123456789") != NULL;
}

msdu_config msdu__attach_config(bool is_local)
{
    msdu_config config = MSDU_CONFIG_INIT;
    config.domain = is_local ? "accumulated" : "gradient";
    config.overlap = "backward";
    config.commit = "tensor";
    config.reduce = is_local ? "mean" : "sum";
    /* ranks drift by as much in every round, so narrow local steps end beside the optimum */
    config.wire = is_local ? "float32" : "int4";
    config.check_finite = "propagate"; /* as the trainer would see it without the library */
    /* without weight decay a constant learning rate cancels, so any will do; with it, it is asked
     * for. Rates that change are told by msdu_attach_lr() */
    config.lr = is_local && !msdu__attach_is_given("weight_decay") ? 1.0 : 0.0;
    /* a fused slice would wait for gradients that the trainer has not computed yet */
    config.settings = "fuse_bytes = 0\n";
    return config;
}

static uint64_t add_text(uint64_t hash, const char *text)
{
    for (; *text != '\0'; text++) {
        hash = (hash ^ (unsigned char)*text) * HASH_PRIME;
    }
    return (hash ^ 0xFF) * HASH_PRIME; /* where one ends */
}

uint64_t msdu__attach_hash(void)
{
    static const char *const names[] = {
        "domain",      "optimizer",      "wire",         "interval",           "delay_steps",
        "total_steps", "interval_steps", "attach",       "attach_min_bytes",   "attach_allow",
        "attach_deny", "attach_tensors", "attach_learn", "attach_equal_steps", "attach_guard"};
    uint64_t hash = HASH_SEED;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        hash = add_text(hash, msdu__attach_setting(names[i]));
    }
    return hash;
}
