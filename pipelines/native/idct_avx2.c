/* The inverse DCT with AVX2: two blocks at once, one in each 128-bit lane. The arithmetic is that of idct.c. */
#include "idct.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2")))
#define INLINE_AVX2 static inline __attribute__((always_inline, target("avx2")))

typedef struct {
  __m256i row[8];
} rows;

/* Pairs of constants for one multiply-add of neighbours. */
#define PAIR(a, b) _mm256_set1_epi32((int32_t)((uint32_t)(uint16_t)(a) | (uint32_t)(uint16_t)(b) << 16))

INLINE_AVX2 __m256i madd2(__m256i p, __m256i p_by, __m256i q, __m256i q_by) {
  return _mm256_add_epi32(_mm256_madd_epi16(p, p_by), _mm256_madd_epi16(q, q_by));
}

/* The transform of half of the lanes: even and odd inputs interleaved, sums and differences rounded and shifted. */
INLINE_AVX2 void half(__m256i in04, __m256i in26, __m256i in13, __m256i in57, int shift, __m256i *out) {
  const __m256i rounding = _mm256_set1_epi32(1 << (shift - 1));
  __m256i sum = _mm256_add_epi32(_mm256_madd_epi16(in04, PAIR(8192, 8192)), rounding);
  __m256i difference = _mm256_add_epi32(_mm256_madd_epi16(in04, PAIR(8192, -8192)), rounding);
  __m256i even2 = _mm256_madd_epi16(in26, PAIR(4433, -10704)), even3 = _mm256_madd_epi16(in26, PAIR(10703, 4433));
  __m256i even[4] = {_mm256_add_epi32(sum, even3), _mm256_add_epi32(difference, even2),
                     _mm256_sub_epi32(difference, even2), _mm256_sub_epi32(sum, even3)};
  __m256i odd[4] = {madd2(in13, PAIR(11363, 9633), in57, PAIR(6437, 2260)),
                    madd2(in13, PAIR(9633, -2259), in57, PAIR(-11362, -6436)),
                    madd2(in13, PAIR(6437, -11362), in57, PAIR(2261, 9633)),
                    madd2(in13, PAIR(2260, -6436), in57, PAIR(9633, -11363))};
  for (int i = 0; i < 4; i++) {
    out[i] = _mm256_srai_epi32(_mm256_add_epi32(even[i], odd[i]), shift);
    out[7 - i] = _mm256_srai_epi32(_mm256_sub_epi32(even[i], odd[i]), shift);
  }
}

INLINE_AVX2 void transform(rows *values, int shift) {
  const __m256i *in = values->row;
  __m256i low[8], high[8];
  half(_mm256_unpacklo_epi16(in[0], in[4]), _mm256_unpacklo_epi16(in[2], in[6]), _mm256_unpacklo_epi16(in[1], in[3]),
       _mm256_unpacklo_epi16(in[5], in[7]), shift, low);
  half(_mm256_unpackhi_epi16(in[0], in[4]), _mm256_unpackhi_epi16(in[2], in[6]), _mm256_unpackhi_epi16(in[1], in[3]),
       _mm256_unpackhi_epi16(in[5], in[7]), shift, high);
  for (int i = 0; i < 8; i++) values->row[i] = _mm256_packs_epi32(low[i], high[i]);
}

INLINE_AVX2 void transpose(rows *values) {
  __m256i a[8], b[8], *row = values->row;
  for (int i = 0; i < 4; i++) {
    a[2 * i] = _mm256_unpacklo_epi16(row[i], row[i + 4]);
    a[2 * i + 1] = _mm256_unpackhi_epi16(row[i], row[i + 4]);
  }
  for (int i = 0; i < 4; i++) {
    b[2 * i] = _mm256_unpacklo_epi16(a[i], a[i + 4]);
    b[2 * i + 1] = _mm256_unpackhi_epi16(a[i], a[i + 4]);
  }
  for (int i = 0; i < 4; i++) {
    row[2 * i] = _mm256_unpacklo_epi16(b[i], b[i + 4]);
    row[2 * i + 1] = _mm256_unpackhi_epi16(b[i], b[i + 4]);
  }
}

