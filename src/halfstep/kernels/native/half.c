/* Passes over large tensors of fp32 and half numbers; `half.py` calls them. Each function gives the
 * same bits as the PyTorch function that its caller uses otherwise. One exception: the payload of a
 * bf16 NaN, on processors where PyTorch itself produces two different payloads. */

#include "numbers.h"

/* A core spends more time on memory than on arithmetic, so each cache line (LINE fp32 numbers) is
 * prefetched AHEAD numbers before its use. */
enum { AHEAD = 1024, LINE = 16 };

/* If the processor can, half numbers are written to memory without the caches, because they are not
 * read soon. */
#if defined(__AVX512F__)
#include <immintrin.h>
enum { LANES = 16 };
typedef __m512i lanes;
typedef __m256i halves;
#define LOAD _mm512_loadu_si512
#define STORE _mm512_storeu_si512
#define LOAD_HALVES(from) _mm256_loadu_si256((const __m256i *)(from))
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
    lanes rounded = _mm512_mask_set1_epi32(_mm512_srli_epi32(sum, 16), is_nan, 0x7fc0);
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
#define LOAD_HALVES(from) _mm_loadu_si128((const __m128i *)(from))
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
    lanes is_nan = _mm256_castps_si256(_mm256_cmp_ps(number, number, _CMP_UNORD_Q));
    lanes rounded = _mm256_blendv_epi8(_mm256_srli_epi32(sum, 16), _mm256_set1_epi32(0x7fc0), is_nan);
    return _mm_packus_epi32(
        _mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1));
}

static inline lanes wide_of_bf16(halves narrow) {
    return _mm256_slli_epi32(_mm256_cvtepu16_epi32(narrow), 16);
}
#endif

#if defined(STREAM)
const int32_t in_lanes = 1;
#define ROUND_IN_LANES(format)                                                                     \
    for (; i < count && (uintptr_t)(narrow + i) % sizeof(halves); i++) ROUND_ONE(format);          \
    for (; i + LANES <= count; i += LANES) {                                                       \
        __builtin_prefetch(values + i + AHEAD);                                                    \
        halves rounded = format##_of(LOAD(values + i));                                            \
        if (narrow) STREAM((halves *)(narrow + i), rounded);                                       \
        if (wide) STORE(wide + i, wide_of_##format(rounded));                                      \
    }                                                                                              \
    _mm_sfence();
#define WIDEN_IN_LANES(format)                                                                     \
    for (; i + LANES <= count; i += LANES) {                                                       \
        __builtin_prefetch(narrow + i + AHEAD);                                                    \
        __builtin_prefetch(wide + i + AHEAD, 1);                                                   \
        STORE(wide + i, wide_of_##format(LOAD_HALVES(narrow + i)));                                \
    }
#else
const int32_t in_lanes = 0;
#define ROUND_IN_LANES(format)
#define WIDEN_IN_LANES(format)
#endif

#define ROUND_ONE(format)                                                                          \
    do {                                                                                           \
        uint16_t rounded = narrowed_##format(values[i]);                                           \
        if (narrow) narrow[i] = rounded;                                                           \
        if (wide) wide[i] = widened_##format(rounded);                                             \
    } while (0)

/* round_fp16 and round_bf16 round fp32 numbers to a half format. They write the half numbers to
 * `narrow` and the same numbers in fp32 to `wide`, which may be `values`; either may be null.
 * widen_fp16 and widen_bf16 convert half numbers to fp32. */
#define PASSES(format)                                                                             \
    void round_##format(const float *values, uint16_t *narrow, float *wide, int64_t count) {       \
        int64_t i = 0;                                                                             \
        ROUND_IN_LANES(format)                                                                     \
        for (; i < count; i++) ROUND_ONE(format);                                                  \
    }                                                                                              \
    void widen_##format(const uint16_t *narrow, float *wide, int64_t count) {                      \
        int64_t i = 0;                                                                             \
        WIDEN_IN_LANES(format)                                                                     \
        for (; i < count; i++) wide[i] = widened_##format(narrow[i]);                              \
    }

PASSES(fp16)
PASSES(bf16)

/* Multiplies `count` elements of a list of arrays by `factor`, from the element `first` of all
 * arrays together. Returns 1 if an element was inf or NaN before. `ends` are cumulative array
 * sizes. */
int32_t unscale(
    float *const *arrays, const int64_t *ends, int64_t first, int64_t count, float factor
) {
    int found = 0;
    for (struct range range = {0}; next_range(&range, ends, &first, &count);) {
        float *values = arrays[range.array] + range.from;
        for (int64_t block = 0; block < range.size; block += 4 * LINE) {
            int64_t end = block + 4 * LINE < range.size ? block + 4 * LINE : range.size;
            for (int64_t i = block; i < end; i += LINE) __builtin_prefetch(values + i + AHEAD);
            for (int64_t i = block; i < end; i++) {
                found |= !is_finite(values[i]);
                values[i] *= factor;
            }
        }
    }
    return found;
}
