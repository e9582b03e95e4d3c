/* Huffman decoding of a progressive JPEG's scans. A table's entry has the length of a code with the bits that follow it
 * in its bits 0 - 7 (0 for a code of more than PN_LOOKUP_BITS bits), its kind or how far it goes on in the band in bits
 * 8 - 15, and a value in bits 16 - 31: the coefficient (0 after 15 zeros that no coefficient follows), or the number of
 * blocks of an end-of-band run after this one. */
#include "bands.h"

#define MAX_DC_BITS 11
#define MAX_AC_BITS 10
#define MAX_ADVANCE 16
#define END_OF_BAND 32 /* instead of an advance */
#define BAD_CODE 33
#define NOWHERE 64

static uint32_t make_entry(int length, int advance, int32_t value) {
  return (uint32_t)(uint16_t)value << 16 | (uint32_t)advance << 8 | (uint32_t)length;
}

static int advance_of(uint32_t entry) { return (uint8_t)(entry >> 8); }
static int16_t value_of(uint32_t entry) { return (int16_t)(entry >> 16); }

/* Return how many bits follow a symbol's code. */
static int extra_bits(const pn_band_table *table, int symbol) {
  if (!table->is_ac) return symbol;
  int size = symbol & 15, run = symbol >> 4;
  return size > 0 ? size : run < 15 ? run : 0;
}

/* Return the entry of one symbol; `bits` begins with its code and what follows it. */
static uint32_t symbol_entry(const pn_band_table *table, int symbol, int length, uint64_t bits) {
  int extra = extra_bits(table, symbol), size = table->is_ac ? symbol & 15 : symbol, run = symbol >> 4;
  int32_t raw = extra == 0 ? 0 : (int32_t)(bits << length >> (64 - extra));
  length += extra;
  if (size > table->max_bits) return make_entry(1, BAD_CODE, 0);
  if (table->is_ac && size == 0) /* T.81 table G.1 */
    return run == 15 ? make_entry(length, 16, 0) : make_entry(length, END_OF_BAND, (1 << run) - 1 + raw);
  int32_t value = size > 0 && raw >> (size - 1) == 0 ? raw + 1 - (1 << size) : raw; /* T.81 F.2.2.1, EXTEND */
  return make_entry(length, table->is_ac ? run + 1 : 1, value * (1 << table->low));
}

void pn_make_band_table(const pn_code *code, int is_ac, int refines, int low, pn_band_table *table) {
  uint32_t *to = table->fast, *stop = to + (1 << PN_LOOKUP_BITS);
  const uint8_t *symbol = code->symbols;
  int most = (is_ac ? MAX_AC_BITS : MAX_DC_BITS) - low;
  table->is_ac = is_ac;
  table->low = is_ac ? low : 0;
  table->max_bits = most < 0 ? 0 : refines && most > 1 ? 1 : most;
  pn_order_codes(code, &table->order);
  for (int length = 1; length <= PN_LOOKUP_BITS; length++) {
    for (int i = 0; i < code->counts[length - 1]; i++, symbol++) {
      int extra = extra_bits(table, *symbol), rest = PN_LOOKUP_BITS - length - extra;
      if (rest < 0) {
        for (int n = 1 << (PN_LOOKUP_BITS - length); n > 0; n--) *to++ = 0;
        continue;
      }
      for (uint64_t follows = 0; follows < 1ull << extra; follows++) {
        uint32_t entry = symbol_entry(table, *symbol, length, follows << (63 - extra) << 1 >> length);
        for (int n = 1 << rest; n > 0; n--) *to++ = entry;
      }
    }
  }
  while (to < stop) *to++ = 0;
}

static __attribute__((noinline)) uint32_t find_entry(const pn_band_table *table, uint64_t bits) {
  int symbol, length = pn_find_code(&table->order, bits, &symbol);
  return length == 0 ? make_entry(1, BAD_CODE, 0) : symbol_entry(table, symbol, length, bits);
}

/* Make sure that a block's bits can be read, as pn_bits_ready does. */
PN_INLINE int is_ready(pn_cursor *at, pn_bits *bits) {
  if (__builtin_expect(at->next <= bits->limit, 1)) return 1;
  pn_close(*at, bits);
  if (!pn_bits_more(bits)) return 0;
  *at = pn_open(bits);
  return 1;
}

