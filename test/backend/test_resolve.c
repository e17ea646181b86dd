/* SPDX-License-Identifier: Apache-2.0 */
/* Host names on a machine that has neither /etc/hosts nor a name server, and on one that has. */
#include "backend/rendezvous/net.h"
#include "suite.h"

#include <arpa/inet.h>
#include <check.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ADDRESSES  8
#define INTERFACES 5

/* The linker leads the library's calls here (CMakeLists.txt, --wrap). */
int __real_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints,
                       struct addrinfo **found_out);
int __wrap_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints,
                       struct addrinfo **found_out);
int __wrap_gethostname(char *name, size_t bytes);
int __wrap_getifaddrs(struct ifaddrs **all_out);
void __wrap_freeifaddrs(struct ifaddrs *all);

static int asked_count;      /* of the resolver, for what is not a number */
static const char *answer;   /* of the resolver to any name; NULL: it knows none */
static const char *own_name; /* of this machine */
static struct ifaddrs interfaces[INTERFACES];
static struct sockaddr_storage interface_addresses[INTERFACES];

int __wrap_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints,
                       struct addrinfo **found_out)
{
    struct in6_addr number;
    if (inet_pton(AF_INET, host, &number) == 1 || inet_pton(AF_INET6, host, &number) == 1) {
        return __real_getaddrinfo(host, port, hints, found_out);
    }
    asked_count++;
    return answer != NULL ? __real_getaddrinfo(answer, port, hints, found_out) : EAI_NONAME;
}

int __wrap_gethostname(char *name, size_t bytes)
{
    strncpy(name, own_name, bytes);
    return 0;
}

int __wrap_getifaddrs(struct ifaddrs **all_out)
{
    *all_out = interfaces;
    return 0;
}

void __wrap_freeifaddrs(struct ifaddrs *all)
{
    ck_assert_ptr_eq(all, interfaces);
}

static void set_interface(int index, const char *name, unsigned flags, const char *text)
{
    static char names[INTERFACES][IFNAMSIZ];
    struct sockaddr_storage *place = &interface_addresses[index];
    struct sockaddr_in *v4 = (struct sockaddr_in *)(void *)place;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)(void *)place;
    strncpy(names[index], name, IFNAMSIZ - 1);
    interfaces[index] = (struct ifaddrs){
        .ifa_next = index + 1 < INTERFACES ? &interfaces[index + 1] : NULL,
        .ifa_name = names[index],
        .ifa_flags = flags,
        .ifa_addr = text == NULL ? NULL : (struct sockaddr *)(void *)place,
    };
    if (text != NULL && inet_pton(AF_INET, text, &v4->sin_addr) == 1) {
        place->ss_family = AF_INET;
    } else if (text != NULL && inet_pton(AF_INET6, text, &v6->sin6_addr) == 1) {
        place->ss_family = AF_INET6;
    }
}

static void bare_machine(void)
{
    asked_count = 0;
    answer = NULL;
    own_name = "node7";
    memset(interface_addresses, 0, sizeof(interface_addresses));
    set_interface(0, "lo", IFF_UP | IFF_LOOPBACK, "127.0.0.1");
    set_interface(1, "tun0", IFF_UP, NULL); /* has no address */
    set_interface(2, "eth0", IFF_UP, "2001:db8::7");
    set_interface(3, "eth0", IFF_UP, "10.0.0.7");
    set_interface(4, "eth1", 0, "10.1.0.7"); /* is down */
}

/* Assert what a name leads to: addresses with ports, joined by spaces. */
static void expect(const char *host, const char *wanted)
{
    struct msdu__address addresses[ADDRESSES];
    const char *cause = NULL;
    char texts[ADDRESSES * (MSDU__NET_TEXT_BYTES + 1)] = "";
    int used = 0;
    size_t count = msdu__net_resolve(host, "29500", addresses, ADDRESSES, &cause);
    for (size_t i = 0; i < count; i++) {
        char text[MSDU__NET_TEXT_BYTES];
        msdu__net_text(&addresses[i], true, text);
        used += snprintf(texts + used, sizeof(texts) - (size_t)used, i > 0 ? " %s" : "%s", text);
    }
    ck_assert_ptr_nonnull(cause);
    ck_assert_msg(strcmp(texts, wanted) == 0, "%s leads to \"%s\" (%s)", host, texts, cause);
}

#define LOOPBACK "127.0.0.1:29500 [::1]:29500"
#define OWN      "10.0.0.7:29500 [2001:db8::7]:29500 " LOOPBACK

