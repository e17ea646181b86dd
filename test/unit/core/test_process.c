/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a context has of its process, and leaves there: a fork, the environment of a program with
 * more rights, the locale, memory that held a secret.
 */
#include <check.h>
#include <locale.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <msdu/msdu.h>

#include "suite.h"

#define SECRET "a-secret-that-nothing-else-contains"

/* The linker puts these in place of the C library's. */
char *__wrap_secure_getenv(const char *name);
char *__real_secure_getenv(const char *name);
locale_t __wrap_newlocale(int mask, const char *name, locale_t base);
locale_t __real_newlocale(int mask, const char *name, locale_t base);
void __wrap_free(void *memory);
void __real_free(void *memory);

static atomic_bool is_privileged; /* as in a program that runs set-user-ID */
static atomic_bool has_no_locale;
static atomic_bool looks_at_freed;
static atomic_int freed_secrets; /* blocks of memory given back with the secret in them */

char *__wrap_secure_getenv(const char *name)
{
    return atomic_load(&is_privileged) ? NULL : __real_secure_getenv(name);
}

locale_t __wrap_newlocale(int mask, const char *name, locale_t base)
{
    return atomic_load(&has_no_locale) ? (locale_t)0 : __real_newlocale(mask, name, base);
}

void __wrap_free(void *memory)
{
    if (memory != NULL && atomic_load(&looks_at_freed) &&
        memmem(memory, malloc_usable_size(memory), SECRET, strlen(SECRET)) != NULL) {
        atomic_fetch_add(&freed_secrets, 1);
    }
    __real_free(memory);
}

static float parameter[8];
static float gradient[8];

static msdu_status make(const char *settings, msdu_ctx **ctx_out)
{
    msdu_config config = MSDU_CONFIG_INIT;
    config.backend = "local";
    config.ranks = 1;
    config.settings = settings;
    return msdu_create(&config, ctx_out);
}

static msdu_status run(msdu_ctx *ctx)
{
    msdu_tensor_desc desc = MSDU_TENSOR_INIT;
    desc.name = "weight";
    desc.parameter = parameter;
    desc.gradient = gradient;
    desc.count = 8;
    msdu_status status = msdu_tensor_add(ctx, &desc, NULL);
    if (status == MSDU_OK) {
        status = msdu_start(ctx);
    }
    return status == MSDU_OK ? msdu_step(ctx) : status;
}

/* --- fork --- */

/* 0, or the number of the first call that was not refused. */
static int try_all(msdu_ctx *ctx)
{
    size_t bytes = 0;
    msdu_summary summary = MSDU_SUMMARY_INIT;
    msdu_tensor_desc desc = MSDU_TENSOR_INIT;
    const msdu_status statuses[] = {
        msdu_step(ctx),
        msdu_tensor_ready(ctx, 0, MSDU_GRADIENT),
        msdu_tensor_wait(ctx, 0, MSDU_GRADIENT),
        msdu_tensor_ready_on(ctx, 0, MSDU_GRADIENT, NULL),
        msdu_tensor_wait_on(ctx, 0, MSDU_GRADIENT, NULL),
        msdu_tensor_add(ctx, &desc, NULL),
        msdu_tensor_set(ctx, 0, MSDU_GRADIENT, gradient),
        msdu_set_lr(ctx, 1),
        msdu_set_clipping(ctx),
        msdu_set_weight(ctx, 1),
        msdu_set_loss(ctx, 1),
        msdu_sync_after_step(ctx),
        msdu_synchronize(ctx),
        msdu_join(ctx),
        msdu_rollback(ctx),
        msdu_state_get(ctx, NULL, 0, &bytes),
        msdu_state_set(ctx, NULL, 0),
        msdu_summary_get(ctx, &summary),
        msdu_start(ctx),
        msdu_finish(ctx),
    };
    for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++) {
        if (statuses[i] != MSDU_ERR_INVALID) {
            return (int)i + 1;
        }
    }
    return 0;
}

/*
 * In the child; its exit code. A sanitizer's allocator may have been locked by a thread of the
 * parent at the fork, and nobody unlocks it here. So nothing is allocated then: no context of its
 * own.
 */
static int be_child(msdu_ctx *ctx)
{
    msdu_ctx *own = NULL;
    int refused = try_all(ctx);
    if (refused != 0) {
        return refused;
    }
    if (strstr(msdu_last_error(), "fork()") == NULL) {
        return 100;
    }
    if (IS_SANITIZED) {
        return 0;
    }
    msdu_destroy(ctx); /* would join a thread that is not here */
    if (make(NULL, &own) != MSDU_OK || run(own) != MSDU_OK || msdu_finish(own) != MSDU_OK) {
        return 101;
    }
    msdu_destroy(own);
    return 0;
}

