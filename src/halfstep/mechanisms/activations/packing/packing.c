/* Packs groups of floating-point numbers into a few bits per element with stochastic rounding, and
   unpacks them.

   Each direction is one pass over memory: a few groups are read once into a buffer that stays in
   the first-level cache. The loops are written so that a C compiler vectorises them. Codes are
   combined into words and extracted from words in 32-bit lanes, so that no lane changes its width.
   With AVX-512, half results are looked up in 16-bit lanes. `reference.py` defines each bit of the
   result, and `gpu.py` gives the same bits too. Compile this file without contraction of
   multiplications and additions, which would round once where the others round twice.
*/
#include "formats.h"

enum { LARGEST_GROUP = 1024, AT_ONCE = 8, AHEAD = 4 };

/* The number of codes in a word: words have 8 times `bits` bits, or 32. */
#define PARTS(bits) ((bits) == 8 ? 4 : 8)

/* Calls a function with constant arguments for groups of 256 elements and each number of bits, so
   that the compiler specialises it for them. */
#define SPECIALISED(run) \
    if (group != 256) { run(group, bits); return; } \
    switch (bits) { \
    case 2: run(256, 2); break; \
    case 3: run(256, 3); break; \
    case 4: run(256, 4); break; \
    default: run(256, 8); \
    }

/* Prefetches memory that is needed soon. The processor's own prefetcher stops at the end of a page,
   and while a group is computed it does not run ahead. A prefetch of an address past the end has no
   effect. */
#define ahead(memory, dtype, at, count, to_write) \
    for (int line = 0; line < (count) * ((dtype) == FP32 ? 4 : 2); line += 64) \
        __builtin_prefetch((const char *)(memory) + (at) * ((dtype) == FP32 ? 4 : 2) + line, to_write)

/* Reads `count` elements of a group as fp32, and fills the group up with the last of them. */
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

/* 64-bit lanes. Only the lower 32 bits of a lane are used as a factor, because the instruction for
   32-bit products reads the factors from there. */
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

/* Draws random words with Philox4x32, 10 rounds (Salmon et al., "Parallel random numbers: as easy
   as 1, 2, 3", SC11), for AT_ONCE groups. Each group uses `lanes` counters, a multiple of 8. The
   words of a group are the first two words of all its counters, followed by the last two words of
   all its counters. */
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

/* Finds the lowest and the highest of `count` values, and returns whether all of them are finite.
   The values are compared as integers in the order of the numbers (`in_order`), where inf and NaN
   are at both ends. Half numbers are compared before they are widened, so that a vector contains
   twice as many. */
INLINE int span(const void *source, int dtype, size_t at, int count, float *lowest, float *highest) {
    if (dtype == FP32) {
        const int32_t *from = (const int32_t *)source + at;
        int32_t least = INT32_MAX, most = INT32_MIN;
        for (int i = 0; i < count; i++) {
            int32_t key = in_order(from[i]);
            least = key < least ? key : least;
            most = key > most ? key : most;
        }
        *lowest = from_bits((uint32_t)in_order(least));
        *highest = from_bits((uint32_t)in_order(most));
        return least > in_order((int32_t)0xff800000) && most < 0x7f800000;
    }
    const int16_t *from = (const int16_t *)source + at;
    int16_t least = INT16_MAX, most = INT16_MIN, infinite = dtype == FP16 ? 0x7c00 : 0x7f80;
    for (int i = 0; i < count; i++) {
        int16_t key = half_in_order(from[i]);
        least = key < least ? key : least;
        most = key > most ? key : most;
    }
    uint16_t low = (uint16_t)half_in_order(least), high = (uint16_t)half_in_order(most);
    *lowest = dtype == FP16 ? from_fp16(low) : from_bf16(low);
    *highest = dtype == FP16 ? from_fp16(high) : from_bf16(high);
    return least > ~infinite && most < infinite;
}

/* Returns 1 + the index of one of the two levels around a value, selected at random so that the
   value is right on average. The random number is 16 bits of `word`, from bit 8 * `window` on. With
   fewer than 8 bits no result is above 1 + top: arithmetic errors add less than 2^-18 to an index,
   and a random number is at most 1 - 2^-17. */
INLINE uint32_t level_of(float value, float from, float inverse, uint32_t word, int window, const int bits) {
    uint32_t turned = window == 3 ? word << 8 | word >> 24 : word;
    uint32_t drawn = window == 0 || window == 3 ? turned << 7 : window == 1 ? turned >> 1 : turned >> 9;
    float part = from_bits((drawn & 0x7fff80u) | 0x3f800040u); /* 1 + (drawn + 0.5) / 2^16 */
    int32_t level = (int32_t)((value - from) * inverse + part);
    return (uint32_t)(bits < 8 || level <= 256 ? level : 256);
}

