/* SPDX-License-Identifier: Apache-2.0 */
/* Version, status names and texts, and the per-thread error text. */
#include "base.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define TEXT_OF_(x) #x
#define TEXT_OF(x)  TEXT_OF_(x)

static _Thread_local __attribute__((tls_model("initial-exec"))) char error_text[MSDU__TEXT_BYTES];

const char *msdu_version(void)
{
    return TEXT_OF(MSDU_VERSION_MAJOR) "." TEXT_OF(MSDU_VERSION_MINOR) "." TEXT_OF(
        MSDU_VERSION_PATCH);
}

const char *msdu_status_name(msdu_status status)
{
    /* A value outside the enum may arrive through the C interface, hence the int. */
    switch ((int)status) {
#define NAME_CASE(name, value, text)                                                               \
    case (value):                                                                                  \
        return "MSDU_" #name;
        MSDU_STATUS_MAP(NAME_CASE)
#undef NAME_CASE
    default:
        return "MSDU_UNKNOWN";
    }
}

const char *msdu_status_text(msdu_status status)
{
    switch ((int)status) {
#define TEXT_CASE(name, value, text)                                                               \
    case (value):                                                                                  \
        return text;
        MSDU_STATUS_MAP(TEXT_CASE)
#undef TEXT_CASE
    default:
        return "unknown status";
    }
}

const char *msdu_last_error(void)
{
    return error_text;
}

/* The promise is one printable line: texts of other libraries and bad values may hold anything. */
static void make_one_line(char *text)
{
    for (char *at = text; *at != '\0'; at++) {
        if ((unsigned char)*at < ' ' || *at == 0x7f) {
            *at = ' ';
        }
    }
}

msdu_status msdu__fail(msdu_status status, const char *format, ...)
{
    /* Through a second buffer, because an argument may be msdu_last_error() itself. */
    char text[MSDU__TEXT_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    return msdu__fail_text(status, text);
}

msdu_status msdu__fail_text(msdu_status status, const char *text)
{
    size_t length = strnlen(text, sizeof(error_text) - 1);
    memmove(error_text, text, length);
    error_text[length] = '\0';
    make_one_line(error_text);
    return status;
}
