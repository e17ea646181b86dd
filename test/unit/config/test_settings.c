/* SPDX-License-Identifier: Apache-2.0 */
/* Settings as a whole: struct size, launchers, joint rules, log, description. */
#include "config_help.h"
#include "wire/wire.h"

static void load_well(const msdu_config *config, msdu__settings *settings_out)
{
    ck_assert_msg(load(config, settings_out) == MSDU_OK, "%s", msdu_last_error());
}

/* --- struct size --- */

START_TEST(a_struct_without_size_is_refused)
{
    msdu_config config = {.size = 0};
    expect_failure(&config, "MSDU_CONFIG_INIT");
}
END_TEST

START_TEST(a_shorter_struct_has_defaults_in_the_rest)
{
    msdu__settings settings;
    msdu_config config = {.size = offsetof(msdu_config, window), .window = 9, .domain = "gradient"};
    load_well(&config, &settings);
    ck_assert_int_eq(settings.window, -1);
    ck_assert_int_eq(settings.domain, MSDU__DOMAIN_GRADIENT);
}
END_TEST

START_TEST(a_longer_struct_is_accepted_only_if_the_rest_is_zero)
{
    struct {
        msdu_config config;
        char more[16];
    } newer = {.config = {.size = sizeof(newer), .window = 9}};
    msdu__settings settings;
    load_well(&newer.config, &settings);
    ck_assert_int_eq(settings.window, 9);
    newer.more[15] = 1;
    ck_assert_int_eq(load(&newer.config, &settings), MSDU_ERR_UNSUPPORTED);
}
END_TEST

/* --- launchers --- */

