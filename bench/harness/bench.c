/* SPDX-License-Identifier: Apache-2.0 */
/* `msdu bench NAME`: options, the list of benches, what they share, the file of records. */
#include "bench.h"

#include <argp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "cli/cli.h"
#include "simd/vec.h"
#include "wire/wire.h"

#include <msdu/msdu.h>

#ifndef MSDU_BENCH_COMMIT
#define MSDU_BENCH_COMMIT "unknown"
#endif

static const struct bench_entry {
    const char *name;
    int (*run)(msdu__bench *bench);
} benches[] = {
    {"kernels", msdu__bench_kernels},     {"hooks", msdu__bench_hooks},
    {"allreduce", msdu__bench_allreduce}, {"overlap", msdu__bench_overlap},
    {"scale", msdu__bench_scale},
};

/* --- what benches share --- */

double msdu__bench_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

double msdu__bench_cpu(void)
{
    struct timespec spent;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &spent);
    return (double)spent.tv_sec * 1e9 + (double)spent.tv_nsec;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

msdu__bench_stats msdu__bench_summarize(double *values, uint32_t count)
{
    qsort(values, count, sizeof(*values), compare_doubles);
    uint32_t middle = count / 2;
    uint32_t ninth = (uint32_t)((uint64_t)count * 9 / 10);
    return (msdu__bench_stats){
        .min = values[0],
        .median = count % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2,
        .p90 = values[ninth < count ? ninth : count - 1],
        .count = count,
    };
}

/* "32768K" of one level, as the kernel shows it; 0: there is no such level. */
static uint64_t cache_level_bytes(int index)
{
    char path[80];
    char text[32] = "";
    snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu0/cache/index%d/size", index);
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        return 0;
    }
    bool is_read = fgets(text, sizeof(text), file) != NULL;
    fclose(file);
    return is_read ? strtoull(text, NULL, 10) << 10 : 0;
}

/* The kernel's view first: what the C library reads from the processor can be that of all cores. */
uint64_t msdu__bench_cache_bytes(void)
{
    for (int index = 4; index >= 0; index--) {
        uint64_t bytes = cache_level_bytes(index);
        if (bytes > 0) {
            return bytes;
        }
    }
    long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
    return bytes > 0 ? (uint64_t)bytes : 0;
}

void *msdu__bench_pages(uint64_t bytes)
{
    void *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) {
        fprintf(stderr, "msdu bench: no memory for %llu bytes; give a smaller --bytes\n",
                (unsigned long long)bytes);
        exit(EXIT_FAILURE);
    }
    memset(pages, 1, bytes);
    return pages;
}

void msdu__bench_pages_free(void *pages, uint64_t bytes)
{
    (void)munmap(pages, bytes);
}

static const char *machine(void)
{
    static char model[128];
    char line[256];
    FILE *file = model[0] == '\0' ? fopen("/proc/cpuinfo", "r") : NULL;
    if (file == NULL) {
        return model[0] == '\0' ? "unknown" : model;
    }
    while (fgets(line, sizeof(line), file) != NULL) {
        if (sscanf(line, "model name : %127[^\n]", model) == 1) {
            break;
        }
    }
    fclose(file);
    return model[0] == '\0' ? "unknown" : model;
}

cJSON *msdu__bench_record(msdu__bench *bench, const char *name)
{
    cJSON *record = cJSON_CreateObject();
    cJSON_AddStringToObject(record, "name", name);
    cJSON_AddStringToObject(record, "machine", machine());
    cJSON_AddNumberToObject(record, "cores", (double)sysconf(_SC_NPROCESSORS_ONLN));
    cJSON_AddStringToObject(record, "isa", msdu__vec_isa());
    cJSON_AddStringToObject(record, "commit", MSDU_BENCH_COMMIT);
    cJSON_AddStringToObject(record, "version", msdu_version());
    cJSON_AddItemToArray(bench->records, record);
    return record;
}

/* --- the command --- */

enum {
    KEY_JSON = 0x100,
    KEY_ONLY,
    KEY_BACKEND,
    KEY_SMOKE,
    KEY_RUNS,
    KEY_BYTES,
    KEY_RATE,
    KEY_MTU,
    KEY_WIRE,
    KEY_PROFILE,
    KEY_METHODS,
    KEY_TRACE,
    KEY_RANKS,
    KEY_STEPS,
    KEY_WARMUP,
    KEY_INTERVAL,
    KEY_SPIN,
    KEY_SCALE,
    KEY_RATIO,
    KEY_LINK,
    KEY_LATENCY,
};