/* Rounds a group. Word j contains elements j, j + words, j + 2 * words, ... from its lowest bit on.
   `level_of` returns 1 too much: the levels of a word are added up first, and one subtraction then
   corrects all of them. */
INLINE void write_group(const float *restrict values, float from, float inverse, const uint32_t *restrict random,
                        const int group, const int bits, uint8_t *restrict to) {
    const int parts = PARTS(bits), words = group / parts, drawn = group / 4;
    const uint32_t ones = bits == 2 ? 0x5555u : bits == 3 ? 011111111u : bits == 4 ? 0x11111111u : 0x01010101u;
    for (int j = 0; j < words; j++) {
        uint32_t word = 0;
#pragma GCC unroll 8
        for (int i = 0; i < parts; i++) {
            const int at = i * words;
            word += level_of(values[at + j], from, inverse, random[at % drawn + j], at / drawn, bits) << i * bits;
        }
        word -= ones;
        if (bits <= 3)
            ((uint16_t *)to)[j] = (uint16_t)word;
        else
            ((uint32_t *)to)[j] = word;
        if (bits == 3) to[2 * words + j] = (uint8_t)(word >> 16);
    }
}

INLINE void pack_groups(const void *source, int dtype, int64_t elements, int64_t first_group, int64_t groups,
                        int group, int bits, uint64_t seed, uint32_t stream, uint64_t counter, uint8_t *codes,
                        uint16_t *low, uint16_t *step) {
    float copied[AT_ONCE * LARGEST_GROUP];
    uint32_t random[AT_ONCE * LARGEST_GROUP / 4];
    int lanes = group < 128 ? 8 : group / 16;
    float share = 1.0f / (float)((1 << bits) - 1); /* rounded up, for each number of bits */
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
            if (rest >= group)
                finite[n] = span(source, dtype, (size_t)at, group, lowest + n, highest + n);
            else
                finite[n] = span(source, dtype, (size_t)at, (int)rest, lowest + n, highest + n);
        }
        for (int n = 0; n < AT_ONCE; n++) {
            below[n] = bf16_below(lowest[n] + 0.0f);
            from[n] = from_bf16(below[n]);
            width[n] = bf16_above((highest[n] - from[n] + 0.0f) * share);
            width[n] = width[n] < 0x0080 ? 0 : width[n]; /* a subnormal's inverse may overflow */
            finite[n] &= width[n] < 0x7f80;
            inverse[n] = width[n] ? 1.0f / from_bf16(width[n]) : 0.0f;
        }
        random_words(seed, stream, (counter + (uint64_t)g) * (uint64_t)lanes, lanes, random);
        for (int n = 0; n < count; n++) {
            uint8_t *to = codes + (size_t)(g + n) * bytes;
            low[g + n] = finite[n] ? below[n] : 0x7fc0;
            step[g + n] = finite[n] ? width[n] : 0x7fc0;
            if (finite[n])
                write_group(values[n], from[n], inverse[n], random + n * 4 * lanes, group, bits, to);
            else
                memset(to, 0, bytes);
        }
    }
}

void pack(const void *source, int dtype, int64_t elements, int64_t first_group, int64_t groups, int group,
          int bits, uint64_t seed, uint32_t stream, uint64_t counter, uint8_t *codes, uint16_t *low, uint16_t *step) {
#define PACK(group, bits) \
    pack_groups(source, dtype, elements, first_group, groups, group, bits, seed, stream, counter, codes, low, step)
    SPECIALISED(PACK)
}

INLINE void read_group_back(const uint8_t *restrict from, float low, float step, const int group, const int bits,
                            float *restrict to) {
    const int parts = PARTS(bits), words = group / parts;
    for (int j = 0; j < words; j++) {
        uint32_t word = bits <= 3 ? ((const uint16_t *)from)[j] : ((const uint32_t *)from)[j];
        if (bits == 3) word |= (uint32_t)from[2 * words + j] << 16;
#pragma GCC unroll 8
        for (int i = 0; i < parts; i++)
            to[i * words + j] = low + (float)(int32_t)(word >> i * bits & ((1u << bits) - 1)) * step;
    }
}

#if defined(__AVX512BW__)
/* Unpacks a full group of at most 4 bits per element into half numbers. The levels of the group are
   computed and rounded once, into a table of 32 entries in a register. The lowest 5 bits of a
   16-bit lane are the index of an entry. The table repeats the levels, so that the bits above a
   code do not matter. `lanes` has 16 bits of each of the group's 32 words, from bit 0 on; `later`
   has 16 bits from bit `begin` on. */
