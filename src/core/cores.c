/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that take turns on the cores of a host: one waits while others compute, on the fastest
 * network too. What of a wait left a core idle is told from the processor time that the host's
 * ranks spent meanwhile, taken for as much as this one's.
 */
#include "cores.h"

#include "base/serial.h"
#include "interval/cost.h"

#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* What an exchange takes on one host, however busy: threads that wake, copies at 2.5 Gbit/s. A link
 * that is shaped to less is slower still. */
#define LOCAL_NS      1e6
#define LOCAL_BYTE_NS 3.2
/* Of the time between two messages: in less computing, how busy it keeps cores cannot be told. */
#define COMPUTED_LEAST 0.02

static pthread_once_t once = PTHREAD_ONCE_INIT;
static msdu__place_name own; /* written once */

/* Cores that a container may use at a time, as control groups have it: "200000 100000" are two. */
static double quota(double most)
{
    char line[64] = {0};
    FILE *file = fopen("/sys/fs/cgroup/cpu.max", "re");
    bool is_read = file != NULL && fgets(line, sizeof(line), file) != NULL;
    if (file != NULL) {
        fclose(file);
    }
    char *rest = line;
    double used = is_read ? strtod(line, &rest) : 0; /* 0: "max" */
    double period = strtod(rest, NULL);
    return used > 0 && used < most * period ? used / period : most;
}

/* Number of one that this process is in, 0: not known. */
static uint64_t namespace(const char *path)
{
    struct stat found;
    return stat(path, &found) == 0 ? (uint64_t)found.st_ino : 0;
}

/* Ranks that may use equal sets of cores, in one container, share them; others are taken for
 * apart. */
static void find_cores(void)
{
    cpu_set_t set;
    own.count = (double)sysconf(_SC_NPROCESSORS_ONLN);
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof(set), &set) == 0) {
        own.count = CPU_COUNT(&set);
    }
    own.count = quota(own.count);
    uint64_t facts[2] = {msdu__serial_hash(&set, sizeof(set)), namespace("/proc/self/ns/cgroup")};
    own.cores = msdu__serial_hash(facts, sizeof(facts));
}

/* The kernel's name of this boot is the same in all containers; a process id is not unique there.
 */
static void find_names(void)
{
    char name[40] = {0};
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    bool is_read = file != NULL && fgets(name, sizeof(name), file) != NULL;
    is_read = is_read && getrandom(&own.process, sizeof(own.process), 0) == sizeof(own.process);
    if (file != NULL) {
        fclose(file);
    }
    for (size_t i = 0; is_read && i < strlen(name); i++) {
        own.host = (own.host ^ (unsigned char)name[i]) * 0x100000001b3ULL;
    }
    find_cores();
    own.network = namespace("/proc/self/ns/net");
}

msdu__place_name msdu__cores_name(void)
{
    pthread_once(&once, find_names);
    return own;
}

static bool is_new_process(const msdu__place_name *names, int32_t rank)
{
    for (int32_t i = 0; i < rank; i++) {
        if (names[i].host == names[rank].host && names[i].process == names[rank].process) {
            return false;
        }
    }
    return true;
}

static msdu__crowd crowd_of(const msdu__place_name *names, int32_t rank, int32_t count)
{
    msdu__crowd crowd = {.cores = names[rank].count};
    for (int32_t i = 0; i < count && names[rank].host != 0; i++) {
        if (names[i].host == names[rank].host && names[i].cores == names[rank].cores) {
            crowd.ranks++;
            crowd.processes += is_new_process(names, i) ? 1 : 0;
        }
    }
    return crowd;
}

void msdu__cores_count(msdu__engine *e, const msdu__place_name *names)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    uint64_t host = names[e->job->rank].host;
    int32_t ranks = 0;
    int32_t processes = 0;
    int32_t near = 0; /* by the loopback; between namespaces is a link, which may be slow */
    for (int32_t i = 0; i < e->job->ranks; i++) {
        ranks += names[i].host == host ? 1 : 0;
        near += names[i].network == names[e->job->rank].network ? 1 : 0;
        processes += names[i].host == host && is_new_process(names, i) ? 1 : 0;
    }
    bool is_local = host != 0 && ranks == e->job->ranks && near == ranks;
    e->job->interval_args.local_ns = is_local ? LOCAL_NS : 0;
    e->job->interval_args.local_byte_ns = is_local ? LOCAL_BYTE_NS : 0;
    e->job->core_share = 0;
    e->job->cores = cores;
    e->job->crowd = crowd_of(names, e->job->rank, e->job->ranks);
    if (host == 0 || cores <= 0 || ranks <= cores || e->job->clock != msdu__clock_monotonic) {
        return;
    }
    e->job->core_share = (double)cores / processes;
    msdu__log_line(&e->job->log, MSDU_LOG_INFO,
                   "%d ranks take turns on %ld cores of this host: what they wait for each other "
                   "there is no reason to leave h = 1",
                   ranks, cores);
}

