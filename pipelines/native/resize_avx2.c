/* The two passes of the resize with AVX2: one instruction multiplies and adds pairs of taps. */
#include <string.h>

#include "resize.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2")))
#define INLINE AVX2 static inline __attribute__((always_inline))

INLINE __m256i load_two_rows(const uint8_t *low, const uint8_t *high) {
  __m128i first = _mm_loadu_si128((const __m128i *)low), second = _mm_loadu_si128((const __m128i *)high);
  return _mm256_inserti128_si256(_mm256_castsi128_si256(first), second, 1);
}

INLINE __m256i load_weight_pair(const int16_t *weights) {
  int32_t pair;
  memcpy(&pair, weights, sizeof(pair));
  return _mm256_set1_epi32(pair);
}

/* Select two adjacent RGB pixels at `offset` as pairs of 16 bits: red and red, green and green, blue and blue. */
INLINE __m256i pixel_pair_mask(int offset) {
  const char o = (char)offset;
  const __m128i mask = _mm_setr_epi8(o, -1, (char)(o + 3), -1, (char)(o + 1), -1, (char)(o + 4), -1, (char)(o + 2), -1,
                                     (char)(o + 5), -1, -1, -1, -1, -1);
  return _mm256_broadcastsi128_si256(mask);
}

/* Add pairs of taps to the 32-bit sums of red, green and blue of one pixel in two rows, one in each half. */
INLINE __m256i add_taps(__m256i sums, __m256i pixels, int offset, __m256i weights) {
  return _mm256_add_epi32(sums, _mm256_madd_epi16(_mm256_shuffle_epi8(pixels, pixel_pair_mask(offset)), weights));
}

/* Four pixels' sums of two rows, as bytes: 12 at the front of each half. */
INLINE __m256i pack_pixels(const __m256i sums[4], __m256i shift) {
  const __m128i mask = _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
  __m256i front = _mm256_packs_epi32(_mm256_srav_epi32(sums[0], shift), _mm256_srav_epi32(sums[1], shift));
  __m256i back = _mm256_packs_epi32(_mm256_srav_epi32(sums[2], shift), _mm256_srav_epi32(sums[3], shift));
  return _mm256_shuffle_epi8(_mm256_packus_epi16(front, back), _mm256_broadcastsi128_si256(mask));
}

INLINE void horizontal(const pn_axis *axis, const uint8_t *const in[PN_ROWS], uint8_t *const out[PN_ROWS],
                       int32_t taps) {
  const uint8_t *in0 = in[0], *in1 = in[1], *in2 = in[2], *in3 = in[3];
  uint8_t *out0 = out[0], *out1 = out[1], *out2 = out[2], *out3 = out[3];
  const int32_t *first = axis->first, length = axis->length;
  const int16_t *weights = axis->weights;
  const __m256i half = _mm256_set1_epi32(1 << (axis->precision - 1)), shift = _mm256_set1_epi32(axis->precision);
  for (int32_t i = 0; i < length; i += 4) {
    __m256i sums[4], more[4];
    for (int j = 0; j < 4; j++, weights += taps) {
      size_t at = 3 * (size_t)first[i + j];
      __m256i one = half, two = half;
      int32_t k = 0;
      for (; k + 4 <= taps; k += 4, at += 12) {
        __m256i front = load_weight_pair(weights + k), back = load_weight_pair(weights + k + 2);
        __m256i pixels = load_two_rows(in0 + at, in1 + at);
        one = add_taps(add_taps(one, pixels, 0, front), pixels, 6, back);
        pixels = load_two_rows(in2 + at, in3 + at);
        two = add_taps(add_taps(two, pixels, 0, front), pixels, 6, back);
      }
      if (k < taps) {
        one = add_taps(one, load_two_rows(in0 + at, in1 + at), 0, load_weight_pair(weights + k));
        two = add_taps(two, load_two_rows(in2 + at, in3 + at), 0, load_weight_pair(weights + k));
      }
      sums[j] = one, more[j] = two;
    }
    __m256i pixels = pack_pixels(sums, shift);
    _mm_storeu_si128((__m128i *)out0, _mm256_castsi256_si128(pixels));
    _mm_storeu_si128((__m128i *)out1, _mm256_extracti128_si256(pixels, 1));
    pixels = pack_pixels(more, shift);
    _mm_storeu_si128((__m128i *)out2, _mm256_castsi256_si128(pixels));
    _mm_storeu_si128((__m128i *)out3, _mm256_extracti128_si256(pixels, 1));
    out0 += 12, out1 += 12, out2 += 12, out3 += 12;
  }
}

