/* Groups of floating-point numbers as a few bits an element, rounded stochastically, and back.

   One pass over memory each way: a group is read once into a buffer that stays in the first-level
   cache. The loops are written so that a C compiler vectorises them. `reference.py` says what each
   bit of the result is; both give the same bits, as does `gpu.py`. Compile without contraction of
   multiplications and additions, which would round once where the others round twice.
*/
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

enum { LARGEST_GROUP = 1024, FP32 = 0, FP16 = 1, BF16 = 2 };

static inline float from_bits(uint32_t bits) { float value; memcpy(&value, &bits, 4); return value; }
static inline uint32_t to_bits(float value) { uint32_t bits; memcpy(&bits, &value, 4); return bits; }
static inline float from_bf16(uint16_t bits) { return from_bits((uint32_t)bits << 16); }

/* Ties to even, as torch rounds; NaN stays NaN. */
static inline uint16_t nearest_bf16(float value) {
    uint32_t bits = to_bits(value);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return (uint16_t)(value != value ? 0x7fc0u : rounded);
}

/* Subnormal numbers come right by the multiplication; inf and NaN need their exponent back. */
static inline float from_fp16(uint16_t bits) {
    uint32_t magnitude = to_bits(from_bits((uint32_t)(bits & 0x7fffu) << 13) * 0x1p112f);
    magnitude |= (bits & 0x7c00u) == 0x7c00u ? 0x7f800000u : 0u;
    return from_bits(magnitude | (uint32_t)(bits & 0x8000u) << 16);
}

/* Ties to even; what is too large becomes the largest finite number. 0.5 has the spacing of fp16's
   subnormal numbers, so that adding it rounds those. */