static uint64_t cpu_ns(clockid_t clock)
{
    struct timespec spent;
    clock_gettime(clock, &spent);
    return (uint64_t)spent.tv_sec * 1000000000ULL + (uint64_t)spent.tv_nsec;
}

uint64_t msdu__cores_thread_ns(void)
{
    return cpu_ns(CLOCK_THREAD_CPUTIME_ID);
}

/* The second number of the thread's schedstat is its time on a run queue. Without stdio, which
 * allocates. */
uint64_t msdu__cores_queued_ns(void)
{
    char line[96];
    int file = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    ssize_t length = file >= 0 ? read(file, line, sizeof(line) - 1) : 0;
    if (file >= 0) {
        close(file);
    }
    line[length > 0 ? length : 0] = '\0';
    const char *second = strchr(line, ' ');
    return second == NULL ? 0 : strtoull(second, NULL, 10);
}

#define STOLEN 8 /* place of steal in the first line of /proc/stat; after it: guest */

/* What a hypervisor took from all cores so far; 0: not told. Without stdio, which allocates. */
static uint64_t stolen_ns(void)
{
    char line[256];
    const char *at = line + sizeof("cpu") - 1;
    uint64_t ticks = 0;
    int file = open("/proc/stat", O_RDONLY | O_CLOEXEC);
    ssize_t length = file >= 0 ? read(file, line, sizeof(line) - 1) : 0;
    if (file >= 0) {
        close(file);
    }
    if (length <= at - line) {
        return 0;
    }
    line[length] = '\0';
    for (int i = 0; i < STOLEN; i++) {
        char *end = NULL;
        ticks = strtoull(at, &end, 10);
        if (end == at) {
            return 0;
        }
        at = end;
    }
    return ticks * (1000000000ULL / (uint64_t)sysconf(_SC_CLK_TCK));
}

double msdu__cores_halted_ns(long cores, double time_ns, double stolen_ns)
{
    double left = 1 - stolen_ns / ((double)cores * time_ns);
    return time_ns * (1 - pow(left > 0 ? left : 0, (double)cores));
}

double msdu__cores_alone(const msdu__engine *e, msdu__fragment *f, double waited_ns)
{
    if (e->job->core_share <= 0) {
        return waited_ns;
    }
    uint64_t now = msdu__engine_now(e);
    uint64_t computing = cpu_ns(CLOCK_PROCESS_CPUTIME_ID);
    uint64_t stolen = stolen_ns();
    double time = (double)(now - f->last.told_ns);
    double busy = (double)(computing - f->last.computing_ns) / e->job->core_share;
    double halted =
        msdu__cores_halted_ns(e->job->cores, time, (double)(stolen - f->last.stolen_ns));
    double idle = time - busy - halted;
    bool is_known = f->last.told_ns > 0;
    f->last.told_ns = now;
    f->last.computing_ns = computing;
    f->last.stolen_ns = stolen;
    idle = idle > 0 ? idle : 0;
    return is_known && idle < waited_ns ? idle : waited_ns;
}

/* While the trainer waits, no core is taken from it: what it computes it does in the rest of the
 * time. All processes of the crowd are taken for as busy as this one. A device codes by itself. */
double msdu__cores_taken(const msdu__engine *e, msdu__fragment *f, double waited_ns)
{
    const msdu__crowd *crowd = &e->job->crowd;
    if (crowd->ranks <= 0 || e->job->clock != msdu__clock_monotonic || e->job->device != NULL) {
        return 0;
    }
    uint64_t now = msdu__engine_now(e);
    uint64_t process = cpu_ns(CLOCK_PROCESS_CPUTIME_ID);
    uint64_t thread = msdu__cores_thread_ns();
    double coders = (double)crowd->ranks / crowd->processes;
    double time = (double)(now - f->last.taken.told_ns);
    double computed = (double)(process - f->last.taken.process_ns) -
                      coders * (double)(thread - f->last.taken.thread_ns);
    bool is_known = f->last.taken.told_ns > 0;
    if (is_known && time - waited_ns > COMPUTED_LEAST * time) {
        double busy = crowd->processes * computed / (time - waited_ns);
        f->last.taken.share = msdu__cost_share(crowd->ranks, crowd->cores, busy);
    }
    f->last.taken.told_ns = now;
    f->last.taken.process_ns = process;
    f->last.taken.thread_ns = thread;
    return f->last.taken.share;
}
