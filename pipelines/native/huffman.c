/* Huffman decoding of blocks (T.81 F.2.2). A lookup of PN_FAST_BITS bits gives one or two coefficients, runs and values
 * and all, so that the loop over a block's codes branches at its end only; what is longer than that is rare. */
#include "huffman.h"

/* An entry: bits 0 to 7 how many bits it stands for, 8 to 15 how far the index moves on to its first coefficient,
 * 16 to 23 to its last, 32 to 47 the value of the first, 48 to 63 that of the second. The second may be an end of
 * block; with one coefficient both advances are the same, and the first value counts.
 * An entry for a code that is not told in full has NOT_TOLD as its advances; then bits 32 to 39 are its symbol, 40 to
 * 47 its length, 0 for more than PN_FAST_BITS. */
#define END_OF_BLOCK 128 /* as an advance: leads beyond all other indices but those of NOT_TOLD */
#define NOT_TOLD 192
#define BAD_CODE 64
#define MAX_DC_BITS 11
#define MAX_AC_BITS 10
#define REFILLED 56 /* bits that are there at least after a refill; four lookups take no more than 48 */
#define LAST 63

/* Where the coefficient of a zigzag index is (T.81 figure A.6); beyond the last all go to one place. */
static const uint8_t natural_order[256] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48,
    41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23,
    30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63, [64 ... 255] = 64};

static uint64_t make_entry(int length, int advance, int value) {
  return (uint64_t)(uint16_t)value << 32 | (uint64_t)advance << 16 | (uint64_t)advance << 8 | (uint64_t)length;
}

static int first_advance(uint64_t entry) { return (uint8_t)(entry >> 8); }
static int advance_of(uint64_t entry) { return (uint8_t)(entry >> 16); }
static int16_t first_value(uint64_t entry) { return (int16_t)(entry >> 32); }
static int16_t second_value(uint64_t entry) { return (int16_t)(entry >> 48); }

/* Return how many bits follow a symbol's code: they hold the value, of which the symbol is the size. */
static int extra_bits(int symbol, int is_ac) { return is_ac ? symbol & 15 : symbol; }

/* Return the entry of one symbol, the bits of whose code and value are the first of `bits`. */
static uint64_t symbol_entry(int symbol, int length, int is_ac, uint64_t bits) {
  int extra = extra_bits(symbol, is_ac), run = is_ac ? symbol >> 4 : 0;
  if (extra > (is_ac ? MAX_AC_BITS : MAX_DC_BITS)) return make_entry(length, BAD_CODE, 0);
  if (extra == 0 && is_ac && run != 15) return make_entry(length, run == 0 ? END_OF_BLOCK : BAD_CODE, 0);
  int raw = extra == 0 ? 0 : (int)(bits << length >> (64 - extra));
  int value = extra > 0 && raw >> (extra - 1) == 0 ? raw + 1 - (1 << extra) : raw; /* T.81 F.2.2.1, EXTEND */
  return make_entry(length + extra, run + 1, value);
}

/* Add to an entry what follows it, if that fits. No branch, for none could be foretold. */
static uint64_t with_second(uint64_t entry, uint64_t second) {
  uint64_t length = (entry & 255) + (second & 255), advance = (uint64_t)(advance_of(entry) + advance_of(second));
  uint64_t both = (entry & 0x0000FFFF0000FF00) | (second & 0x0000FFFF00000000) << 16 | advance << 16 | length;
  int fits = (length <= PN_FAST_BITS) & (advance_of(entry) <= 16) & (advance_of(second) % END_OF_BLOCK <= 16);
  return fits ? both : entry;
}

/* Set the entries that begin with a code, one for each value behind it. Returns the entry behind the last. */
static uint64_t *tell(uint64_t *from, int symbol, int length, int is_ac) {
  int extra = extra_bits(symbol, is_ac), rest = PN_FAST_BITS - length - extra;
  if (rest < 0) {
    for (int n = 1 << (PN_FAST_BITS - length); n > 0; n--) *from++ = make_entry(0, NOT_TOLD, length << 8 | symbol);
    return from;
  }
  for (uint64_t value = 0; value < 1ull << extra; value++) {
    uint64_t entry = symbol_entry(symbol, length, is_ac, value << (63 - extra) << 1 >> length);
    for (int n = 1 << rest; n > 0; n--) *from++ = entry;
  }
  return from;
}

/* Join what follows each entry to it. */
static void join(const uint64_t *single, pn_huffman *table) {
  const uint32_t mask = (1u << PN_FAST_BITS) - 1;
  for (uint32_t i = 0; i <= mask; i++) table->fast[i] = with_second(single[i], single[i << (single[i] & 63) & mask]);
  for (uint32_t i = 0; i <= mask; i++) {
    uint64_t entry = table->fast[i], behind = table->fast[i << (entry & 63) & mask];
    int length = (int)((entry & 255) + (behind & 255)), advance = advance_of(entry) + advance_of(behind);
    int fits = (advance_of(entry) <= 32) & (length <= PN_FAST_BITS) & (advance_of(behind) % END_OF_BLOCK <= 30);
    table->skip[i] = (uint16_t)(fits ? advance << 8 | length : advance_of(entry) << 8 | (int)(entry & 255));
  }
}

void pn_order_codes(const pn_code *code, pn_code_order *order) {
  uint32_t next = 0; /* the next code, as the first of 16 bits */
  int32_t place = 0;
  memcpy(order->symbols, code->symbols, sizeof order->symbols);
  for (int length = 1; length <= 16; length++) {
    order->first[length] = place - (int32_t)(next >> (16 - length));
    place += code->counts[length - 1];
    next += (uint32_t)code->counts[length - 1] << (16 - length);
    order->ends[length] = next;
  }
}

