/* SPDX-License-Identifier: Apache-2.0 */
/* Load settings: defaults, then the struct, then the ini file, then the environment; describe them.
 */
#include "table.h"

#include <errno.h>
#include <ini.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- defaults and the caller's struct --- */

static msdu_status load_defaults(msdu__loader *loader)
{
    const msdu__setting *setting = NULL;
    for (size_t i = 0; (setting = msdu__setting_at(i)) != NULL; i++) {
        msdu_status status =
            setting->kind == MSDU__KIND_TEXT && setting->default_text[0] == '\0'
                ? MSDU_OK
                : msdu__setting_set(loader, i, setting->default_text, setting->name);
        if (status != MSDU_OK) {
            return status;
        }
    }
    return MSDU_OK;
}

/* Copy a struct that may be older (shorter) or newer (longer) than ours. */
static msdu_status copy_config(const msdu_config *config, msdu_config *copy_out)
{
    msdu_config copy = {.size = sizeof(copy)};
    if (config == NULL) {
        *copy_out = copy;
        return MSDU_OK;
    }
    if (config->size < sizeof(config->size)) {
        return msdu__fail(MSDU_ERR_INVALID, "msdu_config.size is %zu: use MSDU_CONFIG_INIT",
                          config->size);
    }
    const unsigned char *bytes = (const unsigned char *)config;
    for (size_t i = sizeof(copy); i < config->size; i++) {
        if (bytes[i] != 0) {
            return msdu__fail(
                MSDU_ERR_UNSUPPORTED,
                "msdu_config of %zu bytes has a setting that version %s does not know",
                config->size, msdu_version());
        }
    }
    memcpy(&copy, config, config->size < sizeof(copy) ? config->size : sizeof(copy));
    *copy_out = copy;
    return MSDU_OK;
}

/* The text of a field, in buf or borrowed; NULL: the field is zero, so the default holds. */
static const char *field_text(const msdu__setting *setting, const msdu_config *config, char *buf,
                              size_t bytes)
{
    const char *place = (const char *)config + setting->config_at;
    const char *text = NULL;
    int32_t small = 0;
    int64_t integer = 0;
    double real = 0;
    switch (setting->store) {
    case MSDU__STORE_NONE:
        return NULL;
    case MSDU__STORE_TEXT:
        memcpy(&text, place, sizeof(text));
        return text == NULL || text[0] == '\0' ? NULL : text;
    case MSDU__STORE_DOUBLE:
        memcpy(&real, place, sizeof(real));
        snprintf(buf, bytes, "%.17g", real);
        return real == 0 ? NULL
                         : buf; /* the comparison is false for a NaN, which is then refused */
    case MSDU__STORE_INT32:
        memcpy(&small, place, sizeof(small));
        integer = small;
        break;
    case MSDU__STORE_INT64:
        memcpy(&integer, place, sizeof(integer));
        break;
    case MSDU__STORE_UINT64:
        memcpy(&integer, place, sizeof(integer));
        snprintf(buf, bytes, "%llu", (unsigned long long)integer);
        return integer == 0 ? NULL : buf;
    }
    snprintf(buf, bytes, "%lld", (long long)integer);
    return integer == 0 ? NULL : buf;
}

static msdu_status load_log_level(msdu__loader *loader, size_t index, int32_t level)
{
    static const char *const names[] = {"", "error", "warn", "info", "debug"};
    if (level < MSDU_LOG_DEFAULT || level > MSDU_LOG_DEBUG) {
        return msdu__setting_fail(loader, "msdu_config.log_level: '%d' is not an msdu_log_level",
                                  level);
    }
    return msdu__setting_set(loader, index, names[level], "msdu_config.log_level");
}

static msdu_status load_field(msdu__loader *loader, size_t index, const msdu_config *config)
{
    char buf[64];
    char origin[64];
    const msdu__setting *setting = msdu__setting_at(index);
    const char *text = field_text(setting, config, buf, sizeof(buf));
    if (text == NULL) {
        return MSDU_OK;
    }
    snprintf(origin, sizeof(origin), "msdu_config.%s", setting->name);
    msdu__setting_given(loader, index, origin);
    if (setting->kind == MSDU__KIND_CHOICE && setting->store == MSDU__STORE_INT32) {
        return load_log_level(loader, index, config->log_level);
    }
    return msdu__setting_set(loader, index, text, origin);
}

