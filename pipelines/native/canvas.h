/* An output image: the place of the crop, the colour of the rest, and how the whole image is finally turned. */
#pragma once

#include "resize.h"
#include "window.h"

enum { PN_UPSIDE_DOWN = 1, PN_TRANSPOSED = 2 }; /* bits of a turn; transposed first */

typedef struct {
  uint8_t *pixels; /* uint8 [height][width][channels], contiguous */
  int32_t width, height;
  int32_t channels;      /* 3 for RGB, 1 for grey levels */
  pn_window place;       /* where the window goes, before the image is turned; only a part of it may show */
  const uint8_t *fill;   /* red, green and blue of the rest */
  int turn, flip;        /* flip: mirrored left to right, after the turn */
  int32_t interpolation; /* of the resize */
} pn_canvas;

/* Find the part of a window of this size that shows on the canvas, for pn_draw; zeros if none does. */
void pn_find_shown(const pn_canvas *canvas, int32_t width, int32_t height, pn_side *x, pn_side *y);

/* Resize the shown part (as for pn_resize_part) to its place. `scratch` and `whole` are memory. PN_UNSUPPORTED for a
 * transposed image that is not square. */
pn_result pn_draw(const uint8_t *rgb, size_t stride, const pn_side *x, const pn_side *y, int32_t orientation,
                  const pn_canvas *canvas, pn_memory *scratch, pn_memory *whole);
