/* Groups of floating-point numbers as a few bits an element, rounded stochastically, and back.

   One pass over memory each way: a few groups are read once into a buffer that stays in the
   first-level cache. The loops are written so that a C compiler vectorises them; codes are put
   together and taken apart in 32-bit lanes, so that none is ever narrowed or widened. `reference.py`
   says what each bit of the result is; both give the same bits, as does `gpu.py`. Compile without
   contraction of multiplications and additions, which would round once where the others round twice.
*/
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))

enum { LARGEST_GROUP = 1024, AT_ONCE = 8, AHEAD = 4, FP32 = 0, FP16 = 1, BF16 = 2, BOOL = 3 };

INLINE float from_bits(uint32_t bits) { float value; memcpy(&value, &bits, 4); return value; }
INLINE uint32_t to_bits(float value) { uint32_t bits; memcpy(&bits, &value, 4); return bits; }
INLINE float from_bf16(uint16_t bits) { return from_bits((uint32_t)bits << 16); }

/* Maps the bits of a number to an integer of the same order, and back. */
INLINE int32_t in_order(int32_t bits) { return bits ^ (bits >> 31 & 0x7fffffff); }

/* Ties to even, as torch rounds; NaN stays NaN. */
INLINE uint16_t nearest_bf16(float value) {
    uint32_t bits = to_bits(value);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return (uint16_t)(value != value ? 0x7fc0u : rounded);
}

/* Subnormal numbers come right by the multiplication; inf and NaN need their exponent back. */
INLINE float from_fp16(uint16_t bits) {
    uint32_t magnitude = to_bits(from_bits((uint32_t)(bits & 0x7fffu) << 13) * 0x1p112f);
    magnitude |= (bits & 0x7c00u) == 0x7c00u ? 0x7f800000u : 0u;
    return from_bits(magnitude | (uint32_t)(bits & 0x8000u) << 16);
}

/* Ties to even; what is too large becomes the largest finite number. 0.5 has the spacing of fp16's
   subnormal numbers, so that adding it rounds those. */
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
#if defined(__F16C__)
    for (; i + 8 <= count; i += 8)
        _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from + i))));
#endif
    for (; i < count; i++) to[i] = from_fp16(from[i]);
}

