/* The orientation that an EXIF block gives. */
#ifndef PENSTOCK_EXIF_H
#define PENSTOCK_EXIF_H

#include "native.h"

/* Return the orientation, 1 to 8, of an EXIF block (from the bytes "Exif" on); 1 where it has none, or no such one.
 * 0 where the block is not plain and whole: what Pillow makes of those, Pillow has to say. */
int32_t pn_exif_orientation(const uint8_t *block, size_t size);

#endif
