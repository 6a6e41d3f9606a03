/* Products of a few rows with int8 weights, one scale per output, and those weights as numbers of the rows' type, for products of many
 * rows. Weights are read once, a byte each, and become floats in registers; sums are float32; the scale comes behind the sum.
 *
 * Weights lie in units of 32 outputs, so that a unit is one stream. Inputs come in fours (int8.py packs, and pads with 0):
 *   float32 rows   [units, inputs, 32]
 *   bfloat16 rows  [units, inputs / 4, 2 × 16 outputs, 4, 2, 4, 2]: output 4a + c, input 2b + d of the four at [a, b, c, d], so that what
 *                  comes out of unpacking bytes is two neighbouring inputs of 16 outputs.
 * The order of an output's sum is that of its inputs, however many rows there are: a row's bits never depend on the rows beside it.
 */
#include <stdint.h>
#include <string.h>

#define UNIT 32
#define MAX_TILE 8

/* Mirrored by a ctypes.Structure in int8.py. Scale and bias are padded to whole units. */
typedef struct {
    const void *x; /* [rows, inputs] */
    const int8_t *weight;
    const float *scale, *bias;
    void *out; /* [rows, outputs] in the type of x */
    int64_t num_rows, num_in, num_out;
    int32_t num_threads;
} Product;

/* Units [first, first + units) as [inputs, 32 · units], scaled and rounded once. */
typedef struct {
    const int8_t *weight;
    const float *scale;
    void *out;
    int64_t num_in, first, units;
    int32_t num_threads;
} Weights;

typedef struct {
    void (*tile)(const Product *, int64_t row, int rows, int64_t unit, int units);
    void (*expand)(const Weights *, int64_t unit);
    int most_rows, most_rows_of_two; /* of a tile, whose sums stay in registers; of one over two units side by side */
} Kernels;

#if defined(__x86_64__)
#include <immintrin.h>
#define INLINE static inline __attribute__((always_inline))
#define UNROLLED _Pragma("GCC unroll 8")

/* Calls a tile's code with numbers of rows and units that the compiler knows, as many as the table of kernels says. */
#define ONE(call, rows) case rows: call(p, row, rows, unit, 1); break;
#define TWO(call, rows) case rows: if (units == 2) call(p, row, rows, unit, 2); else call(p, row, rows, unit, 1); break;
#define TILES_OF_3(call) switch (rows) { TWO(call, 1) ONE(call, 2) ONE(call, 3) }
#define TILES_OF_8(call) \
    switch (rows) { TWO(call, 1) TWO(call, 2) TWO(call, 3) TWO(call, 4) ONE(call, 5) ONE(call, 6) ONE(call, 7) ONE(call, 8) }

#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define NAME(name) name##_avx2
#define LANES 8
#define TILES TILES_OF_3
#include "int8_singles.h"
#undef NAME
#undef LANES
#undef TILES
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512bf16")
#define NAME(name) name##_avx512
#define LANES 16
#define TILES TILES_OF_8
#include "int8_singles.h"

/* The bytes of a bfloat16 by the magnitude that it has. */
typedef struct {
    __m512i low[2], high[2];
} Bytes;

#define POWER(i) ((i) < 2 ? 0 : (i) < 4 ? 1 : (i) < 8 ? 2 : (i) < 16 ? 3 : (i) < 32 ? 4 : (i) < 64 ? 5 : 6)
#define BITS(i) ((i) ? (127 + POWER(i)) << 7 | ((i) << (7 - POWER(i)) & 127) : 0)
#define LOW(i) (BITS(i) & 255)
#define HIGH(i) (BITS(i) >> 8)
#define FOUR(of, i) of(i), of((i) + 1), of((i) + 2), of((i) + 3)
#define SIXTEEN(of, i) FOUR(of, i), FOUR(of, (i) + 4), FOUR(of, (i) + 8), FOUR(of, (i) + 12)
#define HALF(of, i) SIXTEEN(of, i), SIXTEEN(of, (i) + 16), SIXTEEN(of, (i) + 32), SIXTEEN(of, (i) + 48)
static const uint8_t LOW_BYTES[128] = {HALF(LOW, 0), HALF(LOW, 64)}, HIGH_BYTES[128] = {HALF(HIGH, 0), HALF(HIGH, 64)};
#undef FOUR

INLINE Bytes tables(void) {
    return (Bytes){{_mm512_loadu_si512(LOW_BYTES), _mm512_loadu_si512(LOW_BYTES + 64)},
                   {_mm512_loadu_si512(HIGH_BYTES), _mm512_loadu_si512(HIGH_BYTES + 64)}};
}

/* 64 weights: pairs of the first two inputs of 16 outputs, and of the other two. */
INLINE void to_pairs(const int8_t *from, Bytes t, __m512i pairs[2]) {
    const __m512i w = _mm512_loadu_si512(from), magnitude = _mm512_abs_epi8(w);
    const __m512i low = _mm512_permutex2var_epi8(t.low[0], magnitude, t.low[1]);
    const __m512i unsigned_high = _mm512_permutex2var_epi8(t.high[0], magnitude, t.high[1]);
    const __m512i high = _mm512_ternarylogic_epi32(unsigned_high, w, _mm512_set1_epi8((char)0x80), 0xf8); /* a | (b & c) */
    pairs[0] = _mm512_unpacklo_epi8(low, high);
    pairs[1] = _mm512_unpackhi_epi8(low, high);
}

