/* SPDX-License-Identifier: Apache-2.0 */
/* What the codes of several formats share; pure. */
#include "block.h"

#include <float.h>
#include <string.h>

#define PIECE 256 /* elements narrowed at a time, on the stack */

float msdu__block_scale(uint16_t header)
{
    const uint32_t bits = (uint32_t)header << 16;
    float scale;
    memcpy(&scale, &bits, sizeof(scale));
    return scale;
}

void msdu__block_narrow(const msdu__vec *vec, float largest,
                        void (*narrow)(const float *in, void *out, uint64_t count), const float *x,
                        void *codes, uint64_t count)
{
    float cut[PIECE];
    for (uint64_t done = 0; done < count; done += PIECE) {
        const uint64_t n = count - done < PIECE ? count - done : PIECE;
        vec->wire->clamp(x + done, largest, cut, n);
        narrow(cut, (unsigned char *)codes + 2 * done, n);
    }
}

uint16_t msdu__block_scale_fit(float absmax, float levels)
{
    /* Half the range is kept free so that neither rounding up nor levels * scale overflows; larger
     * values are cut, and what was cut stays in the residual. */
    const float wanted = (absmax < FLT_MAX / 2.0F ? absmax : FLT_MAX / 2.0F) / levels;
    if (!(wanted >= FLT_MIN)) {
        return 0;
    }
    uint32_t bits;
    memcpy(&bits, &wanted, sizeof(bits));
    return (uint16_t)((bits + 0xffffU) >> 16);
}
