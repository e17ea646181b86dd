/* SPDX-License-Identifier: Apache-2.0 */
/* Backends by name and path: what is found, and what is said when nothing is. */
#include "backend/mpi_family.h"
#include "backend/registry.h"
#include "expect.h"
#include "suite.h"

#include <check.h>
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PATH_BYTES 256

/* A folder with one file in it that is not a module. */
struct place {
    char folder[160];
    char file[PATH_BYTES];
};

static void place_make(struct place *place, const char *name)
{
    (void)snprintf(place->folder, sizeof(place->folder), "%s/registry-XXXXXX", suite_folder());
    ck_assert_ptr_nonnull(mkdtemp(place->folder));
    (void)snprintf(place->file, sizeof(place->file), "%s/%s", place->folder, name);
    FILE *file = fopen(place->file, "w");
    ck_assert_ptr_nonnull(file);
    (void)fputs("this is not a module\n", file);
    (void)fclose(file);
}

static void place_remove(const struct place *place)
{
    (void)unlink(place->file);
    (void)rmdir(place->folder);
}

/* Assert that a backend is not found, and what is said. */
static void expect_none(const char *name, msdu_status wanted, const char *words)
{
    const msdu_backend *backend = NULL;
    expect_status(msdu__backend_find(name, &backend), wanted, words);
    ck_assert_ptr_null(backend);
}

START_TEST(local_is_built_in)
{
    const msdu_backend *backend = NULL;
    ck_assert_int_eq(msdu__backend_find("local", &backend), MSDU_OK);
    ck_assert_ptr_eq(backend, &msdu__backend_local);
    ck_assert_str_eq(backend->name, "local");
    ck_assert(MSDU_BACKEND_HAS(backend, abort));
}
END_TEST

START_TEST(unknown_name_says_where_it_was_sought)
{
    (void)setenv("MSDU_MODULE_PATH", "/nonesuch/one:/nonesuch/two", 1);
    expect_none("nonesuch", MSDU_ERR_NOT_FOUND,
                "no backend \"nonesuch\"|/nonesuch/one/libmsdu_nonesuch.so|"
                "/nonesuch/two/libmsdu_nonesuch.so");
}
END_TEST

START_TEST(empty_name_and_path_without_a_file_are_not_found)
{
    expect_none("", MSDU_ERR_INVALID, "");
    expect_none("/nonesuch/libmsdu_x.so", MSDU_ERR_NOT_FOUND, "/nonesuch/libmsdu_x.so");
}
END_TEST

START_TEST(file_that_cannot_be_loaded_is_told_in_the_loaders_words)
{
    struct place place;
    place_make(&place, "libmsdu_text.so");
    expect_none(place.file, MSDU_ERR_UNSUPPORTED, "backend cannot be loaded: ");
    expect_words(msdu_last_error(), place.file);
    place_remove(&place);
}
END_TEST

START_TEST(module_path_is_sought_in_its_order)
{
    struct place place;
    char list[PATH_BYTES];
    place_make(&place, "libmsdu_text.so");
    (void)snprintf(list, sizeof(list), "/nonesuch::%s:/nonesuch/last", place.folder);
    (void)setenv("MSDU_MODULE_PATH", list, 1);
    /* The file is found, and being found ends the search. */
    expect_none("text", MSDU_ERR_UNSUPPORTED, place.file);
    place_remove(&place);
}
END_TEST

/* What a launcher set says which MPI is meant; without one nothing is guessed. */
START_TEST(mpi_is_that_of_the_launcher)
{
    static const char *const launchers[] = {
        "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_SIZE", "PMI_RANK",
        "MPI_LOCALNRANKS"};
    for (size_t i = 0; i < sizeof(launchers) / sizeof(launchers[0]); i++) {
        (void)unsetenv(launchers[i]);
    }
    expect_none("mpi", MSDU_ERR_NOT_FOUND, "no mpirun");
    (void)setenv("MSDU_MODULE_PATH", "/nonesuch", 1);
    for (size_t i = 0; i < sizeof(launchers) / sizeof(launchers[0]); i++) {
        (void)setenv(launchers[i], "2", 1);
        const char *family = msdu__mpi_family();
        ck_assert_ptr_nonnull(family);
        ck_assert_str_eq(family, i < 3 ? "openmpi" : "mpich");
        (void)unsetenv(launchers[i]);
    }
}
END_TEST

START_TEST(library_without_the_symbol_is_unsupported)
{
    Dl_info info;
    double (*function)(double) = cbrt;
    void *address = NULL;
    memcpy(&address, &function, sizeof(address));
    ck_assert_int_ne(dladdr(address, &info), 0);
    expect_none(info.dli_fname, MSDU_ERR_UNSUPPORTED, "has no symbol " MSDU_BACKEND_SYMBOL);
}
END_TEST

START_TEST(module_is_loaded_once)
{
    const msdu_backend *first = NULL;
    const msdu_backend *second = NULL;
    msdu_status status = msdu__backend_find("gloo", &first);
    if (status == MSDU_ERR_NOT_FOUND) {
        (void)printf("module_is_loaded_once is skipped: %s\n", msdu_last_error());
        return;
    }
    ck_assert_msg(status == MSDU_OK, "%s", msdu_last_error());
    ck_assert_str_eq(first->name, "gloo");
    (void)setenv("MSDU_MODULE_PATH", "/nonesuch", 1);
    ck_assert_int_eq(msdu__backend_find("gloo", &second), MSDU_OK);
    ck_assert_ptr_eq(first, second);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("registry");
    TCase *find = suite_case(suite, "find", 0, NULL, NULL);
    /* First, with the environment as it was given. */
    tcase_add_test(find, module_is_loaded_once);
    tcase_add_test(find, local_is_built_in);
    tcase_add_test(find, unknown_name_says_where_it_was_sought);
    tcase_add_test(find, empty_name_and_path_without_a_file_are_not_found);
    tcase_add_test(find, file_that_cannot_be_loaded_is_told_in_the_loaders_words);
    tcase_add_test(find, module_path_is_sought_in_its_order);
    tcase_add_test(find, mpi_is_that_of_the_launcher);
    tcase_add_test(find, library_without_the_symbol_is_unsupported);
    return suite_run(suite);
}
