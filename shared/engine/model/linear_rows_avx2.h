/* Products of rows of bfloat16, and norms, for AVX2: linear_kernels.c includes this once, behind linear_singles.h for the same processors,
 * which it takes the order of int8 weights from. */

typedef float Eight __attribute__((vector_size(32)));
#define HALF_UNIT (UNIT / 2)

INLINE float widened(uint16_t bits) {
    const uint32_t wide = (uint32_t)bits << 16;
    float number;
    memcpy(&number, &wide, sizeof number);
    return number;
}

/* To the nearest bfloat16, half to even. */
INLINE uint16_t rounded(float number) {
    int32_t bits;
    memcpy(&bits, &number, sizeof bits);
    const uint32_t up = ((uint32_t)bits + 0x7fffu + ((uint32_t)bits >> 16 & 1)) >> 16;
    return (bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : (uint16_t)up; /* NaN stays NaN */
}

/* As exp_of of linear_exact.h, but for 0 below the smallest normal number. */
INLINE float exp_of_one(float x) {
    const float wide = x * 1.44269504f, least = wide > -127.0f ? wide : -127.0f, y = least < 128.0f ? least : 128.0f;
    const float whole = (y + 12582912.0f) - 12582912.0f, part = y - whole; /* 1.5 · 2²³ leaves no room for fractions */
    float power = 1.5353362e-4f;
    power = power * part + 1.3398874e-3f;
    power = power * part + 9.6184373e-3f;
    power = power * part + 5.5503324e-2f;
    power = power * part + 2.4022648e-1f;
    power = power * part + 6.9314720e-1f;
    const int32_t exponent = ((int32_t)whole + 127) * (1 << 23); /* of 2^whole; 0 for −127, infinity for 128 */
    float scale;
    memcpy(&scale, &exponent, sizeof scale);
    return (power * part + 1.0f) * scale;
}

/* ``count`` outputs from ``at`` on, behind what they are added to, if there is anything: see store_sum. */
INLINE void store_numbers(const Product *p, int64_t at, float *y, int64_t count) {
    uint16_t *out = (uint16_t *)p->out + at;
    if (p->added_to)
        for (int64_t i = 0; i < count; i++) y[i] = widened(p->added_to[at + i]) + widened(rounded(y[i]));
    for (int64_t i = 0; i < count; i++) out[i] = rounded(y[i]);
}

/* Of 32 outputs of a row, behind scale, bias, what an adapter adds, and gate: see store_sums. */
INLINE void store_unit(const Product *p, int64_t row, int64_t unit, float y[UNIT]) {
    const int64_t outputs = p->gated ? HALF_UNIT : UNIT, at = unit * outputs, left = p->num_out - at;
    if (p->scale)
        for (int i = 0; i < UNIT; i++) y[i] = y[i] * p->scale[unit * UNIT + i] + p->bias[unit * UNIT + i];
    else
        for (int i = 0; i < UNIT; i++) y[i] += p->bias[unit * UNIT + i];
    if (p->adapters && p->adapters >> p->adapter_of[row] & 1) {
        const uint16_t *more = p->more + (row * ((p->num_out - 1) / outputs + 1) + unit) * UNIT;
        for (int i = 0; i < UNIT; i++) y[i] += widened(more[i]);
    }
    if (p->gated)
        for (int i = 0; i < HALF_UNIT; i++) y[i] = y[i] / (1.0f + exp_of_one(-y[i])) * y[HALF_UNIT + i];
    if (left < outputs)
        store_numbers(p, row * p->num_out + at, y, left);
    else if (p->gated)
        store_numbers(p, row * p->num_out + at, y, HALF_UNIT);
    else
        store_numbers(p, row * p->num_out + at, y, UNIT);
}

/* The first or the second of pairs of bfloat16. */
INLINE Eight one_of(__m256i pairs, int second) {
    return (Eight)(second ? _mm256_and_si256(pairs, _mm256_set1_epi32((int32_t)0xffff0000)) : _mm256_slli_epi32(pairs, 16));
}

#define MOST_ROWS_AVX2 4

/* There are 16 registers: a few rows meet a whole unit at once, more rows half of it, then the other half. */
INLINE void rows_tile_avx2(const Product *p, int64_t row, const int rows, int64_t unit, const int bytes_per_weight) {
    const int at_once = rows > 2 ? 2 : 4; /* vectors */
    const int64_t ahead = bytes_per_weight == 1 ? BYTES_AHEAD : EXACT_AHEAD, unit_bytes = p->num_in * UNIT * bytes_per_weight;
    const int64_t skipped = to_next_unit(p, 1, unit_bytes);
    const uint16_t *x = (const uint16_t *)p->x + row * p->num_in;
    float y[MOST_ROWS_AVX2][UNIT];
    for (int begin = 0; begin < UNIT; begin += 8 * at_once) {
        /* Of two inputs, [32 outputs, 2] in bfloat16, [2, 32 outputs] in int8. */
        const char *weight = (const char *)p->weight + unit * unit_bytes + begin * (bytes_per_weight == 1 ? 1 : 4);
        const char *behind = weight + unit_bytes - ahead;
        Eight sums[MOST_ROWS_AVX2][4];
        UNROLLED
        for (int r = 0; r < rows; r++)
            UNROLLED
            for (int c = 0; c < at_once; c++) sums[r][c] = (Eight){};
        for (int64_t k = 0; k < p->num_in; k += 2, weight += 2 * UNIT * bytes_per_weight) {
            prefetch(weight + ahead + (weight < behind ? 0 : skipped), 16 * at_once * bytes_per_weight);
            UNROLLED
            for (int half = 0; half < 2; half++) {
                Eight w[4];
                UNROLLED
                for (int c = 0; c < at_once; c++)
                    if (bytes_per_weight == 1)
                        w[c] = eight_bits_avx2((const int8_t *)weight + half * UNIT + 8 * c);
                    else
                        w[c] = one_of(_mm256_loadu_si256((const __m256i *)(weight + 32 * c)), half);
                UNROLLED
                for (int r = 0; r < rows; r++) {
                    int32_t pair;
                    memcpy(&pair, x + r * p->num_in + k, sizeof pair);
                    const Eight factor = one_of(_mm256_set1_epi32(pair), half);
                    UNROLLED
                    for (int c = 0; c < at_once; c++) sums[r][c] += factor * w[c];
                }
                __asm__ volatile("" ::: "memory"); /* else registers keep what both halves need, and memory the sums */
            }
        }
        UNROLLED
        for (int r = 0; r < rows; r++)
            UNROLLED
            for (int c = 0; c < at_once; c++) memcpy(y[r] + begin + 8 * c, &sums[r][c], sizeof(Eight));
    }
    for (int r = 0; r < rows; r++) store_unit(p, row + r, unit, y[r]);
}

#define TILE(rows, bytes) case rows: rows_tile_avx2(p, row, rows, unit, bytes); break;

static void exact_tiles_avx2(const Product *p, int64_t row, int rows, int64_t unit, int units) {
    switch (rows) { TILE(1, 2) TILE(2, 2) TILE(3, 2) TILE(4, 2) }
}

static void bytes_tiles_avx2(const Product *p, int64_t row, int rows, int64_t unit, int units) {
    switch (rows) { TILE(1, 1) TILE(2, 1) TILE(3, 1) TILE(4, 1) }
}
#undef TILE

static void norm_part_avx2(const Norm *n, int64_t part) {
    const int64_t begin = part / n->num_parts * n->stride + part % n->num_parts * n->width, whole = n->width / UNIT * UNIT;
    const uint16_t *x = n->x + begin;
    float squares[UNIT] = {0};
    for (int64_t i = 0; i < whole; i += UNIT)
        for (int c = 0; c < UNIT; c++) squares[c] += widened(x[i + c]) * widened(x[i + c]);
    for (int64_t i = whole; i < n->width; i++) squares[i - whole] += widened(x[i]) * widened(x[i]);
    for (int half = HALF_UNIT; half; half /= 2)
        for (int c = 0; c < half; c++) squares[c] += squares[c + half];
    const float factor = 1.0f / __builtin_sqrtf(squares[0] / (float)n->width + n->eps);
    for (int64_t i = 0; i < n->width; i++) n->out[begin + i] = rounded(widened(x[i]) * factor * widened(n->weight[i]));
}