static const struct argp_option option_list[] = {
    {.name = "json", .key = KEY_JSON, .arg = "FILE", .doc = "Write the records; - is stdout"},
    {.name = "smoke",
     .key = KEY_SMOKE,
     .doc = "Seconds only: results are checked, times mean little"},
    {.name = "runs", .key = KEY_RUNS, .arg = "N", .doc = "Runs whose median is printed"},
    {.name = "bytes",
     .key = KEY_BYTES,
     .arg = "N",
     .doc = "kernels: of one array; allreduce: the only size; overlap: of a slice; scale: of the "
            "model"},
    {.name = "only", .key = KEY_ONLY, .arg = "TEXT", .doc = "kernels: rows whose name holds TEXT"},
    {.name = "backend",
     .key = KEY_BACKEND,
     .arg = "NAME",
     .doc = "allreduce, overlap: backend of the library (gloo)"},
    {.name = "rate-mbit",
     .key = KEY_RATE,
     .arg = "R",
     .doc = "allreduce: over a link of R Mbit/s (needs root, iproute2)"},
    {.name = "mtu", .key = KEY_MTU, .arg = "N", .doc = "allreduce: of that link (9000)"},
    {.name = "wire",
     .key = KEY_WIRE,
     .arg = "NAME",
     .doc = "allreduce: wire format of the sliced path (float32)"},
    {.doc = "Of overlap:"},
    {.name = "profile",
     .key = KEY_PROFILE,
     .arg = "NAME",
     .doc = "Name or file of a model profile (resnet50)"},
    {.name = "methods", .key = KEY_METHODS, .arg = "LIST", .doc = "Names joined by commas (all)"},
    {.name = "ranks",
     .key = KEY_RANKS,
     .arg = "N",
     .doc = "Processes of this machine (2, or those of the launcher)"},
    {.name = "scale", .key = KEY_SCALE, .arg = "X", .doc = "Factor of times, tensors, slices (1)"},
    {.name = "ratio",
     .key = KEY_RATIO,
     .arg = "X",
     .doc = "Communication by computation, which sets the times (1); 0: the profile's times"},
    {.name = "steps", .key = KEY_STEPS, .arg = "N", .doc = "Steps measured (24)"},
    {.name = "warmup", .key = KEY_WARMUP, .arg = "N", .doc = "Steps before them, at least (12)"},
    {.name = "interval", .key = KEY_INTERVAL, .arg = "H", .doc = "Of local steps (4)"},
    {.name = "spin", .key = KEY_SPIN, .doc = "Computing takes processor time instead of sleeping"},
    {.name = "link-mbit",
     .key = KEY_LINK,
     .arg = "R",
     .doc = "Rate of a rank's link for data, for the bound (measured)"},
    {.name = "latency-us", .key = KEY_LATENCY, .arg = "X", .doc = "Its latency, for the bound (0)"},
    {.name = "trace",
     .key = KEY_TRACE,
     .arg = "FILE",
     .doc = "Write timelines; %m in it becomes the method, %r the rank"},
    {0},
};

typedef struct request {
    const struct bench_entry *entry;
    msdu__bench_options options;
} request;

static const struct bench_entry *find_bench(const char *name)
{
    for (size_t i = 0; i < sizeof(benches) / sizeof(benches[0]); i++) {
        if (strcmp(benches[i].name, name) == 0) {
            return &benches[i];
        }
    }
    return NULL;
}

static uint64_t number(const char *text, uint64_t most, struct argp_state *state)
{
    char *end = NULL;
    unsigned long long value = strtoull(text, &end, 10);
    if (end == text || *end != '\0' || text[0] == '-' || value == 0 || value > most) {
        argp_error(state, "'%s' is not a number in 1 .. %llu", text, (unsigned long long)most);
    }
    return value;
}

static double real(const char *text, double most, struct argp_state *state)
{
    char *end = NULL;
    double value = strtod(text, &end);
    if (end == text || *end != '\0' || !(value >= 0 && value <= most)) {
        argp_error(state, "'%s' is not a number in 0 .. %g", text, most);
    }
    return value;
}

