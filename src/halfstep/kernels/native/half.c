/* Passes over large fp32 gradients, in place; `half.py` calls them. Each computes what the PyTorch
 * named beside its caller does, bit for bit, the payload of a NaN in bf16 excepted on processors
 * where PyTorch itself has two of them. */

#include <stdint.h>
#include <string.h>

static inline uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint16_t narrowed_fp16(float value) {
    uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
    uint32_t normal = (size + 0xfff + (size >> 13 & 1)) >> 13;
    /* Beside 0.5, fp32 has the spacing of fp16's subnormal numbers. */
    uint32_t subnormal = bits_of(from_bits(size) + 0.5f) - 0x3f000000;
    uint32_t nan = 0x7e00 | (size >> 13 & 0x3ff);
    uint32_t finite = size < 0x38800000 ? subnormal : size < 0x47800000 ? normal - 0x1c000 : 0x7c00;
    return (uint16_t)(sign | (size > 0x7f800000 ? nan : finite));
}

static inline float widened_fp16(uint16_t narrow) {
    uint32_t sign = (uint32_t)(narrow & 0x8000) << 16, size = narrow & 0x7fff;
    uint32_t normal = (size << 13) + (size < 0x7c00 ? 0x38000000 : 0x70000000);
    uint32_t subnormal = bits_of(from_bits(0x3f000000 + size) - 0.5f);
    return from_bits(sign | (size < 0x400 ? subnormal : normal));
}

static inline uint16_t narrowed_bf16(float value) {
    uint32_t bits = bits_of(value);
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (bits & 0x7fffffff) > 0x7f800000 ? 0xffff : (uint16_t)rounded;
}

static inline float widened_bf16(uint16_t narrow) { return from_bits((uint32_t)narrow << 16); }

/* Each half number is written past the caches, where the processor can, as few read it. */
#if defined(__AVX512F__)
#include <immintrin.h>
enum { LANES = 16 };
typedef __m512i lanes;
typedef __m256i halves;
#define LOAD _mm512_loadu_si512
#define STORE _mm512_storeu_si512
#define STREAM _mm256_stream_si256

static inline halves fp16_of(lanes value) {
    return _mm512_cvtps_ph(_mm512_castsi512_ps(value), _MM_FROUND_TO_NEAREST_INT);
}

static inline lanes wide_of_fp16(halves narrow) {
    return _mm512_castps_si512(_mm512_cvtph_ps(narrow));
}

static inline halves bf16_of(lanes value) {
    lanes odd = _mm512_and_si512(_mm512_srli_epi32(value, 16), _mm512_set1_epi32(1));
    lanes sum = _mm512_add_epi32(value, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __m512 number = _mm512_castsi512_ps(value);
    __mmask16 is_nan = _mm512_cmp_ps_mask(number, number, _CMP_UNORD_Q);
    lanes rounded = _mm512_mask_set1_epi32(_mm512_srli_epi32(sum, 16), is_nan, 0xffff);
    return _mm512_cvtepi32_epi16(rounded);
}

static inline lanes wide_of_bf16(halves narrow) {
    return _mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16);
}
#elif defined(__AVX2__) && defined(__F16C__)
#include <immintrin.h>
enum { LANES = 8 };
typedef __m256i lanes;
typedef __m128i halves;
#define LOAD(from) _mm256_loadu_si256((const __m256i *)(from))
#define STORE(to, value) _mm256_storeu_si256((__m256i *)(to), value)
#define STREAM _mm_stream_si128

static inline halves fp16_of(lanes value) {
    return _mm256_cvtps_ph(_mm256_castsi256_ps(value), _MM_FROUND_TO_NEAREST_INT);
}

static inline lanes wide_of_fp16(halves narrow) {
    return _mm256_castps_si256(_mm256_cvtph_ps(narrow));
}

static inline halves bf16_of(lanes value) {
    lanes odd = _mm256_and_si256(_mm256_srli_epi32(value, 16), _mm256_set1_epi32(1));
    lanes sum = _mm256_add_epi32(value, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256 number = _mm256_castsi256_ps(value);
    lanes nan = _mm256_castps_si256(_mm256_cmp_ps(number, number, _CMP_UNORD_Q));
    lanes rounded = _mm256_srli_epi32(_mm256_or_si256(sum, nan), 16);
    return _mm_packus_epi32(
        _mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1));
}

static inline lanes wide_of_bf16(halves narrow) {
    return _mm256_slli_epi32(_mm256_cvtepu16_epi32(narrow), 16);
}
#endif

#if defined(STREAM)
const int32_t in_lanes = 1;
#define IN_LANES(format)                                                                           \
    for (; i < count && (uintptr_t)(narrow + i) % sizeof(halves); i++) ONE(format);                \
    for (; i + LANES <= count; i += LANES) {                                                       \
        halves rounded = format##_of(LOAD(values + i));                                            \
        STREAM((halves *)(narrow + i), rounded);                                                   \
        STORE(values + i, wide_of_##format(rounded));                                              \
    }                                                                                              \
    _mm_sfence();
#else
const int32_t in_lanes = 0;
#define IN_LANES(format)
#endif

#define ONE(format)                                                                                \
    (narrow[i] = narrowed_##format(values[i]), values[i] = widened_##format(narrow[i]))

/* Rounds fp32 values to a half format in place, and writes the half numbers beside. */
#define ROUND(format)                                                                              \
    void round_##format(float *restrict values, uint16_t *restrict narrow, int64_t count) {        \
        int64_t i = 0;                                                                             \
        IN_LANES(format)                                                                           \
        for (; i < count; i++) ONE(format);                                                        \
    }

ROUND(fp16)
ROUND(bf16)

/* Multiplies `count` elements of a list of arrays, from the `first` of all on; tells whether one
 * of them was not finite before. `ends` are running totals of the arrays' sizes. */
int32_t unscale(
    float *const *arrays, const int64_t *ends, int64_t first, int64_t count, float factor
) {
    uint32_t found = 0;
    int64_t array = 0, start = 0;
    for (; count > 0; start = ends[array++]) {
        if (ends[array] <= first) continue;
        int64_t from = first - start;
        int64_t size = ends[array] - first < count ? ends[array] - first : count;
        float *values = arrays[array] + from;
        for (int64_t i = 0; i < size; i++) {
            found |= (bits_of(values[i]) & 0x7f800000) == 0x7f800000;
            values[i] *= factor;
        }
        first += size;
        count -= size;
    }
    return (int32_t)found;
}
