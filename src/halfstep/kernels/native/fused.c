/* What PyTorch needs several passes over memory for, in one; `fused.py` calls it. Each function
 * computes what the plain PyTorch beside its caller does, bit for bit. */

#include "numbers.h"

/* Mersenne twister (Matsumoto and Nishimura, 1998), which torch's CPU generator is. */
enum { N = 624, M = 397 };

static inline uint32_t twisted(uint32_t here, uint32_t next) {
    uint32_t mixed = (here & 0x80000000u) | (next & 0x7fffffffu);
    return mixed >> 1 ^ (0u - (next & 1u) & 0x9908b0dfu);
}

static void next_state(uint32_t *state) {
    for (int i = 0; i < N - M; i++) state[i] = state[i + M] ^ twisted(state[i], state[i + 1]);
    for (int i = N - M; i < N - 1; i++)
        state[i] = state[i - (N - M)] ^ twisted(state[i], state[i + 1]);
    state[N - 1] = state[M - 1] ^ twisted(state[N - 1], state[0]);
}

static inline uint32_t tempered(uint32_t drawn) {
    drawn ^= drawn >> 11;
    drawn ^= drawn << 7 & 0x9d2c5680u;
    drawn ^= drawn << 15 & 0xefc60000u;
    return drawn ^ drawn >> 18;
}

/* The start of what `torch.Generator.get_state()` returns on a CPU (`CPUGeneratorImpl.cpp`). */
struct generator {
    uint64_t seed;
    int32_t left, seeded; /* `left` is 1 where a new state is due */
    uint64_t next, state[N];
};

/* Rounds values to bf16, each with the lower half of the generator's next number. */
void stochastic_bf16(
    const float *values, uint16_t *rounded, int64_t count, struct generator *generator
) {
    if (!count) return;
    uint32_t state[N];
    int64_t next = generator->left == 1 ? N : (int64_t)generator->next;
    for (int i = 0; i < N; i++) state[i] = (uint32_t)generator->state[i];
    for (int64_t done = 0, part; done < count; done += part, next += part) {
        if (next == N) {
            next_state(state);
            next = 0;
        }
        part = count - done < N - next ? count - done : N - next;
        for (int64_t i = 0; i < part; i++) {
            float value = values[done + i];
            uint32_t bits = bits_of(value);
            uint32_t noise = tempered(state[next + i]) & 0xffffu;
            uint16_t drawn = (uint16_t)((bits + noise) >> 16);
            int is_finite = (bits & 0x7f800000) != 0x7f800000;
            rounded[done + i] = is_finite ? drawn : narrowed_bf16(value);
        }
    }
    for (int i = 0; i < N; i++) generator->state[i] = state[i];
    generator->left = (int32_t)(N + 1 - next);
    generator->next = (uint64_t)next;
}

/* Rounds values to the nearest bf16, and what is lost by it too. */
void kahan_bf16(const float *values, uint16_t *rounded, uint16_t *lost, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        uint16_t kept = narrowed_bf16(values[i]);
        rounded[i] = kept;
        lost[i] = narrowed_bf16(values[i] - widened_bf16(kept));
    }
}
