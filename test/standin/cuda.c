/* SPDX-License-Identifier: Apache-2.0 */
/*
 * STAND-IN for the CUDA runtime, not CUDA: streams are threads that do their work late and in
 * order, so that a missing event shows as wrong data; memory is the host's, and filled with
 * garbage.
 */
#include "cuda_runtime_api.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define GARBAGE     0xa5
#define NAP_MOST_US 60 /* before every second piece of work or so */

/* --- memory --- */

typedef struct block {
    struct block *next;
    uintptr_t begin;
    size_t bytes;
    bool is_device;
} block;

static pthread_mutex_t blocks_lock = PTHREAD_MUTEX_INITIALIZER;
static block *blocks;

static cudaError_t allocate(void **memory, size_t bytes, bool is_device)
{
    void *data = NULL;
    block *b = malloc(sizeof(*b));
    if (b == NULL || posix_memalign(&data, 256, bytes > 0 ? bytes : 1) != 0) {
        free(b);
        return cudaErrorMemoryAllocation;
    }
    memset(data, GARBAGE, bytes);
    pthread_mutex_lock(&blocks_lock);
    *b = (block){.next = blocks, .begin = (uintptr_t)data, .bytes = bytes, .is_device = is_device};
    blocks = b;
    pthread_mutex_unlock(&blocks_lock);
    *memory = data;
    return cudaSuccess;
}

static cudaError_t release(void *memory, bool is_device)
{
    block *found = NULL;
    if (memory == NULL) {
        return cudaSuccess;
    }
    pthread_mutex_lock(&blocks_lock);
    for (block **at = &blocks; *at != NULL && found == NULL;) {
        if ((*at)->begin == (uintptr_t)memory && (*at)->is_device == is_device) {
            found = *at;
            *at = found->next;
        } else {
            at = &(*at)->next;
        }
    }
    pthread_mutex_unlock(&blocks_lock);
    if (found == NULL) {
        return cudaErrorInvalidValue;
    }
    free(found);
    free(memory);
    return cudaSuccess;
}

/* 0: unknown, 1: device, 2: pinned */
static int kind_of(const void *memory, size_t bytes)
{
    int kind = 0;
    uintptr_t at = (uintptr_t)memory;
    pthread_mutex_lock(&blocks_lock);
    for (const block *b = blocks; b != NULL && kind == 0; b = b->next) {
        if (at >= b->begin && at - b->begin + bytes <= b->bytes) {
            kind = b->is_device ? 1 : 2;
        }
    }
    pthread_mutex_unlock(&blocks_lock);
    return kind;
}

int standin_is_device(const void *memory, size_t bytes)
{
    return bytes == 0 || kind_of(memory, bytes) == 1;
}

cudaError_t cudaMalloc(void **memory, size_t bytes)
{
    return allocate(memory, bytes, true);
}

cudaError_t cudaFree(void *memory)
{
    return release(memory, true);
}

cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned flags)
{
    (void)flags;
    return allocate(memory, bytes, false);
}

cudaError_t cudaFreeHost(void *memory)
{
    return release(memory, false);
}

/* --- events: an event is its latest record; who waits, waits for the one of that time --- */

typedef struct record {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_reached;
    int holders; /* the event, and work that names the record */
} record;

struct CUevent_st {
    pthread_mutex_t lock;
    record *latest; /* NULL: none yet */
};

static void record_let_go(record *r)
{
    if (r == NULL) {
        return;
    }
    pthread_mutex_lock(&r->lock);
    int left = --r->holders;
    pthread_mutex_unlock(&r->lock);
    if (left == 0) {
        pthread_cond_destroy(&r->changed);
        pthread_mutex_destroy(&r->lock);
        free(r);
    }
}

/* Held once more; NULL: none. */
static record *record_of(cudaEvent_t event)
{
    pthread_mutex_lock(&event->lock);
    record *r = event->latest;
    if (r != NULL) {
        pthread_mutex_lock(&r->lock);
        r->holders++;
        pthread_mutex_unlock(&r->lock);
    }
    pthread_mutex_unlock(&event->lock);
    return r;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    cudaEvent_t e = calloc(1, sizeof(*e));
    (void)flags;
    if (e == NULL) {
        return cudaErrorMemoryAllocation;
    }
    pthread_mutex_init(&e->lock, NULL);
    *event = e;
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    record_let_go(event->latest);
    pthread_mutex_destroy(&event->lock);
    free(event);
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    record *r = record_of(event);
    bool is_done = true;
    if (r != NULL) {
        pthread_mutex_lock(&r->lock);
        is_done = r->is_reached;
        pthread_mutex_unlock(&r->lock);
    }
    record_let_go(r);
    return is_done ? cudaSuccess : cudaErrorNotReady;
}

