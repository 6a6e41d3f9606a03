/* Products of rows with packed weights: bfloat16 ones for any rows, int8 ones with a scale per output for few rows, and these as numbers
 * of the rows' type for products of many rows. Sums are float32, rounded once, behind scale, bias and gate.
 *
 * Weights lie in units of 32 outputs, so that a unit is one stream (packing.py and int8.py pack, and pad with 0):
 *   bfloat16                       [units, inputs / 2, 32, 2]
 *   int8, float32 rows, or AVX2    [units, inputs, 32]
 *   int8, bfloat16 rows            [units, inputs / 4, 2 × 16 outputs, 4, 2, 4, 2]: output 4a + c, input 2b + d of the four at [a, b, c, d],
 *                                  so that what comes out of unpacking bytes is two neighbouring inputs of 16 outputs.
 * Gated: a unit has 16 outputs of the gate and behind them the same 16 of what goes through it; the product is silu(gate) · other.
 * The order of an output's sum is that of its inputs, however many rows there are: a row's bits never depend on the rows beside it.
 */
#include <stdint.h>
#include <string.h>

#include "../threads.h"
#include "linear_kernels.h"

#define UNIT 32
#define MAX_TILE 12
#define BLOCK_ROWS 192         /* Rows that a unit meets while it is in a core's cache, and they are. */
#define MATRIX_BLOCK (1 << 19) /* Inputs of such rows for matrix units, which are faster: a unit has to meet more rows. */

/* Weights are prefetched so many bytes before they are read: products of several rows leave the processor no room to look that far. Behind
 * a unit's last ones come those of the unit that the thread takes next, if threads take them in turn. */
#define EXACT_AHEAD 6144
#define BYTES_AHEAD 4096

enum { SINGLES_INT8, PAIRS_INT8, PAIRS_BFLOAT16, NUM_KINDS };
enum { NUM_LEVELS = 4 };

/* Mirrored by a ctypes.Structure in linear_kernels.py. Scale and bias are padded to whole units. */
typedef struct {
    const void *x; /* [rows, inputs] */
    const void *weight;
    const float *scale, *bias; /* bfloat16 weights have no scale */
    void *out; /* [rows, outputs] in the type of x */
    int64_t num_rows, num_in, num_out;
    int32_t num_threads, gated; /* rows of bfloat16 alone may be gated; then half of a unit's outputs are outputs */
    const uint16_t *added_to;   /* [rows, outputs], or none: of such rows, what the product is added to; may be out */
    const uint16_t *more;       /* [rows, outputs of whole units]: added to the sums of rows of bfloat16 that have one of ``adapters``, in */
    const uint8_t *adapter_of;  /* the order of the weights */
    uint64_t adapters;
} Product;

/* Units [first, first + units) of int8 weights as [inputs, 32 · units], scaled and rounded once. */
typedef struct {
    const int8_t *weight;
    const float *scale;
    void *out;
    int64_t num_in, first, units;
    int32_t num_threads;
} Weights;

/* Each of the first ``num_parts`` of a row by its root mean square, times weight: bfloat16, rounded once. */
typedef struct {
    const uint16_t *x, *weight;
    uint16_t *out;
    int64_t num_rows, stride, width; /* of a row, and of a part */
    float eps;
    int32_t num_parts, num_threads, level;
} Norm;

typedef struct {
    void (*tile)(const Product *, int64_t row, int rows, int64_t unit, int units);
    void (*expand)(const Weights *, int64_t unit);
    int most_rows, most_rows_of_two; /* of a tile; of one over two units side by side, if sums of both stay in registers */
    void (*begin)(int rows); /* of tiles of so many rows; or none */
    void (*end)(void);
} Kernels;