static error_t on_overlap(int key, char *arg, struct argp_state *state, msdu__bench_options *o)
{
    switch (key) {
    case KEY_PROFILE:
        o->profile = arg;
        return 0;
    case KEY_METHODS:
        o->methods = arg;
        return 0;
    case KEY_TRACE:
        if (strstr(arg, "%m") == NULL || strstr(arg, "%r") == NULL) {
            argp_error(state, "--trace '%s' needs %%m and %%r, or files overwrite each other", arg);
        }
        o->trace = arg;
        return 0;
    case KEY_RANKS:
        o->ranks = (uint32_t)number(arg, 64, state);
        return 0;
    case KEY_STEPS:
        o->steps = (uint32_t)number(arg, 100000, state);
        return 0;
    case KEY_WARMUP:
        o->warmup = (uint32_t)number(arg, 100000, state);
        return 0;
    case KEY_INTERVAL:
        o->interval = (uint32_t)number(arg, 1000, state);
        return 0;
    case KEY_SPIN:
        o->is_spinning = true;
        return 0;
    case KEY_SCALE:
        o->scale = real(arg, 1000, state);
        return 0;
    case KEY_RATIO:
        o->ratio = real(arg, 1e6, state);
        return 0;
    case KEY_LINK:
        o->link_mbit = real(arg, 1e7, state);
        return 0;
    case KEY_LATENCY:
        o->latency_us = real(arg, 1e7, state);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static error_t on_option(int key, char *arg, struct argp_state *state)
{
    request *wanted = state->input;
    msdu__bench_options *o = &wanted->options;
    switch (key) {
    case KEY_JSON:
        o->json = arg;
        return 0;
    case KEY_ONLY:
        o->only = arg;
        return 0;
    case KEY_BACKEND:
        o->backend = arg;
        return 0;
    case KEY_SMOKE:
        o->is_smoke = true;
        return 0;
    case KEY_RUNS:
        o->runs = (uint32_t)number(arg, 1000, state);
        return 0;
    case KEY_BYTES:
        o->bytes = number(arg, 1ULL << 36, state);
        return 0;
    case KEY_RATE:
        o->rate_mbit = (uint32_t)number(arg, 100000, state);
        return 0;
    case KEY_MTU:
        o->mtu = (uint32_t)number(arg, 65535, state);
        return 0;
    case KEY_WIRE:
        if (msdu__wire_find(arg) < 0) {
            argp_error(state, "--wire '%s' is no wire format; msdu info lists them", arg);
        }
        o->wire = arg;
        return 0;
    case ARGP_KEY_ARG:
        wanted->entry = wanted->entry == NULL ? find_bench(arg) : NULL;
        if (wanted->entry == NULL) {
            argp_error(state, "no bench '%s', or more than one", arg);
        }
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_usage(state);
        return 0;
    default:
        return on_overlap(key, arg, state, o);
    }
}

static bool write_records(const msdu__bench *bench)
{
    const char *path = bench->options.json;
    char *text = cJSON_Print(bench->records);
    FILE *file = strcmp(path, "-") == 0 ? stdout : fopen(path, "w");
    bool is_written = text != NULL && file != NULL && fputs(text, file) >= 0 &&
                      fputc('\n', file) != EOF && fflush(file) == 0;
    if (file != NULL && file != stdout) {
        is_written = fclose(file) == 0 && is_written;
    }
    if (!is_written) {
        fprintf(stderr, "msdu bench: %s could not be written\n", path);
    }
    cJSON_free(text);
    return is_written;
}

static void print_header(const msdu__bench *bench, int argc, char **argv)
{
    fprintf(bench->text, "#");
    for (int i = 0; i < argc; i++) {
        fprintf(bench->text, " %s", argv[i]);
    }
    fprintf(bench->text, "\n# machine %s, %ld cores, instruction set %s\n", machine(),
            sysconf(_SC_NPROCESSORS_ONLN), msdu__vec_isa());
    fprintf(bench->text, "# msdu %s, commit %s\n", msdu_version(), MSDU_BENCH_COMMIT);
}

int msdu__cmd_bench(int argc, char **argv)
{
    static const struct argp argp = {
        .options = option_list,
        .parser = on_option,
        .args_doc = "kernels|hooks|allreduce|overlap",
        .doc = "Measure this machine; bench/README.md says what each column means."};
    request wanted = {.options = {.ratio = -1}};
    if (argp_parse(&argp, argc, argv, 0, NULL, &wanted) != 0 || wanted.entry == NULL) {
        return MSDU__EXIT_USAGE;
    }
    msdu__bench bench = {.options = wanted.options, .text = stdout};
    if (bench.options.json != NULL && strcmp(bench.options.json, "-") == 0) {
        bench.text = stderr;
    }
    bench.records = cJSON_CreateArray();
    print_header(&bench, argc, argv);
    int status = wanted.entry->run(&bench);
    if (bench.options.json != NULL && !write_records(&bench)) {
        status = EXIT_FAILURE;
    }
    if (bench.is_wrong) {
        fprintf(stderr, "msdu bench: a result is wrong\n");
        status = EXIT_FAILURE;
    }
    cJSON_Delete(bench.records);
    return status;
}
