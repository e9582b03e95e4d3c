/* Chroma upsampling and colour conversion with AVX2; the arithmetic is that of upsample.c. */
#include "upsample.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2")))
#define INLINE_AVX2 static inline __attribute__((always_inline, target("avx2")))

INLINE_AVX2 __m256i load16(const uint8_t *from) { return _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)from)); }

INLINE_AVX2 __m256i times3(__m256i value) { return _mm256_add_epi16(value, _mm256_add_epi16(value, value)); }

/* Store the results for the left and right halves of samples, which fit 8 bits, alternating. */
INLINE_AVX2 void store_interleaved(uint8_t *to, __m256i left, __m256i right) {
  _mm256_storeu_si256((__m256i *)to, _mm256_or_si256(left, _mm256_slli_epi16(right, 8)));
}

AVX2 void pn_widen_row_avx2(const uint8_t *from, uint8_t *to, int32_t count) {
  for (int32_t i = 0; i < count; i += 16) {
    __m256i here = times3(load16(from + i));
    __m256i left = _mm256_add_epi16(_mm256_add_epi16(here, load16(from + i - 1)), _mm256_set1_epi16(1));
    __m256i right = _mm256_add_epi16(_mm256_add_epi16(here, load16(from + i + 1)), _mm256_set1_epi16(2));
    store_interleaved(to + 2 * i, _mm256_srli_epi16(left, 2), _mm256_srli_epi16(right, 2));
  }
}

INLINE_AVX2 __m256i mix(const uint8_t *near, const uint8_t *next) {
  return _mm256_add_epi16(times3(load16(near)), load16(next));
}

AVX2 void pn_widen_rows_avx2(const uint8_t *near, const uint8_t *next, uint8_t *to, int32_t count) {
  for (int32_t i = 0; i < count; i += 16) {
    __m256i here = times3(mix(near + i, next + i));
    __m256i left = _mm256_add_epi16(here, _mm256_add_epi16(mix(near + i - 1, next + i - 1), _mm256_set1_epi16(8)));
    __m256i right = _mm256_add_epi16(here, _mm256_add_epi16(mix(near + i + 1, next + i + 1), _mm256_set1_epi16(7)));
    store_interleaved(to + 2 * i, _mm256_srli_epi16(left, 4), _mm256_srli_epi16(right, 4));
  }
}

/* (2 value * factor + 65536) / 131072, rounded down: the product of twice the value, halved with rounding. */
INLINE_AVX2 __m256i scale(__m256i value, int factor) {
  __m256i twice = _mm256_mulhi_epi16(_mm256_add_epi16(value, value), _mm256_set1_epi16((short)factor));
  return _mm256_srai_epi16(_mm256_add_epi16(twice, _mm256_set1_epi16(1)), 1);
}

/* Green's share of 16 samples of chroma. 46802 does not fit 16 bits: it is 65536 - 18734. */
INLINE_AVX2 __m256i green_share(__m256i blue, __m256i red) {
  const __m256i factors = _mm256_set1_epi32((int32_t)((uint32_t)(uint16_t)-22554 | 18734u << 16));
  const __m256i rounding = _mm256_set1_epi32(32768);
  __m256i low = _mm256_madd_epi16(_mm256_unpacklo_epi16(blue, red), factors);
  __m256i high = _mm256_madd_epi16(_mm256_unpackhi_epi16(blue, red), factors);
  low = _mm256_srai_epi32(_mm256_add_epi32(low, rounding), 16);
  high = _mm256_srai_epi32(_mm256_add_epi32(high, rounding), 16);
  return _mm256_sub_epi16(_mm256_packs_epi32(low, high), red);
}

/* Clamp 16 values to bytes, in order. */
INLINE_AVX2 __m128i pack(__m256i value) {
  return _mm_packus_epi16(_mm256_castsi256_si128(value), _mm256_extracti128_si256(value, 1));
}

INLINE_AVX2 void store_rgb(uint8_t *rgb, __m128i r, __m128i g, __m128i b) {
  const __m128i squeeze = _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
  __m128i rg0 = _mm_unpacklo_epi8(r, g), rg1 = _mm_unpackhi_epi8(r, g);
  __m128i b0 = _mm_unpacklo_epi8(b, b), b1 = _mm_unpackhi_epi8(b, b);
  __m128i p0 = _mm_shuffle_epi8(_mm_unpacklo_epi16(rg0, b0), squeeze); /* 4 pixels, 12 bytes each */
  __m128i p1 = _mm_shuffle_epi8(_mm_unpackhi_epi16(rg0, b0), squeeze);
  __m128i p2 = _mm_shuffle_epi8(_mm_unpacklo_epi16(rg1, b1), squeeze);
  __m128i p3 = _mm_shuffle_epi8(_mm_unpackhi_epi16(rg1, b1), squeeze);
  _mm_storeu_si128((__m128i *)rgb, _mm_or_si128(p0, _mm_slli_si128(p1, 12)));
  _mm_storeu_si128((__m128i *)(rgb + 16), _mm_or_si128(_mm_srli_si128(p1, 4), _mm_slli_si128(p2, 8)));
  _mm_storeu_si128((__m128i *)(rgb + 32), _mm_or_si128(_mm_srli_si128(p2, 8), _mm_slli_si128(p3, 4)));
}

INLINE_AVX2 void convert16(const uint8_t *y, const uint8_t *cb, const uint8_t *cr, uint8_t *rgb) {
  const __m256i centre = _mm256_set1_epi16(128);
  __m256i light = load16(y), blue = _mm256_sub_epi16(load16(cb), centre), red = _mm256_sub_epi16(load16(cr), centre);
  __m256i r = _mm256_add_epi16(red, scale(red, 26345));                            /* 1.402 */
  __m256i b = _mm256_add_epi16(_mm256_add_epi16(blue, blue), scale(blue, -14942)); /* 1.772 */
  store_rgb(rgb, pack(_mm256_add_epi16(light, r)), pack(_mm256_add_epi16(light, green_share(blue, red))),
            pack(_mm256_add_epi16(light, b)));
}

AVX2 void pn_ycc_to_rgb_avx2(const uint8_t *y, const uint8_t *cb, const uint8_t *cr, uint8_t *rgb, int32_t count) {
  int32_t i = 0;
  for (; i + 16 <= count; i += 16) convert16(y + i, cb + i, cr + i, rgb + 3 * i);
  if (i == count) return;
  uint8_t last[48];
  convert16(y + i, cb + i, cr + i, last);
  memcpy(rgb + 3 * i, last, (size_t)(3 * (count - i)));
}
#endif
