/* CRC-32 by carry-less multiplication if the processor has it, otherwise eight bytes per step by tables.
 *
 * The CRC is the remainder of the data, as a polynomial over GF(2) with its bits reflected, divided by P. 128 bits that
 * lie n bits before others may be replaced by their product with x^n mod P, added to the others. So 64 bytes are folded
 * into the next 64, and finally into 16; the tables compute the remainder of these. */
#include "crc32.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define POLYNOMIAL 0xEDB88320u

static uint32_t tables[8][256]; /* [n][byte]: the remainder of a byte followed by n zero bytes */
static uint64_t fold_64[2], fold_16[2];

/* x^n mod P, reflected, shifted left by one bit for carry-less products with reflected data. */
static uint64_t reflected_power(int n) {
  uint32_t remainder = 0x80000000u;
  for (; n > 0; n--) remainder = remainder >> 1 ^ (remainder & 1 ? POLYNOMIAL : 0);
  return (uint64_t)remainder << 1;
}

__attribute__((constructor)) static void fill_tables(void) {
  for (uint32_t byte = 0; byte < 256; byte++) {
    uint32_t remainder = byte;
    for (int bit = 0; bit < 8; bit++) remainder = remainder >> 1 ^ (remainder & 1 ? POLYNOMIAL : 0);
    tables[0][byte] = remainder;
  }
  for (int n = 1; n < 8; n++) {
    for (int byte = 0; byte < 256; byte++) {
      uint32_t shorter = tables[n - 1][byte];
      tables[n][byte] = shorter >> 8 ^ tables[0][shorter & 0xFF];
    }
  }
  /* The low 64 bits of reflected data are the higher powers. */
  fold_64[0] = reflected_power(512 + 32), fold_64[1] = reflected_power(512 - 32);
  fold_16[0] = reflected_power(128 + 32), fold_16[1] = reflected_power(128 - 32);
}

static uint32_t crc_by_tables(const uint8_t *data, size_t size, uint32_t crc) {
  for (; size >= 8; data += 8, size -= 8) {
    crc ^= (uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24;
    crc = tables[7][crc & 0xFF] ^ tables[6][crc >> 8 & 0xFF] ^ tables[5][crc >> 16 & 0xFF] ^ tables[4][crc >> 24] ^
          tables[3][data[4]] ^ tables[2][data[5]] ^ tables[1][data[6]] ^ tables[0][data[7]];
  }
  for (; size > 0; data++, size--) crc = crc >> 8 ^ tables[0][(crc ^ *data) & 0xFF];
  return crc;
}

#if defined(__x86_64__)
#define FOLDING __attribute__((target("sse4.1,pclmul")))

FOLDING static inline __m128i load(const void *data) { return _mm_loadu_si128((const __m128i *)data); }

FOLDING static inline __m128i fold(__m128i sum, __m128i next, __m128i powers) {
  __m128i low = _mm_clmulepi64_si128(sum, powers, 0x00), high = _mm_clmulepi64_si128(sum, powers, 0x11);
  return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

/* At least 64 bytes. */
FOLDING static uint32_t crc_by_folding(const uint8_t *data, size_t size, uint32_t crc) {
  __m128i sums[4], powers = load(fold_64);
  for (int i = 0; i < 4; i++) sums[i] = load(data + 16 * i);
  sums[0] = _mm_xor_si128(sums[0], _mm_cvtsi32_si128((int)crc));
  for (data += 64, size -= 64; size >= 64; data += 64, size -= 64) {
    for (int i = 0; i < 4; i++) sums[i] = fold(sums[i], load(data + 16 * i), powers);
  }
  powers = load(fold_16);
  for (int i = 1; i < 4; i++) sums[i] = fold(sums[i - 1], sums[i], powers);
  __m128i sum = sums[3];
  for (; size >= 16; data += 16, size -= 16) sum = fold(sum, load(data), powers);
  uint8_t rest[16];
  _mm_storeu_si128((__m128i *)rest, sum);
  return crc_by_tables(data, size, crc_by_tables(rest, sizeof(rest), 0));
}
#endif

uint32_t pn_crc32(const uint8_t *data, size_t size, uint32_t before) {
#if defined(__x86_64__)
  if (size >= 64 && pn_has_avx2() && __builtin_cpu_supports("pclmul")) return ~crc_by_folding(data, size, ~before);
#endif
  return ~crc_by_tables(data, size, ~before);
}
