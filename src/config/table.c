/* SPDX-License-Identifier: Apache-2.0 */
/* The table of all settings, made of settings.inc, and what is asked about it by name or number. */
#include "table.h"

#include "interval/interval.h"
#include "name.h"

#include <string.h>

#define AGREE   MSDU__SETTING_AGREE
#define OWN     0U /* a rank may have its own value */
#define SECRET  MSDU__SETTING_HIDDEN
#define NO_FILE MSDU__SETTING_NO_FILE

/* The field's C type decides how it is read from msdu_config. */
#define STORE_OF(field)                                                                            \
    _Generic(((const msdu_config *)0)->field,                                                      \
        const char *: MSDU__STORE_TEXT, int32_t: MSDU__STORE_INT32, int64_t: MSDU__STORE_INT64,    \
        uint64_t: MSDU__STORE_UINT64, double: MSDU__STORE_DOUBLE)
/* Ranges as text, and what holds them. The first of the levels is no zero: MSDU_LOG_ERROR. */
#define RANGE(low_, high_)        #low_ " .. " #high_, .low = low_, .high = high_
#define AUTO_OR(low_, high_)      "auto, or " RANGE(low_, high_)
#define GIBS(low_, high_)         #low_ " .. " #high_ "GiB", .low = low_, .high = high_ * 1073741824.0
#define AUTO_OR_GIBS(low_, high_) "auto, or " GIBS(low_, high_)
#define LEVELS(choices)           choices, .low = 1

#define ROW(resolved, kind_, variable, preset, help_, ...)                                         \
    .environment = "MSDU_" #variable, .default_text = preset, .help = help_,                       \
    .settings_at = offsetof(msdu__settings, resolved), .kind = MSDU__KIND_##kind_,                 \
    .range = __VA_ARGS__

static const msdu__setting table[] = {
#define SETTING_AS(type, field, resolved, kind, variable, flags_, ...)                             \
    {.name = #field,                                                                               \
     .config_at = offsetof(msdu_config, field),                                                    \
     .store = STORE_OF(field),                                                                     \
     .flags = flags_,                                                                              \
     ROW(resolved, kind, variable, __VA_ARGS__)},
#define VARIABLE(field, ...)                                                                       \
    {.name = #field, .store = MSDU__STORE_NONE, .flags = NO_FILE, ROW(field, __VA_ARGS__)},
#include "settings.inc"
};

const msdu__setting *msdu__setting_at(size_t index)
{
    return index < MSDU__SETTINGS ? &table[index] : NULL;
}

size_t msdu__setting_index(const char *name)
{
    for (size_t i = 0; i < MSDU__SETTINGS; i++) {
        if (strcmp(table[i].name, name) == 0) {
            return i;
        }
    }
    return SIZE_MAX;
}

const char *msdu__setting_nearest(const char *name, bool is_environment)
{
    const char *best = NULL;
    size_t limit = strlen(name) / 3 + 1; /* more than a third changed is another word */
    for (size_t i = 0; i < MSDU__SETTINGS; i++) {
        const char *known = is_environment ? table[i].environment : table[i].name;
        size_t changed = msdu__name_distance(name, known);
        if (changed < limit) {
            limit = changed;
            best = known;
        }
    }
    return best;
}

static const char *type_name(msdu__kind kind)
{
    switch (kind) {
    case MSDU__KIND_INTEGER:
    case MSDU__KIND_BYTES:
        return "integer";
    case MSDU__KIND_REAL:
        return "real";
    case MSDU__KIND_CHOICE:
    case MSDU__KIND_WIRE:
    case MSDU__KIND_POLICY:
        return "choice";
    case MSDU__KIND_TEXT:
        break;
    }
    return "text";
}

msdu_status msdu_setting_get(uint32_t index, msdu_setting_info *info_out)
{
    if (info_out == NULL || info_out->size < sizeof(info_out->size)) {
        return msdu__fail(MSDU_ERR_INVALID, "msdu_setting_get: use MSDU_SETTING_INFO_INIT");
    }
    if (index >= MSDU__SETTINGS) {
        return msdu__fail(MSDU_ERR_NOT_FOUND, "msdu_setting_get: there are %d settings",
                          MSDU__SETTINGS);
    }
    const msdu__setting *setting = &table[index];
    size_t size = info_out->size;
    msdu_setting_info info = {size,
                              setting->name,
                              setting->environment,
                              type_name(setting->kind),
                              setting->default_text,
                              setting->range,
                              setting->help};
    memcpy(info_out, &info, size < sizeof(info) ? size : sizeof(info));
    return MSDU_OK;
}
