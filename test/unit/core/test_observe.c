/* SPDX-License-Identifier: Apache-2.0 */
/* Summary text, Prometheus file (by a small parser of the format) and trace (by a JSON parser). */
#include "observe/observe.h"
#include "suite.h"

#include <check.h>
#include <ctype.h>
#include <fcntl.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char path[160];
static char content[1 << 20];

static void make_path(void)
{
    snprintf(path, sizeof(path), "%s/observe-%ld", suite_folder(), (long)getpid());
    unlink(path);
}

static void drop_path(void)
{
    unlink(path);
}

static const char *read_content(void)
{
    FILE *file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    size_t length = fread(content, 1, sizeof(content) - 1, file);
    content[length] = '\0';
    ck_assert_int_eq(fclose(file), 0);
    return content;
}

static msdu_summary example_summary(void)
{
    msdu_summary s = {.size = sizeof(s),
                      .steps = 1000,
                      .rounds = 125,
                      .bytes_sent = 3 << 20,
                      .bytes_plain = 96 << 20,
                      .wait_ns = 250000000,
                      .elapsed_ns = 10000000000,
                      .plan_renewals = 2,
                      .interval_steps = 8,
                      .drift = 0.0025,
                      .divergence = 1.5,
                      .rank = 1,
                      .ranks = 4,
                      .wire = "int4",
                      .domain = "parameter",
                      .interval = "divergence",
                      .reason = "drift below the limit",
                      .cpu_ns = 60000000,
                      .slice_bytes = 65536,
                      .window = 2,
                      .slice_cuts = 3,
                      .lanes = 2};
    return s;
}

/* --- summary --- */

START_TEST(the_summary_names_its_numbers)
{
    msdu_summary s = example_summary();
    char text[1024];
    msdu__summary_text(&s, text, sizeof(text));
    ck_assert_str_eq(
        text,
        "rank 1 of 4: steps 1000, rounds 125, domain parameter, policy divergence, wire int4\n"
        "sent 3.00 MiB, plain allreduce 96.00 MiB, 32.0 times fewer\n"
        "waited 0.25 s of 10.00 s (2.5 %), plan renewed 2 times\n"
        "communication thread 0.06 s of processor time, 19.073 s for each GB sent\n"
        "slices of 64.00 KiB, 2 in flight, 2 lanes, chosen anew 3 times\n"
        "h 8, drift 0.0025, divergence 1.5, last reason: drift below the limit");
}
END_TEST

START_TEST(the_summary_tells_waits_for_slow_ranks_apart)
{
    msdu_summary s = example_summary();
    char text[1024];
    s.network_ns = 20000000;
    s.straggler_ns = 1500000000;
    s.state = "clock";
    msdu__summary_text(&s, text, sizeof(text));
    ck_assert_ptr_nonnull(strstr(text,
                                 "chosen anew 3 times\nwaited for the network 0.02 s, for slow "
                                 "ranks 1.50 s on average, now clock\nh 8"));
}
END_TEST

START_TEST(more_bytes_are_not_called_fewer)
{
    msdu_summary s = example_summary();
    char text[1024];
    s.bytes_sent = 480 << 20;
    msdu__summary_text(&s, text, sizeof(text));
    ck_assert_ptr_nonnull(strstr(text, "plain allreduce 96.00 MiB, 5.0 times more\n"));
    s.bytes_plain = 0;
    msdu__summary_text(&s, text, sizeof(text));
    ck_assert_ptr_nonnull(strstr(text, "plain allreduce 0 B\n"));
}
END_TEST

START_TEST(an_empty_summary_divides_by_nothing)
{
    msdu_summary s = {.size = sizeof(s), .ranks = 1};
    char text[1024];
    msdu__summary_text(&s, text, sizeof(text));
    ck_assert_ptr_nonnull(strstr(text, "wire none"));
    ck_assert_ptr_nonnull(strstr(text, "(0.0 %)"));
    ck_assert_ptr_null(strstr(text, "nan"));
}
END_TEST

START_TEST(a_summary_is_cut_at_every_length)
{
    msdu_summary s = example_summary();
    char whole[1024];
    char text[1024];
    msdu__summary_text(&s, whole, sizeof(whole));
    for (size_t bytes = 1; bytes < strlen(whole) + 2; bytes++) {
        memset(text, '#', sizeof(text));
        msdu__summary_text(&s, text, bytes);
        ck_assert_uint_eq(strlen(text), bytes - 1 < strlen(whole) ? bytes - 1 : strlen(whole));
        ck_assert_int_eq(strncmp(text, whole, strlen(text)), 0);
        ck_assert_int_eq(text[bytes], '#');
    }
}
END_TEST

/* --- path --- */

