/* Of rows of logits, which stands highest, and the logarithm of the sum of their exponentials: without a row of log-probabilities that
 * nobody asked for, and without torch's threads.
 */
#include <stdint.h>

#include "../threads.h"

/* One call of kvquilt_most_likely. */
typedef struct {
    const float *logits;
    int64_t width, *ids;
    float *log_sums;
} Call;

#if defined(__x86_64__)
#pragma GCC push_options
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512vl,avx512dq")
#include "../exponential.h"

#define SIDE_BY_SIDE 4 /* vectors, so that no operation waits for the one in front of it */
#define LEAST -1000.0f /* whose exponential is 0 */

/* ``beyond``, where fewer than 16 are left. */
static inline __m512 some(const float *x, int64_t left, float beyond) {
    if (left >= 16) return _mm512_loadu_ps(x);
    return _mm512_mask_loadu_ps(_mm512_set1_ps(beyond), left > 0 ? (__mmask16)((1 << left) - 1) : 0, x);
}

/* The first of a row that is no number, else the first that is ``top``. */
static int64_t place_of(float top, const float *row, int64_t width, const int any_is_none) {
    for (int64_t i = 0; i < width && any_is_none; i += 16) {
        const __m512 x = some(row + i, width - i, 0);
        const __mmask16 found = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
        if (found) return i + __builtin_ctz(found);
    }
    for (int64_t i = 0; i < width; i += 16) {
        const __mmask16 found = _mm512_cmp_ps_mask(some(row + i, width - i, __builtin_nanf("")), _mm512_set1_ps(top), _CMP_EQ_OQ);
        if (found) return i + __builtin_ctz(found);
    }
    return 0;
}

static void rows_of(void *context, int64_t first, int64_t end, int thread) {
    const Call *c = context;
    const float none = -__builtin_inff();
    for (int64_t r = first; r < end; r++) {
        const float *row = c->logits + r * c->width;
        __m512 most[SIDE_BY_SIDE], sums[SIDE_BY_SIDE];
        for (int n = 0; n < SIDE_BY_SIDE; n++) most[n] = _mm512_set1_ps(none), sums[n] = _mm512_setzero_ps();
        for (int64_t i = 0; i < c->width; i += 16 * SIDE_BY_SIDE)
            for (int n = 0; n < SIDE_BY_SIDE; n++)
                most[n] = _mm512_max_ps(some(row + i + 16 * n, c->width - i - 16 * n, none), most[n]);
        const float top = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_max_ps(most[0], most[1]), _mm512_max_ps(most[2], most[3])));
        for (int64_t i = 0; i < c->width; i += 16 * SIDE_BY_SIDE)
            for (int n = 0; n < SIDE_BY_SIDE; n++) {
                const __m512 x = some(row + i + 16 * n, c->width - i - 16 * n, none);
                const __m512 below = _mm512_sub_ps(x, _mm512_set1_ps(top));
                sums[n] = _mm512_add_ps(sums[n], exp_of(_mm512_max_ps(_mm512_set1_ps(LEAST), below))); /* what is no number stays none */
            }
        double sum = 0;
        for (int n = 0; n < SIDE_BY_SIDE; n++) sum += _mm512_reduce_add_ps(sums[n]);
        c->log_sums[r] = (float)(top + __builtin_log(sum));
        c->ids[r] = place_of(top, row, c->width, sum != sum);
    }
}
#pragma GCC pop_options

int kvquilt_knows_logits(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
#else
static void rows_of(void *context, int64_t first, int64_t end, int thread) {}
int kvquilt_knows_logits(void) { return 0; }
#endif

/* Logits [rows, width], on a processor that it knows: ids [rows], of equal ones the first, and log_sums [rows]. */
void kvquilt_most_likely(const float *logits, int64_t num_rows, int64_t width, int64_t *ids, float *log_sums, int num_threads) {
    Call call = {logits, width, ids, log_sums};
    kvquilt_share(num_threads, num_rows, 1, rows_of, &call);
}
