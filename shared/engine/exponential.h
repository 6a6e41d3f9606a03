/* For AVX-512: included where the compiler's target knows it. */
#pragma once
#include <immintrin.h>

static inline __attribute__((always_inline)) __m512 exp_of(__m512 x) {
    const __m512 y = _mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), whole = _mm512_roundscale_ps(y, 0), part = _mm512_sub_ps(y, whole);
    __m512 power = _mm512_set1_ps(1.5353362e-4f); /* of two, by its series: |part| is half at most */
    power = _mm512_fmadd_ps(power, part, _mm512_set1_ps(1.3398874e-3f));
    power = _mm512_fmadd_ps(power, part, _mm512_set1_ps(9.6184373e-3f));
    power = _mm512_fmadd_ps(power, part, _mm512_set1_ps(5.5503324e-2f));
    power = _mm512_fmadd_ps(power, part, _mm512_set1_ps(2.4022648e-1f));
    power = _mm512_fmadd_ps(power, part, _mm512_set1_ps(6.9314720e-1f));
    return _mm512_scalef_ps(_mm512_fmadd_ps(power, part, _mm512_set1_ps(1.0f)), whole);
}