static inline uint16_t nearest_fp16(float value) {
    uint32_t bits = to_bits(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    uint32_t finite = magnitude < 0x477fe000u ? magnitude : 0x477fe000u;
    uint32_t normal = (finite + 0xfffu + (finite >> 13 & 1u) - (112u << 23)) >> 13;
    uint32_t subnormal = to_bits(from_bits(finite) + 0.5f) - 0x3f000000u;
    uint32_t number = finite < 0x38800000u ? subnormal : normal;
    return (uint16_t)((magnitude > 0x7f800000u ? 0x7e00u : number) | sign);
}

static uint16_t bf16_below(float value) {
    uint32_t bits = to_bits(value);
    return (uint16_t)((bits >> 16) + ((bits & 0xffffu) != 0 && (bits >> 31)));
}

static uint16_t bf16_above(float not_negative) {
    uint32_t bits = to_bits(not_negative);
    return (uint16_t)((bits >> 16) + ((bits & 0xffffu) != 0));
}

/* Reads `count` elements of a group and repeats the last one up to its end. */
static inline void read_group(const void *source, int dtype, size_t at, int count, int group, float *values) {
    if (dtype == FP32) {
        memcpy(values, (const float *)source + at, (size_t)count * 4);
    } else if (dtype == FP16) {
        const uint16_t *from = (const uint16_t *)source + at;
        for (int i = 0; i < count; i++) values[i] = from_fp16(from[i]);
    } else {
        const uint16_t *from = (const uint16_t *)source + at;
        for (int i = 0; i < count; i++) values[i] = from_bf16(from[i]);
    }
    for (int i = count; i < group; i++) values[i] = values[count - 1];
}

/* 64-bit lanes of which the lower half counts, since that is how products of 32 bits are had. */
typedef uint64_t Lanes __attribute__((vector_size(64)));
enum { LANES = 8, ABREAST = 4 };

static inline Lanes product(Lanes a, uint32_t b) {
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

static inline void lower(Lanes lanes, uint32_t *to) {
    typedef uint32_t Half __attribute__((vector_size(32)));
    Half half = __builtin_convertvector(lanes, Half);
    memcpy(to, &half, sizeof half);
}

/* Philox4x32 with 10 rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11),
   for `lanes` counters in a row, a multiple of 8. Of a group, element e takes 16 bits of counter
   e % lanes: of word e / lanes % 4, the lower half in the first half of the group, then the upper. */
static inline void random_bits(uint64_t seed, uint32_t stream, uint64_t first, int lanes, uint32_t *words) {
    for (int from = 0; from < lanes; from += ABREAST * LANES) {
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
        for (int i = 0; i < ABREAST && from + i * LANES < lanes; i++) {
            uint32_t *to = words + from + i * LANES;
            lower(c0[i], to);
            lower(c1[i], to + lanes);
            lower(c2[i], to + 2 * lanes);
            lower(c3[i], to + 3 * lanes);
        }
    }
}

/* Writes `width` bits of each code: byte j holds elements j, j + bytes, j + 2 * bytes, ... */
static inline uint8_t *write_plane(const uint8_t *codes, int group, int shift, int width, uint8_t *to) {
    int parts = 8 / width, bytes = group / parts, mask = (1 << width) - 1;
    for (int j = 0; j < bytes; j++) {
        int byte = 0;
        for (int p = 0; p < parts; p++) byte |= ((codes[j + p * bytes] >> shift) & mask) << (p * width);
        to[j] = (uint8_t)byte;
    }
    return to + bytes;
}

static inline const uint8_t *read_plane(const uint8_t *from, int group, int shift, int width, uint8_t *codes) {
    int parts = 8 / width, bytes = group / parts, mask = (1 << width) - 1;
    for (int p = 0; p < parts; p++)
        for (int j = 0; j < bytes; j++)
            codes[j + p * bytes] |= (uint8_t)(((from[j] >> (p * width)) & mask) << shift);
    return from + bytes;
}

static inline uint8_t *write_codes(const uint8_t *codes, int group, int bits, uint8_t *to) {
    switch (bits) {
    case 1: return write_plane(codes, group, 0, 1, to);
    case 2: return write_plane(codes, group, 0, 2, to);
    case 3: return write_plane(codes, group, 2, 1, write_plane(codes, group, 0, 2, to));
    case 4: return write_plane(codes, group, 0, 4, to);
    default: memcpy(to, codes, (size_t)group); return to + group;
    }
}

static inline const uint8_t *read_codes(const uint8_t *from, int group, int bits, uint8_t *codes) {
    memset(codes, 0, (size_t)group);
    switch (bits) {
    case 1: return read_plane(from, group, 0, 1, codes);
    case 2: return read_plane(from, group, 0, 2, codes);
    case 3: return read_plane(read_plane(from, group, 0, 2, codes), group, 2, 1, codes);
    case 4: return read_plane(from, group, 0, 4, codes);
    default: memcpy(codes, from, (size_t)group); return from + group;
    }
}

static inline void quantise(const float *restrict values, float from, float inverse, const uint32_t *restrict words,
                            int shift, int count, int top, uint8_t *restrict code) {
    for (int i = 0; i < count; i++) {
        float part = ((float)(int32_t)(words[i] >> shift & 0xffffu) + 0.5f) * 0x1p-16f;
        int32_t level = (int32_t)((values[i] - from) * inverse + part);
        code[i] = (uint8_t)(level < top ? level : top);
    }
}

/* Finds the lowest and the highest of a group's values; tells whether all of them are finite. */
static inline int span(const float *values, int group, float *lowest, float *highest) {
    typedef float Values __attribute__((vector_size(64)));
    typedef int32_t Words __attribute__((vector_size(64)));
    Values least, most;
    Words size = {0};
    memcpy(&least, values, sizeof least);
    most = least;
    for (int i = 0; i < group; i += 16) {
        Values value;
        memcpy(&value, values + i, sizeof value);
        Words below = value < least, above = value > most, magnitude = (Words)value & 0x7fffffff;
        Words larger = magnitude > size;
        least = (Values)(((Words)value & below) | ((Words)least & ~below));
        most = (Values)(((Words)value & above) | ((Words)most & ~above));
        size = (magnitude & larger) | (size & ~larger);
    }
    int32_t largest = 0;
    *lowest = least[0];
    *highest = most[0];
    for (int i = 0; i < 16; i++) {
        *lowest = least[i] < *lowest ? least[i] : *lowest;
        *highest = most[i] > *highest ? most[i] : *highest;
        largest = size[i] > largest ? size[i] : largest;
    }
    return largest < 0x7f800000;
}

void pack(const void *source, int dtype, int64_t elements, int64_t first_group, int64_t groups, int group,
          int bits, uint64_t seed, uint32_t stream, uint64_t counter, uint8_t *codes, uint16_t *low, uint16_t *step) {
    float copied[LARGEST_GROUP];
    uint32_t words[LARGEST_GROUP / 2];
    uint8_t code[LARGEST_GROUP];
    int lanes = group / 8, half = group / 2, top = (1 << bits) - 1;
    size_t bytes = (size_t)group * (size_t)bits / 8;
    for (int64_t g = first_group; g < first_group + groups; g++) {
        int64_t at = g * group, left = elements - at;
        const float *values = copied;
        if (dtype == FP32 && left >= group)
            values = (const float *)source + at;
        else
            read_group(source, dtype, (size_t)at, left < group ? (int)left : group, group, copied);
        float lowest, highest;
        int finite = span(values, group, &lowest, &highest);
        low[g] = bf16_below(lowest + 0.0f);
        float from = from_bf16(low[g]);
        step[g] = bf16_above((highest - from + 0.0f) / (float)top);
        float width = from_bf16(step[g]);
        if (width < 0x1p-126f) /* its inverse could not be had */
            width = from_bf16(step[g] = 0);
        if (!finite || !(width < INFINITY)) {
            low[g] = step[g] = 0x7fc0;
            memset(codes + (size_t)g * bytes, 0, bytes);
            continue;
        }
        float inverse = width > 0.0f ? 1.0f / width : 0.0f;
        random_bits(seed, stream, (counter + (uint64_t)g) * (uint64_t)lanes, lanes, words);
        quantise(values, from, inverse, words, 0, half, top, code);
        quantise(values + half, from, inverse, words, 16, half, top, code + half);
        write_codes(code, group, bits, codes + (size_t)g * bytes);
    }
}

void unpack(const uint8_t *codes, const uint16_t *low, const uint16_t *step, int dtype, int64_t elements,
            int64_t first_group, int64_t groups, int group, int bits, void *target) {
    float values[LARGEST_GROUP];
    uint8_t code[LARGEST_GROUP];
    size_t bytes = (size_t)group * (size_t)bits / 8;
    for (int64_t g = first_group; g < first_group + groups; g++) {
        int64_t at = g * group, left = elements - at;
        int count = left < group ? (int)left : group;
        float from = from_bf16(low[g]), width = from_bf16(step[g]);
        read_codes(codes + (size_t)g * bytes, group, bits, code);
        float *restored = dtype == FP32 && count == group ? (float *)target + at : values;
        for (int i = 0; i < group; i++) restored[i] = from + (float)code[i] * width;
        if (dtype == FP32) {
            if (count < group) memcpy((float *)target + at, values, (size_t)count * 4);
        } else if (dtype == FP16) {
            uint16_t *to = (uint16_t *)target + at;
            for (int i = 0; i < count; i++) to[i] = nearest_fp16(values[i]);
        } else {
            uint16_t *to = (uint16_t *)target + at;
            for (int i = 0; i < count; i++) to[i] = nearest_bf16(values[i]);
        }
    }
}

/* One bit an element, in planes of MASK_GROUP elements: whether a value is not zero or negative, so
   that the bit of NaN is set. `dtype` BOOL takes bytes that are 0 or 1. */
enum { BOOL = 3, MASK_GROUP = 256 };

void mask(const void *source, int dtype, int64_t elements, int64_t first_group, int64_t groups, uint8_t *bits) {
    uint8_t code[MASK_GROUP];
    for (int64_t g = first_group; g < first_group + groups; g++) {
        int64_t at = g * MASK_GROUP, left = elements - at;
        int count = left < MASK_GROUP ? (int)left : MASK_GROUP;
        memset(code, 0, sizeof code);
        if (dtype == FP32) {
            const float *from = (const float *)source + at;
            for (int i = 0; i < count; i++) code[i] = !(from[i] <= 0.0f);
        } else if (dtype == BOOL) {
            memcpy(code, (const uint8_t *)source + at, (size_t)count);
        } else { /* both halves: a sign and a magnitude */
            const int16_t *from = (const int16_t *)source + at;
            int infinite = dtype == FP16 ? 0x7c00 : 0x7f80;
            for (int i = 0; i < count; i++) code[i] = (from[i] > 0) | ((from[i] & 0x7fff) > infinite);
        }
        write_codes(code, MASK_GROUP, 1, bits + g * (MASK_GROUP / 8));
    }
}

/* Copies elements of `size` bytes whose bit is set; the others become 0. */
void masked(const void *source, int size, const uint8_t *bits, int64_t elements, int64_t first_group,
            int64_t groups, void *target) {
    uint8_t code[MASK_GROUP];
    for (int64_t g = first_group; g < first_group + groups; g++) {
        int64_t at = g * MASK_GROUP, left = elements - at;
        int count = left < MASK_GROUP ? (int)left : MASK_GROUP;
        read_codes(bits + g * (MASK_GROUP / 8), MASK_GROUP, 1, code);
        if (size == 4) {
            const uint32_t *from = (const uint32_t *)source + at;
            uint32_t *to = (uint32_t *)target + at;
            for (int i = 0; i < count; i++) to[i] = from[i] & (0u - code[i]);
        } else {
            const uint16_t *from = (const uint16_t *)source + at;
            uint16_t *to = (uint16_t *)target + at;
            for (int i = 0; i < count; i++) to[i] = from[i] & (uint16_t)(0u - code[i]);
        }
    }
}
