/* SPDX-License-Identifier: Apache-2.0 */
/* Settings: one list, settings.inc; read from struct, ini file and environment. */
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
enum { MSDU__CHECK_NO, MSDU__CHECK_YES, MSDU__CHECK_SKIP, MSDU__CHECK_PROPAGATE };
enum { MSDU__STATE_LOCAL, MSDU__STATE_AVERAGE, MSDU__STATE_RESET };
enum { MSDU__UNEVEN_WAIT, MSDU__UNEVEN_CLOCK, MSDU__UNEVEN_AUTO };
enum { MSDU__OPTIMIZER_UNKNOWN, MSDU__OPTIMIZER_SGD, MSDU__OPTIMIZER_ADAM };

/* Longest text setting, with its zero. */
#define MSDU__SETTING_BYTES 512

/* What a kind of settings.inc is once resolved. INTEGER, BYTES and WIRE: -1 is auto; CHOICE: the
 * index in its list, which the enumerations above follow (yes is 1); WIRE: an index of wire.h. */
#define MSDU__HOLD_TEXT(name)    char name[MSDU__SETTING_BYTES];
#define MSDU__HOLD_POLICY(name)  MSDU__HOLD_TEXT(name)
#define MSDU__HOLD_INTEGER(name) int64_t name;
#define MSDU__HOLD_BYTES(name)   MSDU__HOLD_INTEGER(name)
#define MSDU__HOLD_CHOICE(name)  MSDU__HOLD_INTEGER(name)
#define MSDU__HOLD_WIRE(name)    MSDU__HOLD_INTEGER(name)
#define MSDU__HOLD_REAL(name)    double name;

/* All settings of settings.inc, resolved and checked. Texts are owned copies, "" if not set. */
typedef struct msdu__settings {
#define SETTING_AS(type, field, resolved, kind, ...) MSDU__HOLD_##kind(resolved)
#include "settings.inc"
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
/* Is the setting of this name as it is where nobody set it? */
bool msdu__settings_is_default(const msdu__settings *settings, const char *name);

#endif
