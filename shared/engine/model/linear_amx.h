/* Rows of bfloat16 by the matrix units of a processor (AMX): linear_kernels.c includes this once, behind linear_exact.h, whose sums of 16
 * outputs these are. Every 32 inputs are one step of the units; what is left of them is multiplied pair by pair. */

#include "../matrix_units.h"

#define MATRIX_INPUTS 32 /* of a tile's rows */

/* Sums are tiles 0 and 1 for up to 16 rows, 2 and 3 for 16 more; rows are 4 and 5, weights 6 and 7. */
static void begin_tiles(int rows) {
    const int above = rows < TILE_ROWS ? rows : TILE_ROWS, below = rows > above ? rows - above : 1;
    shape_tiles((const int[]){above, above, below, below, above, below, MATRIX_INPUTS / 2, MATRIX_INPUTS / 2});
}

static void matrix_tile(const Product *p, int64_t row, int rows, int64_t unit, int units) {
    const int64_t steps = p->num_in / MATRIX_INPUTS, stride = p->num_in * 2, below = row + TILE_ROWS;
    const uint16_t *weight = (const uint16_t *)p->weight + unit * p->num_in * UNIT, *x = p->x;
    _Alignas(64) float sums[2 * TILE_ROWS][UNIT];
    _tile_zero(0);
    _tile_zero(1);
    if (rows > TILE_ROWS) {
        _tile_zero(2);
        _tile_zero(3);
        for (int64_t step = 0; step < steps; step++) {
            const uint16_t *w = weight + step * MATRIX_INPUTS * UNIT;
            _tile_loadd(6, w, 4 * UNIT);
            _tile_loadd(4, x + row * p->num_in + step * MATRIX_INPUTS, stride);
            _tile_loadd(7, w + UNIT, 4 * UNIT);
            _tile_loadd(5, x + below * p->num_in + step * MATRIX_INPUTS, stride);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        _tile_stored(2, sums[TILE_ROWS], sizeof sums[0]);
        _tile_stored(3, sums[TILE_ROWS] + 16, sizeof sums[0]);
    } else
        for (int64_t step = 0; step < steps; step++) {
            const uint16_t *w = weight + step * MATRIX_INPUTS * UNIT;
            prefetch((const char *)w + EXACT_AHEAD, 2 * MATRIX_INPUTS * UNIT);
            _tile_loadd(4, x + row * p->num_in + step * MATRIX_INPUTS, stride);
            _tile_loadd(6, w, 4 * UNIT);
            _tile_loadd(7, w + UNIT, 4 * UNIT);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
        }
    _tile_stored(0, sums[0], sizeof sums[0]);
    _tile_stored(1, sums[0] + 16, sizeof sums[0]);
    for (int r = 0; r < rows; r++) {
        __m512 first = _mm512_load_ps(sums[r]), second = _mm512_load_ps(sums[r] + 16);
        for (int64_t k = steps * MATRIX_INPUTS; k < p->num_in; k += 2) {
            int32_t pair;
            memcpy(&pair, x + (row + r) * p->num_in + k, 4);
            const __m512bh both = (__m512bh)_mm512_set1_epi32(pair);
            first = _mm512_dpbf16_ps(first, (__m512bh)_mm512_loadu_si512(weight + k * UNIT), both);
            second = _mm512_dpbf16_ps(second, (__m512bh)_mm512_loadu_si512(weight + k * UNIT + UNIT), both);
        }
        store_sums(p, row + r, unit, first, second);
    }
}

#define STEP_BYTES (MATRIX_INPUTS * UNIT) /* of int8 weights */
#define AHEAD (3 * STEP_BYTES)

INLINE void unpack_step(const int8_t *from, Bytes t, __m512i to[2][MATRIX_INPUTS / 2]) {
    for (int i = 0; i < STEP_BYTES; i += 64) {
        _mm_prefetch((const char *)from + AHEAD + i, _MM_HINT_T0);
        to_pairs(from + i, t, to[i / 64 % 2] + i / 128 * 2); /* 16 outputs after the other 16, two pairs of inputs of each */
    }
}

/* As pair_tile: int8 weights become tiles of bfloat16 one step before the units read them, in one of two places in turn. The processor does
 * not look past the units for what it could load, so each step asks memory for a later one's weights. */
static void matrix_bytes_tile(const Product *p, int64_t row, int rows, int64_t unit, int units) {
    const int64_t steps = p->num_in / MATRIX_INPUTS, stride = p->num_in * 2, below = row + TILE_ROWS;
    const Bytes t = tables();
    const int8_t *weight = (const int8_t *)p->weight + unit * p->num_in * UNIT;
    const uint16_t *x = p->x;
    _Alignas(64) float sums[2 * TILE_ROWS][UNIT];
    _Alignas(64) __m512i unpacked[2][2][MATRIX_INPUTS / 2];
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    if (steps) unpack_step(weight, t, unpacked[0]);
    for (int64_t step = 0; step < steps; step++) {
        __m512i(*w)[MATRIX_INPUTS / 2] = unpacked[step % 2];
        if (step + 1 < steps) unpack_step(weight + (step + 1) * STEP_BYTES, t, unpacked[(step + 1) % 2]);
        __asm__ volatile("" : : : "memory"); /* GCC does not know that tiles are loaded from what was stored, */
        _tile_loadd(4, x + row * p->num_in + step * MATRIX_INPUTS, stride);
        _tile_loadd(6, w[0], 64);
        _tile_loadd(7, w[1], 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (rows > TILE_ROWS) {
            _tile_loadd(5, x + below * p->num_in + step * MATRIX_INPUTS, stride);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        __asm__ volatile("" : : : "memory"); /* and must not store what comes later before they are. */
    }
    _tile_stored(0, sums[0], sizeof sums[0]);
    _tile_stored(1, sums[0] + 16, sizeof sums[0]);
    if (rows > TILE_ROWS) {
        _tile_stored(2, sums[TILE_ROWS], sizeof sums[0]);
        _tile_stored(3, sums[TILE_ROWS] + 16, sizeof sums[0]);
    }
    for (int r = 0; r < rows; r++) {
        __m512 sum[2] = {_mm512_load_ps(sums[r]), _mm512_load_ps(sums[r] + 16)};
        for (int64_t k = steps * MATRIX_INPUTS; k < p->num_in; k += 4)
            for (int c = 0; c < 2; c++) {
                __m512i pairs[2];
                to_pairs(weight + k * UNIT + 64 * c, t, pairs);
                for (int half = 0; half < 2; half++) {
                    int32_t pair;
                    memcpy(&pair, x + (row + r) * p->num_in + k + 2 * half, 4);
                    sum[c] = _mm512_dpbf16_ps(sum[c], (__m512bh)pairs[half], (__m512bh)_mm512_set1_epi32(pair));
                }
            }
        store_sums(p, row + r, unit, sum[0], sum[1]);
    }
}

/* Nobody saves and restores the registers of who does not use them. */
static void release_tiles(void) { _tile_release(); }

#define MATRIX_TILES {matrix_tile, 0, 2 * TILE_ROWS, 0, begin_tiles, release_tiles}
#define MATRIX_BYTES_TILES {matrix_bytes_tile, expand_pairs, 2 * TILE_ROWS, 0, begin_tiles, release_tiles}