static const char *const launchers[][2] = {{"MSDU_RANK", "MSDU_RANKS"},
                                           {"RANK", "WORLD_SIZE"},
                                           {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                           {"PMI_RANK", "PMI_SIZE"},
                                           {"SLURM_PROCID", "SLURM_NTASKS"}};
#define LAUNCHERS (sizeof(launchers) / sizeof(launchers[0]))

START_TEST(each_launcher_gives_rank_and_size_in_order)
{
    msdu__settings settings;
    char value[32];
    for (size_t i = LAUNCHERS; i-- > 0;) { /* the later ones stay set: the earlier ones win */
        snprintf(value, sizeof(value), "%zu", i + 1);
        setenv(launchers[i][0], value, 1);
        snprintf(value, sizeof(value), "%zu", 10 + i);
        setenv(launchers[i][1], value, 1);
        load_well(NULL, &settings);
        ck_assert_int_eq(settings.rank, (int64_t)i + 1);
        ck_assert_int_eq(settings.ranks, 10 + (int64_t)i);
    }
}
END_TEST

START_TEST(a_rank_without_a_size_is_refused)
{
    for (size_t i = 0; i < LAUNCHERS; i++) {
        setenv(launchers[i][0], "1", 1);
        expect_failure(NULL, i == 0 ? "rank is set, but ranks is not" : launchers[i][1]);
        unsetenv(launchers[i][0]);
    }
}
END_TEST

START_TEST(a_rank_not_below_the_size_is_refused)
{
    for (size_t i = 0; i < LAUNCHERS; i++) {
        setenv(launchers[i][0], "4", 1);
        setenv(launchers[i][1], "4", 1);
        expect_failure(NULL, "rank 4 is not below ranks, which is 4");
        unsetenv(launchers[i][0]);
        unsetenv(launchers[i][1]);
    }
}
END_TEST

START_TEST(a_bad_launcher_value_names_its_variable)
{
    setenv("RANK", "one", 1);
    setenv("WORLD_SIZE", "4", 1);
    expect_failure(NULL, "RANK|'one'");
    setenv("RANK", "-1", 1);
    expect_failure(NULL, "RANK|'-1'|0 .. 65535");
}
END_TEST

START_TEST(the_struct_wins_over_launchers)
{
    msdu__settings settings;
    msdu_config config = {.size = sizeof(config), .ranks = 2};
    setenv("RANK", "3", 1);
    setenv("WORLD_SIZE", "4", 1);
    load_well(&config, &settings);
    ck_assert_int_eq(settings.rank, 0);
    ck_assert_int_eq(settings.ranks, 2);
}
END_TEST

START_TEST(a_slurm_shell_without_a_rank_is_a_single_rank)
{
    msdu__settings settings;
    setenv("SLURM_NTASKS", "4", 1);
    load_well(NULL, &settings);
    ck_assert_int_eq(settings.ranks, 1);
}
END_TEST

START_TEST(the_rendezvous_comes_from_the_master_variables_if_not_given)
{
    msdu__settings settings;
    msdu_config config = {.size = sizeof(config), .rendezvous = "file:///tmp/x"};
    setenv("MASTER_ADDR", "node7", 1);
    setenv("MASTER_PORT", "29500", 1);
    load_well(NULL, &settings);
    ck_assert_str_eq(settings.rendezvous, "tcp://node7:29500");
    load_well(&config, &settings);
    ck_assert_str_eq(settings.rendezvous, "file:///tmp/x");
    setenv("MASTER_ADDR", "fe80::1", 1);
    load_well(NULL, &settings);
    ck_assert_str_eq(settings.rendezvous, "tcp://[fe80::1]:29500");
    setenv("MASTER_PORT", "0", 1);
    expect_failure(NULL, "MASTER_PORT|'0'|1 .. 65535");
}
END_TEST

static msdu_status store_set(void *user, const char *key, const void *value, size_t bytes,
                             uint64_t timeout_ns, char *why)
{
    (void)user, (void)key, (void)value, (void)bytes, (void)timeout_ns, (void)why;
    return MSDU_ERR_IO;
}

static msdu_status store_get(void *user, const char *key, void *value, size_t *bytes,
                             uint64_t timeout_ns, char *why)
{
    (void)user, (void)key, (void)value, (void)bytes, (void)timeout_ns, (void)why;
    return MSDU_ERR_IO;
}

START_TEST(a_store_is_where_ranks_meet_unless_a_place_is_given)
{
    msdu__settings settings;
    msdu_store store = {.size = sizeof(store), .epoch = 3, .set = store_set, .get = store_get};
    msdu_config config = {.size = sizeof(config), .store = &store};
    load_well(&config, &settings);
    ck_assert_str_eq(settings.rendezvous, "store://");
    ck_assert_uint_eq(settings.store.epoch, 3);
    setenv("MASTER_ADDR", "fe80::1", 1);
    setenv("MASTER_PORT", "0", 1); /* nobody asks for it */
    load_well(&config, &settings);
    ck_assert_str_eq(settings.rendezvous, "store://fe80::1");
    setenv("MSDU_RENDEZVOUS", "file:///tmp/x", 1);
    load_well(&config, &settings);
    ck_assert_str_eq(settings.rendezvous, "file:///tmp/x");
    store.get = NULL;
    expect_failure(&config, "msdu_config.store|MSDU_STORE_INIT");
    store = (msdu_store){.size = sizeof(store) - 1, .set = store_set, .get = store_get};
    expect_failure(&config, "msdu_config.store|MSDU_STORE_INIT");
}
END_TEST

START_TEST(the_login_of_a_rendezvous_is_in_no_text)
{
    msdu__settings settings;
    msdu__log log;
    msdu_resolved resolved = MSDU_RESOLVED_INIT;
    msdu_config config = {.size = sizeof(config), .log = keep_line, .log_level = MSDU_LOG_DEBUG};
    setenv("MSDU_RENDEZVOUS", "redis://a:sesame@node7:6379/1", 1);
    ck_assert_int_eq(msdu__settings_load(&config, &settings, &log), MSDU_OK);
    ck_assert_str_eq(settings.rendezvous, "redis://a:sesame@node7:6379/1");
    ck_assert_ptr_nonnull(strstr(help_log, "redis://(hidden)@node7:6379/1"));
    ck_assert_ptr_null(strstr(help_log, "sesame"));
    ck_assert_int_eq(msdu_setting_resolve(&config, "rendezvous", &resolved), MSDU_OK);
    ck_assert_str_eq(resolved.text, "redis://(hidden)@node7:6379/1");
    setenv("MSDU_RENDEZVOUS", "redis://a:sesame\n@node7", 1);
    expect_failure(NULL, "MSDU_RENDEZVOUS|redis://(hidden)@node7|control character");
}
END_TEST

/* --- joint rules --- */

START_TEST(settings_that_do_not_go_together_are_refused)
{
    static const struct {
        const char *file, *words;
    } bad[] = {
        {"commit = tensor", "commit tensor needs domain gradient"},
        {"commit = tensor\ndomain = parameter", "commit tensor needs domain gradient"},
        {"commit = tensor\ndomain = gradient\ncheck_finite = skip", "needs commit round"},
        {"domain = gradient\noverlap = delayed", "overlap delayed|domain gradient"},
        {"domain = gradient\noverlap = streamed", "overlap streamed|domain gradient"},
        {"domain = accumulated", "needs optimizer sgd"},
        {"domain = accumulated\noptimizer = adam", "needs optimizer sgd"},
        {"domain = accumulated\noptimizer = sgd\nweight_decay = 0.1", "needs lr"},
        {"nesterov = yes", "nesterov needs momentum"},
        {"nesterov = yes\nmomentum = 0.9\ndampening = 0.1", "nesterov needs momentum"},
        {"tls_key = a\ntls_cert = b", "tls_key, tls_cert and tls_ca"},
        {"interval_steps = 16\ninterval_max = 8", "interval_steps 16 is above interval_max 8"},
        {"wire_block = 100", "wire_block 100 is not a multiple of 16"},
    };
    msdu_config config = {.size = sizeof(config)};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        config.config_file = ini_file(bad[i].file);
        expect_failure(&config, bad[i].words);
    }
}
END_TEST

