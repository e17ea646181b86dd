/* SPDX-License-Identifier: Apache-2.0 */
/* What keeps strangers out of a meeting of ranks: a secret that is one. */
#include "attach/address.h"
#include "suite.h"

#include <check.h>
#include <errno.h>
#include <string.h>
#include <sys/random.h>

/* In place of the C library's: a few bytes at a time, or none. */
static int random_error;
static unsigned random_calls;

ssize_t getrandom(void *buffer, size_t bytes, unsigned flags)
{
    (void)flags;
    random_calls++;
    if (random_error != 0 || random_calls == 2) {
        errno = random_error != 0 ? random_error : EINTR;
        return -1;
    }
    size_t given = bytes < 5 ? bytes : 5;
    memset(buffer, 0xa0 + (int)(random_calls % 16), given);
    return (ssize_t)given;
}

START_TEST(a_secret_is_random_to_its_last_digit_or_an_error)
{
    char text[33];
    random_calls = 0;
    ck_assert(msdu__address_secret(text, 32)); /* 5 + 5 + 5 + 1 bytes, and once interrupted */
    ck_assert_str_eq(text, "a1a1a1a1a1a3a3a3a3a3a4a4a4a4a4a5");
    random_error = ENOSYS;
    ck_assert(!msdu__address_secret(text, 32));
    ck_assert_str_eq(text, "");
    random_error = 0;
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("attach_address");
    TCase *tcase = suite_case(suite, "attach_address", 0, NULL, NULL);
    tcase_add_test(tcase, a_secret_is_random_to_its_last_digit_or_an_error);
    return suite_run(suite);
}
