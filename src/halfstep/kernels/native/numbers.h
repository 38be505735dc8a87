/* Conversions of single half-precision numbers, for the files of this folder. Rounding is to the
 * nearest number, ties to even. */

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