START_TEST(localhost_needs_no_resolver)
{
    expect("localhost", LOOPBACK);
    expect("LocalHost.", LOOPBACK);
    expect("rank0.localhost", LOOPBACK);
    answer = "192.0.2.7"; /* which would say 192.0.2.7 */
    expect("localhost", LOOPBACK);
    ck_assert_int_eq(asked_count, 0);
}
END_TEST

START_TEST(own_name_falls_back_to_interfaces)
{
    expect("node7", OWN);
    expect("NODE7", OWN);
    own_name = "node7.example.org";
    expect("node7", OWN);
    expect("node7.example.org", OWN);
    expect("node7.example.org.", OWN);
    ck_assert_int_gt(asked_count, 0);
}
END_TEST

START_TEST(resolver_goes_before_the_own_name)
{
    answer = "192.0.2.7";
    expect("node7", "192.0.2.7:29500");
}
END_TEST

START_TEST(other_names_are_the_resolvers)
{
    const char *names[] = {"node70", "node", "node7.example.org", "notlocalhost",
                           "localhost.example.org"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        expect(names[i], "");
    }
    own_name = "node7.example.org";
    expect("node7.example", "");
    answer = "192.0.2.7";
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        expect(names[i], "192.0.2.7:29500");
    }
}
END_TEST

START_TEST(numbers_need_no_names)
{
    expect("127.0.0.1", "127.0.0.1:29500");
    expect("::1", "[::1]:29500");
}
END_TEST

START_TEST(cause_is_the_resolvers)
{
    struct msdu__address address;
    const char *cause = NULL;
    ck_assert_uint_eq(msdu__net_resolve("nonesuch", "29500", &address, 1, &cause), 0);
    ck_assert_str_eq(cause, gai_strerror(EAI_NONAME));
}
END_TEST

START_TEST(capacity_is_kept)
{
    struct msdu__address addresses[2] = {{.bytes = 0}, {.bytes = 77}};
    const char *cause = NULL;
    ck_assert_uint_eq(msdu__net_resolve("node7", "29500", addresses, 1, &cause), 1);
    ck_assert_uint_eq(addresses[0].bytes, sizeof(struct sockaddr_in));
    ck_assert_uint_eq(addresses[1].bytes, 77);
}
END_TEST

START_TEST(interface_gives_its_first_address_v4_before_v6)
{
    struct msdu__address address;
    char text[MSDU__NET_TEXT_BYTES];
    ck_assert(msdu__net_interface("eth0", 80, &address));
    msdu__net_text(&address, true, text);
    ck_assert_str_eq(text, "10.0.0.7:80");
    ck_assert(!msdu__net_interface("tun0", 80, &address));
    ck_assert(!msdu__net_interface("eth", 80, &address));
}
END_TEST

/* Debian's /etc/hosts leads a machine's own name to 127.0.1.1, where no other host comes. */
START_TEST(own_name_on_loopback_is_reached_from_outside_where_there_is_one)
{
    struct msdu__address own;
    struct msdu__address outside;
    char text[MSDU__NET_TEXT_BYTES];
    char wanted[MSDU__NET_TEXT_BYTES] = "127.0.";
    ck_assert(!msdu__net_outward("node8", &own)); /* nobody knows it */
    answer = "127.0.1.1";
    if (msdu__net_outward(MSDU__NET_NOBODY, &outside)) {
        msdu__net_text(&outside, false, wanted);
    }
    ck_assert(msdu__net_outward("node7", &own));
    msdu__net_text(&own, false, text);
    ck_assert_int_eq(strncmp(text, wanted, strlen(wanted)), 0);
    ck_assert(msdu__net_outward("node8", &own)); /* what the administrator says */
    msdu__net_text(&own, false, text);
    ck_assert_int_eq(strncmp(text, "127.0.", 6), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("resolve");
    TCase *names = suite_case(suite, "names", 20, bare_machine, NULL);
    tcase_add_test(names, localhost_needs_no_resolver);
    tcase_add_test(names, own_name_falls_back_to_interfaces);
    tcase_add_test(names, resolver_goes_before_the_own_name);
    tcase_add_test(names, other_names_are_the_resolvers);
    tcase_add_test(names, numbers_need_no_names);
    tcase_add_test(names, cause_is_the_resolvers);
    tcase_add_test(names, capacity_is_kept);
    tcase_add_test(names, interface_gives_its_first_address_v4_before_v6);
    tcase_add_test(names, own_name_on_loopback_is_reached_from_outside_where_there_is_one);
    return suite_run(suite);
}
