/* SPDX-License-Identifier: Apache-2.0 */
#include "address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>

#include "settings.h"

#define DIGITS_MOST 64

bool msdu__address_find(char *text, size_t bytes)
{
    struct ifaddrs *all = NULL;
    const char *wanted = msdu__attach_is_given("interface") ? msdu__attach_setting("interface")
                                                            : getenv("NCCL_SOCKET_IFNAME");
    bool is_found = false;
    if (getifaddrs(&all) != 0) {
        return false;
    }
    for (const struct ifaddrs *at = all; at != NULL && !is_found; at = at->ifa_next) {
        bool is_named = wanted != NULL && strncmp(at->ifa_name, wanted, strlen(wanted)) == 0;
        bool is_outside = (at->ifa_flags & IFF_UP) != 0 &&
                          (wanted != NULL ? is_named : (at->ifa_flags & IFF_LOOPBACK) == 0);
        if (at->ifa_addr != NULL && at->ifa_addr->sa_family == AF_INET && is_outside) {
            const struct sockaddr_in *address = (const void *)at->ifa_addr;
            is_found = inet_ntop(AF_INET, &address->sin_addr, text, (socklen_t)bytes) != NULL;
        }
    }
    freeifaddrs(all);
    return is_found;
}

static bool fill_random(unsigned char *bytes, size_t count)
{
    size_t done = 0;
    while (done < count) {
        ssize_t got = getrandom(bytes + done, count - done, 0);
        if (got < 0 && errno != EINTR) {
            return false;
        }
        done += got > 0 ? (size_t)got : 0;
    }
    return true;
}

bool msdu__address_secret(char *text, size_t digits)
{
    unsigned char bytes[DIGITS_MOST / 2] = {0};
    bool is_good = digits <= DIGITS_MOST && fill_random(bytes, digits / 2);
    text[0] = '\0';
    for (size_t i = 0; is_good && i < digits / 2; i++) {
        (void)snprintf(text + 2 * i, 3, "%02x", (unsigned)bytes[i]);
    }
    explicit_bzero(bytes, sizeof(bytes));
    return is_good;
}
