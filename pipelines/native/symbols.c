/* Reads the Huffman symbols of blocks (T.81 F.2.2): a lookup of PN_LOOKUP_BITS bits gives one or two of them. */
#include "symbols.h"

/* An entry of a lookup table:
 *
 *   bits     field
 *   0 - 5    number of input bits that the entry consumes
 *   6 - 9    how many of these are value bits that the entry does not contain
 *   10 - 17  advance: how far the zigzag index moves
 *   18 - 19  number of symbols, 1 or 2
 *   20 - 41  the first symbol; entries of `pairs` include its value bits
 *   42 - 63  the second symbol with its value bits */
#define END_OF_BLOCK 128 /* as in huffman.c */
#define INCOMPLETE 192   /* the only entry of 0 bits: a code that is too long or invalid */
#define LAST 63
#define SYMBOL_MASK ((1u << (PN_SYMBOL_BITS + PN_MAX_DC_BITS)) - 1)

static uint32_t entry_bits(uint64_t entry) { return entry & 63; }
static uint32_t entry_rest(uint64_t entry) { return entry >> 6 & 15; }
static int entry_advance(uint64_t entry) { return (int)(entry >> 10 & 255); }
static uint32_t entry_count(uint64_t entry) { return entry >> 18 & 3; }

static uint64_t make_entry(uint32_t bits, uint32_t rest, int advance, uint32_t count) {
  return bits | rest << 6 | (uint32_t)advance << 10 | count << 18;
}

static const uint32_t incomplete = INCOMPLETE << 10;

/* Return the entry of a symbol whose code has `length` bits, without its value bits. It has 30 bits. */
static uint32_t single_entry(const pn_symbol_table *table, uint32_t symbol, uint32_t length) {
  int is_ac = table->number >= 2u << 8;
  uint32_t extra = is_ac ? symbol & 15 : symbol, run = is_ac ? symbol >> 4 : 0;
  if (extra > (is_ac ? PN_MAX_AC_BITS : PN_MAX_DC_BITS)) return incomplete;
  int advance = (int)run + 1;
  if (is_ac && extra == 0 && run != 15) advance = run == 0 ? END_OF_BLOCK : INCOMPLETE;
  if (advance == INCOMPLETE) return incomplete;
  return (uint32_t)make_entry(length + extra, extra, advance, 1) | (table->number | symbol) << 20;
}

/* Return the first symbol of an entry with its value bits; `bits` begins with its code. */
PN_INLINE pn_symbol first_symbol(uint64_t entry, uint64_t bits) {
  uint32_t rest = entry_rest(entry);
  uint64_t value = bits << (entry_bits(entry) - rest) >> 1 >> (63 - rest);
  return (pn_symbol)(entry >> 20 & SYMBOL_MASK) | (pn_symbol)(value << PN_SYMBOL_BITS);
}

/* Add the value bits of symbols to the entries, and join two symbols if both fit in PN_LOOKUP_BITS bits. */
static void make_pairs(pn_symbol_table *table) {
  for (uint32_t i = 0; i < 1 << PN_LOOKUP_BITS; i++) {
    uint64_t entry = table->singles[i];
    uint32_t length = entry_bits(entry);
    table->pairs[i] = incomplete;
    if (length > PN_LOOKUP_BITS || length == 0) continue;
    uint64_t first = first_symbol(entry, (uint64_t)i << (64 - PN_LOOKUP_BITS)), joined = first << 20;
    uint32_t behind = i << length & ((1 << PN_LOOKUP_BITS) - 1);
    uint64_t second = table->singles[behind];
    uint32_t both = length + entry_bits(second);
    if (entry_advance(entry) == END_OF_BLOCK || entry_bits(second) == 0 || both > PN_LOOKUP_BITS) {
      table->pairs[i] = joined | make_entry(length, 0, entry_advance(entry), 1);
      continue;
    }
    joined |= (uint64_t)first_symbol(second, (uint64_t)behind << (64 - PN_LOOKUP_BITS)) << 42;
    table->pairs[i] = joined | make_entry(both, 0, entry_advance(entry) + entry_advance(second), 2);
  }
}

void pn_make_symbol_table(const pn_code *code, int number, pn_symbol_table *table) {
  uint32_t filled = 0;
  const uint8_t *symbol = code->symbols;
  table->number = (uint32_t)number << 8;
  pn_order_codes(code, &table->order);
  for (uint32_t length = 1; length <= PN_LOOKUP_BITS; length++) {
    for (int i = 0; i < code->counts[length - 1]; i++) {
      uint32_t entry = single_entry(table, *symbol++, length);
      for (int n = 1 << (PN_LOOKUP_BITS - length); n > 0; n--) table->singles[filled++] = entry;
    }
  }
  while (filled < 1 << PN_LOOKUP_BITS) table->singles[filled++] = incomplete;
  if (number >= 2) make_pairs(table);
}

