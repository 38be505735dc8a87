/* Counts and sums of squares of fp32 values, by stored exponent; `exponents.py` calls this file. */

#include <stdint.h>
#include <string.h>

enum { EXPONENTS = 256, LANES = 4 };

static inline uint32_t stored(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits >> 23 & 255;
}

/* Adjacent values often have the same exponent. Each of four adjacent values is added to its own
 * sums, so that no addition has to wait for the previous one. */
void by_exponent(const float *values, int64_t size, int64_t *counts, double *squares) {
    int64_t lane_counts[LANES][EXPONENTS] = {0};
    double lane_squares[LANES][EXPONENTS] = {0};
    int64_t whole = size - size % LANES;
    for (int64_t at = 0; at < whole; at += LANES) {
        uint32_t exponents[LANES];
        double squared[LANES];
        for (int lane = 0; lane < LANES; lane++) {
            double value = values[at + lane];
            exponents[lane] = stored(values[at + lane]);
            squared[lane] = value * value;
        }
        for (int lane = 0; lane < LANES; lane++) {
            lane_counts[lane][exponents[lane]]++;
            lane_squares[lane][exponents[lane]] += squared[lane];
        }
    }
    for (int64_t at = whole; at < size; at++) {
        double value = values[at];
        lane_counts[at - whole][stored(values[at])]++;
        lane_squares[at - whole][stored(values[at])] += value * value;
    }
    for (int at = 0; at < EXPONENTS; at++) {
        counts[at] = 0;
        squares[at] = 0;
        for (int lane = 0; lane < LANES; lane++) {
            counts[at] += lane_counts[lane][at];
            squares[at] += lane_squares[lane][at];
        }
    }
}
