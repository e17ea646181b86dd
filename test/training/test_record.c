/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What training computes, by the bit, for a table of settings, compared with record.txt.
 *
 * One line a case: hashes of all ranks' parameters at the end and before all steps, rounds as
 * number x interval / bits of the wire, bytes that rank 0 sent, drift and divergence of the last
 * round. The comments at the head of record.txt say what is not in it. MSDU_TEST_RECORD=write in
 * the environment writes the lines anew, below the comments that the file has.
 */
#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ranks.h"
#include "record_cases.h"
#include "suite.h"

#define LINE_BYTES 512
#define LINES_MOST 1000
#define TELLS_MOST 20 /* lines that differ, told of a group */
#define LIMIT_S    120

/* --- a case carried out, as a line --- */

#define HASH_BEGIN 0xcbf29ce484222325U

/* FNV-1a over eight bytes at a time, and what it leaves in the low bits brought up. */
static uint64_t hash_rows(uint64_t hash, const double *row, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        uint64_t bits = 0;
        memcpy(&bits, &row[i], sizeof(bits));
        hash = (hash ^ bits) * 0x100000001b3U;
        hash ^= hash >> 29;
    }
    return hash;
}

static void trace_path(char *path, size_t bytes)
{
    (void)snprintf(path, bytes, "%s/trace", suite_folder());
}

static void trace_first(const ranks_self *self, msdu_config *config)
{
    if (self->rank == 0) {
        config->trace_file = self->job->user;
    }
}

/* Value of a counter of the trace; NULL if there is none from here on. */
static const char *next_value(const char *text, const char *counter, double *value_out)
{
    const char *at = strstr(text, counter);
    at = at != NULL ? strstr(at, "\"value\":") : NULL;
    if (at != NULL) {
        *value_out = strtod(at + strlen("\"value\":"), NULL);
    }
    return at;
}

static char *read_text(const char *path)
{
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        return NULL;
    }
    ck_assert_int_eq(fseek(file, 0, SEEK_END), 0);
    long bytes = ftell(file);
    ck_assert_int_ge(bytes, 0);
    rewind(file);
    char *text = calloc((size_t)bytes + 1, 1);
    ck_assert_ptr_nonnull(text);
    ck_assert_uint_eq(fread(text, 1, (size_t)bytes, file), (size_t)bytes);
    (void)fclose(file);
    return text;
}

static void say_run(char *line, int rounds, double interval, double bits)
{
    if (rounds > 0) {
        record_say(line, LINE_BYTES, " %dx%g/%g", rounds, interval, bits);
    }
}

/* Rounds in their order, as rank 0's trace shows them. */
static void say_rounds(char *line, const char *path)
{
    char *text = read_text(path);
    const char *at = text;
    double last[2] = {0, 0};
    int count = 0;
    record_say(line, LINE_BYTES, " rounds");
    while (at != NULL) {
        double now[2] = {0, 0};
        at = next_value(at, "\"interval\"", &now[0]);
        at = at != NULL ? next_value(at, "\"wire bits\"", &now[1]) : NULL;
        if (at != NULL && now[0] == last[0] && now[1] == last[1]) {
            count++;
            continue;
        }
        say_run(line, count, last[0], last[1]);
        last[0] = now[0];
        last[1] = now[1];
        count = 1;
    }
    free(text);
}

static void say_run_of(char *line, const ranks_job *job, const ranks_run *run)
{
    uint64_t end = HASH_BEGIN;
    uint64_t steps = HASH_BEGIN;
    const msdu_summary *summary = &run->selves[0].summary;
    for (int rank = 0; rank < job->ranks; rank++) {
        const ranks_self *self = &run->selves[rank];
        end = hash_rows(end, ranks_row(self, job->steps), self->elements);
        steps = hash_rows(steps, self->history, (uint64_t)job->steps * self->elements);
    }
    record_say(line, LINE_BYTES, " end %016" PRIx64 " steps %016" PRIx64, end, steps);
    say_rounds(line, job->user);
    record_say(line, LINE_BYTES, " sent %" PRIu64 " drift %.9g divergence %.9g",
               summary->bytes_sent, summary->drift, summary->divergence);
}