void pn_make_huffman(const pn_code *code, int is_ac, pn_huffman *table) {
  uint64_t single[1 << PN_FAST_BITS], *entries = is_ac ? single : table->fast, *filled = entries;
  const uint8_t *symbol = code->symbols;
  table->is_ac = is_ac;
  pn_order_codes(code, &table->order);
  for (int length = 1; length <= PN_FAST_BITS; length++)
    for (int i = 0; i < code->counts[length - 1]; i++) filled = tell(filled, *symbol++, length, is_ac);
  while (filled < entries + (1 << PN_FAST_BITS)) *filled++ = make_entry(0, NOT_TOLD, 0);
  if (is_ac) join(single, table);
}

/* Return the entry of the first code of `bits` alone; `entry` is what the table says of it. */
static __attribute__((noinline)) uint64_t full_entry(const pn_huffman *table, uint64_t bits, uint64_t entry) {
  int length = advance_of(entry) == NOT_TOLD ? (int)(entry >> 40 & 255) : 0, symbol = (int)(entry >> 32 & 255);
  if (length == 0) length = pn_find_code(&table->order, bits, &symbol);
  return length == 0 ? make_entry(0, BAD_CODE, 0) : symbol_entry(symbol, length, table->is_ac, bits);
}

#define REFILL()                      \
  do {                                \
    bits |= pn_load64(next) >> count; \
    next += (63 - count) >> 3;        \
    count |= REFILLED;                \
  } while (0)
#define CONSUME(entry)         \
  do {                         \
    bits <<= (entry) & 63;     \
    count -= (uint8_t)(entry); \
  } while (0)
#define LOOK_UP(entries) ((entries)[bits >> (64 - PN_FAST_BITS)])
#define TAKE(entry)                                                        \
  do {                                                                     \
    if (store) {                                                           \
      block[natural_order[k + advance_of(entry)]] = second_value(entry);   \
      block[natural_order[k + first_advance(entry)]] = first_value(entry); \
    }                                                                      \
    k += advance_of(entry);                                                \
    CONSUME(entry);                                                        \
  } while (0)
#define LOOK_UP_AND_TAKE()                                                              \
  do {                                                                                  \
    if (store) entry = LOOK_UP(ac->fast);                                               \
    else entry = LOOK_UP(ac->skip), entry = (entry & 0xFF) | (entry & 0xFF00) << 8;     \
    TAKE(entry);                                                                        \
  } while (0)

/* One function for all variants, which is inlined in each: `store` is whether the coefficients are wanted. */
static inline __attribute__((always_inline)) int follow(pn_bits *reader, const pn_huffman *dc, const pn_huffman *ac,
                                                        int32_t *prediction, int16_t *block, int store) {
  uint64_t bits = reader->bits;
  int count = reader->count;
  const uint8_t *next = reader->next;
  REFILL();
  uint64_t entry = LOOK_UP(dc->fast);
  if (__builtin_expect(advance_of(entry) != 1, 0)) entry = full_entry(dc, bits, entry);
  int bad = advance_of(entry) != 1, k = 0;
  *prediction += first_value(entry);
  bad |= *prediction != (int16_t)*prediction;
  if (store) block[0] = (int16_t)*prediction;
  CONSUME(entry);
  for (;;) {
    do {
      REFILL();
      LOOK_UP_AND_TAKE();
      if (k >= LAST) break;
      LOOK_UP_AND_TAKE();
      if (k >= LAST) break;
      LOOK_UP_AND_TAKE();
      if (k >= LAST) break;
      LOOK_UP_AND_TAKE();
    } while (k < LAST);
    if (k == LAST || (k >= END_OF_BLOCK && k < END_OF_BLOCK + LAST)) break;
    /* Either the code is not told; or the entry went beyond the block's last coefficient: back, and by single codes. */
    k -= advance_of(entry);
    count += (uint8_t)entry;
    int ahead = (count + 7) >> 3, shift = 8 * ahead - count;
    next -= ahead;
    bits = pn_load64(next) << shift;
    next += 7;
    count = 56 - shift;
    entry = full_entry(ac, bits, LOOK_UP(ac->fast));
    TAKE(entry);
    if (k >= LAST) break;
  }
  reader->bits = bits;
  reader->count = count;
  reader->next = next;
  if (bad) return -1;
  return k == LAST ? LAST : k < END_OF_BLOCK ? -1 : k - END_OF_BLOCK;
}

int pn_decode_block(pn_bits *bits, const pn_huffman *dc, const pn_huffman *ac, int32_t *prediction, int16_t *block) {
  return follow(bits, dc, ac, prediction, block, 1);
}

int pn_skip_block(pn_bits *bits, const pn_huffman *dc, const pn_huffman *ac, int32_t *prediction) {
  return follow(bits, dc, ac, prediction, NULL, 0);
}

PN_FAST int pn_decode_block_fast(pn_bits *bits, const pn_huffman *dc, const pn_huffman *ac, int32_t *prediction,
                              int16_t *block) {
  return follow(bits, dc, ac, prediction, block, 1);
}

PN_FAST int pn_skip_block_fast(pn_bits *bits, const pn_huffman *dc, const pn_huffman *ac, int32_t *prediction) {
  return follow(bits, dc, ac, prediction, NULL, 0);
}