/* --- streams --- */

typedef struct work {
    struct work *next;
    size_t bytes;
    void (*function)(void *);
    _Alignas(16) unsigned char argument[];
} work;

struct CUstream_st {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    work *first;
    work **last;
    uint64_t given;
    uint64_t done;
    bool is_ending;
    cudaGraph_t graph; /* what is given is kept there and not done */
    pthread_t leader;  /* thread that launched the latest kernel */
    unsigned leaders;  /* how often that was another than before */
};

/* What was captured, in order; the same thing is launched. */
struct CUgraph_st {
    work *first;
    work **last;
};

static void nap(uint64_t *random)
{
    *random = *random * 6364136223846793005U + 1442695040888963407U;
    uint64_t us = (*random >> 40) % (2 * NAP_MOST_US);
    if (us < NAP_MOST_US) {
        nanosleep(&(struct timespec){.tv_nsec = (long)us * 1000}, NULL);
    }
}

static void *stream_main(void *argument)
{
    cudaStream_t s = argument;
    uint64_t random = (uintptr_t)s;
    pthread_mutex_lock(&s->lock);
    while (!s->is_ending || s->first != NULL) {
        work *w = s->first;
        if (w == NULL) {
            pthread_cond_wait(&s->changed, &s->lock);
            continue;
        }
        s->first = w->next;
        s->last = s->first == NULL ? &s->first : s->last;
        pthread_mutex_unlock(&s->lock);
        nap(&random);
        w->function(w->argument);
        free(w);
        pthread_mutex_lock(&s->lock);
        s->done++;
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static cudaError_t stream_make(cudaStream_t *stream)
{
    cudaStream_t s = calloc(1, sizeof(*s));
    if (s == NULL) {
        return cudaErrorMemoryAllocation;
    }
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    s->last = &s->first;
    if (pthread_create(&s->thread, NULL, stream_main, s) != 0) {
        free(s);
        return cudaErrorMemoryAllocation;
    }
    *stream = s;
    return cudaSuccess;
}

/* The default stream of the process; unlike CUDA's it waits for no other. */
static pthread_once_t default_once = PTHREAD_ONCE_INIT;
static cudaStream_t default_stream;

static void default_make(void)
{
    (void)stream_make(&default_stream);
}

static cudaStream_t stream_of(cudaStream_t stream)
{
    if (stream == NULL) {
        pthread_once(&default_once, default_make);
        return default_stream;
    }
    return stream;
}

cudaError_t standin_launch(cudaStream_t stream, void (*function)(void *), const void *argument,
                           size_t bytes)
{
    cudaStream_t s = stream_of(stream);
    work *w = malloc(sizeof(*w) + bytes);
    if (w == NULL) {
        return cudaErrorMemoryAllocation;
    }
    w->next = NULL;
    w->bytes = bytes;
    w->function = function;
    memcpy(w->argument, argument, bytes);
    pthread_mutex_lock(&s->lock);
    if (s->graph != NULL) {
        *s->graph->last = w;
        s->graph->last = &w->next;
        pthread_mutex_unlock(&s->lock);
        return cudaSuccess;
    }
    *s->last = w;
    s->last = &w->next;
    s->given++;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    return cudaSuccess;
}

/* The thread that starts a context, its communication thread, and the owner after a failure. */
#define LEADERS_MOST 3

cudaError_t standin_lead(cudaStream_t stream)
{
    cudaStream_t s = stream_of(stream);
    pthread_mutex_lock(&s->lock);
    if (s->leaders == 0 || pthread_equal(s->leader, pthread_self()) == 0) {
        s->leader = pthread_self();
        s->leaders++;
    }
    bool is_led = s->leaders <= LEADERS_MOST;
    pthread_mutex_unlock(&s->lock);
    return is_led ? cudaSuccess : cudaErrorNotPermitted;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority)
{
    (void)flags;
    (void)priority;
    return stream_make(stream);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    cudaStream_t s = stream_of(stream);
    pthread_mutex_lock(&s->lock);
    uint64_t given = s->given;
    while (s->done < given) {
        pthread_cond_wait(&s->changed, &s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return cudaSuccess;
}

/* What was given is still done, as CUDA has it; unlike CUDA's it waits for that. */
cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    pthread_mutex_lock(&stream->lock);
    stream->is_ending = true;
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
    pthread_join(stream->thread, NULL);
    pthread_cond_destroy(&stream->changed);
    pthread_mutex_destroy(&stream->lock);
    free(stream);
    return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    return stream_make(stream);
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    cudaStream_t s = stream_of(stream);
    pthread_mutex_lock(&s->lock);
    bool is_done = s->done == s->given;
    pthread_mutex_unlock(&s->lock);
    return is_done ? cudaSuccess : cudaErrorNotReady;
}

/* --- graphs: a list of work --- */

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
    cudaStream_t s = stream_of(stream);
    pthread_mutex_lock(&s->lock);
    *status = s->graph == NULL ? cudaStreamCaptureStatusNone : cudaStreamCaptureStatusActive;
    pthread_mutex_unlock(&s->lock);
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    cudaGraph_t graph = calloc(1, sizeof(*graph));
    (void)mode;
    if (graph == NULL || stream == NULL || stream->graph != NULL) {
        free(graph);
        return cudaErrorInvalidValue;
    }
    graph->last = &graph->first;
    pthread_mutex_lock(&stream->lock);
    stream->graph = graph;
    pthread_mutex_unlock(&stream->lock);
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    pthread_mutex_lock(&stream->lock);
    *graph = stream->graph;
    stream->graph = NULL;
    pthread_mutex_unlock(&stream->lock);
    return *graph == NULL ? cudaErrorInvalidValue : cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags)
{
    (void)flags;
    *exec = graph;
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    cudaError_t error = cudaSuccess;
    for (const work *w = exec->first; w != NULL && error == cudaSuccess; w = w->next) {
        error = standin_launch(stream, w->function, w->argument, w->bytes);
    }
    return error;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    while (graph->first != NULL) {
        work *w = graph->first;
        graph->first = w->next;
        free(w);
    }
    free(graph);
    return cudaSuccess;
}

static void reach(void *argument)
{
    record *r = *(record **)argument;
    pthread_mutex_lock(&r->lock);
    r->is_reached = true;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
    record_let_go(r);
}

static void wait_for(void *argument)
{
    record *r = *(record **)argument;
    pthread_mutex_lock(&r->lock);
    while (!r->is_reached) {
        pthread_cond_wait(&r->changed, &r->lock);
    }
    pthread_mutex_unlock(&r->lock);
    record_let_go(r);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    record *r = calloc(1, sizeof(*r));
    if (r == NULL) {
        return cudaErrorMemoryAllocation;
    }
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->changed, NULL);
    r->holders = 2;
    pthread_mutex_lock(&event->lock);
    record *before = event->latest;
    event->latest = r;
    pthread_mutex_unlock(&event->lock);
    record_let_go(before);
    /* NOLINTNEXTLINE(bugprone-sizeof-expression): the pointer is what is handed over */
    return standin_launch(stream, reach, &r, sizeof(r));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    record *r = record_of(event);
    (void)flags;
    /* NOLINTNEXTLINE(bugprone-sizeof-expression): the pointer is what is handed over */
    return r == NULL ? cudaSuccess : standin_launch(stream, wait_for, &r, sizeof(r));
}

/* --- work --- */

typedef struct host_call {
    cudaHostFn_t function;
    void *user;
} host_call;

static void call_host(void *argument)
{
    const host_call *c = argument;
    c->function(c->user);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *user)
{
    host_call c = {function, user};
    return standin_launch(stream, call_host, &c, sizeof(c));
}

typedef struct move {
    void *to;
    const void *from;
    int value;
    size_t bytes;
} move;

static void do_copy(void *argument)
{
    const move *m = argument;
    memmove(m->to, m->from, m->bytes);
}

static void do_fill(void *argument)
{
    const move *m = argument;
    memset(m->to, m->value, m->bytes);
}

cudaError_t cudaMemsetAsync(void *memory, int value, size_t bytes, cudaStream_t stream)
{
    move m = {.to = memory, .value = value, .bytes = bytes};
    if (!standin_is_device(memory, bytes)) {
        return cudaErrorInvalidValue;
    }
    cudaError_t error = standin_lead(stream);
    return error == cudaSuccess ? standin_launch(stream, do_fill, &m, sizeof(m)) : error;
}

/* As with CUDA, memory of the host that is not pinned makes the call wait. */
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    move m = {.to = to, .from = from, .bytes = bytes};
    (void)kind;
    if (bytes == 0) {
        return cudaSuccess;
    }
    bool is_pageable = kind_of(to, bytes) == 0 || kind_of(from, bytes) == 0;
    cudaError_t error = standin_launch(stream, do_copy, &m, sizeof(m));
    return error == cudaSuccess && is_pageable ? cudaStreamSynchronize(stream) : error;
}

/* --- the rest --- */

const char *cudaGetErrorString(cudaError_t error)
{
    if (error == cudaErrorNotPermitted) {
        return "stand-in: two threads launch kernels, each beside the other";
    }
    return error == cudaSuccess ? "no error" : "stand-in: invalid value or no memory";
}

cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    *device = 0;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    return device == 0 ? cudaSuccess : cudaErrorInvalidValue;
}
