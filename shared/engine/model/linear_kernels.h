/* Norms and products in one call, as linear_kernels.c computes them. */
#pragma once
#include <stdint.h>

/* A norm or a product of rows of bfloat16, one of several. Which rows it reads, adds to (−1: none) and writes: places among those of a
 * call. A norm is of parts of a row, num_in wide, of rows that are num_out wide. Adapters have numbers from 1 to 63 in a call. */
typedef struct {
    const void *weight;
    const float *scale, *bias; /* Weights with a scale are int8. Norms have no bias, and thereby are told from products. */
    int64_t num_in, num_out;
    float eps;
    int32_t gated, x, added_to, out;
    int32_t first_part, num_parts; /* of a norm */
    int32_t adapter;   /* of the rows that this product is for; 0: of all */
    int32_t more;      /* the place of what adapters add (Product) */
    uint64_t adapters; /* that add something: bit n for number n */
} Stage;

/* Of level 1 or above, and of at least one row. Every stage but the first begins when all rows of the one in front of it are done.
 * ``adapter_of``: of each row, the number of its adapter, or 0; may be none if no stage has to do with adapters. */
void kvquilt_linear_stages(int level, const Stage *stages, int num_stages, void *const *rows, int64_t num_rows, int num_threads,
                           const uint8_t *adapter_of);

/* A decoder layer, ``number`` of the model's (layers.c). */
typedef struct {
    const Stage *in_front, *behind;
    int32_t num_in_front, num_behind, number;
    float scale;
} Layer;
