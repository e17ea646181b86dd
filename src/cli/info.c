/* SPDX-License-Identifier: Apache-2.0 */
/* `msdu info`: what this build can do and every setting, as text or JSON from one gathering. */
#include "backend/registry.h"
#include "cli.h"
#include "correct/correct.h"
#include "interval/interval.h"
#include "simd/vec.h"
#include "wire/wire.h"

#include <argp.h>
#include <cjson/cJSON.h>
#include <glob.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef __clang__
#define COMPILER __VERSION__
#else
#define COMPILER "gcc " __VERSION__
#endif

/* --- gather --- */

/* Append {"name": ..., "help": ...}; the caller may add more. */
static cJSON *add_named(cJSON *list, const char *name, const char *help)
{
    cJSON *item = cJSON_CreateObject();
    cJSON_AddStringToObject(item, "name", name);
    cJSON_AddStringToObject(item, "help", help);
    cJSON_AddItemToArray(list, item);
    return item;
}

static bool has_name(const cJSON *list, const char *name)
{
    const cJSON *item = NULL;
    cJSON_ArrayForEach(item, list)
    {
        if (strcmp(cJSON_GetObjectItem(item, "name")->valuestring, name) == 0) {
            return true;
        }
    }
    return false;
}

static void add_backend(cJSON *list, const char *name)
{
    const msdu_backend *backend = NULL;
    if (has_name(list, name)) {
        return;
    }
    bool is_found = msdu__backend_find(name, &backend) == MSDU_OK;
    cJSON *item = cJSON_CreateObject();
    cJSON_AddStringToObject(item, "name", name);
    cJSON_AddBoolToObject(item, "found", is_found);
    if (is_found) {
        cJSON_AddStringToObject(item, "version", backend->version != NULL ? backend->version : "");
    } else {
        cJSON_AddStringToObject(item, "error", msdu_last_error());
    }
    cJSON_AddItemToArray(list, item);
}

/* libmsdu_NAME.so of one folder. */
static bool add_folder(void *list, const char *folder)
{
    static const char prefix[] = "libmsdu_";
    char pattern[PATH_MAX + 64];
    glob_t found;
    snprintf(pattern, sizeof(pattern), "%s/%s*.so", folder, prefix);
    if (glob(pattern, 0, NULL, &found) != 0) {
        return false;
    }
    for (size_t i = 0; i < found.gl_pathc; i++) {
        char *name = basename(found.gl_pathv[i]) + strlen(prefix);
        name[strlen(name) - strlen(".so")] = '\0';
        if (strcmp(name, "preload") != 0) { /* what `msdu run` starts a trainer with */
            add_backend(list, name);
        }
    }
    globfree(&found);
    return false;
}

static void gather_backends(cJSON *root)
{
    cJSON *list = cJSON_AddArrayToObject(root, "backends");
    add_backend(list, "local");
    add_backend(list, "gloo"); /* the default: if it is not there, the user wants to know why */
    (void)msdu__backend_folders(add_folder, list);
}

static void gather_stages(cJSON *root)
{
    const msdu__policy *policy = NULL;
    const msdu__rule *rule = NULL;
    cJSON *policies = cJSON_AddArrayToObject(root, "policies");
    for (uint32_t i = 0; (policy = msdu__policy_at(i)) != NULL; i++) {
        add_named(policies, policy->name, policy->help);
    }
    cJSON *rules = cJSON_AddArrayToObject(root, "corrections");
    for (uint32_t i = 0; (rule = msdu__rule_at(i)) != NULL; i++) {
        cJSON *item = add_named(rules, rule->name, rule->help);
        cJSON_AddBoolToObject(item, "merge", rule->is_merge);
    }
    cJSON *wires = cJSON_AddArrayToObject(root, "wires");
    for (int i = 0; i < MSDU__WIRE_COUNT; i++) {
        const msdu__wire *wire = msdu__wire_at(i);
        cJSON *item = add_named(wires, wire->name, wire->help);
        cJSON_AddNumberToObject(item, "bits", wire->bits);
    }
}

