/* Optimal Huffman codes, and writing symbols with them. */
#pragma once

#include "symbols.h"

#define PN_WRITE_SLACK 8 /* bytes that pn_write_symbols may write after the coded ones */

/* Find the code that needs the fewest bits for symbols with these counts, none longer than 16 bits and none of all ones
 * (T.81 C.2). At least one count must not be 0. For equal counts the lower symbol gets the shorter code. */
PN_EXPORT void pn_optimal_code(const uint32_t counts[256], pn_code *code);

/* What to write for each symbol (the lowest PN_SYMBOL_BITS bits of a pn_symbol):
 *
 *   bits    field
 *   0 - 4   number of bits to write: the code and the value after it
 *   5 - 31  the code, shifted left by the length of the value */
typedef uint32_t pn_code_words[1 << PN_SYMBOL_BITS];

void pn_set_code_words(const pn_code *code, int number, pn_code_words words);

/* Write symbols as a segment of entropy-coded data without stuffed zeros, its last byte filled with ones; returns the
 * end. */
uint8_t *pn_write_symbols(const pn_symbol *symbols, const pn_symbol *end, const pn_code_words words, uint8_t *to);
uint8_t *pn_write_symbols_fast(const pn_symbol *symbols, const pn_symbol *end, const pn_code_words words, uint8_t *to);

/* Copy `size` bytes with a zero after each 0xFF, and return the end of the copy. Up to PN_WRITE_SLACK extra bytes may
 * be read and written. */
uint8_t *pn_stuff(const uint8_t *from, size_t size, uint8_t *to);
