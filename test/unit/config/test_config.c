/* SPDX-License-Identifier: Apache-2.0 */
/* Settings: every row of the table by struct, file and environment; precedence; bad values. */
#include "config_help.h"

#include "correct/correct.h"
#include "interval/interval.h"
#include "wire/wire.h"

typedef struct sample {
    char text[64];    /* as written */
    char printed[64]; /* as printed back */
} sample;

/* The choice_index-th choice of a list such as "no, yes". */
static void nth_choice(const char *choices, int index, char *out, size_t bytes)
{
    for (; index > 0; index--) {
        choices = strchr(choices, ',') + 2;
    }
    snprintf(out, bytes, "%.*s", (int)strcspn(choices, ","), choices);
}

static void text_sample(const msdu__setting *row, int which, char *out, size_t bytes)
{
    if (strcmp(row->name, "correct") == 0) {
        snprintf(out, bytes, "%s", which == 0 ? "elastic" : "average");
    } else {
        snprintf(out, bytes, "sample-%d", which);
    }
}

static void number_sample(const msdu__setting *row, int which, char *out, size_t bytes)
{
    long long preset = strtoll(row->default_text, NULL, 10);
    if (strcmp(row->name, "wire_block") == 0) {
        preset += 15 + 15 * which;
    } else if (strcmp(row->name, "ranks") == 0) {
        preset = 8;
    }
    snprintf(out, bytes, "%lld", preset + 1 + which);
}

/* One of two values that differ from each other and, for which == 0, from the default. */
static sample make_sample(const msdu__setting *row, int which)
{
    sample s = {"", ""};
    switch (row->kind) {
    case MSDU__KIND_TEXT:
        text_sample(row, which, s.text, sizeof(s.text));
        break;
    case MSDU__KIND_INTEGER:
        number_sample(row, which, s.text, sizeof(s.text));
        break;
    case MSDU__KIND_BYTES:
        snprintf(s.text, sizeof(s.text), "%dKiB", 8 + which);
        snprintf(s.printed, sizeof(s.printed), "%d", (8 + which) * 1024);
        break;
    case MSDU__KIND_CHOICE:
        nth_choice(row->range,
                   strncmp(row->range, row->default_text, strlen(row->default_text)) == 0
                       ? 1 - which
                       : which,
                   s.text, sizeof(s.text));
        break;
    case MSDU__KIND_WIRE:
        snprintf(s.text, sizeof(s.text), "%s", msdu__wire_at(3 - which)->name);
        break;
    case MSDU__KIND_REAL:
        snprintf(s.text, sizeof(s.text), "%.17g", row->low + (row->high - row->low) / (4 + which));
        break;
    case MSDU__KIND_POLICY:
        snprintf(s.text, sizeof(s.text), "%s", msdu__policy_at((uint32_t)(2 - which))->name);
        break;
    }
    if (s.printed[0] == '\0') {
        snprintf(s.printed, sizeof(s.printed), "%s", s.text);
    }
    return s;
}

/* What a row needs beside it so that the joint rules hold. */
static void set_company(const msdu__setting *row, msdu_config *config)
{
    if (strcmp(row->name, "rank") == 0) {
        config->ranks = 8;
    } else if (strcmp(row->name, "ranks") == 0) {
        config->ranks = 3; /* overridden; makes rank 0 a given one */
    } else if (strcmp(row->name, "commit") == 0) {
        config->domain = "gradient";
    } else if (strcmp(row->name, "nesterov") == 0) {
        config->momentum = 0.9;
    } else if (strncmp(row->name, "tls_", 4) == 0) {
        config->tls_key = config->tls_cert = config->tls_ca = "x.pem";
    }
}

static void set_field(const msdu__setting *row, const sample *s, msdu_config *config)
{
    static const char *const levels[] = {"", "error", "warn", "info", "debug"};
    char *place = (char *)config + row->config_at;
    const char *text = s->text;
    int32_t small = (int32_t)strtol(s->printed, NULL, 10);
    int64_t integer = strtoll(s->printed, NULL, 10);
    double real = strtod(s->printed, NULL);
    for (int32_t i = 1; row->kind == MSDU__KIND_CHOICE && i <= 4; i++) {
        small = strcmp(text, levels[i]) == 0 ? i : small;
    }
    switch (row->store) {
    case MSDU__STORE_TEXT:
        memcpy(place, &text, sizeof(text));
        break;
    case MSDU__STORE_INT32:
        memcpy(place, &small, sizeof(small));
        break;
    case MSDU__STORE_INT64:
    case MSDU__STORE_UINT64:
        memcpy(place, &integer, sizeof(integer));
        break;
    case MSDU__STORE_NONE:
        break;
    case MSDU__STORE_DOUBLE:
        memcpy(place, &real, sizeof(real));
        break;
    }
}

