/* The kernels, for one kind of processor: native.c includes this once for each. NAME, LANES, COLUMNS, STACK, PAIRS and TILES say which;
 * those with TILES come behind those for AVX-512, which do what no tile does.
 *
 * Both products of attention are C[STACK rows, columns] += A[rows, depth] · B[depth, columns], with numbers of 32 bits: a float, or
 * (PAIRS, bfloat16) two neighbours along the depth. A row's sums never depend on the rows beside it.
 */

#define INLINE static inline __attribute__((always_inline))
#define USES_PAIRS(dtype) (PAIRS && (dtype) == BFLOAT16)

typedef float NAME(Floats) __attribute__((vector_size(4 * LANES)));
typedef int32_t NAME(Ints) __attribute__((vector_size(4 * LANES)));
typedef uint16_t NAME(Shorts) __attribute__((vector_size(2 * LANES)));
#define Floats NAME(Floats)
#define Ints NAME(Ints)

INLINE Floats NAME(load)(const float *from) {
    Floats x;
    memcpy(&x, from, sizeof x);
    return x;
}
INLINE void NAME(store)(float *to, Floats x) { memcpy(to, &x, sizeof x); }
INLINE Floats NAME(splat)(float x) { return x - (Floats){}; }
INLINE Ints NAME(splat_int)(int32_t x) { return x - (Ints){}; }
INLINE Floats NAME(choose)(Ints condition, Floats yes, Floats no) {
    return (Floats)((condition & (Ints)yes) | (~condition & (Ints)no));
}
#if PAIRS
INLINE Floats NAME(larger)(Floats x, Floats y) { return (Floats)_mm512_max_ps((__m512)x, (__m512)y); }
#else
INLINE Floats NAME(larger)(Floats x, Floats y) { return (Floats)_mm256_max_ps((__m256)x, (__m256)y); }
#endif
INLINE Ints NAME(lane)(void) {
#if LANES == 16
    return (Ints){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#else
    return (Ints){0, 1, 2, 3, 4, 5, 6, 7};
#endif
}
INLINE int NAME(any_above)(Floats x, float limit) {
#if PAIRS
    return _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(limit), _CMP_GT_OQ) != 0;
#else
    return _mm256_movemask_ps((__m256)(x > limit)) != 0;
#endif
}
INLINE float NAME(largest)(Floats x) {
    for (int step = LANES / 2; step; step /= 2) x = NAME(larger)(x, __builtin_shuffle(x, NAME(lane)() ^ step));
    return x[0];
}
INLINE float NAME(sum)(Floats x) {
    for (int step = LANES / 2; step; step /= 2) x = x + __builtin_shuffle(x, NAME(lane)() ^ step);
    return x[0];
}

/* 2^x for x ≤ 0, within 8e-8 of itself, or ``roughly`` within 3e-6: as a bfloat16, the same. What is far below the smallest float may
 * be 0 or 2^-126; of −∞ it is no number. */
INLINE Floats NAME(power_of_2)(Floats x, const int roughly) {
#if PAIRS
    const Floats whole = (Floats)_mm512_roundscale_ps((__m512)x, 8), f = x - whole;
#else
    x = NAME(larger)(x, NAME(splat)(-126.0f));
    const Floats whole = (Floats)_mm256_round_ps((__m256)x, 8), f = x - whole;
#endif
    Floats y;
    if (roughly) {
        y = f * 9.5701e-3f + 5.591786e-2f;
        y = y * f + 2.4024745e-1f;
        y = y * f + 6.9312181e-1f;
        y = y * f + 9.9999926e-1f;
    } else {
        y = f * 1.5403530e-4f + 1.3333558e-3f;
        y = y * f + 9.6181291e-3f;
        y = y * f + 5.5504109e-2f;
        y = y * f + 2.4022651e-1f;
        y = y * f + 6.9314718e-1f;
        y = y * f + 1.0f;
    }
#if PAIRS
    return (Floats)_mm512_scalef_ps((__m512)y, (__m512)whole);
#else
    return y * (Floats)((__builtin_convertvector(whole, Ints) + 127) << 23);
#endif
}

