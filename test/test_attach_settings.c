/* SPDX-License-Identifier: Apache-2.0 */
/* Settings as attaching sees them: the ini file's as well as the environment's. */
#include "attach/settings.h"
#include "config_help.h"

static void clean(void)
{
    clean_environment();
    unsetenv("MSDU_ATTACH_LEARN");
    unsetenv("MSDU_ATTACH_TENSORS");
    msdu__attach_forget();
}

static void give_file(const char *text)
{
    msdu__attach_forget();
    setenv("MSDU_CONFIG", ini_file(text), 1);
}

static void give(const char *name, const char *value)
{
    msdu__attach_forget();
    setenv(name, value, 1);
}

START_TEST(what_nobody_gave_is_empty)
{
    ck_assert_str_eq(msdu__attach_setting("wire"), "");
    ck_assert(!msdu__attach_is_given("wire"));
    ck_assert(!msdu__attach_is_given("ranks"));
    ck_assert(!msdu__attach_is_given("MSDU_ATTACH_LEARN"));
    ck_assert_uint_eq(msdu__attach_number("deadline_ms", 60000), 60000);
    ck_assert_uint_eq(msdu__attach_number("MSDU_ATTACH_LEARN", 5), 32);
    ck_assert(!msdu__attach_is_local());
    ck_assert(!msdu__attach_is_exact());
    ck_assert(!msdu__attach_is_dampened());
    ck_assert(msdu__attach_is_loud());
}
END_TEST

START_TEST(the_file_is_seen_as_the_environment_is)
{
    give_file("optimizer = sgd\ndampening = 0.5\ndeadline_ms = 77\nlog_level = error\n"
              "weight_decay = 0.1\nlr = 0.2\n");
    ck_assert_str_eq(msdu__attach_setting("optimizer"), "sgd");
    ck_assert(msdu__attach_is_given("weight_decay"));
    ck_assert_uint_eq(msdu__attach_number("deadline_ms", 60000), 77);
    ck_assert_uint_eq(msdu__attach_number("MSDU_DEADLINE_MS", 60000), 77);
    ck_assert(msdu__attach_is_local());
    ck_assert(msdu__attach_is_dampened());
    ck_assert(!msdu__attach_is_loud());
    ck_assert(!(msdu__attach_config(true).lr > 0));
    give("MSDU_DOMAIN", "gradient");
    ck_assert(!msdu__attach_is_local());
    give("MSDU_WIRE", "float32");
    ck_assert(msdu__attach_is_exact());
    give_file("domain = accumulated\noptimizer = sgd\n");
    unsetenv("MSDU_DOMAIN");
    ck_assert(msdu__attach_is_local());
    ck_assert(msdu__attach_config(true).lr > 0);
    ck_assert(!msdu__attach_is_exact());
    give_file("interval = fixed\ninterval_steps = 1\noptimizer = sgd\n");
    ck_assert(msdu__attach_is_exact());
}
END_TEST

START_TEST(launchers_give_no_setting)
{
    setenv("RANK", "1", 1);
    setenv("WORLD_SIZE", "2", 1);
    setenv("MASTER_ADDR", "node7", 1);
    setenv("MASTER_PORT", "29500", 1);
    ck_assert(!msdu__attach_is_given("rank"));
    ck_assert(!msdu__attach_is_given("ranks"));
    ck_assert(!msdu__attach_is_given("rendezvous"));
    give("MSDU_RANK", "3");
    ck_assert(msdu__attach_is_given("rank"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("attach_settings");
    TCase *tcase = suite_case(suite, "attach_settings", 20, clean, clean);
    tcase_add_test(tcase, what_nobody_gave_is_empty);
    tcase_add_test(tcase, the_file_is_seen_as_the_environment_is);
    tcase_add_test(tcase, launchers_give_no_setting);
    return suite_run(suite);
}