START_TEST(a_default_gives_way_to_a_given_value)
{
    msdu__settings settings;
    msdu_config config = {
        .size = sizeof(config), .interval_steps = 100, .slice_bytes = 1024, .fuse_bytes = 4096};
    load_well(&config, &settings);
    ck_assert_int_eq(settings.interval_max, 100);
    ck_assert_int_eq(settings.fuse_bytes, 1024);
    config = (msdu_config){.size = sizeof(config), .interval_max = 2};
    load_well(&config, &settings);
    ck_assert_int_eq(settings.interval_steps, 2);
}
END_TEST

/* --- log --- */

START_TEST(an_unknown_variable_is_one_warning_with_a_hint)
{
    msdu__settings settings;
    msdu_config config = {.size = sizeof(config), .log = keep_line};
    setenv("MSDU_SLICE_BITES", "1", 1);
    setenv("MSDU_MODULE_PATH", "/x", 1);
    setenv("MSDU_LIBRARY", "/x/libmsdu.so", 1);
    load_well(&config, &settings);
    ck_assert_str_eq(help_log, "2 unknown variable MSDU_SLICE_BITES ignored, did you mean "
                               "MSDU_SLICE_BYTES?\n");
}
END_TEST

START_TEST(a_setting_that_is_gone_is_an_error_that_says_what_holds_instead)
{
    msdu__settings settings;
    msdu__log log;
    msdu_config config = {.size = sizeof(config), .settings = "wire = int4\nwire_warmup = int8"};
    msdu_resolved resolved = MSDU_RESOLVED_INIT;
    ck_assert_int_eq(msdu__settings_load(&config, &settings, &log), MSDU_ERR_INVALID);
    ck_assert_str_eq(msdu_last_error(),
                     "msdu_config.settings:2: setting 'wire_warmup' is gone since 0.3: the first "
                     "warmup_steps travel in the format of wire");
    expect_status(msdu_setting_resolve(NULL, "wire_warmup", &resolved), MSDU_ERR_NOT_FOUND,
                  "gone since 0.3");
    setenv("MSDU_WIRE_ROUNDING", "", 1);
    ck_assert_int_eq(msdu__settings_load(NULL, &settings, &log), MSDU_OK);
    setenv("MSDU_WIRE_ROUNDING", "stochastic", 1);
    ck_assert_int_eq(msdu__settings_load(NULL, &settings, &log), MSDU_ERR_INVALID);
    ck_assert_str_eq(msdu_last_error(), "MSDU_WIRE_ROUNDING is gone since 0.3: values are always "
                                        "rounded to the nearest level");
}
END_TEST

