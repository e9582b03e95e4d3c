/* Optimal Huffman codes, and writing symbols with them. */
#ifndef PENSTOCK_HUFFMAN_WRITE_H
#define PENSTOCK_HUFFMAN_WRITE_H

#include "symbols.h"

#define PN_WRITE_SLACK 8 /* bytes behind the coded ones that pn_write_symbols may write to */

/* Find the code that takes the fewest bits for symbols that occur so often, none longer than 16 bits and none of all
 * ones (T.81 C.2). One count at least is not 0. Of equal counts the lower symbol gets the shorter code. */
PN_EXPORT void pn_optimal_code(const uint32_t counts[256], pn_code *code);

/* What is written for each symbol (the lowest PN_SYMBOL_BITS of a pn_symbol), made of a table's code: bits 0 to 4 how
 * many bits it takes, those behind its code included; its code above them, shifted by these. */
typedef uint32_t pn_code_words[1 << PN_SYMBOL_BITS];

void pn_set_code_words(const pn_code *code, int number, pn_code_words words);

/* Write symbols as a segment of entropy-coded data without stuffed zeros, its last byte filled with ones; returns the
 * end. */
uint8_t *pn_write_symbols(const pn_symbol *symbols, const pn_symbol *end, const pn_code_words words, uint8_t *to);
uint8_t *pn_write_symbols_fast(const pn_symbol *symbols, const pn_symbol *end, const pn_code_words words, uint8_t *to);

/* Copy `size` bytes, of which PN_WRITE_SLACK more may be read, with a zero behind each 0xFF; returns the end of the
 * copy, behind which PN_WRITE_SLACK bytes may be written to. */
uint8_t *pn_stuff(const uint8_t *from, size_t size, uint8_t *to);

#endif