INLINE void pair_tile(const Product *p, int64_t row, const int rows, int64_t unit, const int units) {
    const Bytes t = tables();
    const int64_t unit_bytes = p->num_in * UNIT;
    const int8_t *weight = p->weight + unit * unit_bytes;
    const uint16_t *x = (const uint16_t *)p->x + row * p->num_in;
    __m512 sums[MAX_TILE][4];
    UNROLLED
    for (int r = 0; r < rows; r++)
        UNROLLED
        for (int c = 0; c < 2 * units; c++) sums[r][c] = _mm512_setzero_ps();
    for (int64_t k = 0; k < p->num_in; k += 4)
        UNROLLED
        for (int u = 0; u < units; u++) {
            __m512i pairs[2][2];
            UNROLLED
            for (int c = 0; c < 2; c++) to_pairs(weight + u * unit_bytes + k * UNIT + 64 * c, t, pairs[c]);
            UNROLLED
            for (int r = 0; r < rows; r++)
                UNROLLED
                for (int half = 0; half < 2; half++) {
                    int32_t pair;
                    memcpy(&pair, x + r * p->num_in + k + 2 * half, 4);
                    const __m512bh both = (__m512bh)_mm512_set1_epi32(pair);
                    UNROLLED
                    for (int c = 0; c < 2; c++)
                        sums[r][2 * u + c] = _mm512_dpbf16_ps(sums[r][2 * u + c], (__m512bh)pairs[c][half], both);
                }
        }
    UNROLLED
    for (int c = 0; c < 2 * units; c++) {
        const int64_t first = unit * UNIT + 16 * c, left = p->num_out - first;
        if (left <= 0) break;
        const __mmask16 mask = left < 16 ? (__mmask16)((1 << left) - 1) : (__mmask16)0xffff;
        const __m512 scale = _mm512_loadu_ps(p->scale + first), bias = _mm512_loadu_ps(p->bias + first);
        UNROLLED
        for (int r = 0; r < rows; r++) {
            const __m256i rounded = (__m256i)_mm512_cvtneps_pbh(_mm512_fmadd_ps(sums[r][c], scale, bias));
            _mm256_mask_storeu_epi16((uint16_t *)p->out + (row + r) * p->num_out + first, mask, rounded);
        }
    }
}

static void pair_tiles(const Product *p, int64_t row, int rows, int64_t unit, int units){TILES_OF_8(pair_tile)}

/* By way of bytes in the order of inputs: 16 of each. */
static void expand_pairs(const Weights *w, int64_t unit) {
    uint8_t places[64];
    for (int k = 0; k < 4; k++)
        for (int n = 0; n < 16; n++) places[k * 16 + n] = (uint8_t)(n / 4 * 16 + k / 2 * 8 + n % 4 * 2 + k % 2);
    const __m512i order = _mm512_loadu_si512(places);
    const int64_t stride = w->units * UNIT;
    const float *scales = w->scale + (w->first + unit) * UNIT;
    const __m512 scale[2] = {_mm512_loadu_ps(scales), _mm512_loadu_ps(scales + 16)};
    const int8_t *from = w->weight + (w->first + unit) * w->num_in * UNIT;
    for (int64_t k = 0; k < w->num_in; k += 4)
        for (int c = 0; c < 2; c++, from += 64) {
            const __m512i by_input = _mm512_permutexvar_epi8(order, _mm512_loadu_si512(from));
            uint16_t *to = (uint16_t *)w->out + k * stride + unit * UNIT + 16 * c;
#define FOUR(i)                                                                                                                         \
    _mm256_storeu_si256((__m256i *)(to + i * stride),                                                                                   \
                        (__m256i)_mm512_cvtneps_pbh(_mm512_mul_ps(                                                                      \
                            _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm512_extracti32x4_epi32(by_input, i))), scale[c])));
            FOUR(0) FOUR(1) FOUR(2) FOUR(3)
#undef FOUR
        }
}
#pragma GCC pop_options

static const Kernels KERNELS[][2] = {
    {{0, 0, 0, 0}, {0, 0, 0, 0}},
    {{tiles_avx2, expand_avx2, 3, 1}, {0, 0, 0, 0}},
    {{tiles_avx512, expand_avx512, 8, 4}, {pair_tiles, expand_pairs, 8, 4}},
};

/* 2: AVX-512 with bfloat16 and byte permutations, 1: AVX2 (float32 rows alone), 0: neither. */
int kvquilt_int8_level(void) {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512bw")
        && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        return 2;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? 1 : 0;
}
#else
static const Kernels KERNELS[1][2];
int kvquilt_int8_level(void) { return 0; }
#endif

static inline int64_t over(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* Of at least one row. ``pairs``: rows are bfloat16, else float32. */
void kvquilt_int8_product(int level, int pairs, const Product *p) {
    const Kernels *kernels = &KERNELS[level][pairs];
    const int64_t num_units = over(p->num_out, UNIT), tile = over(p->num_rows, over(p->num_rows, kernels->most_rows));
    const int64_t at_once = tile <= kernels->most_rows_of_two ? 2 : 1;
#pragma omp parallel for schedule(static) num_threads(p->num_threads)
    for (int64_t unit = 0; unit < num_units; unit += at_once)
        for (int64_t row = 0; row < p->num_rows; row += tile)
            kernels->tile(p, row, (int)smaller(tile, p->num_rows - row), unit, (int)smaller(at_once, num_units - unit));
}

void kvquilt_int8_weights(int level, int pairs, const Weights *w) {
#pragma omp parallel for schedule(static) num_threads(w->num_threads)
    for (int64_t unit = 0; unit < w->units; unit++) KERNELS[level][pairs].expand(w, unit);
}

/* Of this library's structures: a caller that was compiled from other sources has others. */
int64_t kvquilt_int8_bytes(void) { return 1000 * sizeof(Product) + sizeof(Weights); }