START_TEST(an_old_value_is_taken_with_a_warning_that_names_the_new_one)
{
    msdu__settings settings;
    msdu_config config = {.size = sizeof(config), .log = keep_line, .check_finite = "pass"};
    setenv("MSDU_WIRE", "ternary", 1);
    load_well(&config, &settings);
    ck_assert_int_eq(settings.wire, MSDU__WIRE_INT2);
    ck_assert_int_eq(settings.check_finite, MSDU__CHECK_PROPAGATE);
    expect_words(help_log, "2 MSDU_WIRE: value 'ternary' is called 'int2' since 0.3\n|"
                           "value 'pass' is called 'propagate' since 0.3\n");
}
END_TEST

START_TEST(overrides_are_logged_at_info_but_never_the_secret)
{
    msdu__settings settings;
    msdu_config config = {.size = sizeof(config), .log = keep_line, .log_level = MSDU_LOG_INFO};
    config.config_file = ini_file("lanes = 3\n");
    setenv("MSDU_WINDOW", "5", 1);
    setenv("MSDU_JOB_SECRET", "hush", 1);
    load_well(&config, &settings);
    ck_assert_str_eq(settings.secret, "hush");
    expect_words(help_log, "3 window 5 (from MSDU_WINDOW)\n|.ini:1: lanes)\n|"
                           "3 secret set (from MSDU_JOB_SECRET)\n");
    ck_assert_ptr_null(strstr(help_log, "hush"));
}
END_TEST

START_TEST(the_variable_for_the_log_turns_on_standard_error)
{
    msdu__settings settings;
    msdu__log log;
    setenv("MSDU_LOG", "error", 1);
    ck_assert_int_eq(msdu__settings_load(NULL, &settings, &log), MSDU_OK);
    ck_assert(log.fn == msdu__log_stderr);
    ck_assert_int_eq(log.level, MSDU_LOG_ERROR);
    unsetenv("MSDU_LOG");
    ck_assert_int_eq(msdu__settings_load(NULL, &settings, &log), MSDU_OK);
    ck_assert(log.fn == NULL);
    ck_assert_int_eq(log.level, MSDU_LOG_WARN);
}
END_TEST

/* --- description --- */

START_TEST(the_description_has_what_ranks_must_agree_on_and_no_more)
{
    static const char *const absent[] = {"secret",     "rank ",        "interface",
                                         "trace_file", "metrics_file", "log_level"};
    msdu__settings settings;
    msdu_config config = {.size = sizeof(config), .ranks = 2, .rank = 1, .secret = "hush"};
    char text[8192];
    char cut[16];
    load_well(&config, &settings);
    size_t length = msdu__settings_describe(&settings, text, sizeof(text));
    ck_assert_uint_eq(length, strlen(text));
    expect_words(text, "\nwindow auto\n|\ntarget_overhead 0.029999999999999999\n|ranks 2\n");
    for (size_t i = 0; i < sizeof(absent) / sizeof(absent[0]); i++) {
        char line[32];
        snprintf(line, sizeof(line), "\n%s", absent[i]);
        ck_assert_msg(strstr(text, line) == NULL, "%s is in the description", absent[i]);
    }
    ck_assert_ptr_null(strstr(text, "hush"));
    ck_assert_uint_eq(msdu__settings_describe(&settings, cut, sizeof(cut)), length);
    ck_assert_uint_eq(strlen(cut), sizeof(cut) - 1);
    ck_assert_uint_eq(msdu__settings_describe(&settings, NULL, 0), length);
}
END_TEST