static msdu_status load_struct(msdu__loader *loader, const msdu_config *config)
{
    for (size_t i = 0; msdu__setting_at(i) != NULL; i++) {
        msdu_status status = load_field(loader, i, config);
        if (status != MSDU_OK) {
            return status;
        }
    }
    /* Rank 0 is the field's zero: with a size it was meant. */
    if (config->ranks > 0) {
        msdu__setting_given(loader, MSDU__AT_RANK, "msdu_config.rank");
    }
    return MSDU_OK;
}

/* --- ini file --- */

#define FILE_MAX_BYTES (1 << 20)

typedef struct file_state {
    msdu__loader *loader;
    const char *path;
    FILE *file;
    int line;                 /* lines read so far */
    size_t bytes;             /* bytes read so far */
    int seen[MSDU__SETTINGS]; /* line by setting */
    msdu_status status;       /* first failure */
} file_state;

static int file_fail(file_state *state, const char *what, const char *name)
{
    state->status = msdu__setting_fail(state->loader, "%s:%d: %s '%.60s'", state->path, state->line,
                                       what, name);
    return 0;
}

static int on_unknown(file_state *state, const char *name)
{
    const char *instead = msdu__setting_removed(name);
    if (instead != NULL) {
        state->status = msdu__setting_fail(state->loader, "%s:%d: setting '%.60s' is %s",
                                           state->path, state->line, name, instead);
        return 0;
    }
    const char *near = msdu__setting_nearest(name, false);
    if (near == NULL) {
        return file_fail(state, "unknown setting", name);
    }
    state->status =
        msdu__setting_fail(state->loader, "%s:%d: unknown setting '%.60s', did you mean '%s'?",
                           state->path, state->line, name, near);
    return 0;
}

/* inih's handler: 1 goes on, 0 is an error. It is called for later lines even after an error. */
static int on_value(void *user, const char *section, const char *name, const char *value)
{
    file_state *state = user;
    if (state->status != MSDU_OK) {
        return 0;
    }
    if (section[0] != '\0' && strcmp(section, "msdu") != 0) {
        return file_fail(state, "unknown section", section);
    }
    size_t index = msdu__setting_index(name);
    if (index == SIZE_MAX) {
        return on_unknown(state, name);
    }
    if ((msdu__setting_at(index)->flags & MSDU__SETTING_NO_FILE) != 0) {
        return file_fail(state, "a variable, and no line of settings:", name);
    }
    if (state->seen[index] != 0) {
        return file_fail(state, "second value for", name);
    }
    state->seen[index] = state->line;
    char origin[MSDU__SETTING_BYTES];
    snprintf(origin, sizeof(origin), "%.400s:%d: %s", state->path, state->line, name);
    state->status = msdu__setting_override(state->loader, index, value, origin);
    return state->status == MSDU_OK;
}

/* fgets() that counts lines, and ends the file at a line that inih would cut in two. */
static char *read_line(char *line, int bytes, void *stream)
{
    file_state *state = stream;
    if (state->status != MSDU_OK || fgets(line, bytes, state->file) == NULL) {
        return NULL;
    }
    size_t length = strlen(line);
    state->line++;
    state->bytes += length + 1; /* a file of zero bytes ends too */
    bool is_cut = length + 1 == (size_t)bytes && line[length - 1] != '\n';
    if (is_cut || state->bytes > FILE_MAX_BYTES) {
        line[0] = '\0';
        state->status = msdu__setting_fail(state->loader, "%s:%d: %s", state->path, state->line,
                                           is_cut ? "line is too long" : "file is too long");
        return NULL;
    }
    return line;
}

static msdu_status load_file(msdu__loader *loader)
{
    const char *path = loader->settings->config_file;
    if (path[0] == '\0') {
        return MSDU_OK;
    }
    file_state state = {.loader = loader, .path = path, .file = fopen(path, "re")};
    if (state.file == NULL) {
        return msdu__fail(MSDU_ERR_NOT_FOUND, "settings file %s: %s", path, strerror(errno));
    }
    int error_line = ini_parse_stream(read_line, &state, on_value, &state);
    if (state.status == MSDU_OK && ferror(state.file)) {
        state.status = msdu__fail(MSDU_ERR_INVALID, "settings file %s: %s", path, strerror(errno));
    }
    fclose(state.file);
    /* An error that inih found itself may come before the one that our handler met. */
    if (error_line > 0 && (state.status == MSDU_OK || error_line < state.line)) {
        return msdu__setting_fail(loader, "%s:%d: not of the form name = value", path, error_line);
    }
    return state.status;
}

/* --- lines of the struct --- */

static char *trim(char *text)
{
    text += strspn(text, " \t\r");
    size_t length = strlen(text);
    while (length > 0 && strchr(" \t\r", text[length - 1]) != NULL) {
        text[--length] = '\0';
    }
    return text;
}

