/* The inverse DCT of libjpeg's accurate integer method ("islow"), dequantisation and clamping included. */
#pragma once

#include "native.h"

/* A quantisation table in natural order. */
typedef struct {
  int16_t step[64];
  int16_t max[64]; /* largest absolute values of coefficients with which 16-bit arithmetic does not overflow */
} pn_quantiser;

/* Fractional bits of the constants (of both passes) and of the values between the passes, see idct.c. */
#define PN_IDCT_BITS 13
#define PN_PASS1_BITS 2

void pn_make_quantiser(const uint16_t zigzag[64], pn_quantiser *quantiser);

/* Transform the blocks `a` and `b` (64 coefficients each, natural order) to 8x8 samples at `to_a` and `to_b`, rows
 * `stride` apart. 0 if values are so extreme that libjpeg's variants for different processors would differ. */
int pn_idct_pair(const int16_t *a, const int16_t *b, const pn_quantiser *quantiser, uint8_t *to_a, uint8_t *to_b,
                 size_t stride);
int pn_idct_pair_avx2(const int16_t *a, const int16_t *b, const pn_quantiser *quantiser, uint8_t *to_a, uint8_t *to_b,
                      size_t stride);

#if !defined(__x86_64__) /* never called there: pn_has_avx2 is 0 */
#define pn_idct_pair_avx2 pn_idct_pair
#endif

/* The same for one block in which only the DC coefficient is not zero. */
int pn_idct_dc(int dc, const pn_quantiser *quantiser, uint8_t *to, size_t stride);
