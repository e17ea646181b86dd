/* SPDX-License-Identifier: Apache-2.0 */
/* Slicer: properties on random tensor lists, and all small cases against a naive slicer. */
#include "slicer/slicer.h"
#include "suite.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include <msdu/msdu.h>

#define TENSORS_MAX 40
#define GUARD       0xA5A5A5A5U

static uint64_t seed_now = 1;

static uint64_t draw(uint64_t below)
{
    seed_now = seed_now * 6364136223846793005U + 1442695040888963407U;
    return (seed_now >> 33) % below;
}

static uint64_t bytes_of(int32_t dtype)
{
    return dtype == MSDU_FLOAT64 ? 8 : dtype == MSDU_FLOAT32 ? 4 : 2;
}

/* One slicing with its inputs; arrays are exactly as long as bounds() says, plus a guard. */
typedef struct cutting {
    msdu__slicer_args args;
    msdu__slicer_tensor tensors[TENSORS_MAX];
    uint32_t tensor_count;
    uint32_t slice_bound;
    uint32_t segment_bound;
    msdu__slicing out;
} cutting;

static void cut(cutting *c)
{
    msdu__slicer_bounds(&c->args, c->tensors, c->tensor_count, &c->slice_bound, &c->segment_bound);
    c->out.slices = calloc((size_t)c->slice_bound + 1, sizeof(msdu__slice));
    c->out.segments = calloc((size_t)c->segment_bound + 1, sizeof(msdu__segment));
    if (c->out.slices == NULL || c->out.segments == NULL) {
        ck_abort_msg("out of memory");
    }
    c->out.slices[c->slice_bound].first_segment = GUARD;
    c->out.segments[c->segment_bound].tensor = GUARD;
    msdu__slicer_cut(&c->args, c->tensors, c->tensor_count, &c->out);
}

static void drop(cutting *c)
{
    free(c->out.slices);
    free(c->out.segments);
}

static void draw_case(cutting *c)
{
    static const uint64_t aligns[] = {1, 2, 7, 64, 256};

    memset(c, 0, sizeof *c);
    c->args.align = aligns[draw(5)];
    c->args.slice_bytes = 1 + draw(draw(2) ? 20000 : 600);
    c->args.fuse_bytes = draw(2) ? draw(c->args.slice_bytes * 2) : 0;
    c->args.fragments = (uint32_t)draw(12);
    c->tensor_count = (uint32_t)draw(TENSORS_MAX + 1);
    for (uint32_t i = 0; i < c->tensor_count; i++) {
        c->tensors[i].count = 1 + draw(draw(3) ? 400 : 30000);
        c->tensors[i].dtype = draw(3) ? MSDU_FLOAT32 : (int32_t)draw(4);
        c->tensors[i].priority = draw(2) ? (int32_t)i : (int32_t)draw(9) - 4;
    }
}

static const msdu__segment *segments_of(const cutting *c, const msdu__slice *slice)
{
    return &c->out.segments[slice->first_segment];
}

static void check_inside_bounds(const cutting *c)
{
    ck_assert_uint_le(c->out.slice_count, c->slice_bound);
    ck_assert_uint_le(c->out.segment_count, c->segment_bound);
    ck_assert_uint_eq(c->out.slices[c->slice_bound].first_segment, GUARD);
    ck_assert_uint_eq(c->out.segments[c->segment_bound].tensor, GUARD);
}

static void check_every_element_once(const cutting *c)
{
    for (uint32_t t = 0; t < c->tensor_count; t++) {
        uint8_t *seen = calloc((size_t)c->tensors[t].count, 1);

        ck_assert_ptr_nonnull(seen);
        for (uint32_t s = 0; s < c->out.segment_count; s++) {
            const msdu__segment *segment = &c->out.segments[s];

            if (segment->tensor != t) {
                continue;
            }
            ck_assert_uint_le(segment->offset + segment->count, c->tensors[t].count);
            for (uint64_t e = 0; e < segment->count; e++) {
                seen[segment->offset + e]++;
            }
        }
        for (uint64_t e = 0; e < c->tensors[t].count; e++) {
            if (seen[e] != 1) {
                ck_abort_msg("element %lu of tensor %u is in %u slices", (unsigned long)e, t,
                             seen[e]);
            }
        }
        free(seen);
    }
}

