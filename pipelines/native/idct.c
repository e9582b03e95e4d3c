/* The inverse DCT of libjpeg's "islow": the factorisation of Loeffler, Ligtenberg and Moschytz (ICASSP 1989) with
 * 13-bit constants. Nothing is rounded within a pass, so only the sums of the constants matter. They are multiplied
 * out: four products each for the even and the odd half. */
#include "idct.h"

#include <string.h>

#include "jpeg_header.h"

#define MAX_DEQUANTISED 8191 /* twice this value fits in 16 bits, and so do the sums of the SIMD code */
#define MAX_PASS1 16383

void pn_make_quantiser(const uint16_t zigzag[64], pn_quantiser *quantiser) {
  for (int k = 0; k < 64; k++) {
    quantiser->step[pn_natural_order[k]] = (int16_t)zigzag[k];
    quantiser->max[pn_natural_order[k]] = (int16_t)(zigzag[k] == 0 ? 0 : MAX_DEQUANTISED / zigzag[k]);
  }
}

/* One transform of 8 values `step` apart; the results are shifted right by `shift`, rounded. */
static void transform(const int32_t *in, int step, int32_t *out, int shift) {
  int32_t in1 = in[step], in2 = in[2 * step], in3 = in[3 * step], in5 = in[5 * step], in6 = in[6 * step],
          in7 = in[7 * step], half = 1 << (shift - 1);
  int32_t sum = (in[0] + in[4 * step]) * (1 << PN_IDCT_BITS), difference = (in[0] - in[4 * step]) * (1 << PN_IDCT_BITS);
  int32_t even2 = 4433 * in2 - 10704 * in6, even3 = 10703 * in2 + 4433 * in6;
  int32_t even[4] = {sum + even3 + half, difference + even2 + half, difference - even2 + half, sum - even3 + half};
  int32_t odd[4] = {
      11363 * in1 + 9633 * in3 + 6437 * in5 + 2260 * in7,
      9633 * in1 - 2259 * in3 - 11362 * in5 - 6436 * in7,
      6437 * in1 - 11362 * in3 + 2261 * in5 + 9633 * in7,
      2260 * in1 - 6436 * in3 + 9633 * in5 - 11363 * in7,
  };
  for (int i = 0; i < 4; i++) {
    out[i * step] = (even[i] + odd[i]) >> shift;
    out[(7 - i) * step] = (even[i] - odd[i]) >> shift;
  }
}

static uint8_t clamp(int32_t value) { return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value); }

/* Whether a value lies in libjpeg's clamping table, which is four times as wide as a sample. */
static int is_within_table(int32_t centred) { return centred >= -512 && centred < 512; }

static int idct(const int16_t *block, const pn_quantiser *quantiser, uint8_t *to, size_t stride) {
  int32_t values[64], extreme = 0;
  for (int i = 0; i < 64; i++) {
    extreme |= block[i] > quantiser->max[i] || block[i] < -quantiser->max[i];
    values[i] = block[i] * quantiser->step[i];
  }
  if (extreme) return 0;
  for (int i = 0; i < 8; i++) transform(values + i, 8, values + i, PN_IDCT_BITS - PN_PASS1_BITS);
  for (int i = 0; i < 64; i++) extreme |= values[i] > MAX_PASS1 || values[i] < -MAX_PASS1;
  if (extreme) return 0;
  for (int row = 0; row < 8; row++, to += stride) {
    transform(values + 8 * row, 1, values + 8 * row, PN_IDCT_BITS + PN_PASS1_BITS + 3);
    for (int i = 0; i < 8; i++) {
      extreme |= !is_within_table(values[8 * row + i]);
      to[i] = clamp(values[8 * row + i] + 128);
    }
  }
  return !extreme;
}

int pn_idct_pair(const int16_t *a, const int16_t *b, const pn_quantiser *quantiser, uint8_t *to_a, uint8_t *to_b,
                 size_t stride) {
  return idct(a, quantiser, to_a, stride) && idct(b, quantiser, to_b, stride);
}

int pn_idct_dc(int dc, const pn_quantiser *quantiser, uint8_t *to, size_t stride) {
  /* No overflow: `dc` has 16 bits, and a value above `max` is outside the table's range anyway. */
  int32_t rounding = 1 << (PN_PASS1_BITS + 2);
  int32_t centred = (dc * quantiser->step[0] * (1 << PN_PASS1_BITS) + rounding) >> (PN_PASS1_BITS + 3);
  for (int row = 0; row < 8; row++, to += stride) memset(to, clamp(centred + 128), 8);
  return is_within_table(centred);
}