INLINE uint16_t NAME(to_bfloat16)(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    const uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1);
    return (uint16_t)((x != x ? bits | 1 << 22 : rounded) >> 16);
}
INLINE float NAME(from_bfloat16)(uint16_t x) {
    const uint32_t bits = (uint32_t)x << 16;
    float y;
    memcpy(&y, &bits, 4);
    return y;
}
INLINE float NAME(get)(const void *x, int64_t i, const int dtype) {
    if (dtype == FLOAT32) return ((const float *)x)[i];
    if (dtype == BFLOAT16) return NAME(from_bfloat16)(((const uint16_t *)x)[i]);
    return _cvtsh_ss(((const uint16_t *)x)[i]);
}
INLINE void NAME(put)(void *x, int64_t i, float value, const int dtype) {
    if (dtype == FLOAT32) ((float *)x)[i] = value;
    else if (dtype == BFLOAT16) ((uint16_t *)x)[i] = NAME(to_bfloat16)(value);
    else ((uint16_t *)x)[i] = _cvtss_sh(value, 0);
}
/* LANES of them at once. */
INLINE Floats NAME(get_all)(const void *x, int64_t i, const int dtype) {
    if (dtype == FLOAT32) return NAME(load)((const float *)x + i);
    NAME(Shorts) bits;
    memcpy(&bits, (const uint16_t *)x + i, sizeof bits);
#if LANES == 16
    if (dtype == BFLOAT16) return (Floats)(__builtin_convertvector(bits, Ints) << 16);
    return (Floats)_mm512_cvtph_ps((__m256i)bits);
#else
    if (dtype == BFLOAT16) return (Floats)_mm256_slli_epi32(_mm256_cvtepu16_epi32((__m128i)bits), 16);
    return (Floats)_mm256_cvtph_ps((__m128i)bits);
#endif
}
INLINE void NAME(put_all)(void *x, int64_t i, Floats values, const int dtype) {
    if (dtype == FLOAT32) {
        NAME(store)((float *)x + i, values);
        return;
    }
    NAME(Shorts) bits;
    if (dtype == BFLOAT16) {
        const Ints whole = (Ints)values, rounded = whole + 0x7fff + (whole >> 16 & 1);
        bits = __builtin_convertvector((Ints)NAME(choose)(values != values, (Floats)(whole | 1 << 22), (Floats)rounded) >> 16, NAME(Shorts));
    } else
#if LANES == 16
        bits = (NAME(Shorts))_mm512_cvtps_ph((__m512)values, 0);
#else
        bits = (NAME(Shorts))_mm256_cvtps_ph((__m256)values, 0);
#endif
    memcpy((uint16_t *)x + i, &bits, sizeof bits);
}
INLINE const void *NAME(at)(const void *x, int64_t i, const int dtype) {
    return (const char *)x + i * (dtype == FLOAT32 ? 4 : 2);
}

/* A row at ``x`` rotated to ``position``: dimension d < half turns with d + half, what lies behind them passes. */
INLINE void NAME(rotate)(const Step *s, const void *x, int position, void *to, const int dtype) {
    const int half = s->half;
    const float *cos = s->cos + (int64_t)position * half, *sin = s->sin + (int64_t)position * half;
    int pair = 0;
    for (; pair + LANES <= half; pair += LANES) {
        const Floats x1 = NAME(get_all)(x, pair, dtype), x2 = NAME(get_all)(x, pair + half, dtype);
        const Floats c = NAME(load)(cos + pair), across = NAME(load)(sin + pair);
        NAME(put_all)(to, pair, x1 * c - x2 * across, dtype);
        NAME(put_all)(to, pair + half, x2 * c + x1 * across, dtype);
    }
    for (; pair < half; pair++) {
        const float x1 = NAME(get)(x, pair, dtype), x2 = NAME(get)(x, pair + half, dtype);
        NAME(put)(to, pair, x1 * cos[pair] - x2 * sin[pair], dtype);
        NAME(put)(to, pair + half, x2 * cos[pair] + x1 * sin[pair], dtype);
    }
    for (int d = 2 * half; d < s->head_dim; d++) NAME(put)(to, d, NAME(get)(x, d, dtype), dtype);
}

/* The key of a row, rotated to its local position, and its value go into the row's private segment. */
INLINE void NAME(append_as)(const Step *s, int layer, Rows k, Rows v, int row, int kv_head, const int dtype) {
    const int32_t *own = s->own + row * 3;
    const int64_t *begin = s->addresses + (int64_t)own[0] * 2 * s->num_layers + layer;
    const int64_t to = ((int64_t)kv_head * s->pieces[own[0] * 3 + 2] + own[1]) * s->head_dim;
    NAME(rotate)(s, NAME(at)(k.data, row * k.row + kv_head * k.head, dtype), own[2], (void *)NAME(at)((void *)begin[0], to, dtype), dtype);
    memcpy((void *)NAME(at)((void *)begin[s->num_layers], to, dtype), NAME(at)(v.data, row * v.row + kv_head * v.head, dtype),
           s->head_dim * (dtype == FLOAT32 ? 4 : 2));
}

/* C = A·B, or with ``adds`` C += A·B, for ``rows`` (STACK at most) and ``columns`` vectors. Of the first ``asked`` vectors of each line
 * of B, what stands at their place in ``ahead`` is prefetched: packing is bound by memory, products by arithmetic. */
INLINE void NAME(product)(const float *a, int64_t row_a, const float *b, int64_t row_b, const float *ahead, int asked, int depth,
                          float *c, int64_t row_c, const int adds, const int rows, const int columns, const int pairs) {
    Floats sums[STACK][COLUMNS];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int n = 0; n < columns; n++)
            sums[r][n] = adds ? NAME(load)(c + r * row_c + n * LANES) : NAME(splat)(0);
    for (int i = 0; i < depth; i++) {
        Floats across[COLUMNS];
#pragma GCC unroll 8
        for (int n = 0; n < columns; n++) {
            across[n] = NAME(load)(b + i * row_b + n * LANES);
            if (n < asked) __builtin_prefetch(ahead + i * row_b + n * LANES, 0, 3);
        }
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            const Floats down = NAME(splat)(a[r * row_a + i]);
#pragma GCC unroll 8
            for (int n = 0; n < columns; n++) {
#if PAIRS
                if (pairs) sums[r][n] = (Floats)_mm512_dpbf16_ps((__m512)sums[r][n], (__m512bh)down, (__m512bh)across[n]);
                else
#endif
                    sums[r][n] += down * across[n];
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int n = 0; n < columns; n++) NAME(store)(c + r * row_c + n * LANES, sums[r][n]);
}

