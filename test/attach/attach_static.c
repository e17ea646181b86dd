/* SPDX-License-Identifier: Apache-2.0 */
/* A program without a dynamic loader. */
#include <stdio.h>

int main(void)
{
    return puts("static") < 0;
}
