/* SPDX-License-Identifier: Apache-2.0 */
/* Values to bytes and back, little-endian; pure. */
#include "serial.h"

#include <string.h>

static bool is_little_endian(void)
{
    const uint16_t one = 1;
    unsigned char first = 0;
    memcpy(&first, &one, 1);
    return first == 1;
}

/* Elements in the order of bytes of the file. */
static void copy(void *out, const void *in, uint64_t count, uint32_t width)
{
    if (width == 1 || is_little_endian()) {
        memcpy(out, in, count * width);
        return;
    }
    unsigned char *to = out;
    const unsigned char *from = in;
    for (uint64_t i = 0; i < count * width; i++) {
        to[i] = from[i - i % width + width - 1 - i % width];
    }
}

static void fail(msdu__serial *c, const char *name)
{
    c->bad = c->bad == NULL ? name : c->bad;
}

void msdu__serial_array(msdu__serial *c, const char *name, void *array, uint64_t count,
                        uint32_t width)
{
    if (c->bad != NULL || count == 0) {
        return;
    }
    bool is_room = c->in == NULL && c->out == NULL;
    is_room = is_room || (c->at <= c->bytes && count <= (c->bytes - c->at) / width);
    if (!is_room) {
        fail(c, name);
        return;
    }
    if (c->in != NULL && !c->is_dry) {
        copy(array, c->in + c->at, count, width);
    } else if (c->out != NULL) {
        copy(c->out + c->at, array, count, width);
    }
    c->at += count * width;
}

void msdu__serial_values(msdu__serial *c, const char *name, void *values, uint64_t count,
                         uint32_t width)
{
    bool is_dry = c->is_dry;
    c->is_dry = false;
    msdu__serial_array(c, name, values, count, width);
    c->is_dry = is_dry;
}

void msdu__serial_whole(msdu__serial *c, const char *name, uint64_t *value, uint64_t least,
                        uint64_t most)
{
    uint64_t read = *value;
    msdu__serial_values(c, name, &read, 1, sizeof(read));
    if (c->in != NULL && c->bad == NULL && (read < least || read > most)) {
        fail(c, name);
    }
    if (c->bad == NULL) {
        *value = read;
    }
}

void msdu__serial_flag(msdu__serial *c, const char *name, bool *value)
{
    uint64_t number = *value ? 1 : 0;
    msdu__serial_whole(c, name, &number, 0, 1);
    *value = number != 0;
}

void msdu__serial_real(msdu__serial *c, const char *name, double *value)
{
    msdu__serial_values(c, name, value, 1, sizeof(*value));
}

void msdu__serial_measure(msdu__serial *c, const char *name, double *value)
{
    double read = *value;
    msdu__serial_real(c, name, &read);
    if (c->in != NULL && c->bad == NULL && !(read >= 0 && read <= 1e18)) {
        fail(c, name);
    }
    if (c->bad == NULL) {
        *value = read;
    }
}

uint64_t msdu__serial_hash(const void *data, uint64_t bytes)
{
    return msdu__serial_hash_more(0xcbf29ce484222325ULL ^ bytes, data, bytes);
}

uint64_t msdu__serial_hash_more(uint64_t hash, const void *data, uint64_t bytes)
{
    const unsigned char *at = data;
    uint64_t value = 0;
    for (; bytes >= sizeof(value); bytes -= sizeof(value), at += sizeof(value)) {
        copy(&value, at, 1, sizeof(value));
        hash = (hash ^ value) * 0x9e3779b97f4a7c15ULL;
        hash ^= hash >> 29;
    }
    for (; bytes > 0; bytes--, at++) {
        hash = (hash ^ *at) * 0x100000001b3ULL;
    }
    return hash;
}
