/* SPDX-License-Identifier: Apache-2.0 */
/* Is the library to do anything? */
#include "preload.h"

#include <stdlib.h>
#include <string.h>

_Thread_local int msdu__inside; /* calls of ours on this thread's stack */

bool msdu__is_on(void)
{
    const char *text = getenv("MSDU_ATTACH");
    return text == NULL || strcmp(text, "off") != 0;
}