INLINE void NAME(products_of)(const float *a, int64_t row_a, const float *b, int64_t row_b, const float *ahead, int asked, int depth,
                              float *c, int64_t row_c, const int adds, const int rows, int columns, const int pairs) {
    int n = 0;
    for (; n + COLUMNS <= columns; n += COLUMNS)
        NAME(product)(a, row_a, b + n * LANES, row_b, ahead + n * LANES, asked, depth, c + n * LANES, row_c, adds, rows, COLUMNS,
                      pairs);
    for (; n < columns; n++)
        NAME(product)(a, row_a, b + n * LANES, row_b, ahead + n * LANES, asked, depth, c + n * LANES, row_c, adds, rows, 1, pairs);
}

#if TILES
/* Tiles 0 to 3 are C, 4 is A, 5 and 6 are B; A and C have the rows that they were shaped with. Of pairs, in steps of TILE_ROWS. */
INLINE void NAME(products)(const float *a, int64_t row_a, const float *b, int64_t row_b, const float *ahead, int asked, int depth,
                           float *c, int64_t row_c, const int adds, int rows, int columns, const int pairs) {
    __asm__ volatile("" : : : "memory"); /* GCC does not know that tiles are loaded from what was stored. */
    for (int n = 0; n < columns; n += 4, b += 4 * LANES, c += 4 * LANES, ahead += 4 * LANES) {
        const int wide = columns - n < 4 ? columns - n : 4;
#define COLUMN(i, from)                                                 \
    if (wide > i) {                                                     \
        _tile_loadd(from, b + k * row_b + i * LANES, 4 * row_b);        \
        _tile_dpbf16ps(i, 4, from);                                     \
        for (int line = k; line < ahead_to; line++)                     \
            __builtin_prefetch(ahead + line * row_b + i * LANES, 0, 2); \
    }
#define BEGIN(i)                                                    \
    if (adds && wide > i) _tile_loadd(i, c + i * LANES, 4 * row_c); \
    else _tile_zero(i);
        BEGIN(0) BEGIN(1) BEGIN(2) BEGIN(3)
        for (int k = 0; k < depth; k += TILE_ROWS) {
            const int ahead_to = asked ? k + TILE_ROWS : k;
            _tile_loadd(4, a + k, 4 * row_a);
            COLUMN(0, 5) COLUMN(1, 6) COLUMN(2, 5) COLUMN(3, 6)
        }
        _tile_stored(0, c, 4 * row_c);
        if (wide > 1) _tile_stored(1, c + LANES, 4 * row_c);
        if (wide > 2) _tile_stored(2, c + 2 * LANES, 4 * row_c);
        if (wide > 3) _tile_stored(3, c + 3 * LANES, 4 * row_c);
#undef COLUMN
#undef BEGIN
    }
}
#else
/* Of STACK rows, of which the first ``rows`` count. */
INLINE void NAME(products)(const float *a, int64_t row_a, const float *b, int64_t row_b, const float *ahead, int asked, int depth,
                           float *c, int64_t row_c, const int adds, int rows, int columns, const int pairs) {
    const int few = rows <= STACK / 2, all = asked == COLUMNS; /* What the compiler knows costs the loop nothing. */
    if (few && all) NAME(products_of)(a, row_a, b, row_b, ahead, COLUMNS, depth, c, row_c, adds, STACK / 2, columns, pairs);
    else if (few) NAME(products_of)(a, row_a, b, row_b, ahead, asked, depth, c, row_c, adds, STACK / 2, columns, pairs);
    else NAME(products_of)(a, row_a, b, row_b, ahead, asked, depth, c, row_c, adds, STACK, columns, pairs);
}
#endif

#if PAIRS
/* 16 of the ``rows`` of numbers of 32 bits, 16 of each, transposed. */
INLINE void NAME(transpose)(const char *from, const int32_t *rows, int64_t row_bytes, float *to, int64_t row_to) {
    __m512i r[16], t[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) r[i] = _mm512_loadu_si512(from + rows[i] * row_bytes);
#pragma GCC unroll 16
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 4; i++) {
        _mm512_storeu_si512(to + i * row_to, _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88));
        _mm512_storeu_si512(to + (i + 8) * row_to, _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd));
        _mm512_storeu_si512(to + (i + 4) * row_to, _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88));
        _mm512_storeu_si512(to + (i + 12) * row_to, _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd));
    }
}
#endif