INLINE void look_up_group(const uint8_t *from, float low, float step, int dtype, const int bits, uint16_t *to) {
    enum { WORDS = 32, PARTS = 8 };
    const int begin = bits == 3 ? 8 : 16, first_later = bits == 2 ? PARTS : bits == 3 ? 5 : 4;
    float levels[16];
    uint16_t halves[16];
    for (int i = 0; i < 16; i++) levels[i] = low + (float)(i & ((1 << bits) - 1)) * step;
    narrow(levels, dtype, 16, halves);
    const __m512i table = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)halves));
    __m512i lanes = _mm512_loadu_si512(from), later = lanes;
    if (bits == 3) {
        const __m512i thirds = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)(from + 2 * WORDS)));
        later = _mm512_or_si512(_mm512_srli_epi16(lanes, 8), _mm512_slli_epi16(thirds, 8));
    } else if (bits == 4) {
        const __m512i more = _mm512_loadu_si512(from + 64), one = _mm512_set1_epi16(1);
        uint16_t even[WORDS];
        for (int i = 0; i < WORDS; i++) even[i] = (uint16_t)(2 * i);
        const __m512i lower = _mm512_loadu_si512(even);
        later = _mm512_permutex2var_epi16(lanes, _mm512_or_si512(lower, one), more);
        lanes = _mm512_permutex2var_epi16(lanes, lower, more);
    }
#pragma GCC unroll 8
    for (int i = 0; i < PARTS; i++) {
        const __m512i code = i < first_later ? _mm512_srli_epi16(lanes, (unsigned)(i * bits))
                                             : _mm512_srli_epi16(later, (unsigned)(i * bits - begin));
        _mm512_storeu_si512(to + i * WORDS, _mm512_permutexvar_epi16(code, table));
    }
}
#endif

INLINE void unpack_groups(const uint8_t *codes, const uint16_t *low, const uint16_t *step, int dtype, int64_t elements,
                          int64_t first_group, int64_t groups, int group, int bits, void *target) {
    float values[LARGEST_GROUP];
    size_t bytes = (size_t)group * (size_t)bits / 8;
    for (int64_t g = first_group; g < first_group + groups; g++) {
        int64_t at = g * group, left = elements - at;
        int count = left < group ? (int)left : group;
        const uint8_t *from = codes + (size_t)g * bytes;
        ahead(target, dtype, at + AHEAD * group, group, 1);
#if defined(__AVX512BW__)
        if (dtype != FP32 && group == 256 && bits <= 4 && count == group) {
            look_up_group(from, from_bf16(low[g]), from_bf16(step[g]), dtype, bits, (uint16_t *)target + at);
            continue;
        }
#endif
        float *restored = dtype == FP32 && count == group ? (float *)target + at : values;
        read_group_back(from, from_bf16(low[g]), from_bf16(step[g]), group, bits, restored);
        if (dtype == FP32) {
            if (count < group) memcpy((float *)target + at, values, (size_t)count * 4);
        } else {
            narrow(values, dtype, count, (uint16_t *)target + at);
        }
    }
}

void unpack(const uint8_t *codes, const uint16_t *low, const uint16_t *step, int dtype, int64_t elements,
            int64_t first_group, int64_t groups, int group, int bits, void *target) {
#define UNPACK(group, bits) \
    unpack_groups(codes, low, step, dtype, elements, first_group, groups, group, bits, target)
    SPECIALISED(UNPACK)
}

/* Writes one bit per element, in groups of MASK_GROUP elements. The bit is set if the value is
   positive or NaN. With `dtype` BOOL, the source consists of bytes that are 0 or 1. */
enum { MASK_GROUP = 256, MASK_PARTS = 8, MASK_WORDS = MASK_GROUP / MASK_PARTS };

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
        } else { /* fp16 and bf16 both consist of a sign and a magnitude */
            const int16_t *from = (const int16_t *)source + at;
            int infinite = dtype == FP16 ? 0x7c00 : 0x7f80;
            for (int i = 0; i < count; i++) set[i] = (from[i] > 0) | ((from[i] & 0x7fff) > infinite);
        }
        uint8_t *to = bits + g * MASK_WORDS;
        for (int j = 0; j < MASK_WORDS; j++) {
            uint8_t word = 0;
#pragma GCC unroll 8
            for (int i = MASK_PARTS - 1; i >= 0; i--) word = (uint8_t)(word + word + set[i * MASK_WORDS + j]);
            to[j] = word;
        }
    }
}

/* Copies the elements of `size` bytes whose bit is set; writes 0 for the other elements. */
void masked(const void *source, int size, const uint8_t *bits, int64_t elements, int64_t first_group,
            int64_t groups, void *target) {
    uint16_t keep[MASK_GROUP];
    for (int64_t g = first_group; g < first_group + groups; g++) {
        int64_t at = g * MASK_GROUP, left = elements - at;
        int count = left < MASK_GROUP ? (int)left : MASK_GROUP;
        const uint8_t *words = bits + g * MASK_WORDS;
        for (int i = 0; i < MASK_PARTS; i++)
            for (int j = 0; j < MASK_WORDS; j++) keep[i * MASK_WORDS + j] = (uint16_t)(words[j] >> i & 1);
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
