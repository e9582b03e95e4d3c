/* Huffman decoding of blocks (T.81 F.2.2). One lookup of PN_LOOKUP_BITS bits gives one or two coefficients with their
 * runs and values, so the loop over a block's codes branches only at its end. Longer codes are rare. */
#include "huffman.h"

/* An entry of a lookup table:
 *
 *   bits     field
 *   0 - 7    number of input bits that the entry consumes
 *   8 - 15   advance: how far the zigzag index moves to the first coefficient
 *   16 - 23  advance to the last coefficient; the last may be END_OF_BLOCK
 *   32 - 47  value of the first coefficient
 *   48 - 63  value of the second coefficient
 *
 * With one coefficient both advances are equal, and the first value counts. A code whose value does not fit into the
 * lookup has INCOMPLETE in both advances, its symbol in bits 32 - 39, and its length in bits 40 - 47: 0 for a code of
 * more than PN_LOOKUP_BITS bits. */
#define END_OF_BLOCK 128 /* as an advance: above all other indices except those of INCOMPLETE */
#define INCOMPLETE 192
#define BAD_CODE 64
#define MAX_DC_BITS 11
#define MAX_AC_BITS 10
#define LAST 63

static uint64_t make_entry(int length, int advance, int value) {
  return (uint64_t)(uint16_t)value << 32 | (uint64_t)advance << 16 | (uint64_t)advance << 8 | (uint64_t)length;
}

static int first_advance(uint64_t entry) { return (uint8_t)(entry >> 8); }
static int last_advance(uint64_t entry) { return (uint8_t)(entry >> 16); }
static int16_t first_value(uint64_t entry) { return (int16_t)(entry >> 32); }
static int16_t second_value(uint64_t entry) { return (int16_t)(entry >> 48); }

/* Return how many bits follow a symbol's code: these contain the value, and the symbol gives their number. */
static int extra_bits(int symbol, int is_ac) { return is_ac ? symbol & 15 : symbol; }

/* Return the entry of one symbol; `bits` begins with its code and value. */
static uint64_t symbol_entry(int symbol, int length, int is_ac, uint64_t bits) {
  int extra = extra_bits(symbol, is_ac), run = is_ac ? symbol >> 4 : 0;
  if (extra > (is_ac ? MAX_AC_BITS : MAX_DC_BITS)) return make_entry(length, BAD_CODE, 0);
  if (extra == 0 && is_ac && run != 15) return make_entry(length, run == 0 ? END_OF_BLOCK : BAD_CODE, 0);
  int raw = extra == 0 ? 0 : (int)(bits << length >> (64 - extra));
  int value = extra > 0 && raw >> (extra - 1) == 0 ? raw + 1 - (1 << extra) : raw; /* T.81 F.2.2.1, EXTEND */
  return make_entry(length + extra, run + 1, value);
}

/* Add the following entry to an entry if it fits. Without a branch, because it could not be predicted. */
static uint64_t join_second(uint64_t entry, uint64_t second) {
  uint64_t length = (entry & 255) + (second & 255), advance = (uint64_t)(last_advance(entry) + last_advance(second));
  uint64_t both = (entry & 0x0000FFFF0000FF00) | (second & 0x0000FFFF00000000) << 16 | advance << 16 | length;
  int fits = length <= PN_LOOKUP_BITS;
  fits &= last_advance(entry) <= 16;
  fits &= last_advance(second) % END_OF_BLOCK <= 16;
  return fits ? both : entry;
}

/* Set the entries that begin with a code, one for each value after it. Returns the end of the entries. */
static uint64_t *set_entries(uint64_t *from, int symbol, int length, int is_ac) {
  int extra = extra_bits(symbol, is_ac), rest = PN_LOOKUP_BITS - length - extra;
  if (rest < 0) {
    for (int n = 1 << (PN_LOOKUP_BITS - length); n > 0; n--) *from++ = make_entry(0, INCOMPLETE, length << 8 | symbol);
    return from;
  }
  for (uint64_t value = 0; value < 1ull << extra; value++) {
    uint64_t entry = symbol_entry(symbol, length, is_ac, value << (63 - extra) << 1 >> length);
    for (int n = 1 << rest; n > 0; n--) *from++ = entry;
  }
  return from;
}

