/* The tables of one side of a resize: where each sample's taps begin, and their weights. */
#pragma once

#include "resize.h"

#define PN_GROUP 4 /* outputs that the AVX2 kernel makes together: the tables are padded to a multiple of it */

static inline size_t pn_pad_length(int32_t length) { return ((size_t)length + PN_GROUP - 1) / PN_GROUP * PN_GROUP; }

/* Return the largest number of taps that a sample can have, an even one. */
size_t pn_max_taps(const pn_side *side, int32_t interpolation);

/* Return the bytes of the tables, and of the weights before they are rounded; both sides use the same memory for the
 * latter. */
size_t pn_axis_bytes(const pn_side *side, int32_t interpolation);
size_t pn_exact_bytes(const pn_side *side, int32_t interpolation);

/* Make the tables of one side in `memory`; `mirror`: from the last sample to the first. */
pn_axis pn_make_axis(const pn_side *side, int32_t interpolation, int mirror, uint8_t *memory, double *exact);