START_TEST(the_description_is_equal_for_equal_settings_of_different_ranks)
{
    msdu__settings settings;
    char texts[2][8192];
    for (int32_t i = 0; i < 2; i++) {
        msdu_config config = {.size = sizeof(config), .ranks = 2, .rank = i};
        config.trace_file = i == 0 ? "a" : "b";
        load_well(&config, &settings);
        msdu__settings_describe(&settings, texts[i], sizeof(texts[i]));
    }
    ck_assert_str_eq(texts[0], texts[1]);
}
END_TEST

START_TEST(listed_settings_end_with_not_found_and_follow_the_size_rule)
{
    msdu_setting_info info = {.size = sizeof(info)};
    uint32_t count = 0;
    while (msdu_setting_get(count, &info) == MSDU_OK) {
        char upper[64];
        ck_assert_str_eq(info.name, msdu__setting_at(count)->name);
        ck_assert_uint_gt(strlen(info.help), 0);
        ck_assert_uint_gt(strlen(info.range), 0);
        snprintf(upper, sizeof(upper), "MSDU_%s", info.name);
        for (char *at = upper; *at != '\0'; at++) {
            *at = (char)(*at >= 'a' && *at <= 'z' ? *at - 32 : *at);
        }
        bool is_special = strcmp(info.name, "secret") == 0 || strcmp(info.name, "log_level") == 0 ||
                          strcmp(info.name, "config_file") == 0;
        ck_assert(is_special || strcmp(upper, info.environment) == 0);
        count++;
    }
    ck_assert_uint_gt(count, 50);
    ck_assert_int_eq(msdu_setting_get(count, &info), MSDU_ERR_NOT_FOUND);
    info = (msdu_setting_info){.size = offsetof(msdu_setting_info, type), .help = "kept"};
    ck_assert_int_eq(msdu_setting_get(0, &info), MSDU_OK);
    ck_assert_str_eq(info.help, "kept");
    info.size = 0;
    ck_assert_int_eq(msdu_setting_get(0, &info), MSDU_ERR_INVALID);
}
END_TEST

/* --- what a setting is, and by whom --- */

static void expect_resolved(const msdu_config *config, const char *name, const char *text,
                            const char *origin)
{
    msdu_resolved resolved = MSDU_RESOLVED_INIT;
    ck_assert_msg(msdu_setting_resolve(config, name, &resolved) == MSDU_OK, "%s: %s", name,
                  msdu_last_error());
    ck_assert_str_eq(resolved.text, text);
    ck_assert_str_eq(resolved.origin, origin);
}

START_TEST(a_setting_is_resolved_with_who_gave_it)
{
    char origin[192];
    msdu_config config = {.size = sizeof(config), .wire = "int8", .window = 3, .ranks = 2};
    expect_resolved(NULL, "wire", "auto", "");
    expect_resolved(NULL, "deadline_ms", "60000", "");
    expect_resolved(&config, "wire", "int8", "msdu_config.wire");
    expect_resolved(&config, "rank", "0", "msdu_config.rank");
    setenv("MSDU_CONFIG", ini_file("wire = int4\nlr = 0.5\nsecret = hush\n"), 1);
    snprintf(origin, sizeof(origin), "%s:1: wire", ini_path());
    expect_resolved(&config, "wire", "int4", origin);
    snprintf(origin, sizeof(origin), "%s:2: lr", ini_path());
    expect_resolved(NULL, "lr", "0.5", origin);
    snprintf(origin, sizeof(origin), "%s:3: secret", ini_path());
    expect_resolved(NULL, "secret", "", origin);
    setenv("MSDU_WIRE", "float32", 1);
    expect_resolved(&config, "wire", "float32", "MSDU_WIRE");
    expect_resolved(&config, "window", "3", "msdu_config.window");
}
END_TEST

