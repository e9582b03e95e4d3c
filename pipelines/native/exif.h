/* The orientation in an EXIF block. */
#pragma once

#include "native.h"

/* Return the orientation, 1 to 8, of an EXIF block (from the bytes "Exif" on); 1 if it has none, or an invalid one.
 * 0 if the block is unusual or damaged: then Pillow must read it. */
int32_t pn_exif_orientation(const uint8_t *block, size_t size);