/* Join each entry with the one that follows it. */
static void join_entries(const uint64_t *single, pn_huffman *table) {
  const uint32_t mask = (1u << PN_LOOKUP_BITS) - 1;
  for (uint32_t i = 0; i <= mask; i++) table->fast[i] = join_second(single[i], single[i << (single[i] & 63) & mask]);
  for (uint32_t i = 0; i <= mask; i++) {
    uint64_t entry = table->fast[i], behind = table->fast[i << (entry & 63) & mask];
    int length = (int)((entry & 255) + (behind & 255)), advance = last_advance(entry) + last_advance(behind);
    int fits = last_advance(entry) <= 32;
    fits &= length <= PN_LOOKUP_BITS;
    fits &= last_advance(behind) % END_OF_BLOCK <= 30;
    table->skip[i] = (uint16_t)(fits ? advance << 8 | length : last_advance(entry) << 8 | (int)(entry & 255));
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
  uint64_t single[1 << PN_LOOKUP_BITS], *entries = is_ac ? single : table->fast, *filled = entries;
  const uint8_t *symbol = code->symbols;
  table->is_ac = is_ac;
  pn_order_codes(code, &table->order);
  for (int length = 1; length <= PN_LOOKUP_BITS; length++)
    for (int i = 0; i < code->counts[length - 1]; i++) filled = set_entries(filled, *symbol++, length, is_ac);
  while (filled < entries + (1 << PN_LOOKUP_BITS)) *filled++ = make_entry(0, INCOMPLETE, 0);
  if (is_ac) join_entries(single, table);
}

const pn_huffman *pn_find_huffman(pn_kept_tables *kept, const pn_code *code, int is_ac, int number) {
  int place = 4 * is_ac + number;
  pn_code *known = &kept->codes[place];
  if (memcmp(known, code, sizeof *code) != 0) {
    pn_make_huffman(code, is_ac, &kept->tables[place]);
    memcpy(known, code, sizeof *code);
  }
  return &kept->tables[place];
}

/* Return the entry for only the first code of `bits`; `entry` is the table's entry for it. */
static __attribute__((noinline)) uint64_t decode_long_code(const pn_huffman *table, uint64_t bits, uint64_t entry) {
  int length = last_advance(entry) == INCOMPLETE ? (int)(entry >> 40 & 255) : 0, symbol = (int)(entry >> 32 & 255);
  if (length == 0) length = pn_find_code(&table->order, bits, &symbol);
  return length == 0 ? make_entry(0, BAD_CODE, 0) : symbol_entry(symbol, length, table->is_ac, bits);
}

#define LOOK_UP(entries) ((entries)[at.bits >> (64 - PN_LOOKUP_BITS)])
#define TAKE(entry)                                                           \
  do {                                                                        \
    if (store) {                                                              \
      block[pn_natural_order[k + last_advance(entry)]] = second_value(entry); \
      block[pn_natural_order[k + first_advance(entry)]] = first_value(entry); \
    }                                                                         \
    k += last_advance(entry);                                                 \
    pn_consume(&at, (uint8_t)(entry));                                        \
  } while (0)
#define LOOK_UP_AND_TAKE()                                                          \
  do {                                                                              \
    if (store) entry = LOOK_UP(ac->fast);                                           \
    else entry = LOOK_UP(ac->skip), entry = (entry & 0xFF) | (entry & 0xFF00) << 8; \
    TAKE(entry);                                                                    \
  } while (0)

/* One function for all variants, inlined into each; `store`: whether the coefficients are wanted. */
PN_INLINE int decode_coefficients(pn_bits *reader, const pn_huffman *dc, const pn_huffman *ac, int32_t *prediction,
                                  int16_t *block, int store) {
  pn_cursor at = pn_open(reader);
  pn_refill(&at);
  uint64_t entry = LOOK_UP(dc->fast);
  if (__builtin_expect(last_advance(entry) != 1, 0)) entry = decode_long_code(dc, at.bits, entry);
  int bad = last_advance(entry) != 1, k = 0;
  *prediction += first_value(entry);
  bad |= *prediction != (int16_t)*prediction;
  if (store) block[0] = (int16_t)*prediction;
  pn_consume(&at, (uint8_t)(entry));
  for (;;) {
    do {
      pn_refill(&at);
      LOOK_UP_AND_TAKE();
      if (k >= LAST) break;
      LOOK_UP_AND_TAKE();
      if (k >= LAST) break;
      LOOK_UP_AND_TAKE();
      if (k >= LAST) break;
      LOOK_UP_AND_TAKE();
    } while (k < LAST);
    if (k == LAST || (k >= END_OF_BLOCK && k < END_OF_BLOCK + LAST)) break;
    /* The entry was incomplete, or went beyond the block's last coefficient: go back and read a single code. */
    k -= last_advance(entry);
    at.count += (uint8_t)entry;
    int ahead = (at.count + 7) >> 3, shift = 8 * ahead - at.count;
    at.next -= ahead;
    at.bits = pn_load64(at.next) << shift;
    at.next += 7;
    at.count = 56 - shift;
    entry = decode_long_code(ac, at.bits, LOOK_UP(ac->fast));
    TAKE(entry);
    if (k >= LAST) break;
  }
  pn_close(at, reader);
  if (bad) return -1;
  return k == LAST ? LAST : k < END_OF_BLOCK ? -1 : k - END_OF_BLOCK;
}

int pn_decode_block(pn_bits *bits, const pn_huffman *dc, const pn_huffman *ac, int32_t *prediction, int16_t *block) {
  return decode_coefficients(bits, dc, ac, prediction, block, 1);
}

int pn_skip_block(pn_bits *bits, const pn_huffman *dc, const pn_huffman *ac, int32_t *prediction) {
  return decode_coefficients(bits, dc, ac, prediction, NULL, 0);
}

PN_TARGET_AVX2 int pn_decode_block_fast(pn_bits *bits, const pn_huffman *dc, const pn_huffman *ac, int32_t *prediction,
                                        int16_t *block) {
  return decode_coefficients(bits, dc, ac, prediction, block, 1);
}

PN_TARGET_AVX2 int pn_skip_block_fast(pn_bits *bits, const pn_huffman *dc, const pn_huffman *ac, int32_t *prediction) {
  return decode_coefficients(bits, dc, ac, prediction, NULL, 0);
}