/* Return the entry of the code at the front of `bits`; `incomplete` if there is none. */
static uint32_t find_long_code(const pn_symbol_table *table, uint64_t bits) {
  int symbol = 0, length = pn_find_code(&table->order, bits, &symbol);
  return length == 0 ? incomplete : single_entry(table, (uint32_t)symbol, (uint32_t)length);
}

#define TAKE_ONE_OR_TWO()                                \
  do {                                                   \
    entry = ac->pairs[at.bits >> (64 - PN_LOOKUP_BITS)]; \
    before = at.bits;                                    \
    to[0] = (pn_symbol)(entry >> 20) & SYMBOL_MASK;      \
    to[1] = (pn_symbol)(entry >> 42);                    \
    to += entry_count(entry);                            \
    k += entry_advance(entry);                           \
    pn_consume(&at, (int32_t)entry_bits(entry));         \
  } while (0)

/* Look up one symbol, in `read_block`, with its variables. */
#define ENTRY_OF_ONE(table)                                                                  \
  do {                                                                                       \
    entry = (table)->singles[at.bits >> (64 - PN_LOOKUP_BITS)];                              \
    if (__builtin_expect(entry_bits(entry) == 0, 0)) entry = find_long_code(table, at.bits); \
    if (entry_bits(entry) == 0) return NULL;                                                 \
  } while (0)

PN_INLINE pn_symbol *read_block(pn_bits *reader, const pn_symbol_table *dc, const pn_symbol_table *ac,
                                pn_predictions *predictions, pn_symbol *to) {
  pn_cursor at = pn_open(reader);
  uint64_t entry, before;
  pn_refill(&at);
  ENTRY_OF_ONE(dc);
  uint32_t extra = entry_rest(entry);
  int32_t value = (int32_t)(first_symbol(entry, at.bits) >> PN_SYMBOL_BITS);
  if (extra > 0 && value >> (extra - 1) == 0) value += 1 - (1 << extra); /* T.81 F.2.2.1, EXTEND */
  pn_consume(&at, (int32_t)entry_bits(entry));
  predictions->read += value;
  if (predictions->read != (int16_t)predictions->read) return NULL;
  int32_t difference = predictions->read - predictions->written;
  predictions->written = predictions->read;
  extra = (uint32_t)pn_value_bits(difference);
  if (extra > PN_MAX_DC_BITS) return NULL;
  uint32_t raw = (uint32_t)(difference < 0 ? difference + (1 << extra) - 1 : difference);
  *to++ = raw << PN_SYMBOL_BITS | dc->number | extra;
  for (int k = 0;;) {
    do {
      pn_refill(&at);
      TAKE_ONE_OR_TWO();
      if (k >= LAST) break;
      TAKE_ONE_OR_TWO();
      if (k >= LAST) break;
      TAKE_ONE_OR_TWO();
      if (k >= LAST) break;
      TAKE_ONE_OR_TWO();
    } while (k < LAST);
    if (k == LAST || (k >= END_OF_BLOCK && k < END_OF_BLOCK + LAST)) break;
    /* The entry was incomplete, or went beyond the block's last coefficient: go back and read a single symbol. */
    k -= entry_advance(entry);
    to -= entry_count(entry);
    at.count += (int32_t)entry_bits(entry);
    at.bits = before;
    pn_refill(&at);
    ENTRY_OF_ONE(ac);
    *to++ = first_symbol(entry, at.bits);
    k += entry_advance(entry);
    pn_consume(&at, (int32_t)entry_bits(entry));
    if (k < LAST) continue;
    if (k > LAST && k < END_OF_BLOCK) return NULL;
    break;
  }
  pn_close(at, reader);
  return to;
}

pn_symbol *pn_read_symbols(pn_bits *bits, const pn_symbol_table *dc, const pn_symbol_table *ac, pn_predictions *before,
                           pn_symbol *to) {
  return read_block(bits, dc, ac, before, to);
}

PN_TARGET_AVX2 pn_symbol *pn_read_symbols_fast(pn_bits *bits, const pn_symbol_table *dc, const pn_symbol_table *ac,
                                               pn_predictions *before, pn_symbol *to) {
  return read_block(bits, dc, ac, before, to);
}
