/* Operations for which PyTorch needs several passes over memory, in one pass; `fused.py` calls
 * them. Each function gives the same bits as the plain PyTorch code in its caller. */

#include "numbers.h"

/* The Mersenne twister (Matsumoto and Nishimura, 1998), which is torch's CPU generator. */
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

/* The first fields of the state that `torch.Generator.get_state()` returns on a CPU
 * (`CPUGeneratorImpl.cpp`). */
struct generator {
    uint64_t seed;
    int32_t left, seeded; /* `left` is 1 if all numbers of the state are used */
    uint64_t next, state[N];
};

/* The generator's state, with the index of its next number. */
struct stream {
    uint32_t state[N];
    int64_t next;
};

static void take_over(struct stream *stream, const struct generator *generator) {
    for (int i = 0; i < N; i++) stream->state[i] = (uint32_t)generator->state[i];
    stream->next = generator->left == 1 ? N : (int64_t)generator->next;
}

static void give_back(const struct stream *stream, struct generator *generator) {
    for (int i = 0; i < N; i++) generator->state[i] = stream->state[i];
    generator->left = (int32_t)(N + 1 - stream->next);
    generator->next = (uint64_t)stream->next;
}

static void round_next(
    struct stream *stream, const float *values, uint16_t *rounded, int64_t count
) {
    for (int64_t done = 0, part; done < count; done += part, stream->next += part) {
        if (stream->next == N) {
            next_state(stream->state);
            stream->next = 0;
        }
        const uint32_t *drawn_next = stream->state + stream->next;
        part = count - done < N - stream->next ? count - done : N - stream->next;
        for (int64_t i = 0; i < part; i++) {
            float value = values[done + i];
            uint32_t bits = bits_of(value);
            uint32_t noise = tempered(drawn_next[i]) & 0xffffu;
            uint16_t drawn = (uint16_t)((bits + noise) >> 16);
            rounded[done + i] = is_finite(value) ? drawn : narrowed_bf16(value);
        }
    }
}

/* Rounds values to bf16 stochastically, each with the lower half of the next random number. */
void stochastic_bf16(
    const float *values, uint16_t *rounded, int64_t count, struct generator *generator
) {
    if (!count) return;
    struct stream stream;
    take_over(&stream, generator);
    round_next(&stream, values, rounded, count);
    give_back(&stream, generator);
}

#if defined(__FP_FAST_FMAF)
const int32_t has_fma = 1;
#else
const int32_t has_fma = 0; /* `fmaf` would be a library call for each number */
#endif

struct sgd {
    float weight_decay, momentum, undamped, minus_lr;
    int32_t nesterov;
};

/* Returns a weight after a step of `torch.optim.SGD`. `slope` is its gradient; `buffer` is null
 * without momentum. PyTorch uses `fmaf` to add a multiple of a tensor. */
static inline float stepped(struct sgd sgd, float value, float slope, float *buffer) {
    if (sgd.weight_decay != 0) slope = __builtin_fmaf(value, sgd.weight_decay, slope);
    if (buffer) {
        float kept = __builtin_fmaf(slope, sgd.undamped, *buffer * sgd.momentum);
        *buffer = kept;
        slope = sgd.nesterov ? __builtin_fmaf(kept, sgd.momentum, slope) : kept;
    }
    return __builtin_fmaf(slope, sgd.minus_lr, value);
}

/* BLOCK updated weights are computed at a time, so that they are in the first-level cache when they
 * are rounded. */
enum { BLOCK = 1024, AHEAD = 2048, LINE = 16 };

static void sgd_on_array(
    struct sgd sgd, float *restrict param, const float *restrict grad, float *restrict buffer,
    int64_t count
) {
    if (buffer)
        for (int64_t i = 0; i < count; i++) param[i] = stepped(sgd, param[i], grad[i], buffer + i);
    else
        for (int64_t i = 0; i < count; i++) param[i] = stepped(sgd, param[i], grad[i], 0);
}

/* Takes a step of SGD on `count` elements of a list of fp32 parameters, from the element `first` of
 * all parameters together. `momenta` is null without momentum. `ends` are cumulative sizes. */
void sgd_fp32(
    float *const *params, const float *const *grads, float *const *momenta, const int64_t *ends,
    int64_t first, int64_t count, float weight_decay, float momentum, float undamped,
    int32_t nesterov, float minus_lr
) {
    const struct sgd sgd = {weight_decay, momentum, undamped, minus_lr, nesterov};
    for (struct range range = {0}; next_range(&range, ends, &first, &count);) {
        float *buffer = momenta ? momenta[range.array] + range.from : 0;
        float *param = params[range.array] + range.from;
        sgd_on_array(sgd, param, grads[range.array] + range.from, buffer, range.size);
    }
}

/* Takes a step of SGD on bf16 parameters with bf16 gradients, in fp32, and rounds the parameters
 * stochastically. `momenta` is null without momentum. */
void sgd_stochastic_bf16(
    uint16_t *restrict params, const uint16_t *restrict grads, float *restrict momenta,
    int64_t count, float weight_decay, float momentum, float undamped, int32_t nesterov,
    float minus_lr, struct generator *generator
) {
    if (!count) return;
    const struct sgd sgd = {weight_decay, momentum, undamped, minus_lr, nesterov};
    struct stream stream;
    take_over(&stream, generator);
    float updated[BLOCK];
    for (int64_t start = 0; start < count; start += BLOCK) {
        int64_t size = count - start < BLOCK ? count - start : BLOCK;
        uint16_t *param = params + start;
        const uint16_t *grad = grads + start;
        float *buffer = momenta ? momenta + start : 0;
        for (int64_t i = 0; i < size; i += 2 * LINE) {
            __builtin_prefetch(param + i + AHEAD, 1);
            __builtin_prefetch(grad + i + AHEAD);
        }
        for (int64_t i = 0; buffer && i < size; i += LINE) __builtin_prefetch(buffer + i + AHEAD, 1);
        if (buffer)
            for (int64_t i = 0; i < size; i++)
                updated[i] = stepped(sgd, widened_bf16(param[i]), widened_bf16(grad[i]), buffer + i);
        else
            for (int64_t i = 0; i < size; i++)
                updated[i] = stepped(sgd, widened_bf16(param[i]), widened_bf16(grad[i]), 0);
        round_next(&stream, updated, param, size);
    }
    give_back(&stream, generator);
}

/* Rounds values to the nearest bf16, and rounds the rounding errors (`lost`) to bf16 too. */
void kahan_bf16(const float *values, uint16_t *rounded, uint16_t *lost, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        uint16_t kept = narrowed_bf16(values[i]);
        rounded[i] = kept;
        lost[i] = narrowed_bf16(values[i] - widened_bf16(kept));
    }
}
