/* For the files of this folder: conversions of single half-precision numbers, where rounding is to
 * the nearest number, ties to even, and ranges of lists of arrays. */

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

/* PyTorch rounds NaN to one of two bit patterns. This is its pattern for single numbers. */
static inline uint16_t narrowed_bf16(float value) {
    uint32_t bits = bits_of(value);
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : (uint16_t)rounded;
}

static inline float widened_bf16(uint16_t narrow) { return from_bits((uint32_t)narrow << 16); }

static inline uint16_t narrowed_fp16(float value) {
    uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
    uint32_t normal = (size + 0xfff + (size >> 13 & 1)) >> 13;
    /* The spacing of fp32 just above 0.5 is that of fp16's subnormal numbers, so adding 0.5 rounds
     * to it. */
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

/* A range of the elements of one array in a list. */
struct range {
    int64_t array, from, size;
};

/* Sets `range` to the next range of a list of arrays and returns 1; returns 0 at the end. `first`
 * and `count` are a range of the elements of all arrays together, of which this takes the first
 * part. `ends` are cumulative array sizes. `range` starts with zeros. */
static inline int next_range(
    struct range *range, const int64_t *ends, int64_t *first, int64_t *count
) {
    if (*count <= 0) return 0;
    while (ends[range->array] <= *first) range->array++;
    int64_t left = ends[range->array] - *first;
    range->from = *first - (range->array ? ends[range->array - 1] : 0);
    range->size = left < *count ? left : *count;
    *first += range->size;
    *count -= range->size;
    return 1;
}

static inline int is_finite(float value) { return (bits_of(value) & 0x7f800000) != 0x7f800000; }
