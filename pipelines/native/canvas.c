/* Draws a crop into an output image. */
#include "canvas.h"

#include <string.h>

static pn_side find_shown_side(int32_t in, int32_t at, int32_t length, int32_t shown, int32_t interpolation) {
  if (length < 1 || length > PN_MAX_SIDE || at >= shown || at <= -length) return (pn_side){0};
  int32_t first = at < 0 ? -at : 0, end = pn_min(length, shown - at);
  return pn_cut_side(in, length, first, end - first, interpolation);
}

void pn_find_shown(const pn_canvas *canvas, int32_t width, int32_t height, pn_side *x, pn_side *y) {
  const pn_window *at = &canvas->place;
  *x = find_shown_side(width, at->x, at->width, canvas->width, canvas->interpolation);
  *y = find_shown_side(height, at->y, at->height, canvas->height, canvas->interpolation);
}

static void fill_all(uint8_t *rgb, int32_t width, int32_t height, const uint8_t *fill) {
  for (size_t i = (size_t)width * (size_t)height; i > 0; i--, rgb += 3) memcpy(rgb, fill, 3);
}

/* Draw to `rgb`, an image of the canvas's size; mirrored and upside down if the canvas is, but not transposed. */
static pn_result draw_rgb(const uint8_t *from, size_t stride, const pn_side *across, const pn_side *down,
                          int32_t orientation, const pn_canvas *canvas, int turned, uint8_t *rgb, pn_memory *scratch) {
  int upside_down = turned && canvas->turn & PN_UPSIDE_DOWN, flip = turned && canvas->flip;
  ptrdiff_t row_bytes = 3 * (ptrdiff_t)canvas->width;
  if (across->count < canvas->width || down->count < canvas->height)
    fill_all(rgb, canvas->width, canvas->height, canvas->fill);
  int32_t left = pn_max(canvas->place.x, 0), top = pn_max(canvas->place.y, 0);
  int32_t x = flip ? canvas->width - left - across->count : left, y = upside_down ? canvas->height - 1 - top : top;
  uint8_t *first = rgb + y * row_bytes + 3 * (ptrdiff_t)x;
  return pn_resize_part(from, stride, across, down, first, upside_down ? -row_bytes : row_bytes, flip, orientation,
                        canvas->interpolation, scratch);
}

/* Convert to a grey level, as Pillow converts RGB to L. */
static uint8_t grey_of(const uint8_t *rgb) {
  return (uint8_t)((19595 * (uint32_t)rgb[0] + 38470 * (uint32_t)rgb[1] + 7471 * (uint32_t)rgb[2] + 0x8000) >> 16);
}

/* Turn `rgb` while copying it to the canvas. */
static void copy_turned(const uint8_t *rgb, const pn_canvas *canvas) {
  const int transposed = (canvas->turn & PN_TRANSPOSED) != 0;
  ptrdiff_t across = 3, down = 3 * (ptrdiff_t)canvas->width, right = transposed ? down : across;
  ptrdiff_t below = transposed ? across : down;
  uint8_t *to = canvas->pixels;
  for (int32_t y = 0; y < canvas->height; y++) {
    const uint8_t *row = rgb + (canvas->turn & PN_UPSIDE_DOWN ? canvas->height - 1 - y : y) * below;
    for (int32_t x = 0; x < canvas->width; x++, to += canvas->channels) {
      const uint8_t *from = row + (canvas->flip ? canvas->width - 1 - x : x) * right;
      if (canvas->channels == 1) *to = grey_of(from);
      else memcpy(to, from, 3);
    }
  }
}

pn_result pn_draw(const uint8_t *rgb, size_t stride, const pn_side *x, const pn_side *y, int32_t orientation,
                  const pn_canvas *canvas, pn_memory *scratch, pn_memory *whole) {
  const int transposed = (canvas->turn & PN_TRANSPOSED) != 0;
  if (x->count < 1 || y->count < 1 || (transposed && canvas->width != canvas->height)) return PN_UNSUPPORTED;
  if (!transposed && canvas->channels == 3)
    return draw_rgb(rgb, stride, x, y, orientation, canvas, 1, canvas->pixels, scratch);
  uint8_t *memory = pn_reserve(whole, 3 * (size_t)canvas->width * (size_t)canvas->height);
  if (memory == NULL) return PN_NO_MEMORY;
  pn_result result = draw_rgb(rgb, stride, x, y, orientation, canvas, 0, memory, scratch);
  if (result == PN_OK) copy_turned(memory, canvas);
  return result;
}
