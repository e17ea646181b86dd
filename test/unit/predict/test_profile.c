/* SPDX-License-Identifier: Apache-2.0 */
/* Model profiles: what is read, what is refused and how, and the profiles of the project. */
#include "predict/profile.h"
#include "suite.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <msdu/msdu.h>

#define HEAD     "{\"format\":\"msdu-profile-1\",\"name\":\"m\","
#define TIMES    "\"forward_us\":1,\"backward_us\":2,"
#define LAYER(t) HEAD "\"layers\":[{\"name\":\"a\"," TIMES "\"tensors\":[" t "]}]}"
#define TENSOR   "{\"name\":\"t\",\"count\":3}"

static bool parse(const char *text, msdu__profile *out, char why[256])
{
    why[0] = '\0';
    return msdu__profile_parse(text, strlen(text), out, why, 256);
}

START_TEST(reads_layers_in_order)
{
    msdu__profile p;
    char why[256];
    const char *text =
        HEAD "\"dtype\":\"bfloat16\",\"source\":\"s\",\"other\":[1],\"layers\":["
             "{\"name\":\"a\",\"forward_us\":1.5,\"backward_us\":3,\"tensors\":["
             "{\"name\":\"w\",\"count\":7},{\"name\":\"b\",\"count\":2}]},"
             "{\"name\":\"relu\",\"forward_us\":1,\"backward_us\":0,\"tensors\":[]},"
             "{\"name\":\"c\"," TIMES "\"dtype\":\"float64\",\"tensors\":[" TENSOR "]}]}";
    ck_assert_msg(parse(text, &p, why), "%s", why);
    ck_assert_str_eq(p.name, "m");
    ck_assert_str_eq(p.source, "s");
    ck_assert_str_eq(p.compute, "");
    ck_assert_uint_eq(p.layer_count, 3);
    ck_assert_uint_eq(p.tensor_count, 3);
    ck_assert_str_eq(p.layers[2].name, "c");
    ck_assert_double_eq(p.layers[0].forward_ns, 1500);
    ck_assert_double_eq(p.layers[0].backward_ns, 3000);
    ck_assert_int_eq(p.layers[0].dtype, MSDU_BFLOAT16);
    ck_assert_int_eq(p.layers[2].dtype, MSDU_FLOAT64);
    ck_assert_uint_eq(p.layers[0].tensor_count, 2);
    ck_assert_uint_eq(p.layers[1].tensor_count, 0);
    ck_assert_uint_eq(p.layers[2].first_tensor, 2);
    ck_assert_uint_eq(p.tensors[0].count, 7);
    ck_assert_uint_eq(msdu__profile_elements(&p), 12);
    ck_assert_double_eq_tol(msdu__profile_compute_ns(&p), 8500, 1e-9);
    msdu__profile_free(&p);
    ck_assert_ptr_null(p.layers);
    msdu__profile_free(NULL);
}
END_TEST

START_TEST(reads_what_pipelines_need)
{
    msdu__profile p;
    char why[256];
    const char *text =
        HEAD "\"samples\":8,\"layers\":["
             "{\"name\":\"a\"," TIMES "\"output_bytes\":100,\"kept_bytes\":0,\"state_bytes\":7,"
             "\"weight_us\":1.5,\"fixed_forward_us\":0.5,\"fixed_backward_us\":2,\"tensors\":[]},"
             "{\"name\":\"b\"," TIMES "\"tensors\":[]}]}";
    ck_assert_msg(parse(text, &p, why), "%s", why);
    msdu__profile_scale(&p, 2, 3);
    ck_assert_uint_eq(p.samples, 8);
    ck_assert_double_eq(p.layers[0].output_bytes, 300);
    ck_assert_double_eq(p.layers[0].kept_bytes, 0);
    ck_assert_double_eq(p.layers[0].state_bytes, 21);
    ck_assert_double_eq(p.layers[0].weight_ns, 3000);
    ck_assert_double_eq(p.layers[0].fixed_forward_ns, 1000);
    ck_assert_double_eq(p.layers[0].fixed_backward_ns, 4000);
    ck_assert_double_lt(p.layers[1].output_bytes, 0);
    ck_assert_double_lt(p.layers[1].kept_bytes, 0);
    ck_assert_double_lt(p.layers[1].state_bytes, 0);
    ck_assert_double_lt(p.layers[1].weight_ns, 0);
    ck_assert_double_eq(p.layers[1].fixed_forward_ns, 0);
    msdu__profile_free(&p);
}
END_TEST

