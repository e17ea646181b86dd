/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The allocation functions of this program: those of the C library, counted. Defined in the
 * executable they also serve libc itself and every module loaded later, so that an allocation of
 * any thread is seen.
 */
#include "count_alloc.h"

#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdlib.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define IS_SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define IS_SANITIZED 1
#endif

/* relaxed: the bench begins and ends counting while its rank threads stand at a barrier */
static _Atomic bool is_counting;
static _Atomic uint64_t calls;

void msdu__count_alloc_begin(void)
{
    atomic_store(&calls, 0);
    atomic_store(&is_counting, true);
}

uint64_t msdu__count_alloc_end(void)
{
    atomic_store(&is_counting, false);
    return atomic_load(&calls);
}

#if defined(__GLIBC__) && !defined(IS_SANITIZED)

/* The C library's own names for them; declared in none of its headers. */
extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *memory, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);

bool msdu__count_alloc_is_there(void)
{
    return true;
}

static void note(void)
{
    if (atomic_load_explicit(&is_counting, memory_order_relaxed)) {
        atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed);
    }
}

void *malloc(size_t bytes)
{
    note();
    return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    note();
    return __libc_calloc(count, bytes);
}

void *realloc(void *memory, size_t bytes)
{
    note();
    return __libc_realloc(memory, bytes);
}

void *memalign(size_t alignment, size_t bytes)
{
    note();
    return __libc_memalign(alignment, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    return memalign(alignment, bytes);
}

int posix_memalign(void **out, size_t alignment, size_t bytes)
{
    if (alignment % sizeof(void *) != 0 || (alignment & (alignment - 1)) != 0 || alignment == 0) {
        return EINVAL;
    }
    void *memory = memalign(alignment, bytes);
    if (memory == NULL) {
        return ENOMEM;
    }
    *out = memory;
    return 0;
}

#else

bool msdu__count_alloc_is_there(void)
{
    return false;
}

#endif