/* `line` is cut in two; empty lines and comments say nothing. */
static void take_line(file_state *state, char *line)
{
    char *name = trim(line);
    char *equals = strchr(name, '=');
    state->line++;
    if (name[0] == '\0' || name[0] == '#' || name[0] == ';') {
        return;
    }
    if (equals == NULL) {
        file_fail(state, "not of the form name = value:", name);
        return;
    }
    *equals = '\0';
    (void)on_value(state, "", trim(name), trim(equals + 1));
}

/* Not by inih, whose lines are short where a path may be long; nothing behind a value is a comment.
 */
static msdu_status load_lines(msdu__loader *loader, const msdu_config *config)
{
    file_state state = {.loader = loader, .path = "msdu_config.settings"};
    char *copy = strdup(config->settings == NULL ? "" : config->settings);
    if (copy == NULL) {
        return msdu__fail(MSDU_ERR_NO_MEMORY, "no memory for settings");
    }
    char *rest = copy;
    for (char *line = strsep(&rest, "\n"); line != NULL && state.status == MSDU_OK;) {
        take_line(&state, line);
        line = strsep(&rest, "\n");
    }
    explicit_bzero(copy, strlen(config->settings == NULL ? "" : config->settings));
    free(copy);
    return state.status;
}

/* --- all together --- */

/* The log comes first, so that whatever follows can be logged. */
static msdu_status load_log(msdu__loader *loader, const msdu_config *config)
{
    size_t index = MSDU__AT_LOG;
    const char *variable = secure_getenv("MSDU_LOG");
    msdu__log *log = loader->log;
    *log =
        (msdu__log){config->log, config->log_user, MSDU_LOG_WARN, msdu__settings_peek_rank(config)};
    msdu_status status = load_field(loader, index, config);
    if (status == MSDU_OK && variable != NULL && variable[0] != '\0') {
        status = msdu__setting_set(loader, index, variable, "MSDU_LOG");
        log->fn = log->fn != NULL ? log->fn : msdu__log_stderr;
    }
    log->fn = loader->is_quiet ? NULL : log->fn;
    log->level = (int)loader->settings->log_level;
    return status;
}

static msdu_status load_store(msdu__loader *loader, const msdu_config *config)
{
    const msdu_store *given = config->store;
    msdu_store *store = &loader->settings->store;
    if (given == NULL) {
        return MSDU_OK;
    }
    if (given->size < offsetof(msdu_store, get) + sizeof(given->get) || given->set == NULL ||
        given->get == NULL) {
        return msdu__setting_fail(loader, "msdu_config.store: set or get is missing, or its size "
                                          "is wrong: use MSDU_STORE_INIT");
    }
    memcpy(store, given, given->size < sizeof(*store) ? given->size : sizeof(*store));
    return MSDU_OK;
}

static msdu_status load_path(msdu__loader *loader, const msdu_config *config)
{
    size_t index = MSDU__AT_CONFIG;
    const char *variable = secure_getenv("MSDU_CONFIG");
    if (variable != NULL && variable[0] != '\0') {
        return msdu__setting_override(loader, index, variable, "MSDU_CONFIG");
    }
    return load_field(loader, index, config);
}

static msdu_status load_steps(msdu__loader *loader, const msdu_config *config)
{
    static msdu_status (*const given[])(msdu__loader *, const msdu_config *) = {
        load_log, load_struct, load_lines, load_path, load_store};
    static msdu_status (*const found[])(msdu__loader *) = {load_file, msdu__settings_environment,
                                                           msdu__settings_launcher};
    msdu_status status = load_defaults(loader);
    for (size_t i = 0; status == MSDU_OK && i < sizeof(given) / sizeof(given[0]); i++) {
        status = given[i](loader, config);
    }
    for (size_t i = 0; status == MSDU_OK && i < sizeof(found) / sizeof(found[0]); i++) {
        status = found[i](loader);
        loader->log->level = (int)loader->settings->log_level; /* the file may have changed it */
    }
    return status;
}

/* is_checked: by the rules that join settings, too. */
static msdu_status load_all(msdu__loader *loader, const msdu_config *config, bool is_checked)
{
    msdu_config copy;
    msdu_status status = copy_config(config, &copy);
    if (status != MSDU_OK) {
        return status;
    }
    /* A trainer may run under a locale whose decimal point is a comma. */
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (plain == (locale_t)0) {
        return msdu__fail(MSDU_ERR_NO_MEMORY, "no memory for the locale that settings are read in");
    }
    locale_t before = uselocale(plain);
    status = load_steps(loader, &copy);
    if (status == MSDU_OK && is_checked) {
        status = msdu__settings_check(loader);
    }
    uselocale(before);
    freelocale(plain);
    return status;
}

