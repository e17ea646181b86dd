/* SPDX-License-Identifier: Apache-2.0 */
/* Members that are processes of their own, which do what the test tells them. */
#include "members_process.h"

#include "backend/rendezvous/hub.h"

#include <check.h>
#include <dirent.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define KEY "members/test"

struct order {
    char what;
    msdu__report report;
    char value[64];
};

static struct process *all[64];
static size_t all_count;
static char failure[TEXT_BYTES];

/* --- in the process --- */

static msdu_status note_failure(msdu_status status, const char *text)
{
    (void)snprintf(failure, sizeof(failure), "%s", text);
    return status;
}

static int count_entries(const char *folder)
{
    int count = 0;
    DIR *dir = opendir(folder);
    while (dir != NULL && readdir(dir) != NULL) {
        count++;
    }
    if (dir != NULL) {
        (void)closedir(dir);
    }
    return count;
}

static void *do_nothing(void *argument)
{
    return argument;
}

static void say_outcome(int fd, struct outcome *outcome)
{
    if (outcome->status != MSDU_OK) {
        (void)snprintf(outcome->text, sizeof(outcome->text), "%s", failure);
    }
    if (write(fd, outcome, sizeof(*outcome)) != (ssize_t)sizeof(*outcome)) {
        _exit(3);
    }
}

static msdu_status open_hub(const msdu_host *host, msdu_store *store, const msdu__epoch *epoch)
{
    msdu_host own = *host;
    char job[64];
    msdu__hub *hub = NULL;
    (void)snprintf(job, sizeof(job), "%s-%u", host->job, epoch->number);
    own.job = job;
    own.rank = epoch->rank;
    own.ranks = epoch->ranks;
    own.store = store;
    own.rendezvous = "store://127.0.0.1";
    msdu_status status = msdu__hub_open(&own, &hub);
    if (status == MSDU_OK) {
        msdu__hub_bye(hub, UINT64_C(2000000000));
        msdu__hub_close(hub);
    }
    return status;
}

/* A child that outlives its parent, as a data loader's worker does. */
static void fork_idler(int fd, struct outcome *outcome)
{
    pid_t child = fork();
    if (child == 0) {
        (void)close(fd);
        (void)sleep(60);
        _exit(0);
    }
    (void)snprintf(outcome->text, sizeof(outcome->text), "%d", (int)child);
}

static void obey(int fd, const msdu_host *host, msdu__members *members, msdu__epoch *epoch,
                 const struct order *order)
{
    struct outcome outcome;
    memset(&outcome, 0, sizeof(outcome));
    msdu_store store = msdu__members_store(members);
    size_t bytes = sizeof(outcome.text) - 1;
    switch (order->what) {
    case 'n':
        outcome.status = msdu__members_next(members, &order->report, epoch);
        outcome.epoch = *epoch;
        break;
    case 's':
        outcome.status = store.set(store.user, KEY, order->value, strlen(order->value), 0, failure);
        break;
    case 'g':
        outcome.status =
            store.get(store.user, KEY, outcome.text, &bytes, UINT64_C(5000000000), failure);
        break;
    case 'u':
        outcome.status = open_hub(host, &store, epoch);
        break;
    case 'f':
        fork_idler(fd, &outcome);
        break;
    default:
        break;
    }
    outcome.has_newcomer = msdu__members_has_newcomer(members);
    outcome.is_awaited = msdu__members_is_awaited(members);
    say_outcome(fd, &outcome);
}