static void gather_settings(cJSON *root)
{
    msdu_setting_info info = {.size = sizeof(info)};
    cJSON *list = cJSON_AddArrayToObject(root, "settings");
    for (uint32_t i = 0; msdu_setting_get(i, &info) == MSDU_OK; i++) {
        cJSON *item = add_named(list, info.name, info.help);
        cJSON_AddStringToObject(item, "environment", info.environment);
        cJSON_AddStringToObject(item, "type", info.type);
        cJSON_AddStringToObject(item, "default", info.default_text);
        cJSON_AddStringToObject(item, "range", info.range);
    }
}

static cJSON *gather(void)
{
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "version", msdu_version());
    cJSON_AddStringToObject(root, "compiler", COMPILER);
    cJSON_AddStringToObject(root, "instruction_set", msdu__vec_isa());
    gather_backends(root);
    gather_stages(root);
    gather_settings(root);
    return root;
}

/* --- print --- */

static const char *text_of(const cJSON *item, const char *key)
{
    const cJSON *value = cJSON_GetObjectItem(item, key);
    return value != NULL && value->valuestring != NULL ? value->valuestring : "";
}

static void print_backends(const cJSON *root)
{
    const cJSON *item = NULL;
    printf("\nbackends\n");
    cJSON_ArrayForEach(item, cJSON_GetObjectItem(root, "backends"))
    {
        bool is_found = cJSON_IsTrue(cJSON_GetObjectItem(item, "found"));
        printf("  %-12s %s%s\n", text_of(item, "name"), is_found ? "found, " : "not found: ",
               is_found ? text_of(item, "version") : text_of(item, "error"));
    }
}

static void print_list(const cJSON *root, const char *key, const char *title)
{
    const cJSON *item = NULL;
    printf("\n%s\n", title);
    cJSON_ArrayForEach(item, cJSON_GetObjectItem(root, key))
    {
        printf("  %-12s %s\n", text_of(item, "name"), text_of(item, "help"));
    }
}

static void print_settings(const cJSON *root)
{
    const cJSON *item = NULL;
    printf("\nsettings (environment over ini file over struct msdu_config; attach_*: environment, "
           "of msdu run)\n");
    cJSON_ArrayForEach(item, cJSON_GetObjectItem(root, "settings"))
    {
        const char *preset = text_of(item, "default");
        printf("  %s\n      %s\n      default %s; %s: %s; %s\n", text_of(item, "name"),
               text_of(item, "help"), preset[0] != '\0' ? preset : "none", text_of(item, "type"),
               text_of(item, "range"), text_of(item, "environment"));
    }
    printf("\nvariable without a setting\n  MSDU_MODULE_PATH: folders of backend modules, "
           "separated by colons\n");
}

static void print_text(const cJSON *root)
{
    printf("msdu %s\ncompiler %s\ninstruction set %s\n", text_of(root, "version"),
           text_of(root, "compiler"), text_of(root, "instruction_set"));
    print_backends(root);
    print_list(root, "policies", "policies (setting interval)");
    print_list(root, "corrections", "corrections (setting correct)");
    print_list(root, "wires", "wire formats (setting wire)");
    print_settings(root);
}

static int print_json(const cJSON *root)
{
    char *text = cJSON_Print(root);
    if (text == NULL) {
        fprintf(stderr, "msdu info: out of memory\n");
        return EXIT_FAILURE;
    }
    puts(text);
    cJSON_free(text);
    return EXIT_SUCCESS;
}

static error_t on_option(int key, char *arg, struct argp_state *state)
{
    bool *is_json = state->input;
    if (key == 'j') {
        *is_json = true;
        return 0;
    }
    if (key == ARGP_KEY_ARG) {
        argp_error(state, "unexpected argument '%s'", arg);
    }
    return ARGP_ERR_UNKNOWN;
}

int msdu__cmd_info(int argc, char **argv)
{
    static const struct argp_option options[] = {
        {.name = "json", .key = 'j', .doc = "Print JSON instead of text"}, {0}};
    static const struct argp argp = {
        .options = options,
        .parser = on_option,
        .doc = "Print version, backends, policies, corrections, wire formats and every setting."};
    bool is_json = false;
    int status = EXIT_SUCCESS;
    if (argp_parse(&argp, argc, argv, 0, NULL, &is_json) != 0) {
        return MSDU__EXIT_USAGE;
    }
    cJSON *root = gather();
    if (is_json) {
        status = print_json(root);
    } else {
        print_text(root);
    }
    cJSON_Delete(root);
    return status;
}