/* Segments belong to slices one after another, and the counts add up. */
static void check_segments_partition(const cutting *c)
{
    uint32_t next = 0;

    for (uint32_t i = 0; i < c->out.slice_count; i++) {
        const msdu__slice *slice = &c->out.slices[i];
        uint64_t count = 0;

        ck_assert_uint_eq(slice->first_segment, next);
        ck_assert_uint_ge(slice->segments, 1);
        for (uint32_t s = 0; s < slice->segments; s++) {
            count += segments_of(c, slice)[s].count;
        }
        ck_assert_uint_eq(count, slice->count);
        next += slice->segments;
    }
    ck_assert_uint_eq(next, c->out.segment_count);
}

static void check_slice_size(const cutting *c, const msdu__slice *slice)
{
    uint64_t size = slice->count * bytes_of(slice->dtype);

    if (slice->count > c->args.align) {
        ck_assert_uint_le(size, c->args.slice_bytes);
    }
    if (slice->segments > 1) {
        ck_assert_uint_le(size, c->args.fuse_bytes);
        ck_assert_uint_le(size, c->args.slice_bytes);
    }
}

/* A fused slice holds whole tensors; a piece is cut at multiples of the alignment. */
static void check_slice_cuts(const cutting *c, const msdu__slice *slice)
{
    int32_t smallest = INT32_MAX;

    for (uint32_t s = 0; s < slice->segments; s++) {
        const msdu__segment *segment = &segments_of(c, slice)[s];
        const msdu__slicer_tensor *tensor = &c->tensors[segment->tensor];

        ck_assert_int_eq(tensor->dtype, slice->dtype);
        ck_assert_uint_eq(segment->offset % c->args.align, 0);
        if (segment->offset + segment->count < tensor->count) {
            ck_assert_uint_eq(segment->count % c->args.align, 0);
        }
        if (slice->segments > 1) {
            ck_assert_uint_eq(segment->count, tensor->count);
            ck_assert_uint_lt(tensor->count * bytes_of(tensor->dtype), c->args.fuse_bytes);
        }
        smallest = tensor->priority < smallest ? tensor->priority : smallest;
    }
    ck_assert_int_eq(slice->priority, smallest);
}

/* Rank of a tensor in backward order, by counting. */
static uint32_t backward_rank(const cutting *c, uint32_t tensor)
{
    uint32_t rank = 0;

    for (uint32_t i = 0; i < c->tensor_count; i++) {
        if (c->tensors[i].priority > c->tensors[tensor].priority ||
            (c->tensors[i].priority == c->tensors[tensor].priority && i > tensor)) {
            rank++;
        }
    }
    return rank;
}

/* Also shows that fused tensors are neighbours: no tensor is skipped between segments. */
static void check_backward_order(const cutting *c)
{
    uint32_t rank = 0;
    uint64_t offset = 0;

    for (uint32_t s = 0; s < c->out.segment_count; s++) {
        const msdu__segment *segment = &c->out.segments[s];

        ck_assert_uint_eq(backward_rank(c, segment->tensor), rank);
        ck_assert_uint_eq(segment->offset, offset);
        offset += segment->count;
        if (offset == c->tensors[segment->tensor].count) {
            rank++;
            offset = 0;
        }
    }
    ck_assert_uint_eq(rank, c->tensor_count);
}

static void check_arena(const cutting *c)
{
    uint64_t end = 0;

    for (uint32_t i = 0; i < c->out.slice_count; i++) {
        const msdu__slice *slice = &c->out.slices[i];

        ck_assert_uint_eq(slice->arena % 64, 0);
        ck_assert_uint_ge(slice->arena, end);
        end = slice->arena + slice->count * (slice->dtype == MSDU_FLOAT64 ? 8 : 4);
    }
    ck_assert_uint_ge(c->out.arena_bytes, end);
    ck_assert_uint_le(c->out.arena_bytes, end + 63);
}

