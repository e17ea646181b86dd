/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses of host names and interfaces. No function logs or sets an error text. */
#include "net.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define NAME_BYTES   256 /* longest host name, with its zero */
#define DISCARD_PORT "9"

/* Addresses that are being collected. */
struct list {
    struct msdu__address *addresses;
    size_t count;
    size_t capacity;
    uint16_t port;
};

static void append(struct list *list, const void *address, socklen_t bytes)
{
    if (list->count < list->capacity && bytes <= sizeof(list->addresses->any)) {
        struct msdu__address *place = &list->addresses[list->count++];
        memset(place, 0, sizeof(*place));
        memcpy(&place->any, address, bytes);
        place->bytes = bytes;
        msdu__net_set_port(place, list->port);
    }
}

static socklen_t family_bytes(int family)
{
    return family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
}

static void append_loopback(struct list *list)
{
    struct msdu__address v4;
    const struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    msdu__net_loopback(&v4);
    append(list, &v4.any, v4.bytes);
    append(list, &v6, sizeof(v6));
}

/* What this machine is reached at from outside; one family of all interfaces. */
static void append_interfaces(struct list *list, const struct ifaddrs *all, int family)
{
    for (const struct ifaddrs *at = all; at != NULL; at = at->ifa_next) {
        bool is_outside = (at->ifa_flags & IFF_UP) != 0 && (at->ifa_flags & IFF_LOOPBACK) == 0;
        if (is_outside && at->ifa_addr != NULL && at->ifa_addr->sa_family == family) {
            append(list, at->ifa_addr, family_bytes(family));
        }
    }
}

static void append_own(struct list *list)
{
    struct ifaddrs *all = NULL;
    if (getifaddrs(&all) == 0) {
        append_interfaces(list, all, AF_INET);
        append_interfaces(list, all, AF_INET6);
        freeifaddrs(all);
    }
    append_loopback(list);
}

/* Length of a name without the dot that ends an absolute one. */
static size_t name_length(const char *name)
{
    size_t length = strlen(name);
    return length > 0 && name[length - 1] == '.' ? length - 1 : length;
}

/* "localhost" and all below it (RFC 6761, section 6.3). */
static bool is_localhost(const char *host)
{
    const char *top = "localhost";
    size_t length = name_length(host);
    size_t top_length = strlen(top);
    return length >= top_length && strncasecmp(host + length - top_length, top, top_length) == 0 &&
           (length == top_length || host[length - top_length - 1] == '.');
}

/* This machine's name, or the part of it before the first dot. */
static bool is_own_name(const char *host)
{
    char own[NAME_BYTES] = "";
    size_t length = name_length(host);
    if (length == 0 || gethostname(own, sizeof(own) - 1) != 0) {
        return false;
    }
    return strncasecmp(host, own, length) == 0 &&
           (length == name_length(own) || (own[length] == '.' && strchr(host, '.') == NULL));
}

static int append_resolved(struct list *list, const char *host, const char *port)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    int code = getaddrinfo(host, port, &hints, &found);
    if (code == 0) {
        for (const struct addrinfo *at = found; at != NULL; at = at->ai_next) {
            append(list, at->ai_addr, at->ai_addrlen);
        }
        freeaddrinfo(found);
    }
    return code;
}

size_t msdu__net_resolve(const char *host, const char *port, struct msdu__address *addresses,
                         size_t capacity, const char **cause_out)
{
    struct list list = {
        .addresses = addresses, .capacity = capacity, .port = (uint16_t)strtoul(port, NULL, 10)};
    *cause_out = "no address";
    if (is_localhost(host)) {
        append_loopback(&list);
        return list.count;
    }
    int code = append_resolved(&list, host, port);
    if (code != 0 && is_own_name(host)) {
        append_own(&list);
    } else if (code != 0) {
        *cause_out = gai_strerror(code);
    }
    return list.count;
}

/* Own address of a packet to a host; none is sent. */
static bool route(const char *host, struct msdu__address *own_out)
{
    struct msdu__address to[MSDU__NET_ADDRESSES];
    const char *cause = "";
    size_t count = msdu__net_resolve(host, DISCARD_PORT, to, MSDU__NET_ADDRESSES, &cause);
    bool is_found = false;
    for (size_t i = 0; i < count && !is_found; i++) {
        int fd = socket(to[i].any.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        is_found =
            fd >= 0 &&
            connect(fd, (const struct sockaddr *)(const void *)&to[i].any, to[i].bytes) == 0 &&
            msdu__net_own(fd, own_out);
        if (fd >= 0) {
            (void)close(fd);
        }
    }
    if (is_found) {
        msdu__net_set_port(own_out, 0);
    }
    return is_found;
}

static bool is_loopback(const struct msdu__address *address)
{
    const struct sockaddr_in *v4 = (const void *)&address->any;
    const struct sockaddr_in6 *v6 = (const void *)&address->any;
    return address->any.ss_family == AF_INET ? ntohl(v4->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET
                                             : IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr) != 0;
}

bool msdu__net_outward(const char *host, struct msdu__address *own_out)
{
    struct msdu__address outside;
    if (!route(host, own_out)) {
        return false;
    }
    if (is_loopback(own_out) && is_own_name(host) && route(MSDU__NET_NOBODY, &outside)) {
        *own_out = outside; /* Debian's /etc/hosts leads a machine's own name to loopback */
    }
    return true;
}

bool msdu__net_host(const char *text, size_t length, char *host, size_t bytes)
{
    if (length > 1 && text[0] == '[' && text[length - 1] == ']') {
        text++;
        length -= 2;
    }
    (void)snprintf(host, bytes, "%.*s", (int)length, text);
    return length < bytes;
}

bool msdu__net_place(const char *text, char *host, size_t host_bytes, char *port, size_t port_bytes)
{
    const char *colon = strrchr(text, ':');
    if (colon == NULL || colon == text) {
        return false;
    }
    char *end = NULL;
    long number = strtol(colon + 1, &end, 10);
    if (end == colon + 1 || (*end != '\0' && *end != '/') || number < 1 || number > 65535) {
        return false;
    }
    (void)snprintf(port, port_bytes, "%ld", number);
    return msdu__net_host(text, (size_t)(colon - text), host, host_bytes) && host[0] != '\0';
}

bool msdu__net_interface(const char *name, uint16_t port, struct msdu__address *address_out)
{
    struct list list = {.addresses = address_out, .capacity = 1, .port = port};
    struct ifaddrs *all = NULL;
    if (getifaddrs(&all) != 0) {
        return false;
    }
    const int families[] = {AF_INET, AF_INET6};
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
        for (const struct ifaddrs *at = all; at != NULL; at = at->ifa_next) {
            if (at->ifa_addr != NULL && at->ifa_addr->sa_family == families[i] &&
                strcmp(at->ifa_name, name) == 0) {
                append(&list, at->ifa_addr, family_bytes(families[i]));
            }
        }
    }
    freeifaddrs(all);
    return list.count > 0;
}

void msdu__net_loopback(struct msdu__address *address_out)
{
    const struct sockaddr_in loopback = {.sin_family = AF_INET,
                                         .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    memset(address_out, 0, sizeof(*address_out));
    memcpy(&address_out->any, &loopback, sizeof(loopback));
    address_out->bytes = sizeof(loopback);
}