START_TEST(resolving_tells_what_is_wrong_and_logs_nothing)
{
    msdu_resolved resolved = {.size = offsetof(msdu_resolved, origin), .origin = "kept"};
    msdu_config config = {.size = sizeof(config), .log = keep_line, .log_level = MSDU_LOG_INFO};
    setenv("MSDU_SLICE_BITES", "1", 1);
    setenv("MSDU_DOMAIN", "accumulated", 1); /* without optimizer sgd */
    ck_assert_int_eq(msdu_setting_resolve(&config, "domain", &resolved), MSDU_OK);
    ck_assert_str_eq(resolved.text, "accumulated");
    ck_assert_str_eq(resolved.origin, "kept");
    expect_status(msdu_setting_resolve(&config, NULL, NULL), MSDU_ERR_INVALID,
                  "needs optimizer sgd");
    setenv("MSDU_OPTIMIZER", "sgd", 1);
    ck_assert_int_eq(msdu_setting_resolve(&config, NULL, NULL), MSDU_OK);
    setenv("MSDU_WINDOW", "many", 1);
    expect_status(msdu_setting_resolve(&config, "domain", &resolved), MSDU_ERR_INVALID,
                  "MSDU_WINDOW: 'many'");
    ck_assert_int_eq(msdu_setting_resolve(&config, "windov", &resolved), MSDU_ERR_NOT_FOUND);
    ck_assert_int_eq(msdu_setting_resolve(&config, "window", NULL), MSDU_ERR_INVALID);
    resolved.size = 0;
    ck_assert_int_eq(msdu_setting_resolve(&config, "window", &resolved), MSDU_ERR_INVALID);
    ck_assert_str_eq(help_log, "");
}
END_TEST

static void add_tests(TCase *tcase)
{
    tcase_add_test(tcase, a_setting_is_resolved_with_who_gave_it);
    tcase_add_test(tcase, resolving_tells_what_is_wrong_and_logs_nothing);
    tcase_add_test(tcase, a_struct_without_size_is_refused);
    tcase_add_test(tcase, a_shorter_struct_has_defaults_in_the_rest);
    tcase_add_test(tcase, a_longer_struct_is_accepted_only_if_the_rest_is_zero);
    tcase_add_test(tcase, each_launcher_gives_rank_and_size_in_order);
    tcase_add_test(tcase, a_rank_without_a_size_is_refused);
    tcase_add_test(tcase, a_rank_not_below_the_size_is_refused);
    tcase_add_test(tcase, a_bad_launcher_value_names_its_variable);
    tcase_add_test(tcase, the_struct_wins_over_launchers);
    tcase_add_test(tcase, a_slurm_shell_without_a_rank_is_a_single_rank);
    tcase_add_test(tcase, the_rendezvous_comes_from_the_master_variables_if_not_given);
    tcase_add_test(tcase, a_store_is_where_ranks_meet_unless_a_place_is_given);
    tcase_add_test(tcase, the_login_of_a_rendezvous_is_in_no_text);
    tcase_add_test(tcase, settings_that_do_not_go_together_are_refused);
    tcase_add_test(tcase, a_default_gives_way_to_a_given_value);
    tcase_add_test(tcase, an_unknown_variable_is_one_warning_with_a_hint);
    tcase_add_test(tcase, a_setting_that_is_gone_is_an_error_that_says_what_holds_instead);
    tcase_add_test(tcase, an_old_value_is_taken_with_a_warning_that_names_the_new_one);
    tcase_add_test(tcase, overrides_are_logged_at_info_but_never_the_secret);
    tcase_add_test(tcase, the_variable_for_the_log_turns_on_standard_error);
    tcase_add_test(tcase, the_description_has_what_ranks_must_agree_on_and_no_more);
    tcase_add_test(tcase, the_description_is_equal_for_equal_settings_of_different_ranks);
    tcase_add_test(tcase, listed_settings_end_with_not_found_and_follow_the_size_rule);
}

int main(void)
{
    return run_suite("settings", add_tests);
}