enum { BY_STRUCT = 1, BY_FILE = 2, BY_ENVIRONMENT = 4 };

/* Load with sample 0 by every way in `first`, sample 1 by the way `second`; expect `wanted`. */
static void check_ways(const msdu__setting *row, unsigned first, unsigned second, int wanted)
{
    msdu__settings settings;
    msdu_config config = {.size = sizeof(config)};
    char printed[MSDU__SETTING_BYTES];
    char line[512];
    sample samples[2] = {make_sample(row, 0), make_sample(row, 1)};
    clean_environment();
    set_company(row, &config);
    for (int i = 0; i < 2; i++) {
        unsigned ways = i == 0 ? first : second;
        snprintf(line, sizeof(line), "[msdu]\n%s = %s\n", row->name, samples[i].text);
        if ((ways & BY_STRUCT) != 0) {
            set_field(row, &samples[i], &config);
        }
        if ((ways & BY_FILE) != 0) {
            config.config_file = ini_file(line);
        }
        if ((ways & BY_ENVIRONMENT) != 0) {
            setenv(row->environment, samples[i].text, 1);
        }
    }
    ck_assert_msg(load(&config, &settings) == MSDU_OK, "%s: %s", row->name, msdu_last_error());
    msdu__setting_print(row, &settings, printed, sizeof(printed));
    ck_assert_msg(strcmp(printed, samples[wanted].printed) == 0, "%s (ways %u, %u): %s, not %s",
                  row->name, first, second, printed, samples[wanted].printed);
}

/* The struct, then the file, then the environment: who comes later wins. */
static const struct {
    unsigned first, second;
    int wanted;
} ways[] = {
    {BY_STRUCT, 0, 0},
    {BY_FILE, 0, 0},
    {BY_ENVIRONMENT, 0, 0},
    {BY_STRUCT, BY_FILE, 1},
    {BY_FILE, BY_STRUCT, 0},
    {BY_STRUCT, BY_ENVIRONMENT, 1},
    {BY_ENVIRONMENT, BY_STRUCT, 0},
    {BY_FILE, BY_ENVIRONMENT, 1},
    {BY_ENVIRONMENT, BY_FILE, 0},
    {BY_STRUCT | BY_FILE, BY_ENVIRONMENT, 1},
};

START_TEST(every_setting_is_read_and_the_later_way_wins)
{
    const msdu__setting *row = NULL;
    for (size_t i = 0; (row = msdu__setting_at(i)) != NULL; i++) {
        if ((row->flags & MSDU__SETTING_NO_FILE) == 0) {
            check_ways(row, ways[_i].first, ways[_i].second, ways[_i].wanted);
        }
    }
}
END_TEST

START_TEST(lines_of_the_struct_win_over_its_fields_and_can_say_zero)
{
    msdu__settings settings;
    msdu_config config = {.size = sizeof(config), .window = 9, .lanes = 3};
    config.settings = "warmup_steps = 0\n# a comment\n\n outer_momentum=0 \r\nwindow = 7\n";
    ck_assert_msg(load(&config, &settings) == MSDU_OK, "%s", msdu_last_error());
    ck_assert_int_eq(settings.warmup_steps, 0);
    ck_assert(settings.outer_momentum <= 0);
    ck_assert_int_eq(settings.window, 7);
    ck_assert_int_eq(settings.lanes, 3);
    config.config_file = ini_file("window = 5\n");
    ck_assert_msg(load(&config, &settings) == MSDU_OK, "%s", msdu_last_error());
    ck_assert_int_eq(settings.window, 5);
    ck_assert_int_eq(settings.warmup_steps, 0);
    config.settings = "";
    ck_assert_msg(load(&config, &settings) == MSDU_OK, "%s", msdu_last_error());
    ck_assert_int_eq(settings.warmup_steps, 8);
}
END_TEST

