/* The planes of a window: blocks decoded into a ring of two rows of MCUs, and rows of pixels made from them. */
#pragma once

#include "huffman.h"
#include "idct.h"

/* The part of one component that a window needs. Columns and rows count blocks. */
typedef struct {
  int32_t column, column_end, row, row_end;
  int32_t wide, high;       /* size of the whole plane, in samples */
  int32_t shift_x, shift_y; /* the image has two to this power as many samples on that axis */
  int32_t mixed;            /* whether upsampling mixes neighbours instead of repeating them */
  int32_t ring_rows;        /* rows of samples kept: a power of two */
  size_t stride;
  uint8_t *samples; /* row 0 of the ring, sample 8 * column */
  const pn_huffman *dc, *ac;
  pn_quantiser quantiser;
  int32_t prediction;
  const int16_t *waiting; /* a block that waits for the next one, since two are transformed together; or NULL */
  uint8_t *waiting_to;
  pn_coefficients blocks[2]; /* of the decoded MCUs */
} pn_plane;

typedef struct {
  const pn_jpeg *jpeg;
  pn_window window;
  int32_t row, row_end; /* rows of MCUs that the window needs */
  int32_t count;        /* planes */
  pn_plane plane[3];
  int avx2;
  uint8_t *chroma[2]; /* rows of upsampled chroma */
} pn_planes;

/* Find the parts that a window needs; memory is assigned later. */
void pn_plan_planes(const pn_jpeg *jpeg, pn_window window, pn_planes *planes);

/* Return how many bytes the planes take; lay them out in memory of that size, aligned to 64. */
size_t pn_size_of_planes(const pn_planes *planes);
void pn_place_planes(pn_planes *planes, uint8_t *memory);

/* Decode MCUs [mcu, mcu_end) of row `row`: the blocks that the window needs become samples, the others are skipped. 0
 * for damaged data. */
int pn_decode_mcus(pn_planes *planes, pn_bits *bits, int32_t row, int32_t mcu, int32_t mcu_end);

/* Transform the blocks that the window needs in row `y` of a plane's blocks: 64 coefficients each, in natural order; a
 * mask of 0 means that only the DC coefficient may differ from 0. The blocks must stay valid until the row is finished.
 * 0 for damaged data. */
int pn_transform_row(const pn_planes *planes, pn_plane *plane, int32_t y, const int16_t *blocks, const uint64_t *masks);

/* Begin a segment: DC coefficients are again coded as differences from 0. */
void pn_reset_predictions(pn_planes *planes);

/* End row `row` of MCUs: transform the waiting blocks, repeat the samples at the image's edges. 0 for damaged data. */
int pn_finish_row(pn_planes *planes, int32_t row);

/* Return how many rows of pixels of the image, from its top, can be made once row `row` of MCUs is finished. */
int32_t pn_count_ready_rows(const pn_planes *planes, int32_t row);

/* Make the window's pixels of row `y` of the image. */
void pn_make_pixels(const pn_planes *planes, int32_t y, uint8_t *rgb);