/* Those of the keys from ``first`` to ``end`` that the words (none: 0) do not hide, as many as a block takes, in order; what is left
 * of the block stands behind all keys. Where to go on is returned. */
INLINE int NAME(next_block)(const uint32_t *words, int num_words, int first, int end, int32_t *keys, int *num_keys) {
    int count = 0;
    if (!words) {
        const int next = end - first < BLOCK_KEYS ? end : first + BLOCK_KEYS;
        for (; count < next - first; count++) keys[count] = first + count;
        first = next;
    }
    for (; first < end && count < BLOCK_KEYS; first++) {
        const int seen = first / 32 >= num_words || !(words[first / 32] >> (first % 32) & 1);
        keys[count] = first;
        count += seen;
    }
    *num_keys = count;
    while (count < BLOCK_KEYS) keys[count++] = INT32_MAX;
    return first;
}

/* The depth of the second product: a block's keys, up to a multiple of what one instruction takes. */
INLINE int NAME(depth)(int num_keys) {
#if TILES
    const int step = 2 * TILE_ROWS;
#else
    const int step = 2;
#endif
    return (num_keys + step - 1) / step * step;
}

#if PAIRS
/* 16 of the block's keys from ``first`` on; the last one in the place of those that it has not. */
INLINE void NAME(sixteen)(const int32_t *keys, int first, int num_keys, int32_t *to) {
    _mm512_storeu_si512(to, _mm512_min_epi32(_mm512_loadu_si512(keys + first), _mm512_set1_epi32(keys[num_keys - 1])));
}
#else
/* Eight numbers from ``d`` on of eight rows, transposed. */
INLINE void NAME(transpose)(const void *from, const int64_t *rows, int d, float *to, const int dtype) {
    __m256 r[8], t[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) r[i] = (__m256)NAME(get_all)(from, rows[i] + d, dtype);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; i += 4)
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++) {
            r[i + 2 * j] = _mm256_shuffle_ps(t[i + j], t[i + j + 2], 0x44);
            r[i + 2 * j + 1] = _mm256_shuffle_ps(t[i + j], t[i + j + 2], 0xee);
        }
