/* Draws crops as plan/crops.py does with numpy: the same operations on doubles in the same order. */
#include "crops.h"

#include <math.h>

#include "canvas.h"
#include "philox.h"

#define TRIES 10
#define FIRST_TRY_BLOCK 1 /* the first block holds the flip, x, y and the vertical flip */
#define LAST_BLOCK 6      /* holds the rotation and the interpolation */
#define SLACK 0x1p-50     /* relative: more than the difference between two libraries' exp */
#define MAX_DOUBLE 0x1p62 /* larger ones do not fit into an int64 */

size_t pn_crops_bytes(void) { return sizeof(pn_crops); }

static double uniform(uint32_t word) { return word * 0x1p-32; }

static void draw_block(const pn_crops *crops, int64_t number, uint32_t block, uint32_t words[PN_BLOCK_WORDS]) {
  pn_draw_block(crops->seed, crops->epoch, crops->stream, number, block, words);
}

/* Return the integer that the root of every area between these rounds to; -1 if there are several. */
static double common_side(double least, double most) {
  double side = rint(sqrt(least));
  return side == rint(sqrt(most)) ? side : -1;
}

static pn_window place_window(int32_t width, int32_t height, int32_t w, int32_t h, const uint32_t words[2]) {
  int32_t x = (int32_t)floor(uniform(words[0]) * (width - w + 1));
  int32_t y = (int32_t)floor(uniform(words[1]) * (height - h + 1));
  return (pn_window){x, y, w, h};
}

static int32_t limit(double side, int32_t most) { return side < 1 ? 1 : side < most ? (int32_t)side : most; }

/* If no try fits: the largest centred window of an allowed aspect. */
static int fall_back(const pn_crops *crops, int32_t width, int32_t height, pn_window *out) {
  double wide = rint(height * crops->ratio[1]), high = rint(width / crops->ratio[0]);
  if (!(wide < MAX_DOUBLE && high < MAX_DOUBLE)) return 0;
  int32_t w = limit(wide, width), h = limit(high, height);
  *out = (pn_window){(width - w) / 2, (height - h) / 2, w, h};
  return 1;
}

static int draw_window(const pn_crops *crops, int64_t number, int32_t width, int32_t height,
                       const uint32_t first[PN_BLOCK_WORDS], pn_window *out) {
  double full = (double)((int64_t)width * height);
  uint32_t words[PN_BLOCK_WORDS];
  for (uint32_t i = 0; i < TRIES; i++) {
    if (i % 2 == 0) draw_block(crops, number, FIRST_TRY_BLOCK + i / 2, words);
    const uint32_t *pair = words + i % 2 * 2;
    double area = full * (crops->scale[0] + crops->scale[1] * uniform(pair[0]));
    double exponent = crops->log_ratio[0] + crops->log_ratio[1] * uniform(pair[1]);
    double aspect = exp(exponent), slack = exponent == 0 ? 0 : SLACK * aspect;
    double w = common_side(area * (aspect - slack), area * (aspect + slack));
    double h = common_side(area / (aspect + slack), area / (aspect - slack));
    if (w < 0 || h < 0) return 0;
    if (w > 0 && w <= width && h > 0 && h <= height) {
      *out = place_window(width, height, (int32_t)w, (int32_t)h, first + 1);
      return 1;
    }
  }
  return fall_back(crops, width, height, out);
}

static pn_window centre_window(const pn_crops *crops, int32_t width, int32_t height) {
  double wide = height * crops->aspect, high = width / crops->aspect;
  int32_t w = limit(rint((wide < width ? wide : width) * crops->fraction), width);
  int32_t h = limit(rint((high < height ? high : height) * crops->fraction), height);
  return (pn_window){(width - w) / 2, (height - h) / 2, w, h};
}

/* A rotation first, by quarters counter-clockwise, then the vertical flip, then the horizontal one. */
static void draw_turn(const pn_crops *crops, const uint32_t first[PN_BLOCK_WORDS], const uint32_t last[PN_BLOCK_WORDS],
                      pn_crop *out) {
  static const uint8_t turns[] = {0, PN_TRANSPOSED | PN_UPSIDE_DOWN, PN_UPSIDE_DOWN, PN_TRANSPOSED};
  static const uint8_t flips[] = {0, 0, 1, 1};
  int quarters = 0;
  if (crops->rotate90 > 0) {
    double share = uniform(last[0]) / crops->rotate90;
    quarters = share < 1 ? 1 + (int)floor(share * 3) : 0;
  }
  out->flip = (uint8_t)((uniform(first[0]) < crops->flip) ^ flips[quarters]);
  out->turn = (uint8_t)(turns[quarters] ^ (uniform(first[3]) < crops->vertical_flip ? PN_UPSIDE_DOWN : 0));
}

int pn_draw_crop(const pn_crops *crops, int64_t number, int32_t width, int32_t height, pn_crop *out) {
  uint32_t first[PN_BLOCK_WORDS], last[PN_BLOCK_WORDS];
  const int is_drawn = crops->interpolation < 0;
  *out = (pn_crop){.window = {0, 0, width, height}};
  if (crops->rotate90 > 0 || is_drawn) draw_block(crops, number, LAST_BLOCK, last);
  if (crops->is_random) {
    draw_block(crops, number, 0, first);
    draw_turn(crops, first, last, out);
  }
  if (!is_drawn) out->interpolation = (uint8_t)crops->interpolation;
  else out->interpolation = uniform(last[1]) < 0.5 ? PN_BILINEAR : PN_BICUBIC;
  if (crops->kind == PN_CENTRE) out->window = centre_window(crops, width, height);
  return crops->kind != PN_RANDOM_RESIZED || draw_window(crops, number, width, height, first, &out->window);
}