START_TEST(the_rank_replaces_its_mark_everywhere)
{
    char out[32];
    ck_assert(msdu__observe_path("/a/%r/b%r.json", 12, out, sizeof(out)));
    ck_assert_str_eq(out, "/a/12/b12.json");
    ck_assert(msdu__observe_path("100%", 12, out, sizeof(out)));
    ck_assert_str_eq(out, "100%");
    ck_assert(msdu__observe_path("%r", 123, out, 4));
    ck_assert(!msdu__observe_path("%r", 123, out, 3));
    ck_assert(!msdu__observe_path("abcd", 0, out, 4));
}
END_TEST

/* --- metrics --- */

static bool is_metric_name(const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        if (!islower((unsigned char)text[i]) && !isdigit((unsigned char)text[i]) &&
            text[i] != '_') {
            return false;
        }
    }
    return length > 5 && strncmp(text, "msdu_", 5) == 0;
}

/* HELP, TYPE and sample lines of one metric follow each other; returns the value. */
static double check_metric(char **lines, const char *wanted_label)
{
    char name[64];
    char type[16];
    char sample_name[64];
    ck_assert_int_eq(sscanf(lines[0], "# HELP %63s", name), 1);
    ck_assert(is_metric_name(name, strlen(name)));
    ck_assert_int_eq(sscanf(lines[1], "# TYPE %63s %15s", sample_name, type), 2);
    ck_assert_str_eq(name, sample_name);
    size_t length = strcspn(lines[2], "{");
    ck_assert_uint_eq(length, strlen(name));
    ck_assert_int_eq(strncmp(lines[2], name, length), 0);
    ck_assert_int_eq(strncmp(lines[2] + length, wanted_label, strlen(wanted_label)), 0);
    bool is_total = strlen(name) > 6 && strcmp(name + strlen(name) - 6, "_total") == 0;
    ck_assert_str_eq(type, is_total ? "counter" : "gauge");
    char *end = NULL;
    double value = strtod(strrchr(lines[2], ' '), &end);
    ck_assert_str_eq(end, "");
    return value;
}