START_TEST(scales_times_and_elements_apart)
{
    msdu__profile p;
    char why[256];
    ck_assert(
        parse(LAYER("{\"name\":\"t\",\"count\":1000},{\"name\":\"u\",\"count\":2}"), &p, why));
    msdu__profile_scale(&p, 0.5, 0.0106);
    ck_assert_uint_eq(p.tensors[0].count, 11);
    ck_assert_uint_eq(p.tensors[1].count, 1); /* never empty */
    ck_assert_double_eq_tol(msdu__profile_compute_ns(&p), 1500, 1e-9);
    msdu__profile_free(&p);
}
END_TEST

/* Texts that are no profile, and a word of what is said about them. */
static const struct bad {
    const char *text;
    const char *said;
} bads[] = {
    {"", "no JSON: line 1"},
    {"{\n\n:", "no JSON: line 3"},
    {"[]", "format"},
    {"null", "format"},
    {"{\"format\":\"msdu-profile-2\",\"name\":\"m\",\"layers\":[]}", "format"},
    {"{\"format\":\"msdu-profile-1\",\"layers\":[]}", "no name"},
    {HEAD "\"layers\":[]}", "1 to 16384 layers"},
    {HEAD "\"layers\":{}}", "1 to 16384 layers"},
    {HEAD "\"layers\":[3]}", "layer 0 has no name"},
    {HEAD "\"layers\":[{\"name\":\"a b\"," TIMES "\"tensors\":[]}]}", "layer 0 has no name"},
    {HEAD "\"layers\":[{\"name\":\"a\",\"forward_us\":-1,\"backward_us\":2,\"tensors\":[]}]}",
     "layer 'a': forward_us -1 is not in 0"},
    {HEAD "\"layers\":[{\"name\":\"a\",\"forward_us\":1,\"backward_us\":NaN,\"tensors\":[]}]}",
     "no JSON"},
    {HEAD "\"layers\":[{\"name\":\"a\",\"forward_us\":1,\"backward_us\":1e999,\"tensors\":[]}]}",
     "backward_us inf is not in 0"},
    {HEAD "\"layers\":[{\"name\":\"a\",\"forward_us\":\"1\",\"backward_us\":2,\"tensors\":[]}]}",
     "forward_us is missing or no number"},
    {HEAD "\"layers\":[{\"name\":\"a\"," TIMES "\"tensors\":null}]}", "tensors is missing"},
    {HEAD "\"layers\":[{\"name\":\"a\",\"forward_us\":0,\"backward_us\":0,\"tensors\":[]}]}",
     "no layer takes any time"},
    {LAYER("{\"count\":3}"), "a tensor without a name"},
    {LAYER("{\"name\":\"t\"}"), "tensor 't': count"},
    {LAYER("{\"name\":\"t\",\"count\":0}"), "tensor 't': count"},
    {LAYER("{\"name\":\"t\",\"count\":-5}"), "tensor 't': count"},
    {LAYER("{\"name\":\"t\",\"count\":2.5}"), "tensor 't': count"},
    {LAYER("{\"name\":\"t\",\"count\":1e30}"), "tensor 't': count"},
    {LAYER("{\"name\":\"t\",\"count\":4e12},{\"name\":\"u\",\"count\":4e12}"), "in all tensors"},
    {LAYER(TENSOR "," TENSOR), "two tensors are called 't'"},
    {HEAD "\"layers\":[{\"name\":\"a\"," TIMES "\"tensors\":[]},{\"name\":\"a\"," TIMES
          "\"tensors\":[]}]}",
     "two layers are called 'a'"},
    {HEAD "\"samples\":2.5,\"layers\":[{\"name\":\"a\"," TIMES "\"tensors\":[]}]}",
     "samples is not"},
    {HEAD "\"layers\":[{\"name\":\"a\"," TIMES "\"kept_bytes\":-1,\"tensors\":[]}]}",
     "a: kept_bytes is no number in 0"},
    {HEAD "\"layers\":[{\"name\":\"a\"," TIMES "\"weight_us\":2.5,\"tensors\":[]}]}",
     "layer 'a': weight_us 2.5 is more than"},
    {HEAD "\"dtype\":\"int3\",\"layers\":[{\"name\":\"a\"," TIMES "\"tensors\":[]}]}", "dtype"},
};