/* Loads differ by the largest slice at most, and a row of neighbours is on distinct fragments. */
static void check_fragments(const cutting *c)
{
    uint32_t fragments = c->args.fragments > 0 ? c->args.fragments : 1;
    uint64_t load[16] = {0};
    uint64_t largest = 0;
    uint64_t low = UINT64_MAX;
    uint64_t high = 0;

    for (uint32_t i = 0; i < c->out.slice_count; i++) {
        const msdu__slice *slice = &c->out.slices[i];
        uint64_t size = slice->count * bytes_of(slice->dtype);

        ck_assert_uint_lt(slice->fragment, fragments);
        load[slice->fragment] += size;
        largest = size > largest ? size : largest;
        for (uint32_t j = i - i % fragments; j < i; j++) {
            ck_assert_uint_ne(c->out.slices[j].fragment, slice->fragment);
        }
    }
    for (uint32_t f = 0; f < fragments; f++) {
        low = load[f] < low ? load[f] : low;
        high = load[f] > high ? load[f] : high;
    }
    ck_assert_uint_le(high - low, largest);
}

static void check_all(const cutting *c)
{
    check_inside_bounds(c);
    check_every_element_once(c);
    check_segments_partition(c);
    for (uint32_t i = 0; i < c->out.slice_count; i++) {
        check_slice_size(c, &c->out.slices[i]);
        check_slice_cuts(c, &c->out.slices[i]);
    }
    check_backward_order(c);
    check_arena(c);
    check_fragments(c);
}

START_TEST(random_tensor_lists_keep_every_property)
{
    for (int i = 0; i < 150; i++) {
        cutting c;

        draw_case(&c);
        cut(&c);
        check_all(&c);
        drop(&c);
    }
}
END_TEST

/* --- a naive slicer: counts out elements one by one --- */

typedef struct naive_slice {
    uint64_t count;
    uint32_t tensors;
} naive_slice;

/* Largest piece that is a multiple of align and fits, found by trying every size. */
static uint64_t naive_piece(const msdu__slicer_args *args, uint64_t count)
{
    uint64_t most = args->align;
    uint64_t pieces = 0;

    for (uint64_t size = args->align; size * 4 <= args->slice_bytes; size += args->align) {
        most = size;
    }
    while (pieces * most < count) {
        pieces++;
    }
    for (uint64_t size = args->align; size < most; size += args->align) {
        if (size * pieces >= count) {
            return size;
        }
    }
    return most;
}

/* float32 tensors of equal priority: backward order is the order of index, reversed. */
static uint32_t naive_cut(const cutting *c, naive_slice *slices)
{
    uint32_t made = 0;
    bool is_open = false;

    for (uint32_t t = c->tensor_count; t-- > 0;) {
        uint64_t count = c->tensors[t].count;
        bool is_small = count * 4 < c->args.fuse_bytes && count * 4 <= c->args.slice_bytes;
        uint64_t fused = is_small && is_open ? slices[made - 1].count + count : UINT32_MAX;
        uint64_t piece = is_small ? count : naive_piece(&c->args, count);

        if (fused * 4 <= c->args.fuse_bytes && fused * 4 <= c->args.slice_bytes) {
            slices[made - 1].count = fused;
            slices[made - 1].tensors++;
            continue;
        }
        is_open = is_small;
        for (uint64_t e = 0; e < count; e++) {
            if (e % piece == 0) {
                slices[made++] = (naive_slice){.count = 0, .tensors = 1};
            }
            slices[made - 1].count++;
        }
    }
    return made;
}

static void compare_with_naive(cutting *c)
{
    naive_slice slices[64];
    uint32_t made = 0;

    cut(c);
    made = naive_cut(c, slices);
    for (uint32_t i = 0; i < made; i++) {
        if (c->out.slice_count != made || c->out.slices[i].count != slices[i].count ||
            c->out.slices[i].segments != slices[i].tensors) {
            ck_abort_msg("slice %u of %u differs from the naive slicer's", i, made);
        }
    }
    drop(c);
}

START_TEST(all_small_cases_equal_a_naive_slicer)
{
    for (uint32_t code = 0; code < 6 * 6 * 6; code++) {
        for (uint32_t knobs = 0; knobs < 3 * 6 * 7; knobs++) {
            cutting c;

            memset(&c, 0, sizeof c);
            c.args.align = 1 + knobs % 3;
            c.args.slice_bytes = 4 + 4 * (knobs / 3 % 6);
            c.args.fuse_bytes = 4 * (uint64_t)(knobs / 18);
            c.args.fragments = 1 + code % 3;
            c.tensor_count = 3;
            c.tensors[0].count = 1 + code % 6;
            c.tensors[1].count = 1 + code / 6 % 6;
            c.tensors[2].count = 1 + code / 36;
            compare_with_naive(&c);
        }
    }
}
END_TEST

