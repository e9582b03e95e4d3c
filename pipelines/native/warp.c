/* Moves of the batch stage: shears, translations and rotations as in batch/geometry.py and batch/interpolate.py, with
 * equal results. */
#include "native.h"

#include <string.h>

#define CHANNELS 3
#define MOST_TAPS 4
#define ROUNDING (1.0f / 2048) /* _ROUNDING of interpolate.py */

/* Write to `out` the pixels of `in` at the positions of moves.fixed_steps, or `fill` from outside the image. A
 * constant `bytes` makes each copy a single instruction. */
static inline void move(const uint8_t *in, uint8_t *out, int32_t height, int32_t width, size_t bytes,
                        const int32_t steps[6], const uint8_t *fill) {
  for (int32_t y = 0; y < height; y++) { /* sums wrap around, as numpy's do */
    uint32_t column = (uint32_t)steps[1] * (uint32_t)y + (uint32_t)steps[2];
    uint32_t row = (uint32_t)steps[4] * (uint32_t)y + (uint32_t)steps[5];
    for (int32_t x = 0; x < width; x++, out += bytes) {
      int32_t from_x = (int32_t)column >> 16, from_y = (int32_t)row >> 16;
      int inside = from_x >= 0 && from_x < width && from_y >= 0 && from_y < height;
      memcpy(out, inside ? in + ((size_t)from_y * (size_t)width + (size_t)from_x) * bytes : fill, bytes);
      column += (uint32_t)steps[0];
      row += (uint32_t)steps[3];
    }
  }
}

/* Move an image of `bytes` per pixel: 1, 2, 3 or 4. */
PN_EXPORT void pn_move(const uint8_t *in, uint8_t *out, int32_t height, int32_t width, int32_t bytes,
                       const int32_t steps[6], const uint8_t *fill) {
  if (bytes == 1) move(in, out, height, width, 1, steps, fill);
  if (bytes == 2) move(in, out, height, width, 2, steps, fill);
  if (bytes == 3) move(in, out, height, width, 3, steps, fill);
  if (bytes == 4) move(in, out, height, width, 4, steps, fill);
}

/* Source pixels along one axis, with their weights. */
typedef struct {
  int32_t at[MOST_TAPS];
  float weights[MOST_TAPS];
  int is_outside;
} taps_of;

/* Place `taps` taps around `position`; with one tap the pixel is `own`. */
static inline taps_of place_taps(double position, int32_t length, int taps, int32_t own) {
  taps_of found = {.at = {own}, .weights = {1.0f}, .is_outside = 0};
  if (taps == 1) return found;
  position = position > -16.0 ? position : -16.0; /* farther out all taps are border pixels */
  position = position < length + 16.0 ? position : length + 16.0;
  double lower = (double)(int32_t)(position - 0.5 + 32) - 32; /* rounded down: the sum is above zero */
  float share = (float)(position - 0.5 - lower);
  found.is_outside = position < 0 || position >= length;
  for (int k = 0; k < taps; k++) {
    int32_t at = (int32_t)lower + k - taps / 2 + 1;
    found.at[k] = at < 0 ? 0 : at >= length ? length - 1 : at;
  }
  if (taps == 2) {
    found.weights[0] = 1 - share;
    found.weights[1] = share;
  } else {
    float square = share * share, outer = square - square * share;
    found.weights[0] = outer + square - share;
    found.weights[1] = 1 - square - outer;
    found.weights[2] = outer + share;
    found.weights[3] = -outer;
  }
  return found;
}

/* Interpolate between taps_x by taps_y pixels; each product and sum is rounded to float, in the order of Python. */
static inline void move_smoothly(const uint8_t *in, uint8_t *out, int32_t height, int32_t width, int taps_x, int taps_y,
                                 const double m[6], const uint8_t fill[CHANNELS]) {
  for (int32_t y = 0; y < height; y++) {
    double along_x = m[1] * (y + 0.5) + m[2], along_y = m[4] * (y + 0.5) + m[5];
    for (int32_t x = 0; x < width; x++, out += CHANNELS) {
      taps_of columns = place_taps(m[0] * (x + 0.5) + along_x, width, taps_x, x);
      taps_of rows = place_taps(m[3] * (x + 0.5) + along_y, height, taps_y, y);
      if (columns.is_outside || rows.is_outside) {
        memcpy(out, fill, CHANNELS);
        continue;
      }
      for (int c = 0; c < CHANNELS; c++) {
        float total = 0;
        for (int j = 0; j < taps_y; j++) {
          const uint8_t *row = in + (size_t)rows.at[j] * (size_t)width * CHANNELS + c;
          float sum = row[(size_t)columns.at[0] * CHANNELS] * columns.weights[0];
          for (int i = 1; i < taps_x; i++) sum += row[(size_t)columns.at[i] * CHANNELS] * columns.weights[i];
          total += sum * rows.weights[j];
        }
        total += ROUNDING;
        out[c] = (uint8_t)(total < 0 ? 0 : total > 255 ? 255 : total);
      }
    }
  }
}

/* Move an image of three channels by a matrix of moves.inverse_matrices; nothing moves along an axis with one tap. */
PN_EXPORT void pn_move_smoothly(const uint8_t *in, uint8_t *out, int32_t height, int32_t width, int32_t taps_x,
                                int32_t taps_y, const double matrix[6], const uint8_t fill[CHANNELS]) {
  if (taps_x == 2 && taps_y == 2) move_smoothly(in, out, height, width, 2, 2, matrix, fill);
  if (taps_x == 2 && taps_y == 1) move_smoothly(in, out, height, width, 2, 1, matrix, fill);
  if (taps_x == 1 && taps_y == 2) move_smoothly(in, out, height, width, 1, 2, matrix, fill);
  if (taps_x == 4 && taps_y == 4) move_smoothly(in, out, height, width, 4, 4, matrix, fill);
  if (taps_x == 4 && taps_y == 1) move_smoothly(in, out, height, width, 4, 1, matrix, fill);
  if (taps_x == 1 && taps_y == 4) move_smoothly(in, out, height, width, 1, 4, matrix, fill);
}
