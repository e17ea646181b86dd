/* SPDX-License-Identifier: Apache-2.0 */
/* What all files of the module use: whether a group failed, MPI's errors in words. */
#include "mpi_impl.h"

#include <stdio.h>

#include "base/cell.h"

static msdu__flag is_broken; /* a group failed: another rank may never come to MPI_Finalize() */

void mpi__broken(void)
{
    msdu__flag_set(&is_broken, true);
}

bool mpi__is_broken(void)
{
    return msdu__flag_get(&is_broken);
}

msdu_status mpi__error(const msdu_host *host, const char *call, int code)
{
    char reason[MPI_MAX_ERROR_STRING + 1] = "";
    char text[MPI__TEXT_BYTES];
    int length = 0;
    (void)PMPI_Error_string(code, reason, &length);
    (void)snprintf(text, sizeof(text), "mpi: %s failed: %.400s", call, reason);
    return host->fail(MSDU_ERR_BACKEND, text);
}
