/* A step's attention, as native.c computes it. */
#pragma once
#include <stdint.h>

/* What stays the same from layer to layer. Mirrored by a ctypes.Structure in native.py. */
typedef struct {
    const int32_t *items;        /* [items, 4]: piece, first flat row, first key, end of keys */
    const int32_t *pieces;       /* [pieces, 3]: first look, number of looks, capacity */
    const int32_t *looks;        /* [looks, 5]: row, distance, keys seen, first slot, words of exclusions per layer */
    const int64_t *hidden;       /* [looks]: address of exclusion words, or 0 */
    const int32_t *first_slot;   /* [rows + 1] */
    const int32_t *own;          /* [rows, 3]: piece, token in it, local position */
    const int64_t *addresses;    /* [pieces, 2, layers]: where K and V begin */
    const float *cos, *sin;      /* [positions, half] */
    float *out;                  /* [slots, heads, dim] */
    float *lse;                  /* [slots, heads] */
    char *workspace;             /* workspace_bytes() for every thread */
    int64_t workspace_bytes;
    int32_t num_items, num_rows, num_layers, num_heads, num_kv_heads, head_dim, half, split_len, block_rows, dtype, num_threads,
        passes_over; /* Keys that all rows of an item exclude: faster, but then a row's sums depend on the rows beside it. */
    const float *sharpness;      /* [looks]: what its scores are multiplied with */
    const int32_t *joint;        /* [rows, 2]: slots [first, end) whose sums are Z together and weigh Z^more more */
    const float *more;           /* [rows] */
} Step;

/* Rows of the step: [heads, rows, dim] by strides in elements, the last one 1. */
typedef struct {
    const void *data;
    int64_t head, row;
} Rows;

/* Of one layer. q, k, v: [heads, rows, dim] by strides; merged: [rows, heads, dim], contiguous. */
void kvquilt_run(int level, const Step *s, int layer, Rows q, Rows k, Rows v, void *merged, float scale);
