/* int8 weights with float32 rows, for one kind of processor: linear_kernels.c includes this once for each. NAME, LANES and TILES say which. */

typedef float NAME(Floats) __attribute__((vector_size(4 * LANES)));
#define Floats NAME(Floats)
#define VECTORS (UNIT / LANES)

INLINE Floats NAME(eight_bits)(const int8_t *from) {
#if LANES == 16
    return (Floats)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)from)));
#else
    return (Floats)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)from)));
#endif
}
INLINE Floats NAME(load)(const float *from) {
    Floats x;
    memcpy(&x, from, sizeof x);
    return x;
}

INLINE void NAME(tile)(const Product *p, int64_t row, const int rows, int64_t unit, const int units) {
    const int64_t unit_bytes = p->num_in * UNIT;
    const int8_t *weight = (const int8_t *)p->weight + unit * unit_bytes;
    const float *x = (const float *)p->x + row * p->num_in;
    Floats sums[MAX_TILE][2 * VECTORS];
    UNROLLED
    for (int r = 0; r < rows; r++)
        UNROLLED
        for (int c = 0; c < VECTORS * units; c++) sums[r][c] = (Floats){};
    for (int64_t k = 0; k < p->num_in; k++)
        UNROLLED
        for (int c = 0; c < VECTORS * units; c++) {
            const Floats w = NAME(eight_bits)(weight + c / VECTORS * unit_bytes + k * UNIT + c % VECTORS * LANES);
            UNROLLED
            for (int r = 0; r < rows; r++) sums[r][c] += x[r * p->num_in + k] * w;
        }
    UNROLLED
    for (int c = 0; c < VECTORS * units; c++) {
        const int64_t first = unit * UNIT + LANES * c, left = p->num_out - first;
        if (left <= 0) break;
        UNROLLED
        for (int r = 0; r < rows; r++) {
            const Floats y = sums[r][c] * NAME(load)(p->scale + first) + NAME(load)(p->bias + first);
            memcpy((float *)p->out + (row + r) * p->num_out + first, &y, sizeof(float) * (left < LANES ? left : LANES));
        }
    }
}

static void NAME(tiles)(const Product *p, int64_t row, int rows, int64_t unit, int units){TILES(NAME(tile))}

static void NAME(expand)(const Weights *w, int64_t unit) {
    const float *scale = w->scale + (w->first + unit) * UNIT;
    const int8_t *from = w->weight + (w->first + unit) * w->num_in * UNIT;
    for (int64_t k = 0; k < w->num_in; k++)
        UNROLLED
        for (int c = 0; c < VECTORS; c++) {
            const Floats y = NAME(eight_bits)(from + k * UNIT + c * LANES) * NAME(load)(scale + c * LANES);
            memcpy((float *)w->out + (k * w->units + unit) * UNIT + c * LANES, &y, sizeof y);
        }
}

#undef Floats
#undef VECTORS
