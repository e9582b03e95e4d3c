/* The scans of a progressive JPEG: checks them, then reads the coefficients of the blocks that a window needs. */
#pragma once

#include "planes.h"
#include "window.h"

/* The coefficients of a component. */
typedef struct {
  const pn_plane *plane; /* says which of its blocks the window needs */
  int32_t wide, high;    /* blocks of the component, without padding of MCUs */
  uint64_t *masks;       /* of all blocks; see pn_read_band */
  int16_t *blocks;       /* of the blocks that the window needs: 64 each, in natural order */
} pn_coefficient_plane;

typedef struct {
  const pn_jpeg *jpeg;
  pn_coefficient_plane plane[3];
  int avx2;
} pn_coefficient_planes;

/* Whether the scans give all bits of all coefficients, each once, in an order without a warning from libjpeg, and are
 * not too many. Their data is only searched for markers. */
int pn_has_complete_scans(const pn_jpeg *jpeg, const pn_scan *scan);

/* Find the parts that the planes of a window need; memory is assigned later. */
void pn_plan_coefficients(const pn_planes *planes, pn_coefficient_planes *found);

#define PN_MAX_COEFFICIENT_BYTES ((size_t)150000000) /* an image of 50 megapixels in 4:2:0 has as many */

/* Return how many bytes reading needs. Callers skip images with more than PN_MAX_COEFFICIENT_BYTES. */
size_t pn_size_of_coefficients(const pn_coefficient_planes *planes);

/* Read all scans, which must be complete, into memory of that size, aligned to 64. 0 for damaged data. */
int pn_read_coefficients(pn_coefficient_planes *planes, const pn_scan *scan, uint8_t *memory);

/* Return the first of the coefficients and masks of a row of blocks, from the window's first column on. */
const int16_t *pn_find_blocks(const pn_coefficient_plane *plane, int32_t row);
const uint64_t *pn_find_masks(const pn_coefficient_plane *plane, int32_t row);