PN_INLINE uint32_t next_entry(pn_cursor *at, const pn_band_table *table) {
  pn_refill(at);
  uint32_t entry = table->fast[at->bits >> (64 - PN_LOOKUP_BITS)];
  if (__builtin_expect((uint8_t)entry == 0, 0)) entry = find_entry(table, at->bits);
  pn_consume(at, (uint8_t)entry);
  return entry;
}

int pn_read_dc(pn_bits *bits, pn_dc_scan *scan, int16_t *values, int32_t count) {
  pn_cursor at = pn_open(bits);
  for (; count > 0; count--) {
    if (!is_ready(&at, bits)) return 0;
    for (int i = 0; i < scan->blocks; i++) {
      int component = scan->component[i];
      uint32_t entry = next_entry(&at, &scan->tables[component]);
      scan->predictions[component] += value_of(entry);
      int32_t value = scan->predictions[component] * (1 << scan->low);
      *values++ = (int16_t)value;
      if (advance_of(entry) != 1 || value != (int16_t)value) return 0;
    }
  }
  pn_close(at, bits);
  return 1;
}

int pn_refine_dc(pn_bits *bits, const pn_dc_scan *scan, int16_t *values, int32_t count) {
  pn_cursor at = pn_open(bits);
  int64_t left = (int64_t)count * scan->blocks;
  while (left > 0) {
    int part = left < PN_REFILLED ? (int)left : PN_REFILLED;
    if (!is_ready(&at, bits)) return 0;
    pn_refill(&at);
    for (int i = 0; i < part; i++) *values++ = (int16_t)((at.bits >> (63 - i) & 1) << scan->low);
    pn_consume(&at, part);
    left -= part;
  }
  pn_close(at, bits);
  return 1;
}

/* Read one block of a band; 0 for damaged data. */
PN_INLINE int read_block(pn_cursor *at, pn_band *band, uint64_t *mask, int16_t *block, int store) {
  uint64_t found = 0;
  int ok = 1;
  for (int k = band->first - 1; k < band->last;) {
    uint32_t entry = next_entry(at, band->table);
    int advance = advance_of(entry);
    if (advance > MAX_ADVANCE) {
      ok = advance == END_OF_BAND;
      band->left = (uint16_t)value_of(entry);
      break;
    }
    k += advance;
    if (k > band->last) return 0;
    found |= (uint64_t)(value_of(entry) != 0) << k;
    if (store) block[pn_natural_order[k]] = value_of(entry);
  }
  *mask |= found;
  return ok;
}

PN_INLINE int read_blocks(pn_bits *bits, pn_band *band, uint64_t *masks, int16_t *blocks, int32_t count, int store) {
  pn_cursor at = pn_open(bits);
  for (int32_t i = 0; i < count; i++) {
    if (band->left > 0) { /* skip a run of blocks without coefficients in this band */
      int32_t passed = band->left < count - i ? band->left : count - i;
      band->left -= passed;
      i += passed - 1;
      continue;
    }
    if (!is_ready(&at, bits) || !read_block(&at, band, &masks[i], store ? blocks + 64 * (ptrdiff_t)i : NULL, store))
      return 0;
  }
  pn_close(at, bits);
  return 1;
}

void pn_list_zero_places(pn_zero_places places) {
  for (int bits = 0; bits < 256; bits++) {
    uint8_t *to = places[bits];
    memset(to, 8, 8);
    for (int i = 0; i < 8; i++)
      if (!(bits >> i & 1)) *to++ = (uint8_t)i;
  }
}

/* List the positions of the zeros of 64 bits, then NOWHERE 16 times. */
PN_INLINE void list_zeros(uint64_t bits, const pn_zero_places *places, uint8_t *to) {
  for (int i = 0; i < 64; i += 8) {
    uint64_t eight;
    memcpy(&eight, (*places)[bits >> i & 255], 8);
    eight += 0x0101010101010101 * (uint64_t)i;
    memcpy(to, &eight, 8);
    to += 8 - __builtin_popcountll(bits >> i & 255);
  }
  memset(to, NOWHERE, 16);
}

