/* Huffman decoding of blocks (T.81 F.2.2): a lookup of PN_FAST_BITS bits gives a code's length, its run and what makes
 * the value of its extra bits, so that the loop over a block's codes branches only at its end. */
#include "huffman.h"

/* An entry: bits 0 to 7 the length of code and extra bits, 8 to 15 that of the code, 16 to 23 63 - extra bits,
 * 24 to 31 how far the index of the coefficient moves on, 48 to 63 1 - 2^(extra bits). */
#define END_OF_BLOCK 128 /* as an advance: leads beyond all other indices but those of LONG_CODE */
#define LONG_CODE 192
#define BAD_CODE 64
#define MAX_DC_BITS 11
#define MAX_AC_BITS 10
#define REFILLED 56 /* bits that are there at least after a refill */

/* Where the coefficient of a zigzag index is (T.81 figure A.6); beyond the last all go to one place. */
static const uint8_t natural_order[256] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48,
    41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23,
    30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63, [64 ... 255] = 64};

static uint64_t make_entry(int length, int extra, int advance) {
  uint16_t base = (uint16_t)(1 - (1 << extra));
  return (uint64_t)base << 48 | (uint64_t)advance << 24 | (uint64_t)(63 - extra) << 16 | (uint64_t)length << 8 |
         (uint64_t)(length + extra);
}

/* Return the entry of a symbol: the number of extra bits; for AC below the run of zeros before it. */
static uint64_t symbol_entry(int symbol, int length, int is_ac) {
  int extra = is_ac ? symbol & 15 : symbol, run = is_ac ? symbol >> 4 : 0;
  if (extra > (is_ac ? MAX_AC_BITS : MAX_DC_BITS)) return make_entry(length, 0, BAD_CODE);
  if (is_ac && extra == 0 && run != 15) return make_entry(length, 0, run == 0 ? END_OF_BLOCK : BAD_CODE);
  return make_entry(length, extra, run + 1);
}

void pn_make_huffman(const pn_code *code, int is_ac, pn_huffman *table) {
  uint32_t next = 0; /* the next code, as the first of 16 bits */
  int place = 0, filled = 0;
  memcpy(table->symbols, code->symbols, sizeof table->symbols);
  table->is_ac = is_ac;
  for (int length = 1; length <= 16; length++) {
    uint32_t step = 1u << (16 - length);
    table->first[length] = place - (int32_t)(next / step);
    for (int i = 0; i < code->counts[length - 1]; i++, place++, next += step) {
      if (length > PN_FAST_BITS) continue;
      uint64_t entry = symbol_entry(code->symbols[place], length, is_ac);
      for (int n = 1 << (PN_FAST_BITS - length); n > 0; n--) table->fast[filled++] = entry;
    }
    table->ends[length] = next;
  }
  while (filled < 1 << PN_FAST_BITS) table->fast[filled++] = make_entry(0, 0, LONG_CODE);
}

/* Return the entry of a code that is longer than PN_FAST_BITS, or of none. */
static uint64_t long_entry(const pn_huffman *table, uint64_t bits) {
  uint32_t code = (uint32_t)(bits >> 48);
  for (int length = PN_FAST_BITS + 1; length <= 16; length++) {
    if (code >= table->ends[length]) continue;
    int32_t place = (int32_t)(code >> (16 - length)) + table->first[length];
    return symbol_entry(table->symbols[place & 255], length, table->is_ac);
  }
  return make_entry(0, 0, BAD_CODE);
}

static inline int advance_of(uint64_t entry) { return (uint8_t)(entry >> 24); }

/* Return the value of the extra bits behind a code (T.81 F.2.2.1): as they are if the first is set, else less. */
static inline int value_of(uint64_t entry, uint64_t bits) {
  uint64_t extra = bits << (entry >> 8 & 63);
  int raw = (int)(extra >> 1 >> (entry >> 16 & 63));
  int base = (int)((int64_t)entry >> 48);
  return raw + (base & ~(int)((int64_t)extra >> 63));
}

#define REFILL()                          \
  do {                                    \
    bits |= pn_load64(next) >> count;     \
    next += (63 - count) >> 3;            \
    count |= REFILLED;                    \
  } while (0)
#define CONSUME(entry)          \
  do {                          \
    bits <<= (entry) & 63;      \
    count -= (uint8_t)(entry);  \
  } while (0)

/* Decode the block's DC coefficient; a bad code gives an advance that is no 1. */
static inline uint64_t dc_entry(const pn_huffman *dc, uint64_t bits) {
  uint64_t entry = dc->fast[bits >> (64 - PN_FAST_BITS)];
  return __builtin_expect(advance_of(entry) == LONG_CODE, 0) ? long_entry(dc, bits) : entry;
}

/* One function for both uses, compiled twice: with `block` NULL nothing is stored. */
static inline __attribute__((always_inline)) int follow(pn_bits *reader, const pn_huffman *dc, const pn_huffman *ac,
                                                        int32_t *prediction, int16_t *block) {
  uint64_t bits = reader->bits;
  int count = reader->count;
  const uint8_t *next = reader->next;
  REFILL();
  uint64_t entry = dc_entry(dc, bits);
  int bad = advance_of(entry) != 1;
  *prediction += value_of(entry, bits);
  bad |= *prediction != (int16_t)*prediction;
  if (block != NULL) block[0] = (int16_t)*prediction;
  CONSUME(entry);
  int k = 0;
  for (;;) {
    do {
      REFILL();
      entry = ac->fast[bits >> (64 - PN_FAST_BITS)];
      k += advance_of(entry);
      if (block != NULL) block[natural_order[k]] = (int16_t)value_of(entry, bits);
      CONSUME(entry);
      if (k >= 63) break;
      entry = ac->fast[bits >> (64 - PN_FAST_BITS)];
      k += advance_of(entry);
      if (block != NULL) block[natural_order[k]] = (int16_t)value_of(entry, bits);
      CONSUME(entry);
    } while (k < 63);
    if (k < LONG_CODE) break;
    REFILL();
    entry = long_entry(ac, bits);
    k += advance_of(entry) - LONG_CODE;
    if (block != NULL) block[natural_order[k]] = (int16_t)value_of(entry, bits);
    CONSUME(entry);
    if (k >= 63) break;
  }
  reader->bits = bits;
  reader->count = count;
  reader->next = next;
  if (k == 63 && !bad) return 63;
  return k < END_OF_BLOCK || bad ? -1 : k - END_OF_BLOCK;
}

int pn_decode_block(pn_bits *bits, const pn_huffman *dc, const pn_huffman *ac, int32_t *prediction, int16_t *block) {
  return follow(bits, dc, ac, prediction, block);
}

int pn_skip_block(pn_bits *bits, const pn_huffman *dc, const pn_huffman *ac, int32_t *prediction) {
  return follow(bits, dc, ac, prediction, NULL) < 0 ? -1 : 0;
}