static inline int64_t over(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

#if defined(__x86_64__)
#include <immintrin.h>
#define INLINE static inline __attribute__((always_inline))
#define UNROLLED _Pragma("GCC unroll 12")

INLINE void prefetch(const char *weights, int bytes) {
    UNROLLED
    for (int i = 0; i < bytes; i += 64) __builtin_prefetch(weights + i, 0, 3);
}

/* From the end of a unit, one of so many side by side, to the one in its place that the thread takes next. */
INLINE int64_t to_next_unit(const Product *p, int units, int64_t unit_bytes) { return (p->num_threads * units - 1) * unit_bytes; }

/* Calls a tile's code with numbers of rows and units that the compiler knows, as many as the table of kernels says. */
#define ONE(call, rows) case rows: call(p, row, rows, unit, 1); break;
#define TWO(call, rows) case rows: if (units == 2) call(p, row, rows, unit, 2); else call(p, row, rows, unit, 1); break;
#define TILES_OF_3(call) switch (rows) { TWO(call, 1) ONE(call, 2) ONE(call, 3) }
#define TILES_OF_8(call) \
    switch (rows) { TWO(call, 1) TWO(call, 2) TWO(call, 3) TWO(call, 4) ONE(call, 5) ONE(call, 6) ONE(call, 7) ONE(call, 8) }
#define TILES_OF_12(call) \
    switch (rows) { \
        ONE(call, 1) ONE(call, 2) ONE(call, 3) ONE(call, 4) ONE(call, 5) ONE(call, 6) \
        ONE(call, 7) ONE(call, 8) ONE(call, 9) ONE(call, 10) ONE(call, 11) ONE(call, 12) \
    }

#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define NAME(name) name##_avx2
#define LANES 8
#define TILES TILES_OF_3
#include "linear_singles.h"
#undef NAME
#undef LANES
#undef TILES
#include "linear_rows_avx2.h"
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512bf16")
#define NAME(name) name##_avx512
#define LANES 16
#define TILES TILES_OF_8
#include "linear_singles.h"

/* The first ``left`` of 16. */
INLINE void store_rounded(uint16_t *to, __m512 y, int64_t left) {
    const __mmask16 mask = left < 16 ? (__mmask16)((1 << left) - 1) : (__mmask16)0xffff;
    _mm256_mask_storeu_epi16(to, mask, (__m256i)_mm512_cvtneps_pbh(y));
}

#include "linear_exact.h"

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
    const int64_t unit_bytes = p->num_in * UNIT, behind = unit_bytes - BYTES_AHEAD, skipped = to_next_unit(p, units, unit_bytes);
    const int8_t *weight = (const int8_t *)p->weight + unit * unit_bytes;
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
            const int64_t ahead = BYTES_AHEAD + (k * UNIT < behind ? 0 : skipped);
            prefetch((const char *)weight + u * unit_bytes + k * UNIT + ahead, 4 * UNIT);
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
    for (int u = 0; u < units; u++)
        UNROLLED
        for (int r = 0; r < rows; r++) store_sums(p, row + r, unit + u, sums[r][2 * u], sums[r][2 * u + 1]);
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

#if defined(__linux__) && __GNUC__ > 10 /* Others know no tiles, or ask for them otherwise. */
#pragma GCC push_options
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512bf16,amx-tile,amx-bf16")
#include "linear_amx.h"
#pragma GCC pop_options
#else
#define MATRIX_TILES {0}
#define MATRIX_BYTES_TILES {0}
static int may_use_matrix_units(void) { return 0; }
#endif

static const Kernels KERNELS[NUM_LEVELS][NUM_KINDS] = {
    {{0}},
    {{tiles_avx2, expand_avx2, 3, 1}, {bytes_tiles_avx2, 0, BLOCK_ROWS, 0}, {exact_tiles_avx2, 0, BLOCK_ROWS, 0}},
    {{tiles_avx512, expand_avx512, 8, 4}, {pair_tiles, expand_pairs, 8, 4}, {exact_tiles, 0, 12, 0}},
    {{tiles_avx512, expand_avx512, 8, 4}, MATRIX_BYTES_TILES, MATRIX_TILES},
};

/* 3: AMX for rows of bfloat16 as well, 2: AVX-512 with bfloat16 and byte permutations, 1: AVX2, 0: neither. */
int kvquilt_linear_level(void) {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512bw")
        && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        return may_use_matrix_units() ? 3 : 2;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? 1 : 0;
}
#else
static const Kernels KERNELS[NUM_LEVELS][NUM_KINDS];
static void norm_part(const Norm *n, int64_t part) {}
static void norm_part_avx2(const Norm *n, int64_t part) {}
int kvquilt_linear_level(void) { return 0; }
#endif

/* A product, and how it is shared: blocks of rows, which meet a unit, or two side by side, while it is in a core's cache. */
typedef struct {
    const Product *product;
    const Kernels *kernels;
    int64_t num_units, at_once, num_steps, block, tile;
} Shares;

static void multiply_some(void *context, int64_t first, int64_t end, int thread) {
    const Shares *s = context;
    const Product *p = s->product;
    int64_t shaped = 0;
    for (int64_t i = first; i < end; i++) {
        const int64_t unit = i % s->num_steps * s->at_once, begin = i / s->num_steps * s->block;
        const int64_t behind = smaller(begin + s->block, p->num_rows), units = smaller(s->at_once, s->num_units - unit);
        for (int64_t row = begin; row < behind; row += s->tile) {
            const int64_t rows = smaller(s->tile, behind - row);
            if (s->kernels->begin && rows != shaped) s->kernels->begin((int)(shaped = rows));
            s->kernels->tile(p, row, (int)rows, unit, (int)units);
        }
    }
    if (shaped) s->kernels->end();
}

/* Of at least one row. */
void kvquilt_linear_product(int level, int kind, const Product *p) {
    const Kernels *kernels = &KERNELS[level][kind];
    const int64_t block_rows = kernels->begin ? MATRIX_BLOCK / p->num_in + kernels->most_rows : BLOCK_ROWS;
    const int64_t num_units = over(p->num_out, p->gated ? UNIT / 2 : UNIT), num_blocks = over(p->num_rows, block_rows);
    const int64_t block = over(p->num_rows, num_blocks), tile = over(block, over(block, kernels->most_rows));
    const int64_t at_once = tile <= kernels->most_rows_of_two ? 2 : 1, num_steps = over(num_units, at_once);
    Shares shares = {p, kernels, num_units, at_once, num_steps, block, tile};
    kvquilt_share(p->num_threads, num_blocks * num_steps, 1, multiply_some, &shares);
}

typedef struct {
    const Weights *weights;
    void (*expand)(const Weights *, int64_t unit);
} Expansion;

static void expand_some(void *context, int64_t first, int64_t end, int thread) {
    const Expansion *e = context;
    for (int64_t unit = first; unit < end; unit++) e->expand(e->weights, unit);
}

void kvquilt_linear_weights(int level, int kind, const Weights *w) {
    Expansion expansion = {w, KERNELS[level][kind].expand};
    kvquilt_share(w->num_threads, w->units, 1, expand_some, &expansion);
}

#define ROWS_AT_ONCE 16 /* Fewer are done before others have begun. */

static void norm_some(void *context, int64_t first, int64_t end, int thread) {
    void (*const norm)(const Norm *, int64_t) = ((const Norm *)context)->level > 1 ? norm_part : norm_part_avx2;
    for (int64_t part = first; part < end; part++) norm(context, part);
}

void kvquilt_linear_norm(const Norm *n) {
    kvquilt_share(n->num_threads, n->num_rows * n->num_parts, ROWS_AT_ONCE, norm_some, (void *)n);
}

static void run_stage(int level, const Stage *s, void *const *rows, const uint8_t *adapter_of, int64_t first, int64_t end, int num_threads) {
    if (s->bias) {
        const uint16_t *x = (const uint16_t *)rows[s->x] + first * s->num_in;
        uint16_t *out = (uint16_t *)rows[s->out] + first * s->num_out;
        const int64_t width = over(s->num_out, s->gated ? UNIT / 2 : UNIT) * UNIT;
        const uint16_t *added_to = s->added_to < 0 ? 0 : (const uint16_t *)rows[s->added_to] + first * s->num_out;
        const uint16_t *more = s->adapters ? (const uint16_t *)rows[s->more] + first * width : 0;
        const Product product = {x, s->weight, s->scale, s->bias, out, end - first, s->num_in, s->num_out,
                                 num_threads, s->gated, added_to, more, adapter_of + first, s->adapters};
        kvquilt_linear_product(level, s->scale ? PAIRS_INT8 : PAIRS_BFLOAT16, &product);
    } else {
        const int64_t begin = first * s->num_out + s->first_part * s->num_in;
        const Norm norm = {(const uint16_t *)rows[s->x] + begin, s->weight, (uint16_t *)rows[s->out] + begin, end - first,
                           s->num_out, s->num_in, s->eps, s->num_parts, num_threads, level};
        kvquilt_linear_norm(&norm);
    }
}

void kvquilt_linear_stages(int level, const Stage *stages, int num_stages, void *const *rows, int64_t num_rows, int num_threads,
                           const uint8_t *adapter_of) {
    for (const Stage *s = stages; s < stages + num_stages; s++)
        for (int64_t first = 0, end = num_rows; first < num_rows; first = end) {
            if (s->adapter) {
                while (first < num_rows && adapter_of[first] != s->adapter) first++;
                for (end = first; end < num_rows && adapter_of[end] == s->adapter;) end++;
            }
            if (first < end) run_stage(level, s, rows, adapter_of, first, end, num_threads);
        }
}

/* Of this library's structures, and how many levels it knows: a caller that was compiled from other sources has others. */
int64_t kvquilt_linear_sizes(void) {
    const int64_t of_calls = 1000000 * sizeof(Product) + 10000 * sizeof(Weights) + 100 * sizeof(Norm) + sizeof(Stage);
    return 10000000000 * sizeof(Layer) + 100000000 * NUM_LEVELS + of_calls;
}