/* --- single facts --- */

static cutting layers(uint32_t count, uint64_t elements)
{
    cutting c;

    memset(&c, 0, sizeof c);
    c.args =
        (msdu__slicer_args){.slice_bytes = 4096, .fuse_bytes = 1024, .align = 256, .fragments = 4};
    c.tensor_count = count;
    for (uint32_t i = 0; i < count; i++) {
        c.tensors[i] = (msdu__slicer_tensor){elements, MSDU_FLOAT32, (int32_t)i};
    }
    return c;
}

START_TEST(no_tensors_give_no_slices)
{
    cutting c = layers(0, 1);

    cut(&c);
    ck_assert_uint_eq(c.out.slice_count, 0);
    ck_assert_uint_eq(c.out.segment_count, 0);
    ck_assert_uint_eq(c.out.arena_bytes, 0);
    drop(&c);
}
END_TEST

START_TEST(small_neighbors_share_a_slice_up_to_the_fuse_limit)
{
    cutting c = layers(9, 64);

    cut(&c);
    ck_assert_uint_eq(c.out.slice_count, 3);
    ck_assert_uint_eq(c.out.slices[0].segments, 4);
    ck_assert_uint_eq(c.out.slices[0].count, 256);
    ck_assert_int_eq(c.out.slices[0].priority, 5);
    ck_assert_uint_eq(c.out.segments[0].tensor, 8);
    drop(&c);
}
END_TEST

START_TEST(a_change_of_type_ends_a_fused_slice)
{
    cutting c = layers(3, 8);

    c.tensors[1].dtype = MSDU_BFLOAT16;
    cut(&c);
    ck_assert_uint_eq(c.out.slice_count, 3);
    drop(&c);
}
END_TEST

START_TEST(pieces_of_a_large_tensor_are_equal)
{
    cutting c = layers(1, 2560);

    cut(&c);
    ck_assert_uint_eq(c.out.slice_count, 3);
    ck_assert_uint_eq(c.out.slices[0].count, 1024);
    ck_assert_uint_eq(c.out.slices[1].count, 1024);
    ck_assert_uint_eq(c.out.slices[2].count, 512);
    drop(&c);
    c = layers(1, 1280);
    cut(&c);
    ck_assert_uint_eq(c.out.slice_count, 2);
    ck_assert_uint_eq(c.out.slices[0].count, 768);
    drop(&c);
}
END_TEST

START_TEST(equal_layers_are_strided_over_fragments)
{
    cutting c = layers(16, 1024);

    cut(&c);
    ck_assert_uint_eq(c.out.slice_count, 16);
    for (uint32_t i = 0; i + 1 < 16; i++) {
        ck_assert_uint_ne(c.out.slices[i].fragment, c.out.slices[i + 1].fragment);
        ck_assert_uint_eq(c.out.slices[i].fragment, i % 4);
    }
    drop(&c);
}
END_TEST

START_TEST(same_input_gives_same_slices)
{
    for (int i = 0; i < 50; i++) {
        cutting x;
        cutting y;

        draw_case(&x);
        y = x;
        cut(&x);
        cut(&y);
        ck_assert_uint_eq(x.out.slice_count, y.out.slice_count);
        for (uint32_t s = 0; s < x.out.slice_count; s++) {
            ck_assert_uint_eq(x.out.slices[s].count, y.out.slices[s].count);
            ck_assert_uint_eq(x.out.slices[s].arena, y.out.slices[s].arena);
            ck_assert_uint_eq(x.out.slices[s].fragment, y.out.slices[s].fragment);
        }
        drop(&x);
        drop(&y);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("slicer");
    TCase *tcase = suite_case(suite, "slicer", 120, NULL, NULL);

    tcase_add_test(tcase, random_tensor_lists_keep_every_property);
    tcase_add_test(tcase, all_small_cases_equal_a_naive_slicer);
    tcase_add_test(tcase, no_tensors_give_no_slices);
    tcase_add_test(tcase, small_neighbors_share_a_slice_up_to_the_fuse_limit);
    tcase_add_test(tcase, a_change_of_type_ends_a_fused_slice);
    tcase_add_test(tcase, pieces_of_a_large_tensor_are_equal);
    tcase_add_test(tcase, equal_layers_are_strided_over_fragments);
    tcase_add_test(tcase, same_input_gives_same_slices);
    return suite_run(suite);
}
