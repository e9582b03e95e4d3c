/* The Huffman symbols of a baseline JPEG's blocks, read without making coefficients. */
#pragma once

#include "huffman.h"

/* A symbol of a block:
 *
 *   bits     field
 *   0 - 7    the Huffman symbol
 *   8 - 9    number of its table in the copy: bit 9 for AC, bit 8 for chroma
 *   10 - 31  the value bits that follow its code */
typedef uint32_t pn_symbol;

#define PN_SYMBOL_TABLES 4
#define PN_SYMBOL_BITS 10
#define PN_BLOCK_SYMBOLS 64 /* DC, then 63 AC coefficients, or fewer and the end of the block */
#define PN_MAX_DC_BITS 11
#define PN_MAX_AC_BITS 10

/* Return how many bits code a number (T.81 table F.1). */
static inline int pn_value_bits(int32_t value) {
  return value == 0 ? 0 : 32 - __builtin_clz((unsigned)(value < 0 ? -value : value));
}

/* A lookup table for reading symbols, made from a pn_code. */
typedef struct {
  uint64_t pairs[1 << PN_LOOKUP_BITS];   /* one or two AC symbols */
  uint32_t singles[1 << PN_LOOKUP_BITS]; /* one symbol */
  pn_code_order order;
  uint32_t number; /* bits 8 - 9 of its symbols */
} pn_symbol_table;

/* `number`: the table's number in the copy, below PN_SYMBOL_TABLES; 2 and 3 are for AC. */
void pn_make_symbol_table(const pn_code *code, int number, pn_symbol_table *table);

/* The previous DC coefficient: in the file, and in the copy, which has other segments. */
typedef struct {
  int32_t read, written;
} pn_predictions;

/* Read a block's symbols to `to`, at most PN_BLOCK_SYMBOLS; 2 more may be written after them. The DC coefficient is
 * given as its difference from `before->written`. Returns the end of the symbols; NULL if pn_decode_block fails and
 * for a difference that a baseline JPEG cannot store. Otherwise as pn_decode_block; _fast is for AVX2. */
pn_symbol *pn_read_symbols(pn_bits *bits, const pn_symbol_table *dc, const pn_symbol_table *ac, pn_predictions *before,
                           pn_symbol *to);
pn_symbol *pn_read_symbols_fast(pn_bits *bits, const pn_symbol_table *dc, const pn_symbol_table *ac,
                                pn_predictions *before, pn_symbol *to);
