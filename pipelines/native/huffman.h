/* Huffman decoding of the blocks of a baseline JPEG. */
#pragma once

#include "jpeg_header.h"
#include "scan_bits.h"

#define PN_LOOKUP_BITS 10 /* 11 and 12 are as fast, but two threads of a core share 48 KB of cache */

/* The codes of a pn_code in order, to find codes that are longer than PN_LOOKUP_BITS bits. */
typedef struct {
  uint32_t ends[17]; /* after the last code of at most this length, as the first of 16 bits */
  int32_t first[17]; /* added to a code of this length, gives its symbol's place */
  uint8_t symbols[256];
} pn_code_order;

void pn_order_codes(const pn_code *code, pn_code_order *order);

/* Return the length of the code at the front of `bits`, and its symbol; 0 if there is none. */
static inline int pn_find_code(const pn_code_order *order, uint64_t bits, int *symbol) {
  uint32_t code = (uint32_t)(bits >> 48);
  for (int length = 1; length <= 16; length++) {
    if (code >= order->ends[length]) continue;
    int32_t place = (int32_t)(code >> (16 - length)) + order->first[length];
    *symbol = order->symbols[place & 255];
    return length;
  }
  return 0;
}

/* A lookup table for decoding, made from a pn_code. The index into `fast` is the next PN_LOOKUP_BITS bits. */
typedef struct {
  uint64_t fast[1 << PN_LOOKUP_BITS];
  uint16_t skip[1 << PN_LOOKUP_BITS]; /* the same for passing over AC coefficients: bits, then advance << 8 */
  pn_code_order order;
  int is_ac;
} pn_huffman;

/* Coefficients of a block in natural order (T.81 A.3.6 undone), not dequantised. The elements after the 64th are
 * scratch: consecutive blocks may be decoded one after the other into memory with 8 extra elements. */
typedef int16_t pn_coefficients[64 + 8];

void pn_make_huffman(const pn_code *code, int is_ac, pn_huffman *table);

/* The tables of the image before, DC then AC, with the codes that they were made from: most images of a data set have
 * the same. Begins as zeros. */
typedef struct {
  pn_code codes[8];
  pn_huffman tables[8];
} pn_kept_tables;

/* Return the table of code `number`, below 4, of an image; it is made if the kept one has another code. */
const pn_huffman *pn_find_huffman(pn_kept_tables *kept, const pn_code *code, int is_ac, int number);

/* Decode a block to `block`, whose 64 coefficients must be zero before. `prediction` is the last DC coefficient of the
 * component. Returns the zigzag index of the last coefficient, 0 to 63 (a coefficient 0 that ends a run of zeros may
 * count as the last), or -1 for a code that no encoder writes. Call pn_bits_ready once before each MCU; it and
 * pn_bits_done report reads beyond the end of the data. */
int pn_decode_block(pn_bits *bits, const pn_huffman *dc, const pn_huffman *ac, int32_t *prediction, int16_t *block);

/* Skip a block, with the same result as pn_decode_block. */
int pn_skip_block(pn_bits *bits, const pn_huffman *dc, const pn_huffman *ac, int32_t *prediction);

/* The same for processors with AVX2 (pn_has_avx2). */
int pn_decode_block_fast(pn_bits *bits, const pn_huffman *dc, const pn_huffman *ac, int32_t *prediction,
                         int16_t *block);
int pn_skip_block_fast(pn_bits *bits, const pn_huffman *dc, const pn_huffman *ac, int32_t *prediction);