static void live(int fd, const struct launch *launch)
{
    msdu_host host = {.size = sizeof(host),
                      .rank = launch->rank,
                      .ranks = launch->ranks,
                      .job = "comers",
                      .secret = launch->secret,
                      .rendezvous = launch->rendezvous,
                      .deadline_ns = launch->deadline_ns,
                      .fail = note_failure};
    pthread_t none;
    if (pthread_create(&none, NULL, do_nothing, NULL) == 0) {
        (void)pthread_join(none, NULL); /* a sanitizer has its own thread from now on */
    }
    int fds = count_entries("/proc/self/fd");
    int threads = count_entries("/proc/self/task");
    msdu__members *members = NULL;
    struct outcome outcome;
    struct order order;
    memset(&outcome, 0, sizeof(outcome));
    outcome.status = msdu__members_open(&host, &launch->settings, &members, &outcome.epoch);
    msdu__epoch epoch = outcome.epoch;
    say_outcome(fd, &outcome);
    while (read(fd, &order, sizeof(order)) == (ssize_t)sizeof(order) && order.what != 'c') {
        obey(fd, &host, members, &epoch, &order);
    }
    msdu__members_close(members);
    bool is_clean =
        count_entries("/proc/self/fd") == fds && count_entries("/proc/self/task") == threads;
    _exit(is_clean ? 0 : 4);
}

/* --- in the test --- */

void process_start(struct process *process, const struct launch *launch)
{
    int pair[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    (void)fflush(NULL);
    process->pid = fork();
    ck_assert_int_ge(process->pid, 0);
    if (process->pid == 0) {
        for (size_t i = 0; i < all_count; i++) {
            (void)close(all[i]->fd); /* else another one's end would not be seen */
        }
        (void)close(pair[0]);
        live(pair[1], launch);
    }
    (void)close(pair[1]);
    process->fd = pair[0];
    ck_assert_uint_lt(all_count, sizeof(all) / sizeof(all[0]));
    all[all_count++] = process;
}

static void tell(struct process *process, const struct order *order)
{
    ck_assert_int_eq(send(process->fd, order, sizeof(*order), MSG_NOSIGNAL), sizeof(*order));
}

void process_next_report(struct process *process, const msdu__report *report)
{
    struct order order = {.what = 'n', .report = *report};
    tell(process, &order);
}

void process_next(struct process *process, uint64_t round)
{
    const msdu__report report = {.round = round, .step = 10 * round, .has_state = true};
    process_next_report(process, &report);
}

void process_ask(struct process *process)
{
    struct order order = {.what = 'a'};
    tell(process, &order);
}

void process_set(struct process *process, const char *value)
{
    struct order order = {.what = 's'};
    (void)snprintf(order.value, sizeof(order.value), "%s", value);
    tell(process, &order);
}

void process_get(struct process *process)
{
    struct order order = {.what = 'g'};
    tell(process, &order);
}

void process_fork(struct process *process)
{
    struct order order = {.what = 'f'};
    tell(process, &order);
}

void process_hub(struct process *process)
{
    struct order order = {.what = 'u'};
    tell(process, &order);
}

void process_close(struct process *process)
{
    struct order order = {.what = 'c'};
    tell(process, &order);
}

static bool has_outcome(const struct process *process, int limit_ms)
{
    struct pollfd one = {.fd = process->fd, .events = POLLIN};
    return poll(&one, 1, limit_ms) > 0;
}

struct outcome process_take(struct process *process, int limit_ms)
{
    struct outcome outcome;
    memset(&outcome, 0, sizeof(outcome));
    ck_assert_msg(has_outcome(process, limit_ms), "no outcome of process %d within %d ms",
                  (int)process->pid, limit_ms);
    ck_assert_int_eq(read(process->fd, &outcome, sizeof(outcome)), sizeof(outcome));
    return outcome;
}

bool process_is_quiet(struct process *process, int span_ms)
{
    return !has_outcome(process, span_ms);
}

static void forget(struct process *process)
{
    for (size_t i = 0; i < all_count; i++) {
        if (all[i] == process) {
            all[i] = all[--all_count];
            break;
        }
    }
    (void)close(process->fd);
    process->pid = 0;
}

void process_ended(struct process *process)
{
    int how = 0;
    ck_assert_int_eq(waitpid(process->pid, &how, 0), process->pid);
    forget(process);
    ck_assert_msg(WIFEXITED(how) && WEXITSTATUS(how) == 0, "a process ended with %x",
                  (unsigned)how);
}

void process_kill(struct process *process)
{
    (void)kill(process->pid, SIGKILL);
    (void)waitpid(process->pid, NULL, 0);
    forget(process);
}

void process_kill_all(void)
{
    while (all_count > 0) {
        process_kill(all[0]);
    }
}