#pragma GCC unroll 8
    for (int i = 0; i < 4; i++) {
        NAME(store)(to + i * BLOCK_KEYS, (Floats)_mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
        NAME(store)(to + (i + 4) * BLOCK_KEYS, (Floats)_mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
    }
}
#endif

/* Lines of the next block's keys and values. Kernels without pairs prefetch a few of them from time to time, as many as a core can wait
 * for: their blocks are wider than what is in memory, so that those of each line of B, as above, would be too many. */
typedef struct {
    const char *keys, *values;
    int line, lines, at_once; /* of keys, and as many of values behind them */
} NAME(Ahead);

INLINE void NAME(look_ahead)(NAME(Ahead) *ahead) {
    if (PAIRS) return;
    for (const int end = ahead->line + ahead->at_once; ahead->line < end && ahead->line < 2 * ahead->lines; ahead->line++)
        __builtin_prefetch(ahead->line < ahead->lines ? ahead->keys + 64 * ahead->line : ahead->values + 64 * (ahead->line - ahead->lines));
}

/* Some keys [num_keys, dim] become [dim, BLOCK_KEYS]; what is beyond the last one is hidden from every row. ``dim`` in numbers of 32
 * bits. */
INLINE void NAME(pack_keys)(const void *k, const int32_t *keys, int num_keys, int head_dim, float *to, NAME(Ahead) *ahead,
                            const int dtype) {
#if PAIRS
    if (dtype == BFLOAT16 && head_dim % 32 == 0) {
        for (int key = 0; key < num_keys; key += 16) {
            int32_t rows[16];
            NAME(sixteen)(keys, key, num_keys, rows);
            for (int d = 0; d < head_dim; d += 32)
                NAME(transpose)((const char *)k + d * 2, rows, head_dim * 2, to + d / 2 * BLOCK_KEYS + key, BLOCK_KEYS);
        }
        return;
    }
#else
    if (head_dim % LANES == 0) {
        for (int key = 0; key < num_keys; key += LANES) {
            int64_t rows[LANES];
            for (int i = 0; i < LANES; i++) rows[i] = (int64_t)keys[key + i < num_keys ? key + i : num_keys - 1] * head_dim;
            for (int d = 0; d < head_dim; d += LANES) NAME(transpose)(k, rows, d, to + d * BLOCK_KEYS + key, dtype);
            NAME(look_ahead)(ahead);
        }
        return;
    }
#endif
    const int step = USES_PAIRS(dtype) ? 2 : 1;
    for (int key = 0; key < BLOCK_KEYS; key++)
        for (int d = 0; d < head_dim; d += step) {
            float *place = to + d / step * BLOCK_KEYS + key;
            if (key >= num_keys) *place = 0;
            else if (USES_PAIRS(dtype)) memcpy(place, (const uint16_t *)k + (int64_t)keys[key] * head_dim + d, 4);
            else *place = NAME(get)(k, (int64_t)keys[key] * head_dim + d, dtype);
        }
}

/* Their values become [BLOCK_KEYS, wide], or pairs of them [BLOCK_KEYS / 2, wide], up to a whole step of the depth; zero beyond dim.
 * Beyond the last key, whose weights are 0, is what is finite. */
INLINE void NAME(pack_values)(const void *v, const int32_t *keys, int num_keys, int head_dim, int wide, float *to, NAME(Ahead) *ahead,
                              const int dtype) {
    if (!USES_PAIRS(dtype)) {
        for (int key = 0; key < num_keys; key++, to += wide) {
            const int64_t row = (int64_t)keys[key] * head_dim;
            int d = 0;
            if (key % LANES == 0) NAME(look_ahead)(ahead);
            for (; d + LANES <= head_dim; d += LANES) NAME(store)(to + d, NAME(get_all)(v, row + d, dtype));
            for (; d < wide; d++) to[d] = d < head_dim ? NAME(get)(v, row + d, dtype) : 0;
        }
        memset(to, 0, sizeof(float) * (BLOCK_KEYS - num_keys) * wide);
        return;
    }
    const uint16_t *from = v;
    uint16_t *pairs = (uint16_t *)to;
#if PAIRS
    if (head_dim % 32 == 0) {
        const Ints first = NAME(lane)() * 0x10001 + (32 << 16); /* number i of one row, then number i of the other */
        const __m512i low = (__m512i)first, high = (__m512i)(first + 16 * 0x10001);
        int32_t rows[16];
        for (int key = 0; key < NAME(depth)(num_keys); key += 16, pairs += 16 * wide) {
            NAME(sixteen)(keys, key, num_keys, rows);
#pragma GCC unroll 8
            for (int i = 0; i < 16; i += 2) {
                const uint16_t *one = from + (int64_t)rows[i] * head_dim, *two = from + (int64_t)rows[i + 1] * head_dim;
                for (int d = 0; d < head_dim; d += 32) {
                    const __m512i x = _mm512_loadu_si512(one + d), y = _mm512_loadu_si512(two + d);
                    _mm512_storeu_si512(pairs + i * wide + 2 * d, _mm512_permutex2var_epi16(x, low, y));
                    _mm512_storeu_si512(pairs + i * wide + 2 * d + 32, _mm512_permutex2var_epi16(x, high, y));
                }
            }
        }
        return;
    }
#endif
    memset(pairs, 0, sizeof(uint16_t) * BLOCK_KEYS * wide);
    for (int key = 0; key < num_keys; key++)
        for (int d = 0; d < head_dim; d++)
            pairs[(int64_t)(key / 2) * 2 * wide + 2 * d + key % 2] = from[(int64_t)keys[key] * head_dim + d];
}

/* A thread's room. Rows are padded to a multiple of STACK, dimensions to one of LANES. Of each row: ``look``, its place among the
 * looks; ``seen``, its keys; ``scale``, of its scores; ``base``, what its exponents are counted from; ``total``, the sum of its weights
 * so far, by lanes. */
typedef struct {
    float *q, *out, *scale, *base, *total, *keys, *values, *scores, *weights;
    int32_t *look, *seen;
    int rows, wide;
} NAME(Room);

INLINE float *NAME(take)(char **room, int64_t count) {
    float *taken = (float *)*room;
    *room += (count * 4 + 63) / 64 * 64;
    return taken;
}

static int64_t NAME(lay_out)(char *workspace, int block_rows, int head_dim, NAME(Room) *room) {
    const int rows = (block_rows + STACK - 1) / STACK * STACK, wide = (head_dim + LANES - 1) / LANES * LANES;
    char *end = workspace;
    room->rows = rows, room->wide = wide;
    room->q = NAME(take)(&end, (int64_t)rows * wide);
    room->out = NAME(take)(&end, (int64_t)rows * wide);
    room->scale = NAME(take)(&end, rows);
    room->base = NAME(take)(&end, rows);
    room->total = NAME(take)(&end, (int64_t)rows * LANES);
    room->look = (int32_t *)NAME(take)(&end, rows);
    room->seen = (int32_t *)NAME(take)(&end, rows);
    room->keys = NAME(take)(&end, (int64_t)wide * BLOCK_KEYS);
    room->values = NAME(take)(&end, (int64_t)wide * BLOCK_KEYS);
    room->scores = NAME(take)(&end, STACK * BLOCK_KEYS);
    room->weights = NAME(take)(&end, STACK * BLOCK_KEYS);
    return end - workspace;
}

static int64_t NAME(workspace)(int block_rows, int head_dim) {
    NAME(Room) room;
    const int64_t bytes = NAME(lay_out)(0, block_rows, head_dim, &room);
#if TILES
    const int64_t others = workspace_avx512(block_rows, head_dim);
    return others > bytes ? others : bytes;
#endif
    return bytes;
}

/* What all looks from ``first`` to ``last`` exclude alike, or 0: then each has to be asked for every key. */
INLINE int64_t NAME(excluded_by_all)(const Step *s, int first, int last) {
    for (int look = first + 1; look <= last; look++)
        if (s->hidden[look] != s->hidden[first]) return 0;
    return s->hidden[first];
}

/* Bit i: the look does not see key keys[i]. ``excludes``: keys that it excludes are among them, which stand one behind the other. */
INLINE uint64_t NAME(hidden_keys)(const Step *s, int layer, int look, int seen, const int32_t *keys, const int excludes) {
    const int32_t *facts = s->looks + (int64_t)look * 5;
    int num_seen = keys[BLOCK_KEYS - 1] < seen ? BLOCK_KEYS : 0;
    if (!num_seen)
        while (keys[num_seen] < seen) num_seen++;
    uint64_t hidden = num_seen == BLOCK_KEYS ? 0 : ~0ull << num_seen;
    if (excludes && facts[4]) {
        const uint32_t *words = (const uint32_t *)s->hidden[look] + (int64_t)layer * facts[4];
        for (int i = 0; i < BLOCK_KEYS / 32; i++)
            if (keys[0] / 32 + i < facts[4]) hidden |= (uint64_t)words[keys[0] / 32 + i] << (32 * i);
    }
    return hidden;
}

/* One row of a block: its scores become weights, 2^(scale · score − base), where ``base`` is the largest exponent up to now, or at most
 * MAX_ABOVE less: only when it would be more, base is raised, and what the row has gathered so far lessened. */
INLINE void NAME(weigh)(const NAME(Room) *room, int i, const float *scores, uint64_t hidden, float *weights, const int pairs) {
    enum { N = BLOCK_KEYS / LANES };
    Floats x[N], most = NAME(splat)(-__builtin_inff());
    Ints out_of_sight[N];
    float *total = room->total + (int64_t)i * LANES, base = room->base[i];
    const float scale = room->scale[i];
#pragma GCC unroll 8
    for (int n = 0; n < N; n++) {
        Floats seen = x[n] = NAME(load)(scores + n * LANES);
        if (hidden) {
            out_of_sight[n] = -(NAME(splat_int)((int32_t)(hidden >> (n * LANES) & ((1u << LANES) - 1))) >> NAME(lane)() & 1);
            seen = NAME(choose)(out_of_sight[n], NAME(splat)(-__builtin_inff()), seen);
        }
        most = NAME(larger)(most, seen);
    }
    most = most * scale;
    if (NAME(any_above)(most, base + MAX_ABOVE)) {
        const float raised = NAME(largest)(most);
        const float less = base == -__builtin_inff() ? 0 : NAME(power_of_2)(NAME(splat)(base - raised), 0)[0];
        float *out = room->out + (int64_t)i * room->wide;
        for (int d = 0; d < room->wide; d += LANES) NAME(store)(out + d, NAME(load)(out + d) * less);
        NAME(store)(total, NAME(load)(total) * less);
        room->base[i] = base = raised;
    }
    if (base == -__builtin_inff()) base = 0; /* it has seen nothing yet: all of these are hidden */
    Floats sum = NAME(load)(total);
#pragma GCC unroll 8
    for (int n = 0; n < N; n++) {
        x[n] = NAME(power_of_2)(x[n] * scale - base, pairs);
        if (hidden) x[n] = (Floats)(~out_of_sight[n] & (Ints)x[n]);
        sum += x[n];
    }
    NAME(store)(total, sum);
#if PAIRS
    if (pairs) {
#pragma GCC unroll 8
        for (int n = 0; n < N; n += 2)
            _mm512_storeu_si512(weights + n * LANES / 2, (__m512i)_mm512_cvtne2ps_pbh((__m512)x[n + 1], (__m512)x[n]));
        return;
    }
#endif
#pragma GCC unroll 8
    for (int n = 0; n < N; n++) NAME(store)(weights + n * LANES, x[n]);
}

/* Where keys and values of a unit's piece and head begin, or with ``seen`` those that its item sees. */
INLINE void NAME(find)(const Step *s, int layer, int64_t unit, const int seen, int item_bytes, const char **k, const char **v) {
    const int32_t *facts = s->items + unit / s->num_kv_heads * 4, *piece = s->pieces + (int64_t)facts[0] * 3;
    const int64_t *address = s->addresses + (int64_t)facts[0] * 2 * s->num_layers + layer;
    const int64_t from = (unit % s->num_kv_heads * piece[2] + (seen ? facts[2] : 0)) * s->head_dim * item_bytes;
    *k = (const char *)address[0] + from, *v = (const char *)address[s->num_layers] + from;
}

/* The item's flat rows, rotated to their distance, over the item's keys; fills their slots. Keys that all of these rows exclude are
 * passed over. A row that sees nothing of the split but what it excludes has 0 and −∞. */
INLINE void NAME(attend_as)(const Step *s, int layer, Rows q, float scale, int item, int kv_head, char *workspace, const int dtype) {
    const int32_t *facts = s->items + (int64_t)item * 4, *piece = s->pieces + (int64_t)facts[0] * 3;
    const int group = s->num_heads / s->num_kv_heads, begin = facts[2], end = facts[3], dim = s->head_dim;
    const int num_flat = facts[1] + s->block_rows < piece[1] * group ? s->block_rows : piece[1] * group - facts[1];
    const int pairs = USES_PAIRS(dtype), depth = pairs ? dim / 2 : dim, item_bytes = dtype == FLOAT32 ? 4 : 2;
    NAME(Room) room;
    NAME(lay_out)(workspace, s->block_rows, dim, &room);
    const int wide = room.wide, rows = (num_flat + STACK - 1) / STACK * STACK;
#if TILES
    const int high = num_flat < TILE_ROWS ? num_flat : TILE_ROWS;
    shape_tiles((const int[]){high, high, high, high, high, TILE_ROWS, TILE_ROWS, TILE_ROWS});
#endif
    for (int i = 0; i < rows; i++) {
        float *to = room.q + (int64_t)i * depth;
        const int flat = facts[1] + (i < num_flat ? i : num_flat - 1), head = kv_head * group + flat % group;
        room.look[i] = piece[0] + flat / group;
        const int32_t *look = s->looks + (int64_t)room.look[i] * 5;
        room.seen[i] = look[2], room.scale[i] = scale * s->sharpness[room.look[i]], room.base[i] = -__builtin_inff();
        if (i >= num_flat) {
            memset(to, 0, sizeof(float) * depth);
            continue;
        }
        const void *from = NAME(at)(q.data, look[0] * q.row + head * q.head, dtype);
        if (pairs || dtype == FLOAT32) NAME(rotate)(s, from, look[1], to, dtype);
        else { /* rounded to the model's type, then widened */
            uint16_t rounded[MAX_HEAD_DIM];
            NAME(rotate)(s, from, look[1], rounded, dtype);
            for (int d = 0; d < dim; d++) to[d] = NAME(get)(rounded, d, dtype);
        }
    }
    memset(room.out, 0, sizeof(float) * rows * wide);
    memset(room.total, 0, sizeof(float) * rows * LANES);
    memset(room.weights, 0, sizeof(float) * STACK * BLOCK_KEYS); /* of rows that do not count */

    const char *k, *v, *then_keys, *then_values; /* Threads take units in turn: then comes the one after those of all others. */
    const int64_t unit = (int64_t)item * s->num_kv_heads + kv_head, num_units = (int64_t)s->num_items * s->num_kv_heads;
    NAME(find)(s, layer, unit, 0, item_bytes, &k, &v);
    NAME(find)(s, layer, unit + s->num_threads < num_units ? unit + s->num_threads : unit, 1, item_bytes, &then_keys, &then_values);
    const int first_look = piece[0] + facts[1] / group, last_look = piece[0] + (facts[1] + num_flat - 1) / group;
    const uint32_t *words = s->passes_over ? (const uint32_t *)NAME(excluded_by_all)(s, first_look, last_look) : 0;
    const int num_words = words ? s->looks[(int64_t)first_look * 5 + 4] : 0;
    if (words) words += (int64_t)layer * num_words;
    /* Of the next block: a part for every stack of rows, if there are as many, since memory does not send all while one multiplies. */
    const int part = TILES || rows < COLUMNS * STACK ? COLUMNS : 1;
    const int lines = BLOCK_KEYS * dim * item_bytes / 64, turns = 2 * (BLOCK_KEYS / LANES) + num_flat;
    int32_t keys[BLOCK_KEYS];
    int num_keys;
    for (int next = NAME(next_block)(words, num_words, begin, end, keys, &num_keys); num_keys;
         next = NAME(next_block)(words, num_words, next, end, keys, &num_keys)) {
        const int goes_on = next < end;
        const float *next_keys = goes_on ? NAME(at)(k, (int64_t)next * dim, dtype) : (const float *)then_keys;
        const float *next_values = goes_on ? NAME(at)(v, (int64_t)next * dim, dtype) : (const float *)then_values;
        NAME(Ahead) ahead = {(const char *)next_keys, (const char *)next_values, 0, lines, (2 * lines + turns - 1) / turns};
        NAME(pack_keys)(k, keys, num_keys, dim, room.keys, &ahead, dtype);
        NAME(pack_values)(v, keys, num_keys, dim, wide, room.values, &ahead, dtype);
        for (int top = 0; top < rows; top += STACK) {
            const int counted = num_flat - top < STACK ? num_flat - top : STACK;
            const int from = top / STACK * part * LANES, asked = PAIRS && from < COLUMNS * LANES ? part : 0;
            NAME(products)(room.q + (int64_t)top * depth, depth, room.keys, BLOCK_KEYS, next_keys + from, asked, depth, room.scores,
                           BLOCK_KEYS, 0, counted, (num_keys + LANES - 1) / LANES, pairs);
            for (int r = 0; r < counted; r++) {
                const int i = top + r;
                const uint64_t hidden = NAME(hidden_keys)(s, layer, room.look[i], room.seen[i], keys, !words);
                NAME(weigh)(&room, i, room.scores + r * BLOCK_KEYS, hidden, room.weights + r * (pairs ? BLOCK_KEYS / 2 : BLOCK_KEYS), pairs);
                NAME(look_ahead)(&ahead);
            }
            NAME(products)(room.weights, pairs ? BLOCK_KEYS / 2 : BLOCK_KEYS, room.values, wide, next_values + from, asked,
                           NAME(depth)(num_keys) / (pairs ? 2 : 1), room.out + (int64_t)top * wide, wide, 1, counted, wide / LANES, pairs);
        }
    }

    for (int i = 0; i < num_flat; i++) {
        if (begin >= room.seen[i]) continue;
        const int head = kv_head * group + (facts[1] + i) % group;
        const int32_t *look = s->looks + (int64_t)room.look[i] * 5;
        const int64_t place = ((int64_t)look[3] + begin / s->split_len) * s->num_heads + head;
        const float total = NAME(sum)(NAME(load)(room.total + (int64_t)i * LANES));
        const float share = total > 0 ? 1 / total : 0;
        s->lse[place] = room.base[i] + (total > 0 ? __builtin_log2f(total) : 0);
        for (int d = 0; d < dim; d++) s->out[place * dim + d] = room.out[(int64_t)i * wide + d] * share;
    }
}

/* The logarithm of the sum over slots [first, end) of a head. */
INLINE float NAME(log_sum)(const Step *s, int first, int end, int head) {
    float best = -__builtin_inff(), total = 0;
    for (int slot = first; slot < end; slot++) {
        const float lse = s->lse[(int64_t)slot * s->num_heads + head];
        best = lse > best ? lse : best;
    }
    if (best == -__builtin_inff()) return best;
    for (int slot = first; slot < end; slot++)
        total += NAME(power_of_2)(NAME(splat)(s->lse[(int64_t)slot * s->num_heads + head] - best), 0)[0];
    return best + __builtin_log2f(total);
}

/* Softmax over the union of a row's slots is the weighted mean of them. Joint ones weigh more by a power of their sum. */
INLINE void NAME(merge_as)(const Step *s, void *merged, int row, int head, const int dtype) {
    const int first = s->first_slot[row], end = s->first_slot[row + 1], dim = s->head_dim;
    const int32_t *joint = s->joint + (int64_t)row * 2;
    const float sum = joint[0] < joint[1] ? NAME(log_sum)(s, joint[0], joint[1], head) : -__builtin_inff();
    const float more = sum == -__builtin_inff() ? 0 : s->more[row] * sum;
    float best = -__builtin_inff(), total = 0, mean[MAX_HEAD_DIM];
    memset(mean, 0, sizeof(float) * dim);
    for (int slot = first; slot < end; slot++) {
        const float lse = s->lse[(int64_t)slot * s->num_heads + head] + (joint[0] <= slot && slot < joint[1] ? more : 0);
        best = lse > best ? lse : best;
    }
    for (int slot = first; slot < end; slot++) {
        const int64_t place = (int64_t)slot * s->num_heads + head;
        const float lse = s->lse[place] + (joint[0] <= slot && slot < joint[1] ? more : 0);
        const float weight = lse == -__builtin_inff() ? 0 : NAME(power_of_2)(NAME(splat)(lse - best), 0)[0];
        total += weight;
        if (weight > 0)
            for (int d = 0; d < dim; d++) mean[d] += weight * s->out[place * dim + d];
    }
    for (int d = 0; d < dim; d++)
        NAME(put)(merged, ((int64_t)row * s->num_heads + head) * dim + d, mean[d] / (total > 0 ? total : 1), dtype);
}

#define BY_TYPE(call)                                          \
    switch (s->dtype) {                                        \
        case FLOAT32: call(FLOAT32); break;                    \
        case BFLOAT16: call(BFLOAT16); break;                  \
        default: call(FLOAT16); break;                         \
    }

static void NAME(append)(const Step *s, int layer, Rows k, Rows v, int row, int kv_head) {
#define CALL(dtype) NAME(append_as)(s, layer, k, v, row, kv_head, dtype)
    BY_TYPE(CALL)
#undef CALL
}

static void NAME(attend)(const Step *s, int layer, Rows q, float scale, int item, int kv_head, char *workspace) {
#if TILES
    if (s->dtype == BFLOAT16 && s->head_dim % (2 * TILE_ROWS) == 0) {
        NAME(attend_as)(s, layer, q, scale, item, kv_head, workspace, BFLOAT16);
        _tile_release(); /* Nobody saves and restores the registers of who does not use them. */
    } else attend_avx512(s, layer, q, scale, item, kv_head, workspace);
#else
#define CALL(dtype) NAME(attend_as)(s, layer, q, scale, item, kv_head, workspace, dtype)
    BY_TYPE(CALL)
#undef CALL
#endif
}

static void NAME(merge)(const Step *s, void *merged, int row, int head) {
#define CALL(dtype) NAME(merge_as)(s, merged, row, head, dtype)
    BY_TYPE(CALL)
#undef CALL
}

static const Kernels NAME(kernels) = {NAME(append), NAME(attend), NAME(merge), NAME(workspace)};

#undef INLINE
#undef USES_PAIRS
#undef Floats
#undef Ints
#undef BY_TYPE