INLINE_AVX2 __m256i load_two(const int16_t *a, const int16_t *b) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)a)),
                                 _mm_loadu_si128((const __m128i *)b), 1);
}

INLINE_AVX2 __m256i load_twice(const int16_t *a) {
  return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)a));
}

/* Store columns of 16-bit values, which packing clamps, as rows of samples. */
INLINE_AVX2 void store(const rows *columns, uint8_t *to_a, uint8_t *to_b, size_t stride) {
  const __m256i *column = columns->row, centre = _mm256_set1_epi8((char)0x80);
  __m256i pairs[4], four[4];
  for (int i = 0; i < 4; i++) /* columns i and i + 4 */
    pairs[i] = _mm256_xor_si256(_mm256_packs_epi16(column[i], column[i + 4]), centre);
  __m256i low02 = _mm256_unpacklo_epi8(pairs[0], pairs[2]), high02 = _mm256_unpackhi_epi8(pairs[0], pairs[2]);
  __m256i low13 = _mm256_unpacklo_epi8(pairs[1], pairs[3]), high13 = _mm256_unpackhi_epi8(pairs[1], pairs[3]);
  __m256i left0 = _mm256_unpacklo_epi8(low02, low13), left1 = _mm256_unpackhi_epi8(low02, low13);
  __m256i right0 = _mm256_unpacklo_epi8(high02, high13), right1 = _mm256_unpackhi_epi8(high02, high13);
  four[0] = _mm256_unpacklo_epi32(left0, right0);
  four[1] = _mm256_unpackhi_epi32(left0, right0);
  four[2] = _mm256_unpacklo_epi32(left1, right1);
  four[3] = _mm256_unpackhi_epi32(left1, right1);
  for (int i = 0; i < 4; i++) {
    __m128i a = _mm256_castsi256_si128(four[i]), b = _mm256_extracti128_si256(four[i], 1);
    _mm_storel_epi64((__m128i *)(to_a + (size_t)(2 * i) * stride), a);
    _mm_storel_epi64((__m128i *)(to_a + (size_t)(2 * i + 1) * stride), _mm_unpackhi_epi64(a, a));
    _mm_storel_epi64((__m128i *)(to_b + (size_t)(2 * i) * stride), b);
    _mm_storel_epi64((__m128i *)(to_b + (size_t)(2 * i + 1) * stride), _mm_unpackhi_epi64(b, b));
  }
}

AVX2 int pn_idct_pair_avx2(const int16_t *a, const int16_t *b, const pn_quantiser *quantiser, uint8_t *to_a,
                           uint8_t *to_b, size_t stride) {
  rows values;
  __m256i extreme = _mm256_setzero_si256();
  for (int i = 0; i < 8; i++) {
    __m256i loaded = load_two(a + 8 * i, b + 8 * i);
    __m256i excess = _mm256_subs_epu16(_mm256_abs_epi16(loaded), load_twice(quantiser->max + 8 * i));
    extreme = _mm256_or_si256(extreme, excess);
    values.row[i] = _mm256_mullo_epi16(loaded, load_twice(quantiser->step + 8 * i));
  }
  transform(&values, PN_IDCT_BITS - PN_PASS1_BITS);
  __m256i magnitudes = _mm256_setzero_si256(); /* bits set in any absolute value; 16384 and above are too large */
  for (int i = 0; i < 8; i++) magnitudes = _mm256_or_si256(magnitudes, _mm256_abs_epi16(values.row[i]));
  transpose(&values);
  transform(&values, PN_IDCT_BITS + PN_PASS1_BITS + 3);
  __m256i beyond = _mm256_setzero_si256();
  for (int i = 0; i < 8; i++) beyond = _mm256_or_si256(beyond, _mm256_add_epi16(values.row[i], _mm256_set1_epi16(512)));
  store(&values, to_a, to_b, stride);
  extreme = _mm256_or_si256(extreme, _mm256_and_si256(magnitudes, _mm256_set1_epi16((short)0xC000)));
  extreme = _mm256_or_si256(extreme, _mm256_and_si256(beyond, _mm256_set1_epi16((short)0xFC00)));
  return _mm256_testz_si256(extreme, extreme);
}
#endif