/* Parse the whole file; the value of one metric, which must be there once. */
static double metric_value(const char *wanted)
{
    char *lines[128];
    size_t count = 0;
    size_t seen = 0;
    double found = 0;
    read_content();
    ck_assert_int_eq(content[strlen(content) - 1], '\n');
    for (char *line = strtok(content, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        ck_assert_uint_lt(count, 128);
        lines[count++] = line;
    }
    ck_assert_uint_eq(count % 3, 0);
    for (size_t i = 0; i < count; i += 3) {
        double value = check_metric(&lines[i], "{rank=\"1\"");
        if (strncmp(lines[i + 2], wanted, strlen(wanted)) == 0 &&
            lines[i + 2][strlen(wanted)] == '{') {
            found = value;
            seen++;
        }
    }
    ck_assert_uint_eq(seen, 1);
    return found;
}

START_TEST(metrics_follow_the_text_format_and_hold_the_numbers)
{
    msdu_summary s = example_summary();
    ck_assert_int_eq(msdu__metrics_write(path, &s), MSDU_OK);
    ck_assert_double_eq(metric_value("msdu_steps_total"), 1000);
    ck_assert_double_eq(metric_value("msdu_sent_bytes_total"), 3 << 20);
    ck_assert_double_eq_tol(metric_value("msdu_wait_seconds_total"), 0.25, 1e-12);
    ck_assert_double_eq(metric_value("msdu_interval_steps"), 8);
    ck_assert_double_eq(metric_value("msdu_drift_ratio"), 0.0025);
    ck_assert_ptr_nonnull(strstr(read_content(), "policy=\"divergence\",wire=\"int4\"} 1\n"));
}
END_TEST

START_TEST(metrics_replace_the_file_and_leave_no_part_behind)
{
    msdu_summary s = example_summary();
    char part[256];
    ck_assert_int_eq(msdu__metrics_write(path, &s), MSDU_OK);
    s.steps = 2000;
    s.drift = nan("");
    ck_assert_int_eq(msdu__metrics_write(path, &s), MSDU_OK);
    ck_assert_double_eq(metric_value("msdu_steps_total"), 2000);
    ck_assert(isnan(metric_value("msdu_drift_ratio")));
    snprintf(part, sizeof(part), "%s.%ld.part", path, (long)getpid());
    ck_assert_int_ne(access(part, F_OK), 0);
}
END_TEST

START_TEST(metrics_that_cannot_be_written_name_rank_file_and_cause)
{
    msdu_summary s = example_summary();
    ck_assert_int_eq(msdu__metrics_write("/nonexistent/m.prom", &s), MSDU_ERR_IO);
    ck_assert_ptr_nonnull(strstr(msdu_last_error(), "rank 1: metrics file /nonexistent/m.prom"));
    ck_assert_ptr_nonnull(strstr(msdu_last_error(), "No such file"));
}
END_TEST

START_TEST(a_full_disk_under_the_metrics_is_reported)
{
    msdu_summary s = example_summary();
    char part[256];
    snprintf(part, sizeof(part), "%s.%ld.part", path, (long)getpid());
    ck_assert_int_eq(symlink("/dev/full", part), 0); /* the file beside: always full */
    ck_assert_int_eq(msdu__metrics_write(path, &s), MSDU_ERR_IO);
    ck_assert_ptr_nonnull(strstr(msdu_last_error(), "No space left"));
    ck_assert_int_ne(access(path, F_OK), 0);
    ck_assert_int_ne(access(part, F_OK), 0);
}
END_TEST

/* --- trace --- */

/* Python's parser is the judge; the script sees the events as `e`. */
static int python_says(const char *script)
{
    char command[2048];
    snprintf(command, sizeof(command),
             "python3 -c 'import json,sys; e=json.load(open(\"%s\"))\n%s'", path, script);
    int status = system(command); /* NOLINT: a fixed script */
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static msdu__trace *open_example(void)
{
    static const char *const names[] = {"conv1", "a \"quoted\\ name\n"};
    msdu__trace *trace = NULL;
    ck_assert_int_eq(msdu__trace_open(path, 3, 1000000, names, 2, &trace), MSDU_OK);
    return trace;
}

static void fill_example(msdu__trace *trace)
{
    for (uint32_t i = 0; i < 2; i++) {
        uint64_t t = 2000000 + 1000 * i;
        msdu__trace_slice slice = {7, i, i, 4096, t, t + 1500, t + 4500, t + 5000};
        msdu__trace_slice_done(trace, &slice);
    }
    msdu__trace_span(trace, "step", "step 12", 2000000, 3000500);
    msdu__trace_span(trace, "round", "round 7", 2000000, 3000500);
    msdu__trace_counter(trace, "h", 3000000, 8);
    msdu__trace_counter(trace, "wire bits", 3000000, 4.125);
}

START_TEST(a_closed_trace_is_json_with_every_event)
{
    msdu__trace *trace = open_example();
    fill_example(trace);
    ck_assert_int_eq(msdu__trace_close(trace), MSDU_OK);
    ck_assert_int_eq(
        python_says("by=lambda ph: [x for x in e if x[\"ph\"]==ph]\n"
                    "assert all(x[\"pid\"]==3 for x in e)\n"
                    "m={(x[\"name\"],x[\"tid\"]):x[\"args\"][\"name\"] for x in by(\"M\")}\n"
                    "assert m[(\"process_name\",0)]==\"rank 3\", m\n"
                    "assert \"lane 1\" in m.values() and \"step\" in m.values()\n"
                    "x=by(\"X\"); assert len(x)==4, x\n"
                    "link=[y for y in x if y.get(\"cat\")==\"link\"]\n"
                    "assert link[0][\"name\"]==\"conv1\" and link[0][\"ts\"]==1001.5\n"
                    "assert link[0][\"dur\"]==3.0 and link[0][\"args\"][\"bytes\"]==4096\n"
                    "assert m[(\"thread_name\",link[1][\"tid\"])]==\"lane 1\"\n"
                    "s=[y for y in x if y[\"name\"]==\"step 12\"][0]\n"
                    "assert m[(\"thread_name\",s[\"tid\"])]==\"step\" and s[\"dur\"]==1000.5\n"
                    "b=by(\"b\"); f=by(\"e\"); assert len(b)==len(f)==4\n"
                    "assert sorted(y[\"id\"]+y[\"cat\"] for y in b)==sorted(y[\"id\"]+y[\"cat\"] "
                    "for y in f)\n"
                    "q=[y for y in b if y[\"cat\"]==\"queued\"][0]; assert q[\"ts\"]==1000.0\n"
                    "c={y[\"name\"]:y[\"args\"][\"value\"] for y in by(\"C\")}\n"
                    "assert c=={\"h\":8,\"wire bits\":4.125}, c\n"),
        0);
}
END_TEST

START_TEST(a_flushed_trace_lacks_nothing_but_its_bracket)
{
    msdu__trace *trace = open_example();
    fill_example(trace);
    ck_assert_int_eq(msdu__trace_flush(trace), MSDU_OK);
    FILE *file = fopen(path, "a");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs("]", file), 0);
    ck_assert_int_eq(fclose(file), 0);
    ck_assert_int_eq(python_says("assert len(e)>10"), 0);
    ck_assert_int_eq(msdu__trace_close(trace), MSDU_OK);
}
END_TEST

START_TEST(a_comma_locale_does_not_spoil_the_numbers)
{
    /* Where no such locale is installed this checks the plain one, which costs nothing. */
    setlocale(LC_ALL, "de_DE.UTF-8");
    msdu__trace *trace = open_example();
    fill_example(trace);
    ck_assert_int_eq(msdu__trace_close(trace), MSDU_OK);
    setlocale(LC_ALL, "C");
    ck_assert_ptr_nonnull(strstr(read_content(), "{\"value\":4.125}"));
}
END_TEST

START_TEST(events_past_the_buffer_are_counted)
{
    msdu__trace *trace = open_example();
    for (uint64_t i = 0; i < 20000; i++) {
        msdu__trace_counter(trace, "h", 1000000 + i, 1);
    }
    ck_assert_int_eq(msdu__trace_close(trace), MSDU_OK);
    ck_assert_int_eq(python_says("lost=[x for x in e if x[\"name\"]==\"events lost\"]\n"
                                 "kept=[x for x in e if x[\"name\"]==\"h\"]\n"
                                 "assert lost[0][\"args\"][\"value\"]+len(kept)==20000"),
                     0);
}
END_TEST

START_TEST(a_full_disk_under_the_trace_is_reported_once)
{
    static const char *const names[] = {"conv1"};
    msdu__trace *trace = NULL;
    ck_assert_int_eq(msdu__trace_open("/dev/full", 3, 0, names, 1, &trace), MSDU_OK);
    fill_example(trace);
    ck_assert_int_eq(msdu__trace_flush(trace), MSDU_ERR_IO);
    ck_assert_str_eq(msdu_last_error(), "rank 3: trace file /dev/full: No space left on device");
    fill_example(trace);
    ck_assert_int_eq(msdu__trace_flush(trace), MSDU_OK);
    (void)msdu__fail(MSDU_ERR_STATE, "something else");
    ck_assert_int_eq(msdu__trace_close(trace), MSDU_ERR_IO);
    ck_assert_ptr_nonnull(strstr(msdu_last_error(), "/dev/full"));
}
END_TEST

START_TEST(a_trace_that_cannot_be_opened_names_the_cause)
{
    msdu__trace *trace = NULL;
    ck_assert_int_eq(msdu__trace_open("/nonexistent/t.json", 3, 0, NULL, 0, &trace), MSDU_ERR_IO);
    ck_assert_str_eq(msdu_last_error(),
                     "rank 3: trace file /nonexistent/t.json: No such file or directory");
    ck_assert_ptr_null(trace);
}
END_TEST

START_TEST(no_trace_is_no_work)
{
    msdu__trace_slice slice = {0};
    msdu__trace_slice_done(NULL, &slice);
    msdu__trace_span(NULL, "step", "x", 0, 1);
    msdu__trace_counter(NULL, "h", 0, 1);
    ck_assert_int_eq(msdu__trace_flush(NULL), MSDU_OK);
    ck_assert_int_eq(msdu__trace_close(NULL), MSDU_OK);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("observe");
    TCase *tcase = suite_case(suite, "observe", 60, make_path, drop_path);
    tcase_add_test(tcase, the_summary_names_its_numbers);
    tcase_add_test(tcase, the_summary_tells_waits_for_slow_ranks_apart);
    tcase_add_test(tcase, more_bytes_are_not_called_fewer);
    tcase_add_test(tcase, an_empty_summary_divides_by_nothing);
    tcase_add_test(tcase, a_summary_is_cut_at_every_length);
    tcase_add_test(tcase, the_rank_replaces_its_mark_everywhere);
    tcase_add_test(tcase, metrics_follow_the_text_format_and_hold_the_numbers);
    tcase_add_test(tcase, metrics_replace_the_file_and_leave_no_part_behind);
    tcase_add_test(tcase, metrics_that_cannot_be_written_name_rank_file_and_cause);
    tcase_add_test(tcase, a_full_disk_under_the_metrics_is_reported);
    tcase_add_test(tcase, a_closed_trace_is_json_with_every_event);
    tcase_add_test(tcase, a_flushed_trace_lacks_nothing_but_its_bracket);
    tcase_add_test(tcase, a_comma_locale_does_not_spoil_the_numbers);
    tcase_add_test(tcase, events_past_the_buffer_are_counted);
    tcase_add_test(tcase, a_full_disk_under_the_trace_is_reported_once);
    tcase_add_test(tcase, a_trace_that_cannot_be_opened_names_the_cause);
    tcase_add_test(tcase, no_trace_is_no_work);
    return suite_run(suite);
}