msdu_status msdu__settings_load(const msdu_config *config, msdu__settings *settings_out,
                                msdu__log *log_out)
{
    msdu__settings settings = {0};
    msdu__loader loader = {.settings = &settings, .log = log_out};
    *log_out = (msdu__log){NULL, NULL, MSDU_LOG_WARN, -1};
    msdu_status status = load_all(&loader, config, true);
    if (status == MSDU_OK) {
        log_out->rank = (int)settings.rank;
        *settings_out = settings;
    }
    explicit_bzero(settings.secret, sizeof(settings.secret));
    return status;
}

/* In a struct that may be older, and shorter. */
static void resolve(const msdu__loader *loader, msdu_resolved *resolved_out)
{
    const msdu__setting *setting = msdu__setting_at(loader->asked);
    msdu_resolved resolved = {.size = resolved_out->size};
    if ((setting->flags & MSDU__SETTING_HIDDEN) == 0) {
        msdu__setting_print(setting, loader->settings, resolved.text, sizeof(resolved.text));
    }
    memcpy(resolved.origin, loader->origin, sizeof(resolved.origin));
    memcpy(resolved_out, &resolved,
           resolved.size < sizeof(resolved) ? resolved.size : sizeof(resolved));
}

msdu_status msdu_setting_resolve(const msdu_config *config, const char *name,
                                 msdu_resolved *resolved_out)
{
    msdu__settings settings = {0};
    msdu__log log = {NULL, NULL, MSDU_LOG_WARN, -1};
    char origin[MSDU__SETTING_BYTES] = "";
    msdu__loader loader = {.settings = &settings, .log = &log, .is_quiet = true, .origin = origin};
    if (name == NULL) {
        return load_all(&loader, config, true);
    }
    if (resolved_out == NULL || resolved_out->size < sizeof(resolved_out->size)) {
        return msdu__fail(MSDU_ERR_INVALID, "msdu_setting_resolve: use MSDU_RESOLVED_INIT");
    }
    loader.asked = msdu__setting_index(name);
    if (loader.asked == SIZE_MAX) {
        const char *instead = msdu__setting_removed(name);
        return msdu__fail(MSDU_ERR_NOT_FOUND, "msdu_setting_resolve: no setting '%.60s'%s%s", name,
                          instead != NULL ? ": " : "", instead != NULL ? instead : "");
    }
    msdu_status status = load_all(&loader, config, false);
    if (status == MSDU_OK) {
        resolve(&loader, resolved_out);
    }
    return status;
}

size_t msdu__settings_describe(const msdu__settings *settings, char *text, size_t bytes)
{
    char value[MSDU__SETTING_BYTES];
    size_t used = 0;
    const msdu__setting *setting = NULL;
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (plain == (locale_t)0) {
        return 0; /* no memory */
    }
    locale_t before = uselocale(plain); /* ranks may run under different locales */
    for (size_t i = 0; (setting = msdu__setting_at(i)) != NULL; i++) {
        if ((setting->flags & MSDU__SETTING_AGREE) == 0) {
            continue;
        }
        msdu__setting_print(setting, settings, value, sizeof(value));
        char *at = used < bytes ? text + used : NULL;
        used +=
            (size_t)snprintf(at, at != NULL ? bytes - used : 0, "%s %s\n", setting->name, value);
    }
    uselocale(before);
    freelocale(plain);
    return used;
}

bool msdu__settings_is_default(const msdu__settings *settings, const char *name)
{
    msdu__settings defaults = {0};
    msdu__loader loader = {.settings = &defaults, .is_quiet = true};
    char own[MSDU__SETTING_BYTES] = "";
    char usual[MSDU__SETTING_BYTES] = "";
    size_t index = msdu__setting_index(name);
    const msdu__setting *setting = msdu__setting_at(index);
    locale_t plain = setting != NULL ? newlocale(LC_ALL_MASK, "C", (locale_t)0) : (locale_t)0;
    if (plain == (locale_t)0) {
        return false;
    }
    locale_t before = uselocale(plain);
    msdu_status status = msdu__setting_set(&loader, index, setting->default_text, name);
    msdu__setting_print(setting, settings, own, sizeof(own));
    msdu__setting_print(setting, &defaults, usual, sizeof(usual));
    uselocale(before);
    freelocale(plain);
    return status == MSDU_OK && strcmp(own, usual) == 0;
}
