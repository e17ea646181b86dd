/* SPDX-License-Identifier: Apache-2.0 */
/* Settings as attaching sees them: the ini file's as well as the environment's. */
#include "attach/settings.h"
#include "config_help.h"

static void clean(void)
{
    clean_environment();
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
    ck_assert_str_eq(msdu__attach_config(true).wire, "float32");
    ck_assert_str_eq(msdu__attach_config(false).wire, "int4");
    give_file("interval = fixed\ninterval_steps = 1\noptimizer = sgd\n");
    ck_assert(msdu__attach_is_exact());
    give("MSDU_WIRE", "int4");
    ck_assert(!msdu__attach_is_exact());
    unsetenv("MSDU_WIRE");
    msdu__attach_forget();
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

START_TEST(bytes_have_suffixes)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } rows[] = {{"0", 0},       {"17", 17},         {"64k", 65536},        {"2MiB", 2097152},
                {"3kib", 3072}, {"1G", 1ULL << 30}, {"1024G", 1ULL << 40}, {"5B", 5}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char text[256];
        give("MSDU_ATTACH_MIN_BYTES", rows[i].text);
        ck_assert_uint_eq(msdu__attach_number("MSDU_ATTACH_MIN_BYTES", 1), rows[i].bytes);
        ck_assert_msg(!msdu__attach_has_bad_setting(NULL, text, sizeof(text)), "%s", text);
    }
    unsetenv("MSDU_ATTACH_MIN_BYTES");
}
END_TEST

static void expect_bad(const char *name, const char *value, const char *word)
{
    char text[512] = "";
    const msdu__attach_comm comm = {.ranks = 4};
    const msdu__attach_facts facts = {.count = 5000, .comm = &comm, .at = -1};
    give(name, value);
    ck_assert_msg(msdu__attach_has_bad_setting(&comm, text, sizeof(text)), "%s=%s", name, value);
    ck_assert_msg(strstr(text, word) != NULL, "no '%s' in: %s", word, text);
    ck_assert(!msdu__attach_is_allowed(&facts));
    unsetenv(name);
    msdu__attach_forget();
    ck_assert_msg(!msdu__attach_has_bad_setting(&comm, text, sizeof(text)), "%s", text);
    ck_assert(msdu__attach_is_allowed(&facts));
}

START_TEST(what_cannot_hold_is_told_and_nothing_is_attached)
{
    expect_bad("MSDU_ATTACH", "maybe", "off, on, always");
    expect_bad("MSDU_ATTACH", "o", "off, on, always");
    expect_bad("MSDU_ATTACH_LEARN", "-1", "1 .. 1000000");
    expect_bad("MSDU_ATTACH_LEARN", "99999999999999999999", "1 .. 1000000");
    expect_bad("MSDU_ATTACH_LEARN", "1k", "1 .. 1000000");
    expect_bad("MSDU_ATTACH_MIN_BYTES", "1024GiBi", "0 .. 1024GiB");
    expect_bad("MSDU_ATTACH_MIN_BYTES", "1025G", "0 .. 1024GiB");
    expect_bad("MSDU_ATTACH_MIN_BYTES", "18446744073709551615k", "0 .. 1024GiB");
    expect_bad("MSDU_ATTACH_LIBRARY", "/nope.so", "cannot be read");
    expect_bad("MSDU_ATTACH_NCCL_LIBRARY", "/nope.so", "cannot be read");
    expect_bad("MSDU_ATTACH_DENY", "flot32", "no count");
    expect_bad("MSDU_ATTACH_TENSOR", "5", "did you mean MSDU_ATTACH_TENSORS?");
    expect_bad("MSDU_BACKEND", "gloo", "MSDU_BACKEND: 'gloo' cannot hold");
    expect_bad("MSDU_RANK", "3", "MSDU_RANK: '3' cannot hold");
    expect_bad("MSDU_OVERLAP", "delayed", "MSDU_OVERLAP: 'delayed' cannot hold");
    expect_bad("MSDU_WINDOW", "0", "MSDU_WINDOW: '0' is out of range");
}
END_TEST

START_TEST(off_holds_whatever_else_is_wrong)
{
    char text[256];
    give("MSDU_ATTACH", "off");
    give("MSDU_WIRE", "int3");
    ck_assert_msg(!msdu__attach_has_bad_setting(NULL, text, sizeof(text)), "%s", text);
}
END_TEST

START_TEST(a_name_far_from_all_others_is_no_slip)
{
    char text[256];
    bool is_slip = true;
    size_t at = 0;
    setenv("MSDU_XYZZY_QQQQ", "1", 1);
    ck_assert(!msdu__attach_has_bad_setting(NULL, text, sizeof(text)));
    ck_assert(msdu__attach_unknown(&at, text, sizeof(text), &is_slip));
    ck_assert(!is_slip);
    ck_assert_str_eq(text, "MSDU_XYZZY_QQQQ: there is no such setting");
    ck_assert(!msdu__attach_unknown(&at, text, sizeof(text), &is_slip));
    unsetenv("MSDU_XYZZY_QQQQ");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("attach_settings");
    TCase *tcase = suite_case(suite, "attach_settings", 20, clean, clean);
    tcase_add_test(tcase, what_nobody_gave_is_empty);
    tcase_add_test(tcase, the_file_is_seen_as_the_environment_is);
    tcase_add_test(tcase, launchers_give_no_setting);
    tcase_add_test(tcase, bytes_have_suffixes);
    tcase_add_test(tcase, what_cannot_hold_is_told_and_nothing_is_attached);
    tcase_add_test(tcase, off_holds_whatever_else_is_wrong);
    tcase_add_test(tcase, a_name_far_from_all_others_is_no_slip);
    return suite_run(suite);
}
