/* Functions on the bits of fp32, fp16 and bf16: conversions, rounded to nearest or in one
   direction, and integers in the order of the numbers.

   Conversions give the same bits as `reference.py`, except for the payload of a NaN. If the
   processor has no instruction for a conversion, it is integer arithmetic that a C compiler
   vectorises.
*/
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))

enum { FP32 = 0, FP16 = 1, BF16 = 2, BOOL = 3 };

INLINE float from_bits(uint32_t bits) { float value; memcpy(&value, &bits, 4); return value; }
INLINE uint32_t to_bits(float value) { uint32_t bits; memcpy(&bits, &value, 4); return bits; }
INLINE float from_bf16(uint16_t bits) { return from_bits((uint32_t)bits << 16); }

/* Maps the bits of numbers to integers with the same order as the numbers; applied twice, returns
   the bits. */
INLINE int32_t in_order(int32_t bits) { return bits ^ (bits >> 31 & 0x7fffffff); }
INLINE int16_t half_in_order(int16_t bits) { return (int16_t)(bits ^ (bits >> 15 & 0x7fff)); }

/* Rounds to nearest, ties to even, as torch does; NaN stays NaN. */
INLINE uint16_t nearest_bf16(float value) {
    uint32_t bits = to_bits(value);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return (uint16_t)(value != value ? 0x7fc0u : rounded);
}

/* The multiplication converts normal and subnormal numbers; the exponent of inf and NaN is set
   after it. */
INLINE float from_fp16(uint16_t bits) {
    uint32_t magnitude = to_bits(from_bits((uint32_t)(bits & 0x7fffu) << 13) * 0x1p112f);
    magnitude |= (bits & 0x7c00u) == 0x7c00u ? 0x7f800000u : 0u;
    return from_bits(magnitude | (uint32_t)(bits & 0x8000u) << 16);
}

/* Rounds to nearest, ties to even; a number beyond the range becomes the largest finite one. The
   spacing of fp32 above 0.5 is that of fp16's subnormal numbers, so adding 0.5 rounds them. */
INLINE uint16_t nearest_fp16(float value) {
    uint32_t bits = to_bits(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    uint32_t finite = magnitude < 0x477fe000u ? magnitude : 0x477fe000u;
    uint32_t normal = (finite + 0xfffu + (finite >> 13 & 1u) - (112u << 23)) >> 13;
    uint32_t subnormal = to_bits(from_bits(finite) + 0.5f) - 0x3f000000u;
    uint32_t number = finite < 0x38800000u ? subnormal : normal;
    return (uint16_t)((magnitude > 0x7f800000u ? 0x7e00u : number) | sign);
}

INLINE uint16_t bf16_below(float value) {
    uint32_t bits = to_bits(value);
    return (uint16_t)((bits >> 16) + ((bits & 0xffffu) != 0 && (bits >> 31)));
}

INLINE uint16_t bf16_above(float not_negative) {
    uint32_t bits = to_bits(not_negative);
    return (uint16_t)((bits >> 16) + ((bits & 0xffffu) != 0));
}

INLINE void widen_fp16(const uint16_t *from, int count, float *to) {
    int i = 0;
#if defined(__AVX512F__)
    for (; i + 16 <= count; i += 16)
        _mm512_storeu_ps(to + i, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(from + i))));
#elif defined(__F16C__)
    for (; i + 8 <= count; i += 8)
        _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from + i))));
#endif
    for (; i < count; i++) to[i] = from_fp16(from[i]);
}

INLINE void narrow_to_fp16(const float *from, int count, uint16_t *to) {
    int i = 0;
#if defined(__F16C__)
    const __m256 largest = _mm256_set1_ps(65504.0f), smallest = _mm256_set1_ps(-65504.0f);
    for (; i + 8 <= count; i += 8) { /* min and max return the second operand, the value, if NaN */
        __m256 value = _mm256_max_ps(smallest, _mm256_min_ps(largest, _mm256_loadu_ps(from + i)));
        _mm_storeu_si128((__m128i *)(to + i), _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
    }
#endif
    for (; i < count; i++) to[i] = nearest_fp16(from[i]);
}

/* Rounds `count` values to a half format. */
INLINE void narrow(const float *from, int dtype, int count, uint16_t *to) {
    if (dtype == FP16)
        narrow_to_fp16(from, count, to);
    else
        for (int i = 0; i < count; i++) to[i] = nearest_bf16(from[i]);
}
