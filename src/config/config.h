/* SPDX-License-Identifier: Apache-2.0 */
/* Settings: one table of field, name, type, default, range and help; struct, ini file, environment.
 */
#ifndef MSDU_CONFIG_H
#define MSDU_CONFIG_H

#include <msdu/store.h>

#include "base/base.h"

enum { MSDU__DOMAIN_AUTO, MSDU__DOMAIN_GRADIENT, MSDU__DOMAIN_ACCUMULATED, MSDU__DOMAIN_PARAMETER };
enum {
    MSDU__OVERLAP_AUTO,
    MSDU__OVERLAP_BACKWARD,
    MSDU__OVERLAP_BLOCKING,
    MSDU__OVERLAP_DELAYED,
    MSDU__OVERLAP_STREAMED
};
enum { MSDU__CHECK_NO, MSDU__CHECK_YES, MSDU__CHECK_SKIP, MSDU__CHECK_PASS };
enum { MSDU__STATE_LOCAL, MSDU__STATE_AVERAGE, MSDU__STATE_RESET };
enum { MSDU__OPTIMIZER_UNKNOWN, MSDU__OPTIMIZER_SGD, MSDU__OPTIMIZER_ADAM };

/* Longest text setting, with its zero. */
#define MSDU__SETTING_BYTES 512

/* All settings, resolved and checked. Texts are owned copies, "" if not set. Names as in
 * msdu_config; see there. */
typedef struct msdu__settings {
    int64_t ranks;
    int64_t rank;
    char backend[MSDU__SETTING_BYTES];
    char job[MSDU__SETTING_BYTES];
    char secret[MSDU__SETTING_BYTES];
    char rendezvous[MSDU__SETTING_BYTES]; /* where nobody set it: of store, or MASTER_* */
    char interface[MSDU__SETTING_BYTES];
    char tls_key[MSDU__SETTING_BYTES];
    char tls_cert[MSDU__SETTING_BYTES];
    char tls_ca[MSDU__SETTING_BYTES];
    int64_t deadline_ms;
    int64_t domain; /* MSDU__DOMAIN_*; likewise for the choices below */
    int64_t overlap;
    int64_t commit_tensor; /* 0: commit = round, 1: tensor */
    int64_t reduce_sum;    /* 0: mean, 1: sum */
    int64_t broadcast;     /* no 0, yes 1; so are all yes/no settings */
    int64_t check_finite;  /* MSDU__CHECK_* */
    int64_t state;
    int64_t delay_steps;
    int64_t fragments;
    char interval[MSDU__SETTING_BYTES]; /* checked against interval.h */
    int64_t interval_steps;
    int64_t interval_max;
    int64_t warmup_steps;
    int64_t total_steps;
    int64_t switch_step;
    double target_overhead;
    int64_t prefer_speed;
    double drift_limit;
    double drift_exponent;
    double qsr_alpha;
    int64_t plateau_patience;
    double plateau_threshold;
    char correct[MSDU__SETTING_BYTES]; /* checked against correct.h */
    double elastic_alpha;
    double outer_lr;
    double outer_momentum;
    int64_t outer_is_nesterov;
    double delayed_keep;
    double clip_ratio;
    int64_t optimizer;
    double lr;
    double momentum;
    double dampening;
    double weight_decay;
    int64_t nesterov;
    int64_t slice_bytes; /* -1: auto; likewise: */
    int64_t fuse_bytes;
    int64_t window;
    int64_t lanes;
    int64_t wire; /* index of wire.h, -1: auto; likewise: */
    int64_t wire_warmup;
    int64_t wire_block;
    int64_t wire_is_stochastic;
    char trace_file[MSDU__SETTING_BYTES];
    char metrics_file[MSDU__SETTING_BYTES];
    int64_t metrics_period_ms;
    int64_t log_level; /* msdu_log_level */
    char config_file[MSDU__SETTING_BYTES];
    msdu_store store; /* size 0: none was given */
} msdu__settings;

/*
 * Resolve: defaults, then config (may be NULL), then the ini file, then the environment. Unknown
 * MSDU_* variables are a warning; an unknown name in the file is an error. Overrides are logged at
 * info. log_out is filled first, so that everything after can be logged.
 * Returns MSDU_OK or ERR_INVALID, ERR_NOT_FOUND (ini file), ERR_UNSUPPORTED (struct size).
 */
msdu_status msdu__settings_load(const msdu_config *config, msdu__settings *settings_out,
                                msdu__log *log_out);

/*
 * Settings on which ranks must agree, as text, one "name value" a line, in table order; never the
 * secret. Writes at most bytes with the zero; returns the length needed without it, 0: no memory.
 */
size_t msdu__settings_describe(const msdu__settings *settings, char *text, size_t bytes);

#endif