START_TEST(bad_profiles_get_one_line)
{
    msdu__profile p;
    char why[256];
    ck_assert_msg(!parse(bads[_i].text, &p, why), "%s was read", bads[_i].text);
    ck_assert_msg(strstr(why, bads[_i].said) != NULL, "%s: '%s'", bads[_i].text, why);
    ck_assert_ptr_null(strchr(why, '\n'));
    ck_assert_ptr_null(p.layers);
}
END_TEST

START_TEST(depth_is_limited)
{
    msdu__profile p;
    char why[256];
    char *deep = malloc(200001);
    ck_assert_ptr_nonnull(deep);
    memset(deep, '[', 200000);
    deep[200000] = '\0';
    ck_assert(!parse(deep, &p, why));
    free(deep);
}
END_TEST

START_TEST(files_that_are_none)
{
    msdu__profile p;
    char why[256];
    char path[64];
    ck_assert(!msdu__profile_read("/nowhere/at/all.json", &p, why, sizeof(why)));
    ck_assert_ptr_nonnull(strstr(why, "/nowhere/at/all.json: "));
    ck_assert(!msdu__profile_read("/", &p, why, sizeof(why)));
    /* a file of a gigabyte, which takes neither room nor time */
    int fd = memfd_create("huge", MFD_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(ftruncate(fd, 1L << 30), 0);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    ck_assert(!msdu__profile_read(path, &p, why, sizeof(why)));
    ck_assert_ptr_nonnull(strstr(why, "1073741824 bytes"));
    close(fd);
}
END_TEST

/* Parameters as published. */
static const struct model {
    const char *name;
    uint64_t parameters;
} models[] = {
    {"resnet50", 25557032},   {"vgg16", 138357544},      {"bert-large", 335141888},
    {"gpt2-124m", 124439808}, {"gpt2-1.5b", 1557611200},
};

START_TEST(the_project_s_profiles_are_whole)
{
    msdu__profile p;
    char why[256];
    char path[512];
    snprintf(path, sizeof(path), "%s/%s.json", PROFILES_DIR, models[_i].name);
    ck_assert_msg(msdu__profile_read(path, &p, why, sizeof(why)), "%s", why);
    ck_assert_str_eq(p.name, models[_i].name);
    ck_assert_uint_eq(msdu__profile_elements(&p), models[_i].parameters);
    ck_assert(p.source[0] != '\0' && p.compute[0] != '\0');
    msdu__profile_free(&p);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("profile");
    TCase *c = suite_case(suite, "read", 30, NULL, NULL);
    tcase_add_test(c, reads_layers_in_order);
    tcase_add_test(c, reads_what_pipelines_need);
    tcase_add_test(c, scales_times_and_elements_apart);
    suite_table(c, bad_profiles_get_one_line, bads);
    tcase_add_test(c, depth_is_limited);
    tcase_add_test(c, files_that_are_none);
    suite_table(c, the_project_s_profiles_are_whole, models);
    return suite_run(suite);
}