AVX2 void pn_horizontal_avx2(const pn_axis *axis, const uint8_t *const in[PN_ROWS], uint8_t *const out[PN_ROWS]) {
  switch (axis->taps) { /* the compiler unrolls the usual ones */
    case 2: horizontal(axis, in, out, 2); break;
    case 4: horizontal(axis, in, out, 4); break;
    case 6: horizontal(axis, in, out, 6); break;
    default: horizontal(axis, in, out, axis->taps);
  }
}

INLINE void vertical_chunk(const uint8_t *const *rows, const int16_t *weights, int32_t taps, int precision,
                           uint8_t *out, size_t start) {
  const __m256i zero = _mm256_setzero_si256(), half = _mm256_set1_epi32(1 << (precision - 1));
  const __m256i shift = _mm256_set1_epi32(precision);
  __m256i sums[4] = {half, half, half, half};
  for (int32_t k = 0; k < taps; k += 2) {
    const __m256i pair = load_weight_pair(weights + k);
    __m256i one = _mm256_loadu_si256((const __m256i *)(rows[k] + start));
    __m256i other = _mm256_loadu_si256((const __m256i *)(rows[k + 1] + start));
    __m256i low = _mm256_unpacklo_epi8(one, other), high = _mm256_unpackhi_epi8(one, other);
    sums[0] = _mm256_add_epi32(sums[0], _mm256_madd_epi16(_mm256_unpacklo_epi8(low, zero), pair));
    sums[1] = _mm256_add_epi32(sums[1], _mm256_madd_epi16(_mm256_unpackhi_epi8(low, zero), pair));
    sums[2] = _mm256_add_epi32(sums[2], _mm256_madd_epi16(_mm256_unpacklo_epi8(high, zero), pair));
    sums[3] = _mm256_add_epi32(sums[3], _mm256_madd_epi16(_mm256_unpackhi_epi8(high, zero), pair));
  }
  for (int i = 0; i < 4; i++) sums[i] = _mm256_srav_epi32(sums[i], shift);
  __m256i low = _mm256_packs_epi32(sums[0], sums[1]), high = _mm256_packs_epi32(sums[2], sums[3]);
  _mm256_storeu_si256((__m256i *)(out + start), _mm256_packus_epi16(low, high));
}

INLINE void vertical(const uint8_t *const *rows, const int16_t *weights, int32_t taps, int precision, uint8_t *out,
                     size_t bytes) {
  for (size_t start = 0; start + 32 <= bytes; start += 32) vertical_chunk(rows, weights, taps, precision, out, start);
  if (bytes % 32) vertical_chunk(rows, weights, taps, precision, out, bytes - 32); /* some bytes again */
}

AVX2 void pn_vertical_avx2(const uint8_t *const *rows, const int16_t *weights, int32_t taps, int precision,
                           uint8_t *out, size_t bytes) {
  if (bytes < 32) {
    pn_vertical_generic(rows, weights, taps, precision, out, bytes);
    return;
  }
  switch (taps) {
    case 2: vertical(rows, weights, 2, precision, out, bytes); break;
    case 4: vertical(rows, weights, 4, precision, out, bytes); break;
    case 6: vertical(rows, weights, 6, precision, out, bytes); break;
    default: vertical(rows, weights, taps, precision, out, bytes);
  }
}
#endif
