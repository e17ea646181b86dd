/* SPDX-License-Identifier: Apache-2.0 */
/* Places that jobs of test processes need: programs, modules, a port. */
#include "processes.h"
#include "suite.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

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
    suite_remove(folder);
}

bool job_make_folder(char path_out[PATH_MAX])
{
    (void)snprintf(path_out, PATH_MAX, "%s/job-XXXXXX", suite_folder());
    return mkdtemp(path_out) != NULL;
}

bool job_is_possible(void)
{
    char folder[PATH_MAX];
    char path[PATH_MAX + 32];
    job_module_folder(folder);
    (void)snprintf(path, sizeof(path), "%s/libmsdu_gloo.so", folder);
    if (access(path, R_OK) == 0) {
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
