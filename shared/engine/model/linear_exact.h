/* What stands behind sums of rows of bfloat16, bfloat16 weights, and norms, for AVX-512: linear_kernels.c includes this once. */

INLINE __m512 exp_of(__m512 x) {
    const __m512 y = _mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), whole = _mm512_roundscale_ps(y, 0), part = _mm512_sub_ps(y, whole);
    __m512 power = _mm512_set1_ps(1.5353362e-4f); /* of two, by its series: |part| is half at most */
    power = _mm512_fmadd_ps(power, part, _mm512_set1_ps(1.3398874e-3f));
    power = _mm512_fmadd_ps(power, part, _mm512_set1_ps(9.6184373e-3f));
    power = _mm512_fmadd_ps(power, part, _mm512_set1_ps(5.5503324e-2f));
    power = _mm512_fmadd_ps(power, part, _mm512_set1_ps(2.4022648e-1f));
    power = _mm512_fmadd_ps(power, part, _mm512_set1_ps(6.9314720e-1f));
    return _mm512_scalef_ps(_mm512_fmadd_ps(power, part, _mm512_set1_ps(1.0f)), whole);
}

INLINE __m512 silu(__m512 x) {
    return _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1.0f), exp_of(_mm512_sub_ps(_mm512_setzero_ps(), x))));
}

INLINE __m512 sixteen(const uint16_t *from, int64_t left) {
    const __mmask16 mask = left < 16 ? (__mmask16)((1 << left) - 1) : (__mmask16)0xffff;
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from)), 16));
}

/* Behind what it is added to, if there is anything, as if each were an operation of its own: the product is rounded, then the sum. */
INLINE void store_sum(const Product *p, int64_t at, __m512 y, int64_t left) {
    if (p->added_to) {
        const __m256i rounded = (__m256i)_mm512_cvtneps_pbh(y);
        y = _mm512_add_ps(sixteen(p->added_to + at, left), _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(rounded), 16)));
    }
    store_rounded((uint16_t *)p->out + at, y, left);
}

/* Of 32 outputs of a row, behind scale, bias, what an adapter adds, and gate. */
INLINE void store_sums(const Product *p, int64_t row, int64_t unit, __m512 first, __m512 second) {
    const float *scale = p->scale ? p->scale + unit * UNIT : 0, *bias = p->bias + unit * UNIT;
    const __m512 one = _mm512_set1_ps(1.0f), factor = scale ? _mm512_loadu_ps(scale) : one;
    __m512 y = _mm512_fmadd_ps(first, factor, _mm512_loadu_ps(bias));
    __m512 z = _mm512_fmadd_ps(second, scale ? _mm512_loadu_ps(scale + 16) : one, _mm512_loadu_ps(bias + 16));
    if (p->adapters && p->adapters >> p->adapter_of[row] & 1) {
        const int64_t num_units = (p->num_out - 1) / (p->gated ? UNIT / 2 : UNIT) + 1;
        const uint16_t *more = p->more + (row * num_units + unit) * UNIT;
        y = _mm512_add_ps(y, sixteen(more, 16));
        z = _mm512_add_ps(z, sixteen(more + 16, 16));
    }
    const int64_t at = unit * (p->gated ? UNIT / 2 : UNIT), left = p->num_out - at, to = row * p->num_out + at;
    store_sum(p, to, p->gated ? _mm512_mul_ps(silu(y), z) : y, left);
    if (!p->gated && left > 16) store_sum(p, to + 16, z, left - 16);
}

INLINE void exact_tile(const Product *p, int64_t row, const int rows, int64_t unit, const int units) {
    const uint16_t *weight = (const uint16_t *)p->weight + unit * p->num_in * UNIT, *x = (const uint16_t *)p->x + row * p->num_in;
    const int64_t unit_bytes = p->num_in * UNIT * 2, skipped = to_next_unit(p, units, unit_bytes);
    const char *behind = (const char *)weight + unit_bytes - EXACT_AHEAD;
    __m512 sums[MAX_TILE][2];
    UNROLLED
    for (int r = 0; r < rows; r++) sums[r][0] = sums[r][1] = _mm512_setzero_ps();
    for (int64_t k = 0; k < p->num_in; k += 2, weight += 2 * UNIT) {
        const char *at = (const char *)weight;
        prefetch(at + EXACT_AHEAD + (at < behind ? 0 : skipped), 4 * UNIT);
        const __m512bh first = (__m512bh)_mm512_loadu_si512(weight), second = (__m512bh)_mm512_loadu_si512(weight + UNIT);
        UNROLLED
        for (int r = 0; r < rows; r++) {
            int32_t pair;
            memcpy(&pair, x + r * p->num_in + k, 4);
            const __m512bh both = (__m512bh)_mm512_set1_epi32(pair);
            sums[r][0] = _mm512_dpbf16_ps(sums[r][0], first, both);
            sums[r][1] = _mm512_dpbf16_ps(sums[r][1], second, both);
        }
    }
    UNROLLED
    for (int r = 0; r < rows; r++) store_sums(p, row + r, unit, sums[r][0], sums[r][1]);
}

static void exact_tiles(const Product *p, int64_t row, int rows, int64_t unit, int units){TILES_OF_12(exact_tile)}

static void norm_part(const Norm *n, int64_t part) {
    const int64_t begin = part / n->num_parts * n->stride + part % n->num_parts * n->width;
    const uint16_t *x = n->x + begin;
    __m512 squares[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
    for (int64_t i = 0; i < n->width; i += 16) {
        const __m512 y = sixteen(x + i, n->width - i);
        squares[i / 16 % 4] = _mm512_fmadd_ps(y, y, squares[i / 16 % 4]);
    }
    const __m512 sum = _mm512_add_ps(_mm512_add_ps(squares[0], squares[1]), _mm512_add_ps(squares[2], squares[3]));
    const __m512 factor = _mm512_set1_ps(1.0f / __builtin_sqrtf(_mm512_reduce_add_ps(sum) / (float)n->width + n->eps));
    for (int64_t i = 0; i < n->width; i += 16) {
        const int64_t left = n->width - i;
        const __m512 y = _mm512_mul_ps(_mm512_mul_ps(sixteen(x + i, left), factor), sixteen(n->weight + i, left));
        store_rounded(n->out + begin + i, y, left);
    }
}
