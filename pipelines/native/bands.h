/* Huffman decoding of a progressive JPEG's scans (T.81 G.1.2): DC coefficients, or a band of AC coefficients. */
#pragma once

#include "huffman.h"

/* A lookup table for one scan, made from a pn_code. The index is the next PN_LOOKUP_BITS bits. */
typedef struct {
  uint32_t fast[1 << PN_LOOKUP_BITS];
  pn_code_order order;
  int is_ac, max_bits, low;
} pn_band_table;

/* `low`: as in pn_scan_header; `refines`: whether the scan adds a bit to partly known coefficients. */
void pn_make_band_table(const pn_code *code, int is_ac, int refines, int low, pn_band_table *table);

#define PN_MOST_MCU_BLOCKS 6

/* A scan of DC coefficients. */
typedef struct {
  const pn_band_table *tables;           /* of each component, for a first scan */
  int32_t predictions[3];                /* the last coefficient of each */
  int blocks;                            /* of an MCU */
  uint8_t component[PN_MOST_MCU_BLOCKS]; /* of each: the number of its component among those of the scan */
  int low;                               /* low bits that are still missing after it */
} pn_dc_scan;

/* Read `count` MCUs of a first scan to `values`, one for each block. 0 for damaged data. */
int pn_read_dc(pn_bits *bits, pn_dc_scan *scan, int16_t *values, int32_t count);

/* Read `count` MCUs of a scan that adds a bit to each DC coefficient: these bits, in their places. */
int pn_refine_dc(pn_bits *bits, const pn_dc_scan *scan, int16_t *values, int32_t count);

/* Where the zeros of 8 bits are, in order; then eights. */
typedef uint8_t pn_zero_places[256][8];
void pn_list_zero_places(pn_zero_places places);

/* A scan of a band of AC coefficients, and its progress. */
typedef struct {
  const pn_band_table *table;
  const pn_zero_places *zeros; /* for a scan that adds bits */
  int first, last;             /* zigzag indices of its coefficients */
  int low;                     /* low bits that are still missing after it */
  int32_t left;                /* remaining blocks of an end-of-band run */
} pn_band;

/* Read a band of `count` blocks in its first scan. Bit k of a block's mask says whether its coefficient of zigzag index
 * k is known not to be 0; bit 0 is unused. `blocks` has 64 coefficients per block, in natural order; if it is NULL,
 * only the masks are set. 0 for damaged data. _fast is for AVX2. */
int pn_read_band(pn_bits *bits, pn_band *band, uint64_t *masks, int16_t *blocks, int32_t count);
int pn_read_band_fast(pn_bits *bits, pn_band *band, uint64_t *masks, int16_t *blocks, int32_t count);

/* Read a scan that adds a bit to each coefficient of a band, in the same way. */
int pn_refine_band(pn_bits *bits, pn_band *band, uint64_t *masks, int16_t *blocks, int32_t count);
int pn_refine_band_fast(pn_bits *bits, pn_band *band, uint64_t *masks, int16_t *blocks, int32_t count);
