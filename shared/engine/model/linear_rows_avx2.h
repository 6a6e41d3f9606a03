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

static const int32_t SECOND[8] = {~0xffff, ~0xffff, ~0xffff, ~0xffff, ~0xffff, ~0xffff, ~0xffff, ~0xffff};

/* The first or the second of eight pairs of bfloat16. */
INLINE Eight one_of(const char *from, int second) {
    __m256i pairs = _mm256_loadu_si256((const __m256i *)from);
    if (!second) return (Eight)_mm256_slli_epi32(pairs, 16);
    __asm__("vpand %1, %0, %0" : "+x"(pairs) : "m"(SECOND)); /* in memory: sums need all registers */
    return (Eight)pairs;
}

#define MOST_ROWS_AVX2 6
#define BLOCK_INPUTS 128 /* Their weights, and the next ones, stay in a core's first cache while all rows meet them. */
#define INPUTS_AT_ONCE 16 /* between prefetches */

/* What comes next, in lines of a cache: some are prefetched from time to time, since a core waits for a few at once only. */
typedef struct {
    const char *next;
    int64_t left, at_once;
} Ahead;

INLINE void look_ahead(Ahead *ahead) {
    const int64_t lines = ahead->at_once < ahead->left ? ahead->at_once : ahead->left;
    ahead->left -= lines;
    for (const char *end = ahead->next + 64 * lines; ahead->next < end; ahead->next += 64) __builtin_prefetch(ahead->next, 0, 3);
}

/* Adds products of some inputs of rows to ``y``. There are 16 registers: a few rows meet a whole unit at once, more rows half of it, then
 * the other half. */
INLINE void pass_avx2(const char *weights, Ahead *ahead, int64_t inputs, const float x[][BLOCK_INPUTS], float y[][UNIT], const int rows,
                      const int bytes_per_weight) {
    const int at_once = rows > 2 ? 2 : 4; /* vectors */
    for (int begin = 0; begin < UNIT; begin += 8 * at_once) {
        /* Of two inputs, [32 outputs, 2] in bfloat16, [2, 32 outputs] in int8. */
        const char *weight = weights + begin * (bytes_per_weight == 1 ? 1 : 4);
        Eight sums[MOST_ROWS_AVX2][4];
        UNROLLED
        for (int r = 0; r < rows; r++)
            UNROLLED
            for (int c = 0; c < at_once; c++) memcpy(&sums[r][c], y[r] + begin + 8 * c, sizeof(Eight));
        for (int64_t k = 0; k < inputs;) {
            look_ahead(ahead);
            for (const int64_t end = smaller(k + INPUTS_AT_ONCE, inputs); k < end; k += 2, weight += 2 * UNIT * bytes_per_weight) {
                UNROLLED
                for (int half = 0; half < 2; half++) {
                    Eight w[4];
                    UNROLLED
                    for (int c = 0; c < at_once; c++)
                        if (bytes_per_weight == 1)
                            w[c] = eight_bits_avx2((const int8_t *)weight + half * UNIT + 8 * c);
                        else
                            w[c] = one_of(weight + 32 * c, half);
                    UNROLLED
                    for (int r = 0; r < rows; r++) {
                        const Eight factor = x[r][k + half] - (Eight){};
                        UNROLLED /* in place: the compiler would move sums between registers and memory */
                        for (int c = 0; c < at_once; c++)
                            __asm__("vfmadd231ps %2, %1, %0" : "+x"(sums[r][c]) : "x"(factor), "x"(w[c]));
                    }
                    __asm__ volatile("" ::: "memory"); /* else registers keep what both halves need, and memory the sums */
                }
            }
        }
        UNROLLED
        for (int r = 0; r < rows; r++)
            UNROLLED
            for (int c = 0; c < at_once; c++) memcpy(y[r] + begin + 8 * c, &sums[r][c], sizeof(Eight));
    }
}

/* All rows meet some inputs' weights, then the next ones. */
INLINE void rows_tile_avx2(const Product *p, int64_t row, int rows, int64_t unit, const int bytes_per_weight) {
    const int64_t input_bytes = UNIT * bytes_per_weight, unit_bytes = p->num_in * input_bytes;
    const char *weights = (const char *)p->weight + unit * unit_bytes, *next_unit = weights + unit_bytes + to_next_unit(p, 1, unit_bytes);
    const int64_t num_groups = over(rows, MOST_ROWS_AVX2), in_group = over(rows, num_groups);
    float x[MOST_ROWS_AVX2][BLOCK_INPUTS], y[BLOCK_ROWS][UNIT];
    memset(y, 0, sizeof *y * rows);
    for (int64_t first = 0; first < p->num_in; first += BLOCK_INPUTS, weights += BLOCK_INPUTS * input_bytes) {
        const int64_t left = p->num_in - first, inputs = smaller(left, BLOCK_INPUTS), lines = inputs * input_bytes / 64;
        const int64_t times = num_groups * (in_group > 2 ? 2 : 1) * over(inputs, INPUTS_AT_ONCE);
        Ahead ahead = {left > inputs ? weights + inputs * input_bytes : next_unit, lines, over(lines, times)};
        for (int64_t begin = 0; begin < rows; begin += in_group) {
            const int64_t count = smaller(in_group, rows - begin);
            for (int64_t r = 0; r < count; r++)
                for (int64_t k = 0; k < inputs; k++) x[r][k] = widened(((const uint16_t *)p->x)[(row + begin + r) * p->num_in + first + k]);
#define PASS(rows) case rows: pass_avx2(weights, &ahead, inputs, x, y + begin, rows, bytes_per_weight); break;
            switch (count) { PASS(1) PASS(2) PASS(3) PASS(4) PASS(5) PASS(6) }
#undef PASS
        }
    }
    for (int r = 0; r < rows; r++) store_unit(p, row + r, unit, y[r]);
}

static void exact_tiles_avx2(const Product *p, int64_t row, int rows, int64_t unit, int units) { rows_tile_avx2(p, row, rows, unit, 2); }

static void bytes_tiles_avx2(const Product *p, int64_t row, int rows, int64_t unit, int units) { rows_tile_avx2(p, row, rows, unit, 1); }

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