/* Append the next `count` bits, at most 63, to `before`. */
PN_INLINE uint64_t append_bits(pn_cursor *at, uint64_t before, int count) {
  for (; __builtin_expect(count > at->count, 0); pn_refill(at)) {
    if (at->count < PN_REFILLED) continue;
    before = before << 32 | at->bits >> 32;
    pn_consume(at, 32);
    count -= 32;
  }
  before = before << count | at->bits >> 1 >> (63 - count);
  pn_consume(at, count);
  return before;
}

/* Add the lowest `count` of `bits`, highest first, to as many coefficients `known`: away from 0. */
PN_INLINE void correct(uint64_t known, uint64_t bits, int count, int low, int16_t *block) {
  bits <<= 64 - count;
  for (; known != 0; known &= known - 1, bits <<= 1) {
    int16_t *to = &block[pn_natural_order[__builtin_ctzll(known)]];
    int32_t away = (*to >> 15 | 1) * (1 << low), all = -(int32_t)(bits >> 63);
    *to = (int16_t)(*to + (away & all));
  }
}

/* Add a bit to each coefficient of a block's band; 0 for damaged data. The bits for known coefficients lie between the
 * symbols of the others. */
PN_INLINE int refine_block(pn_cursor *at, pn_band *band, uint64_t *mask, int16_t *block, int store) {
  uint64_t range = (2ull << band->last) - (1ull << band->first), known = *mask & range, added = 0, bits = 0;
  int k = band->first; /* the next coefficient */
  if (band->left > 0) {
    band->left--;
  } else {
    uint32_t entry = next_entry(at, band->table);
    int advance = advance_of(entry);
    if (advance <= MAX_ADVANCE) {
      uint8_t zeros[64 + 24], *zero = zeros - 1;
      list_zeros(known | ~range, band->zeros, zeros);
      do {
        zero += advance;
        int place = *zero;
        if (place == NOWHERE) return 0;
        bits = append_bits(at, bits, place - k - advance + 1);
        added |= (uint64_t)(value_of(entry) != 0) << place;
        if (store) block[pn_natural_order[place]] = value_of(entry);
        k = place + 1;
        if (k > band->last) break;
        entry = next_entry(at, band->table);
        advance = advance_of(entry);
      } while (advance <= MAX_ADVANCE);
    }
    if (k <= band->last) {
      if (advance != END_OF_BAND) return 0;
      band->left = (uint16_t)value_of(entry);
    }
  }
  if (known == 0) return *mask |= added, 1;
  bits = append_bits(at, bits, __builtin_popcountll(known >> (k - 1) >> 1));
  if (store) correct(known, bits, __builtin_popcountll(known), band->low, block);
  *mask |= added;
  return 1;
}

PN_INLINE int refine_blocks(pn_bits *bits, pn_band *band, uint64_t *masks, int16_t *blocks, int32_t count, int store) {
  pn_cursor at = pn_open(bits);
  for (int32_t i = 0; i < count; i++)
    if (!is_ready(&at, bits) || !refine_block(&at, band, &masks[i], store ? blocks + 64 * (ptrdiff_t)i : NULL, store))
      return 0;
  pn_close(at, bits);
  return 1;
}

int pn_read_band(pn_bits *bits, pn_band *band, uint64_t *masks, int16_t *blocks, int32_t count) {
  return blocks != NULL ? read_blocks(bits, band, masks, blocks, count, 1)
                        : read_blocks(bits, band, masks, NULL, count, 0);
}

int pn_refine_band(pn_bits *bits, pn_band *band, uint64_t *masks, int16_t *blocks, int32_t count) {
  return blocks != NULL ? refine_blocks(bits, band, masks, blocks, count, 1)
                        : refine_blocks(bits, band, masks, NULL, count, 0);
}

PN_TARGET_AVX2 int pn_read_band_fast(pn_bits *bits, pn_band *band, uint64_t *masks, int16_t *blocks, int32_t count) {
  return blocks != NULL ? read_blocks(bits, band, masks, blocks, count, 1)
                        : read_blocks(bits, band, masks, NULL, count, 0);
}

PN_TARGET_AVX2 int pn_refine_band_fast(pn_bits *bits, pn_band *band, uint64_t *masks, int16_t *blocks, int32_t count) {
  return blocks != NULL ? refine_blocks(bits, band, masks, blocks, count, 1)
                        : refine_blocks(bits, band, masks, NULL, count, 0);
}