START_TEST(a_line_of_the_struct_may_be_as_long_as_a_setting)
{
    msdu__settings settings;
    char text[700] = "trace_file = ";
    msdu_config config = {.size = sizeof(config), .settings = text};
    memset(text + strlen(text), 'a', MSDU__SETTING_BYTES - 1);
    ck_assert_msg(load(&config, &settings) == MSDU_OK, "%s", msdu_last_error());
    ck_assert_uint_eq(strlen(settings.trace_file), MSDU__SETTING_BYTES - 1);
    text[strlen(text)] = 'a';
    expect_failure(&config, "msdu_config.settings:1: trace_file|too long");
}
END_TEST

START_TEST(every_default_is_the_documented_one)
{
    msdu__settings settings;
    const msdu__setting *row = NULL;
    char printed[MSDU__SETTING_BYTES];
    ck_assert_int_eq(load(NULL, &settings), MSDU_OK);
    for (size_t i = 0; (row = msdu__setting_at(i)) != NULL; i++) {
        msdu__setting_print(row, &settings, printed, sizeof(printed));
        if (row->kind == MSDU__KIND_REAL) {
            ck_assert_double_eq(strtod(printed, NULL), strtod(row->default_text, NULL));
        } else if (row->kind != MSDU__KIND_BYTES) {
            ck_assert_str_eq(printed, row->default_text);
        }
    }
    ck_assert_int_eq(settings.slice_bytes, -1);
    ck_assert_int_eq(settings.fuse_bytes, -1);
    ck_assert_int_eq(settings.wire, -1);
    ck_assert_int_eq(settings.check_finite, 1);
}
END_TEST