START_TEST(a_child_has_contexts_of_its_own_only)
{
    msdu_ctx *ctx = NULL;
    int code = 0;
    ck_assert_int_eq(make(NULL, &ctx), MSDU_OK);
    ck_assert_int_eq(run(ctx), MSDU_OK);
    pid_t child = fork();
    if (child == 0) {
        (void)signal(SIGALRM, SIG_DFL); /* Check's handler would end the parent, and CTest, too */
        (void)alarm(20);                /* a child that hangs ends by this */
        _exit(be_child(ctx));
    }
    ck_assert_int_gt(child, 0);
    ck_assert_int_eq(waitpid(child, &code, 0), child);
    ck_assert_msg(WIFEXITED(code) && WEXITSTATUS(code) == 0, "the child ended with %x", code);
    ck_assert_int_eq(msdu_step(ctx), MSDU_OK); /* the parent's goes on */
    ck_assert_int_eq(msdu_finish(ctx), MSDU_OK);
    msdu_destroy(ctx);
}
END_TEST

/* --- more rights than the caller's --- */

START_TEST(a_privileged_program_takes_nothing_from_the_environment)
{
    static const char *const names[] = {"MSDU_CONFIG", "MSDU_BACKEND", "MSDU_DOMAIN"};
    msdu_ctx *ctx = NULL;
    ck_assert_int_eq(setenv(names[_i], "/nowhere/at-all", 1), 0);
    msdu_config config = MSDU_CONFIG_INIT;
    config.backend = "local";
    config.ranks = _i == 1 ? 2 : 1; /* one rank needs no backend */
    ck_assert_int_ne(msdu_create(&config, &ctx), MSDU_OK);
    atomic_store(&is_privileged, true);
    ck_assert_int_eq(msdu_create(&config, &ctx), MSDU_OK);
    atomic_store(&is_privileged, false);
    ck_assert_int_eq(unsetenv(names[_i]), 0);
    msdu_destroy(ctx);
}
END_TEST

START_TEST(a_privileged_program_takes_no_module_path)
{
    char before[4096] = "";
    msdu_ctx *ctx = NULL;
    const char *path = getenv("MSDU_MODULE_PATH");
    strncpy(before, path != NULL ? path : "", sizeof(before) - 1);
    ck_assert_int_eq(setenv("MSDU_MODULE_PATH", "/from/the/caller", 1), 0);
    msdu_config config = MSDU_CONFIG_INIT;
    config.backend = "missing";
    config.ranks = 2;
    ck_assert_int_eq(msdu_create(&config, &ctx), MSDU_ERR_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(msdu_last_error(), "/from/the/caller"));
    atomic_store(&is_privileged, true);
    ck_assert_int_eq(msdu_create(&config, &ctx), MSDU_ERR_NOT_FOUND);
    atomic_store(&is_privileged, false);
    ck_assert_ptr_null(strstr(msdu_last_error(), "/from/the/caller"));
    ck_assert_int_eq(setenv("MSDU_MODULE_PATH", before, 1), 0);
}
END_TEST

/* --- no memory for a locale --- */

START_TEST(a_missing_locale_is_told)
{
    msdu_ctx *ctx = NULL;
    atomic_store(&has_no_locale, true);
    msdu_status status = make("lr = 0.5", &ctx);
    atomic_store(&has_no_locale, false);
    ck_assert_int_eq(status, MSDU_ERR_NO_MEMORY);
    ck_assert_ptr_nonnull(strstr(msdu_last_error(), "locale"));
}
END_TEST

/* --- secrets --- */

/* In the test's own memory, which is not looked at, by a pointer that no register keeps. */
static char settings[] = "secret = " SECRET;

static void *use_secret(void *unused)
{
    msdu_ctx *ctx = NULL;
    (void)unused;
    bool is_well =
        make(settings, &ctx) == MSDU_OK && run(ctx) == MSDU_OK && msdu_finish(ctx) == MSDU_OK;
    msdu_destroy(ctx);
    return is_well ? settings : NULL;
}

START_TEST(a_secret_stays_nowhere)
{
    const size_t bytes = 1U << 20;
    char *stack = NULL;
    void *made = NULL;
    pthread_t thread;
    pthread_attr_t attributes;
    ck_assert_int_eq(posix_memalign((void **)&stack, 4096, bytes), 0);
    memset(stack, 0, bytes);
    ck_assert_int_eq(pthread_attr_init(&attributes), 0);
    ck_assert_int_eq(pthread_attr_setstack(&attributes, stack, bytes), 0);
    atomic_store(&freed_secrets, 0);
    atomic_store(&looks_at_freed, true);
    ck_assert_int_eq(pthread_create(&thread, &attributes, use_secret, NULL), 0);
    ck_assert_int_eq(pthread_join(thread, &made), 0);
    atomic_store(&looks_at_freed, false);
    ck_assert_ptr_nonnull(made);
    ck_assert_msg(memmem(stack, bytes, SECRET, strlen(SECRET)) == NULL, "it is on the stack");
    ck_assert_int_eq(atomic_load(&freed_secrets), 0);
    (void)pthread_attr_destroy(&attributes);
    free(stack);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("process");
    TCase *tcase = suite_case(suite, "process", 60, NULL, NULL);
    tcase_add_test(tcase, a_child_has_contexts_of_its_own_only);
    tcase_add_loop_test(tcase, a_privileged_program_takes_nothing_from_the_environment, 0, 3);
    tcase_add_test(tcase, a_privileged_program_takes_no_module_path);
    tcase_add_test(tcase, a_missing_locale_is_told);
    tcase_add_test(tcase, a_secret_stays_nowhere);
    return suite_run(suite);
}
