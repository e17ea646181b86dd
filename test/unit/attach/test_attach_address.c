/* SPDX-License-Identifier: Apache-2.0 */
/* Where ranks on several hosts meet: a port that is kept free, and a secret that is one. */
#include "attach/address.h"
#include "suite.h"

#include <arpa/inet.h>
#include <check.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

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

static bool can_listen(int port, bool is_reusing)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int yes = 1;
    int handle = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(handle, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (is_reusing) {
        ck_assert_int_eq(setsockopt(handle, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)), 0);
    }
    bool is_good =
        bind(handle, (const void *)&address, sizeof(address)) == 0 && listen(handle, 1) == 0;
    (void)close(handle);
    return is_good;
}

START_TEST(a_reserved_port_is_the_hubs_and_nobody_elses)
{
    int port = 0;
    int held = msdu__address_reserve(&port);
    ck_assert_int_ge(held, 0);
    ck_assert_int_gt(port, 0);
    ck_assert(!can_listen(port, false)); /* another program, and ports that the system picks */
    ck_assert(can_listen(port, true));   /* as the hub does it */
    int other = 0;
    int second = msdu__address_reserve(&other);
    ck_assert_int_ge(second, 0);
    ck_assert_int_ne(port, other);
    (void)close(held);
    (void)close(second);
}
END_TEST

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
    tcase_add_test(tcase, a_reserved_port_is_the_hubs_and_nobody_elses);
    tcase_add_test(tcase, a_secret_is_random_to_its_last_digit_or_an_error);
    return suite_run(suite);
}
