/* SPDX-License-Identifier: Apache-2.0 */
/* Places that jobs of test processes need: programs, modules, a port. */
#include "processes.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static char base[] = "/tmp/msdu-test-XXXXXX"; /* of this program's jobs */
static pid_t base_owner;

void job_beside(const char *name, char path_out[PATH_MAX])
{
    char own[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", own, sizeof(own) - 1);
    own[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(own, '/');
    int folder = slash == NULL ? 0 : (int)(slash - own);
    if (snprintf(path_out, PATH_MAX, "%.*s/%s", folder, own, name) >= PATH_MAX) {
        path_out[0] = '\0';
    }
}

void job_module_folder(char path_out[PATH_MAX])
{
    const char *given = getenv("MSDU_MODULE_PATH");
    if (given != NULL && given[0] != '\0') {
        (void)snprintf(path_out, PATH_MAX, "%s", given);
    } else {
        job_beside("../lib", path_out);
    }
}

void job_remove_folder(const char *folder)
{
    char path[2 * PATH_MAX];
    DIR *dir = opendir(folder);
    const struct dirent *entry = NULL;
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        (void)snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
        (void)unlink(path);
    }
    if (dir != NULL) {
        (void)closedir(dir);
    }
    (void)rmdir(folder);
}

/* Folders of tests that failed are still there: Check's child leaves at once. */
static void remove_base(void)
{
    char path[sizeof(base) + NAME_MAX + 1];
    const struct dirent *entry = NULL;
    DIR *dir = getpid() == base_owner ? opendir(base) : NULL;
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        (void)snprintf(path, sizeof(path), "%s/%s", base, entry->d_name);
        if (entry->d_name[0] != '.') {
            job_remove_folder(path);
        }
    }
    if (dir != NULL) {
        (void)closedir(dir);
        (void)rmdir(base);
    }
}

bool job_make_folder(char path_out[PATH_MAX])
{
    (void)snprintf(path_out, PATH_MAX, "%s/XXXXXX", base);
    return mkdtemp(path_out) != NULL;
}

static void make_base(void)
{
    if (mkdtemp(base) == NULL || atexit(remove_base) != 0) {
        perror(base);
        abort();
    }
    base_owner = getpid();
}

bool job_is_possible(void)
{
    char folder[PATH_MAX];
    char path[PATH_MAX + 32];
    job_module_folder(folder);
    (void)snprintf(path, sizeof(path), "%s/libmsdu_gloo.so", folder);
    if (access(path, R_OK) == 0) {
        make_base();
        return true;
    }
    printf("skipped: no backend module %s (option MSDU_WITH_GLOO)\n", path);
    return false;
}

int job_free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t bytes = sizeof(address);
    int port = -1;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && bind(fd, (const struct sockaddr *)&address, bytes) == 0 &&
        getsockname(fd, (struct sockaddr *)&address, &bytes) == 0) {
        port = ntohs(address.sin_port);
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    return port;
}