START_TEST(each_kind_of_bad_value_is_named_with_its_range)
{
    static const struct {
        const char *variable, *value, *words;
    } bad[] = {
        {"MSDU_WINDOW", "4x", "MSDU_WINDOW|'4x'|not an integer|1 .. 64"},
        {"MSDU_WINDOW", "0", "MSDU_WINDOW|'0'|out of range|1 .. 64"},
        {"MSDU_WINDOW", " 4", "not an integer"},
        {"MSDU_WINDOW", "99999999999999999999", "not an integer"},
        {"MSDU_SLICE_BYTES", "lots", "MSDU_SLICE_BYTES|'lots'|64 .. 1GiB"},
        {"MSDU_SLICE_BYTES", "4MB", "suffixes"},
        {"MSDU_SLICE_BYTES", "9007199254740993G", "out of range"},
        {"MSDU_TARGET_OVERHEAD", "nan", "not a number|0.0001 .. 1"},
        {"MSDU_TARGET_OVERHEAD", "0x1p-3", "not a number"},
        {"MSDU_TARGET_OVERHEAD", "1e999", "not a number"},
        {"MSDU_TARGET_OVERHEAD", "0,5", "not a number"},
        {"MSDU_TARGET_OVERHEAD", "1.5", "out of range"},
        {"MSDU_DOMAIN", "gradients", "MSDU_DOMAIN|'gradients'|auto, gradient, accumulated"},
        {"MSDU_DOMAIN", "auto, gradient", "not one of"},
        {"MSDU_LOG", "loud", "MSDU_LOG|'loud'|error, warn, info, debug"},
        {"MSDU_INTERVAL", "guess", "MSDU_INTERVAL|'guess'|divergence, fixed"},
        {"MSDU_WIRE", "int3", "MSDU_WIRE|'int3'|auto, float32"},
        {"MSDU_CORRECT", "average,clip", "correct|average,clip"},
        {"MSDU_JOB", "a\nb", "MSDU_JOB|control character"},
        {"MSDU_ATTACH_LEARN", "0", "MSDU_ATTACH_LEARN|'0'|1 .. 1000000"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        setenv(bad[i].variable, bad[i].value, 1);
        expect_failure(NULL, bad[i].words);
        unsetenv(bad[i].variable);
    }
}
END_TEST

START_TEST(a_bad_value_names_the_rank_where_it_is_known)
{
    setenv("RANK", "2", 1);
    setenv("WORLD_SIZE", "4", 1);
    setenv("MSDU_WINDOW", "0", 1);
    expect_failure(NULL, "rank 2: |MSDU_WINDOW");
}
END_TEST

START_TEST(a_bad_field_of_the_struct_is_named)
{
    msdu_config config = {.size = sizeof(config), .window = -1};
    expect_failure(&config, "msdu_config.window|'-1'|1 .. 64");
    config = (msdu_config){.size = sizeof(config), .log_level = 5};
    expect_failure(&config, "msdu_config.log_level|'5'");
    config = (msdu_config){.size = sizeof(config), .slice_bytes = UINT64_MAX};
    expect_failure(&config, "msdu_config.slice_bytes|18446744073709551615");
    char text[600];
    memset(text, 'a', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    config = (msdu_config){.size = sizeof(config), .secret = text};
    expect_failure(&config, "msdu_config.secret|(hidden)|too long");
    ck_assert_ptr_null(strstr(msdu_last_error(), "aaaa"));
}
END_TEST

START_TEST(a_bad_line_is_refused_with_its_place)
{
    static const struct {
        const char *text, *words;
    } bad[] = {
        {"window = 2\nwindov = 3\n", ".ini:2|windov|did you mean 'window'"},
        {"[other]\nwindow = 2\n", ".ini:2|section 'other'"},
        {"\n\nwindow = many\n", ".ini:3: window|'many'|1 .. 64"},
        {"window = 2\nlanes\n", ".ini:2|name = value"},
        {"lanes\nwindow = many\n", ".ini:1|name = value"},
        {"window = 2\nwindow = 3\n", ".ini:2|second value"},
        {"attach_learn = 8\n", ".ini:1|no line of settings: 'attach_learn'"},
        {"window = 2\nwindov = 3\n", "msdu_config.settings:2|windov|did you mean 'window'"},
        {"window = many", "msdu_config.settings:1: window|'many'|1 .. 64"},
        {"config_file = other.ini", "no line of settings: 'config_file'"},
        {"\nlanes\n", "msdu_config.settings:2|name = value|'lanes'"},
        {"window = 2\nwindow = 3\n", "msdu_config.settings:2|second value"},
    };
    msdu_config config = {.size = sizeof(config)};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        bool is_file = strncmp(bad[i].words, ".ini", 4) == 0;
        config.config_file = is_file ? ini_file(bad[i].text) : NULL;
        config.settings = is_file ? NULL : bad[i].text;
        expect_failure(&config, bad[i].words);
    }
    config.settings = NULL;
    char line[700];
    memset(line, 'a', sizeof(line) - 1);
    memcpy(line, "job = ", 6);
    line[sizeof(line) - 1] = '\0';
    config.config_file = ini_file(line);
    expect_failure(&config, ".ini:1|too long");
}
END_TEST

START_TEST(a_good_file_may_have_comments_sections_and_no_section)
{
    msdu__settings settings;
    msdu_config config = {.size = sizeof(config)};
    config.config_file = ini_file("# a comment\nwindow = 7 ; more\n\n[msdu]\nlanes: 3\n"
                                  "slice_bytes = 64 k\r\n");
    ck_assert_int_eq(load(&config, &settings), MSDU_OK);
    ck_assert_int_eq(settings.window, 7);
    ck_assert_int_eq(settings.lanes, 3);
    ck_assert_int_eq(settings.slice_bytes, 65536);
}
END_TEST

START_TEST(a_missing_file_is_not_found)
{
    msdu__settings settings;
    setenv("MSDU_CONFIG", "/nonexistent/msdu.ini", 1);
    expect_status(load(NULL, &settings), MSDU_ERR_NOT_FOUND, "/nonexistent/msdu.ini");
}
END_TEST

static void add_tests(TCase *tcase)
{
    suite_table(tcase, every_setting_is_read_and_the_later_way_wins, ways);
    tcase_add_test(tcase, lines_of_the_struct_win_over_its_fields_and_can_say_zero);
    tcase_add_test(tcase, a_line_of_the_struct_may_be_as_long_as_a_setting);
    tcase_add_test(tcase, every_default_is_the_documented_one);
    tcase_add_test(tcase, each_kind_of_bad_value_is_named_with_its_range);
    tcase_add_test(tcase, a_bad_value_names_the_rank_where_it_is_known);
    tcase_add_test(tcase, a_bad_field_of_the_struct_is_named);
    tcase_add_test(tcase, a_bad_line_is_refused_with_its_place);
    tcase_add_test(tcase, a_good_file_may_have_comments_sections_and_no_section);
    tcase_add_test(tcase, a_missing_file_is_not_found);
}

int main(void)
{
    return run_suite("config", add_tests);
}