static void run_case(record_case *c, char line[LINE_BYTES])
{
    char path[128];
    ranks_run run;
    trace_path(path, sizeof(path));
    c->job.user = path;
    c->job.configured = trace_first;
    c->job.config.settings = c->settings;
    ck_assert(ranks_go(&c->job, &run));
    line[0] = '\0';
    record_say(line, LINE_BYTES, "%s:", c->name);
    int failed = ranks_failed(&run, c->job.ranks);
    if (failed >= 0) {
        record_say(line, LINE_BYTES, " %s: %.200s", msdu_status_name(run.selves[failed].status),
                   run.selves[failed].text);
    } else {
        say_run_of(line, &c->job, &run);
    }
    ranks_free(&run);
    suite_remove(path);
}

/* --- the file --- */

typedef struct record {
    char *text;
    char *lines[LINES_MOST]; /* of cases */
    unsigned count;
    size_t head_bytes; /* comments at the beginning */
} record;

static void read_record(record *r)
{
    *r = (record){.text = read_text(RECORD_FILE)};
    ck_assert_msg(r->text != NULL, "no file %s", RECORD_FILE);
    char *at = r->text;
    while (*at == '#') {
        at += strcspn(at, "\n");
        at += *at == '\n' ? 1 : 0;
    }
    r->head_bytes = (size_t)(at - r->text);
    while (*at != '\0') {
        ck_assert_uint_lt(r->count, LINES_MOST);
        r->lines[r->count++] = at;
        at += strcspn(at, "\n");
        if (*at == '\n') {
            *at++ = '\0';
        }
    }
}

/* What is recorded of a case; "" if nothing is. */
static const char *find_line(const record *r, const char *name)
{
    size_t length = strlen(name);
    for (unsigned i = 0; i < r->count; i++) {
        if (strncmp(r->lines[i], name, length) == 0 && r->lines[i][length] == ':') {
            return r->lines[i];
        }
    }
    return "";
}

START_TEST(training_is_as_recorded)
{
    record r;
    record_case c;
    char line[LINE_BYTES];
    char first[sizeof(c.name)] = "";
    int differ = 0;
    read_record(&r);
    for (unsigned i = 0; record_groups[_i](i, &c); i++) {
        if (c.is_left_out) {
            continue;
        }
        const char *was = find_line(&r, c.name);
        run_case(&c, line);
        if (strcmp(line, was) != 0 && differ++ < TELLS_MOST) {
            printf("was %s\nis  %s\n", was, line);
        }
        if (differ == 1 && first[0] == '\0') {
            memcpy(first, c.name, sizeof(first));
        }
    }
    free(r.text);
    (void)fflush(stdout);
    ck_assert_msg(differ == 0, "%d cases are not as recorded, the first: %s", differ, first);
}
END_TEST

START_TEST(every_line_is_a_case)
{
    record r;
    record_case c;
    unsigned count = 0;
    read_record(&r);
    for (unsigned g = 0; g < RECORD_GROUPS; g++) {
        for (unsigned i = 0; record_groups[g](i, &c); i++) {
            count += c.is_left_out ? 0 : 1;
        }
    }
    ck_assert_uint_eq(r.count, count);
    free(r.text);
}
END_TEST

START_TEST(write_record)
{
    record r;
    record_case c;
    char line[LINE_BYTES];
    read_record(&r);
    FILE *file = fopen(RECORD_FILE, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(r.text, 1, r.head_bytes, file), r.head_bytes);
    for (unsigned g = 0; g < RECORD_GROUPS; g++) {
        for (unsigned i = 0; record_groups[g](i, &c); i++) {
            if (!c.is_left_out) {
                run_case(&c, line);
                ck_assert_int_gt(fprintf(file, "%s\n", line), 0);
            }
        }
    }
    ck_assert_int_eq(fclose(file), 0);
    free(r.text);
}
END_TEST

int main(void)
{
    const char *wish = getenv("MSDU_TEST_RECORD");
    Suite *suite = suite_create("record");
    TCase *cases = suite_case(suite, "record", LIMIT_S, NULL, NULL);
    if (wish != NULL && strcmp(wish, "write") == 0) {
        tcase_add_test(cases, write_record);
    } else {
        tcase_add_loop_test(cases, training_is_as_recorded, 0, RECORD_GROUPS);
        tcase_add_test(cases, every_line_is_a_case);
    }
    return suite_run(suite);
}