INLINE void narrow_to_fp16(const float *from, int count, uint16_t *to) {
    int i = 0;
#if defined(__F16C__)
    const __m256 largest = _mm256_set1_ps(65504.0f), smallest = _mm256_set1_ps(-65504.0f);
    for (; i + 8 <= count; i += 8) { /* of an operand that is NaN and another, the second is taken */
        __m256 value = _mm256_max_ps(smallest, _mm256_min_ps(largest, _mm256_loadu_ps(from + i)));
        _mm_storeu_si128((__m128i *)(to + i), _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
    }
#endif
    for (; i < count; i++) to[i] = nearest_fp16(from[i]);
}

/* Asks for memory that is needed soon: the processor itself does not look beyond a page, and while a
   group is computed it looks no further at all. An address past the end does no harm. */
#define ahead(memory, dtype, at, count, to_write) \
    for (int line = 0; line < (count) * ((dtype) == FP32 ? 4 : 2); line += 64) \
        __builtin_prefetch((const char *)(memory) + (at) * ((dtype) == FP32 ? 4 : 2) + line, to_write)

/* Reads `count` elements of a group and repeats the last one up to its end. */
INLINE void read_group(const void *source, int dtype, size_t at, int count, int group, float *values) {
    if (dtype == FP32) {
        memcpy(values, (const float *)source + at, (size_t)count * 4);
    } else if (dtype == FP16) {
        widen_fp16((const uint16_t *)source + at, count, values);
    } else {
        const uint16_t *from = (const uint16_t *)source + at;
        for (int i = 0; i < count; i++) values[i] = from_bf16(from[i]);
    }
    for (int i = count; i < group; i++) values[i] = values[count - 1];
}

/* 64-bit lanes of which the lower half counts, since that is how products of 32 bits are had. */
typedef uint64_t Lanes __attribute__((vector_size(64)));
enum { LANES = 8, ABREAST = 4 };

INLINE Lanes product(Lanes a, uint32_t b) {
#if defined(__AVX512F__)
    return (Lanes)_mm512_mul_epu32((__m512i)a, _mm512_set1_epi64(b));
#elif defined(__AVX2__)
    union { Lanes lanes; __m256i halves[2]; } both = {a};
    both.halves[0] = _mm256_mul_epu32(both.halves[0], _mm256_set1_epi64x(b));
    both.halves[1] = _mm256_mul_epu32(both.halves[1], _mm256_set1_epi64x(b));
    return both.lanes;
#else
    return (a & 0xffffffffu) * (uint64_t)b;
#endif
}

/* Philox4x32 with 10 rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11), for
   AT_ONCE groups that take `lanes` counters each, a multiple of 8. Of each group come the first two
   words of all counters, and then the last two. */
INLINE void random_words(uint64_t seed, uint32_t stream, uint64_t first, int lanes, uint32_t *words) {
    for (int from = 0; from < AT_ONCE * lanes; from += ABREAST * LANES) {
        Lanes c0[ABREAST], c1[ABREAST], c2[ABREAST], c3[ABREAST];
        for (int i = 0; i < ABREAST; i++) {
            Lanes counter = first + (uint64_t)(from + i * LANES) + (Lanes){0, 1, 2, 3, 4, 5, 6, 7};
            c0[i] = counter;
            c1[i] = counter >> 32;
            c2[i] = (Lanes){0} + stream;
            c3[i] = (Lanes){0};
        }
        uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
        for (int round = 0; round < 10; round++) {
            for (int i = 0; i < ABREAST; i++) {
                Lanes a = product(c0[i], 0xD2511F53u), b = product(c2[i], 0xCD9E8D57u);
                c0[i] = (b >> 32) ^ c1[i] ^ k0;
                c2[i] = (a >> 32) ^ c3[i] ^ k1;
                c1[i] = b;
                c3[i] = a;
            }
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
        for (int i = 0; i < ABREAST; i++) {
            int lane = from + i * LANES;
            uint32_t *to = words + lane / lanes * 4 * lanes + lane % lanes * 2;
            Lanes upper = (c0[i] & 0xffffffffu) | c1[i] << 32, lower = (c2[i] & 0xffffffffu) | c3[i] << 32;
            memcpy(to, &upper, sizeof upper);
            memcpy(to + 2 * lanes, &lower, sizeof lower);
        }
    }
}

/* Finds the lowest and the highest of a group's values; tells whether all of them are finite. As
   integers whose order is that of the numbers, inf and NaN lie at both ends. */
INLINE int span(const float *values, int group, float *lowest, float *highest) {
    int32_t least = INT32_MAX, most = INT32_MIN;
    for (int i = 0; i < group; i++) {
        int32_t key = in_order((int32_t)to_bits(values[i]));
        least = key < least ? key : least;
        most = key > most ? key : most;
    }
    *lowest = from_bits((uint32_t)in_order(least));
    *highest = from_bits((uint32_t)in_order(most));
    return least > in_order((int32_t)0xff800000) && most < 0x7f800000;
}

/* 1 + the number of one of the two levels around a value, such that it is right on average: the
   chance of the upper one is in 16 bits of `word`, from bit 8 * `window` on. */
INLINE uint32_t level_of(float value, float from, float inverse, uint32_t word, int window, int32_t top) {
    uint32_t turned = window == 3 ? word << 8 | word >> 24 : word;
    uint32_t drawn = window == 0 || window == 3 ? turned << 7 : window == 1 ? turned >> 1 : turned >> 9;
    float part = from_bits((drawn & 0x7fff80u) | 0x3f800040u); /* 1 + (drawn + 0.5) / 2^16 */
    int32_t level = (int32_t)((value - from) * inverse + part);
    return (uint32_t)(level <= top ? level : top + 1);
}

/* Rounds a group. Word j of a plane holds elements j, j + words, j + 2 * words, ... from its lowest
   bit on; of 3 bits, the lower two are such a plane of 32-bit words and the third one of 16-bit words. */
INLINE void write_group(const float *restrict values, float from, float inverse, const uint32_t *restrict random,
                        const int group, const int bits, uint32_t *restrict to) {
    const int width = bits == 3 ? 2 : bits, parts = 32 / width, words = group / parts, drawn = group / 4;
    const int32_t top = (1 << bits) - 1;
    uint16_t *restrict third = (uint16_t *)(to + words);
    for (int j = 0; j < words; j++) {
        uint32_t word = 0, thirds = 0;
#pragma GCC unroll 32
        for (int i = 0; i < parts; i++) {
            const int at = i * words;
            uint32_t level = level_of(values[at + j], from, inverse, random[at % drawn + j], at / drawn, top) - 1;
            word |= (bits == 3 ? level & 3 : level) << (i * width);
            if (bits == 3) thirds |= level >> 2 << i;
        }
        to[j] = word;
        if (bits == 3) third[j] = (uint16_t)thirds;
    }
}

INLINE void pack_groups(const void *source, int dtype, int64_t elements, int64_t first_group, int64_t groups,
                        int group, int bits, uint64_t seed, uint32_t stream, uint64_t counter, uint8_t *codes,
                        uint16_t *low, uint16_t *step) {
    float copied[AT_ONCE * LARGEST_GROUP];
    uint32_t random[AT_ONCE * LARGEST_GROUP / 4];
    int lanes = group < 128 ? 8 : group / 16;
    float top = (float)((1 << bits) - 1);
    size_t bytes = (size_t)group * (size_t)bits / 8;
    for (int64_t g = first_group; g < first_group + groups; g += AT_ONCE) {
        int64_t left = first_group + groups - g;
        int count = left < AT_ONCE ? (int)left : AT_ONCE;
        const float *values[AT_ONCE];
        float lowest[AT_ONCE] = {0}, highest[AT_ONCE] = {0}, from[AT_ONCE], inverse[AT_ONCE];
        int32_t finite[AT_ONCE] = {0};
        uint16_t below[AT_ONCE], width[AT_ONCE];
        for (int n = 0; n < count; n++) {
            int64_t at = (g + n) * group, rest = elements - at;
            ahead(source, dtype, at + AT_ONCE * group, group, 0);
            values[n] = copied + n * group;
            if (dtype == FP32 && rest >= group)
                values[n] = (const float *)source + at;
            else
                read_group(source, dtype, (size_t)at, rest < group ? (int)rest : group, group, copied + n * group);
            finite[n] = span(values[n], group, lowest + n, highest + n);
        }
        for (int n = 0; n < AT_ONCE; n++) {
            below[n] = bf16_below(lowest[n] + 0.0f);
            from[n] = from_bf16(below[n]);
            width[n] = bf16_above((highest[n] - from[n] + 0.0f) / top);
            width[n] = width[n] < 0x0080 ? 0 : width[n]; /* its inverse could not be had */
            finite[n] &= width[n] < 0x7f80;
            inverse[n] = width[n] ? 1.0f / from_bf16(width[n]) : 0.0f;
        }
        random_words(seed, stream, (counter + (uint64_t)g) * (uint64_t)lanes, lanes, random);
        for (int n = 0; n < count; n++) {
            uint8_t *to = codes + (size_t)(g + n) * bytes;
            low[g + n] = finite[n] ? below[n] : 0x7fc0;
            step[g + n] = finite[n] ? width[n] : 0x7fc0;
            if (finite[n])
                write_group(values[n], from[n], inverse[n], random + n * 4 * lanes, group, bits, (uint32_t *)to);
            else
                memset(to, 0, bytes);
        }
    }
}

void pack(const void *source, int dtype, int64_t elements, int64_t first_group, int64_t groups, int group,
          int bits, uint64_t seed, uint32_t stream, uint64_t counter, uint8_t *codes, uint16_t *low, uint16_t *step) {
#define PACK(group, bits) \
    pack_groups(source, dtype, elements, first_group, groups, group, bits, seed, stream, counter, codes, low, step)
    if (group != 256) return PACK(group, bits);
    switch (bits) {
    case 2: return PACK(256, 2);
    case 3: return PACK(256, 3);
    case 4: return PACK(256, 4);
    default: return PACK(256, 8);
    }
}

INLINE void read_group_back(const uint32_t *restrict from, float low, float step, const int group, const int bits,
                            float *restrict to) {
    const int width = bits == 3 ? 2 : bits, parts = 32 / width, words = group / parts;
    const uint32_t mask = (1u << width) - 1;
    const uint16_t *third = (const uint16_t *)(from + words);
    for (int j = 0; j < words; j++) {
        const uint32_t word = from[j], thirds = bits == 3 ? (uint32_t)third[j] << 2 : 0;
#pragma GCC unroll 32
        for (int i = 0; i < parts; i++) {
            uint32_t code = (word >> (i * width) & mask) | (thirds >> i & 4);
            to[i * words + j] = low + (float)(int32_t)code * step;
        }
    }
}

INLINE void unpack_groups(const uint8_t *codes, const uint16_t *low, const uint16_t *step, int dtype, int64_t elements,
                          int64_t first_group, int64_t groups, int group, int bits, void *target) {
    float values[LARGEST_GROUP];
    size_t bytes = (size_t)group * (size_t)bits / 8;
    for (int64_t g = first_group; g < first_group + groups; g++) {
        int64_t at = g * group, left = elements - at;
        int count = left < group ? (int)left : group;
        const uint32_t *from = (const uint32_t *)(codes + (size_t)g * bytes);
        ahead(target, dtype, at + AHEAD * group, group, 1);
        float *restored = dtype == FP32 && count == group ? (float *)target + at : values;
        read_group_back(from, from_bf16(low[g]), from_bf16(step[g]), group, bits, restored);
        if (dtype == FP32) {
            if (count < group) memcpy((float *)target + at, values, (size_t)count * 4);
        } else if (dtype == FP16) {
            narrow_to_fp16(values, count, (uint16_t *)target + at);
        } else {
            uint16_t *to = (uint16_t *)target + at;
            for (int i = 0; i < count; i++) to[i] = nearest_bf16(values[i]);
        }
    }
}

void unpack(const uint8_t *codes, const uint16_t *low, const uint16_t *step, int dtype, int64_t elements,
            int64_t first_group, int64_t groups, int group, int bits, void *target) {
#define UNPACK(group, bits) \
    unpack_groups(codes, low, step, dtype, elements, first_group, groups, group, bits, target)
    if (group != 256) return UNPACK(group, bits);
    switch (bits) {
    case 2: return UNPACK(256, 2);
    case 3: return UNPACK(256, 3);
    case 4: return UNPACK(256, 4);
    default: return UNPACK(256, 8);
    }
}

/* One bit an element, in groups of MASK_GROUP elements: whether a value is not zero or negative, so
   that the bit of NaN is set. `dtype` BOOL takes bytes that are 0 or 1. */
enum { MASK_GROUP = 256, MASK_WORDS = MASK_GROUP / 16 };

void mask(const void *source, int dtype, int64_t elements, int64_t first_group, int64_t groups, uint8_t *bits) {
    uint8_t set[MASK_GROUP] = {0};
    for (int64_t g = first_group; g < first_group + groups; g++) {
        int64_t at = g * MASK_GROUP, left = elements - at;
        int count = left < MASK_GROUP ? (int)left : MASK_GROUP;
        if (dtype != BOOL) ahead(source, dtype, at + AHEAD * MASK_GROUP, MASK_GROUP, 0);
        if (count < MASK_GROUP) memset(set, 0, sizeof set);
        if (dtype == FP32) {
            const float *from = (const float *)source + at;
            for (int i = 0; i < count; i++) set[i] = !(from[i] <= 0.0f);
        } else if (dtype == BOOL) {
            memcpy(set, (const uint8_t *)source + at, (size_t)count);
        } else { /* both halves: a sign and a magnitude */
            const int16_t *from = (const int16_t *)source + at;
            int infinite = dtype == FP16 ? 0x7c00 : 0x7f80;
            for (int i = 0; i < count; i++) set[i] = (from[i] > 0) | ((from[i] & 0x7fff) > infinite);
        }
        uint16_t *to = (uint16_t *)(bits + g * (MASK_GROUP / 8));
        for (int j = 0; j < MASK_WORDS; j++) {
            uint16_t word = 0;
#pragma GCC unroll 16
            for (int i = 0; i < 16; i++) word |= (uint16_t)(set[i * MASK_WORDS + j] << i);
            to[j] = word;
        }
    }
}

/* Copies elements of `size` bytes whose bit is set; the others become 0. */
void masked(const void *source, int size, const uint8_t *bits, int64_t elements, int64_t first_group,
            int64_t groups, void *target) {
    uint16_t keep[MASK_GROUP];
    for (int64_t g = first_group; g < first_group + groups; g++) {
        int64_t at = g * MASK_GROUP, left = elements - at;
        int count = left < MASK_GROUP ? (int)left : MASK_GROUP;
        const uint16_t *words = (const uint16_t *)(bits + g * (MASK_GROUP / 8));
        for (int i = 0; i < 16; i++)
            for (int j = 0; j < MASK_WORDS; j++) keep[i * MASK_WORDS + j] = words[j] >> i & 1;
        if (size == 4) {
            const uint32_t *from = (const uint32_t *)source + at;
            uint32_t *to = (uint32_t *)target + at;
            for (int i = 0; i < count; i++) to[i] = from[i] & (0u - keep[i]);
        } else {
            const uint16_t *from = (const uint16_t *)source + at;
            uint16_t *to = (uint16_t *)target + at;
            for (int i = 0; i < count; i++) to[i] = from[i] & (uint16_t)(0u - keep[i]);
        }
    }
}
