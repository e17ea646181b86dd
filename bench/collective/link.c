/* SPDX-License-Identifier: Apache-2.0 */
/* A shaped link between two processes of this machine, for `msdu bench allreduce`. */
#include "allreduce.h"

#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"

#define WORDS_MAX     24
#define HEADERS       40 /* IPv4 and TCP */
#define TIMESTAMPS    12
#define ETHERNET      14
#define BURST_BYTES   131072 /* a bucket that holds one batch of the sender's segments */
#define QUEUE_MS      50
#define ADDRESS_OF(n) ("10.77.0." #n "/30")

/* Run a program, words separated by blanks; false if it failed, which it says itself. */
static bool command(const char *format, ...) MSDU_PRINTF(1, 2);

static bool command(const char *format, ...)
{
    char line[256];
    char *words[WORDS_MAX + 1] = {NULL};
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    char *rest = line;
    for (int i = 0; i < WORDS_MAX && (words[i] = strsep(&rest, " ")) != NULL; i++) {
    }
    pid_t child = fork();
    if (child == 0) {
        execvp(words[0], words);
        fprintf(stderr, "msdu bench: %s: %s; --rate-mbit needs iproute2\n", words[0],
                strerror(errno));
        _exit(127);
    }
    int status = -1;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
        fprintf(stderr, "msdu bench: a command of the shaped link failed: %s\n", words[0]);
        return false;
    }
    return true;
}

static bool own_namespace(void)
{
    if (unshare(CLONE_NEWNET) == 0) {
        return true;
    }
    fprintf(stderr, "msdu bench: no network namespace: %s; --rate-mbit needs root\n",
            strerror(errno));
    return false;
}

/* The end in this process's namespace: address, loopback, rate. */
static bool configure(const msdu__link *link, const char *address)
{
    return command("ip addr add %s dev " MSDU__LINK_INTERFACE, address) &&
           command("ip link set lo up") && command("ip link set " MSDU__LINK_INTERFACE " up") &&
           command("tc qdisc add dev " MSDU__LINK_INTERFACE
                   " root tbf rate %umbit burst %u latency %dms",
                   link->rate_mbit, BURST_BYTES, QUEUE_MS);
}

static bool say(int pipe_end)
{
    return write(pipe_end, "x", 1) == 1;
}

static bool hear(int pipe_end)
{
    char byte;
    return read(pipe_end, &byte, 1) == 1;
}

bool msdu__link_open(msdu__link *link)
{
    if (pipe(link->to_peer) != 0 || pipe(link->to_near) != 0) {
        perror("msdu bench: pipe");
        return false;
    }
    return own_namespace();
}

bool msdu__link_far(msdu__link *link)
{
    /* else a failure of the other process would leave this one reading for ever */
    close(link->to_peer[1]);
    return own_namespace() && say(link->to_near[1]) && hear(link->to_peer[0]) &&
           configure(link, ADDRESS_OF(2)) && say(link->to_near[1]);
}

bool msdu__link_near(msdu__link *link, pid_t peer)
{
    close(link->to_near[1]);
    return hear(link->to_near[0]) &&
           command("ip link add " MSDU__LINK_INTERFACE " mtu %u type veth peer name far0 mtu %u",
                   link->mtu, link->mtu) &&
           command("ip link set far0 netns %d name " MSDU__LINK_INTERFACE, (int)peer) &&
           configure(link, ADDRESS_OF(1)) && say(link->to_peer[1]) && hear(link->to_near[0]);
}

double msdu__link_payload_share(const msdu__link *link)
{
    return ((double)link->mtu - HEADERS - TIMESTAMPS) / ((double)link->mtu + ETHERNET);
}
