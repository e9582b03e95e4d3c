/* Colours of the batch stage, as in batch/color.py and batch/lookup_tables.py, with equal results: `n` images of three
 * channels with `count` pixels each, one after another, changed in place. */
#include "native.h"

#define CHANNELS 3
#define LEVELS 256
#define BLOCK 256 /* pixels whose intermediate results are on the stack */
#define INLINE static inline __attribute__((always_inline))

/* Pillow's mode L. */
INLINE uint8_t grey_of(const uint8_t *pixel) {
  return (uint8_t)((19595u * pixel[0] + 38470u * pixel[1] + 7471u * pixel[2] + 32768u) >> 16);
}

/* Pillow's Image.blend: each step is rounded to float, the result is rounded down. */
INLINE uint8_t blend(uint8_t start, uint8_t end, float factor) {
  float level = ((float)end - (float)start) * factor + (float)start;
  level = level > 0 ? level : 0;
  return (uint8_t)(int32_t)(level < 255 ? level : 255);
}

PN_EXPORT void pn_grey(uint8_t *pixels, int64_t count) {
  for (int64_t i = 0; i < count; i++, pixels += CHANNELS) pixels[0] = pixels[1] = pixels[2] = grey_of(pixels);
}

INLINE void sum_grey(const uint8_t *pixels, int32_t n, int64_t count, int64_t *sums) {
  for (int32_t image = 0; image < n; image++) {
    int64_t sum = 0;
    for (int64_t i = 0; i < count; i++, pixels += CHANNELS) sum += grey_of(pixels);
    sums[image] = sum;
  }
}

PN_TARGET_AVX2 static void sum_grey_fast(const uint8_t *pixels, int32_t n, int64_t count, int64_t *sums) {
  sum_grey(pixels, n, count, sums);
}

PN_EXPORT void pn_sum_grey(const uint8_t *pixels, int32_t n, int64_t count, int64_t *sums) {
  if (pn_has_avx2()) sum_grey_fast(pixels, n, count, sums);
  else sum_grey(pixels, n, count, sums);
}

/* Count the levels of each channel: counts is [n, 3, 256]. */
PN_EXPORT void pn_count_levels(const uint8_t *pixels, int32_t n, int64_t count, int32_t *counts) {
  for (int32_t i = 0; i < n * CHANNELS * LEVELS; i++) counts[i] = 0;
  for (int32_t image = 0; image < n; image++, counts += CHANNELS * LEVELS)
    for (int64_t i = 0; i < count; i++, pixels += CHANNELS)
      for (int c = 0; c < CHANNELS; c++) counts[c * LEVELS + pixels[c]]++;
}

/* Replace each level by its entry in the table of its image and channel: tables is [n, 3, 256]. */
PN_EXPORT void pn_look_up(uint8_t *pixels, int32_t n, int64_t count, const uint8_t *tables) {
  for (int32_t image = 0; image < n; image++, tables += CHANNELS * LEVELS)
    for (int64_t i = 0; i < count; i++, pixels += CHANNELS)
      for (int c = 0; c < CHANNELS; c++) pixels[c] = tables[c * LEVELS + pixels[c]];
}

INLINE void adjust_color(uint8_t *pixels, int32_t n, int64_t count, const float *factors) {
  for (int32_t image = 0; image < n; image++)
    for (int64_t i = 0; i < count; i++, pixels += CHANNELS) {
      uint8_t grey = grey_of(pixels);
      for (int c = 0; c < CHANNELS; c++) pixels[c] = blend(grey, pixels[c], factors[image]);
    }
}

PN_TARGET_AVX2 static void adjust_color_fast(uint8_t *pixels, int32_t n, int64_t count, const float *factors) {
  adjust_color(pixels, n, count, factors);
}

/* Blend with the grey image: Pillow's ImageEnhance.Color. */
PN_EXPORT void pn_adjust_color(uint8_t *pixels, int32_t n, int64_t count, const float *factors) {
  if (pn_has_avx2()) adjust_color_fast(pixels, n, count, factors);
  else adjust_color(pixels, n, count, factors);
}

/* Add `turn` to the 8-bit hues of `count` pixels, at most BLOCK. The lookups have a loop of their own, so that the
 * compiler can vectorise the others. */
INLINE void turn_block(uint8_t *pixels, int32_t count, int32_t turn, const uint8_t *hues, const uint8_t *saturations) {
  int32_t hue[BLOCK], saturation[BLOCK];
  uint8_t values[BLOCK];
  for (int32_t i = 0; i < count; i++) {
    int32_t red = pixels[3 * i], green = pixels[3 * i + 1], blue = pixels[3 * i + 2];
    int32_t value = pn_max(pn_max(red, green), blue), span = value - pn_min(pn_min(red, green), blue);
    int red_behind = red != value, green_behind = green != value;
    int32_t largest = red_behind ? 1 + green_behind : 0;
    int32_t difference = red_behind ? (green_behind ? red - green : blue - red) : green - blue;
    hue[i] = (largest * LEVELS + span) * 2 * LEVELS + difference + 255;
    saturation[i] = value * LEVELS + span;
    values[i] = (uint8_t)value;
  }
  for (int32_t i = 0; i < count; i++) hue[i] = hues[hue[i]], saturation[i] = saturations[saturation[i]];
  for (int32_t i = 0; i < count; i++) {
    uint32_t colour = (uint32_t)saturation[i] * values[i];
    int32_t sixths = ((hue[i] + turn) & (LEVELS - 1)) * 6; /* unit: 1/255 of a sixth of the circle */
    for (int c = 0; c < CHANNELS; c++) {
      int32_t part = sixths + (5 - 2 * c) * 255; /* less than three circles */
      part -= part >= 6 * 255 ? 6 * 255 : 0;
      part -= part >= 6 * 255 ? 6 * 255 : 0;
      int32_t share = pn_min(pn_max(pn_min(part, 4 * 255 - part), 0), 255); /* of the saturation, in 255ths */
      pixels[3 * i + c] = (uint8_t)(values[i] - (colour * (uint32_t)share + 255 * 255 / 2) / (255 * 255));
    }
  }
}

INLINE void turn_hue(uint8_t *pixels, int32_t n, int64_t count, const int32_t *turns, const uint8_t *hues,
                     const uint8_t *saturations) {
  for (int32_t image = 0; image < n; image++)
    for (int64_t left = count; left > 0; left -= BLOCK) {
      int32_t length = left < BLOCK ? (int32_t)left : BLOCK;
      turn_block(pixels, length, turns[image], hues, saturations);
      pixels += length * CHANNELS;
    }
}

PN_TARGET_AVX2 static void turn_hue_fast(uint8_t *pixels, int32_t n, int64_t count, const int32_t *turns,
                                         const uint8_t *hues, const uint8_t *saturations) {
  turn_hue(pixels, n, count, turns, hues, saturations);
}

/* Turn hues. turns: result of color.hue_shifts; hues and saturations: the tables of color.hsv_tables. */
PN_EXPORT void pn_turn_hue(uint8_t *pixels, int32_t n, int64_t count, const int32_t *turns, const uint8_t *hues,
                           const uint8_t *saturations) {
  if (pn_has_avx2()) turn_hue_fast(pixels, n, count, turns, hues, saturations);
  else turn_hue(pixels, n, count, turns, hues, saturations);
}

/* Blend with Pillow's smoothed image: `in` to `out`, which has the outermost pixels already. */
INLINE void adjust_sharpness(const uint8_t *restrict in, uint8_t *restrict out, int32_t n, int32_t height,
                             int32_t width, const float *factors) {
  const ptrdiff_t row = (ptrdiff_t)width * CHANNELS;
  for (int32_t image = 0; image < n; image++, in += height * row, out += height * row)
    for (int32_t y = 1; y < height - 1; y++) {
      const uint8_t *here = in + y * row, *above = here - row, *below = here + row;
      uint8_t *to = out + y * row;
      for (ptrdiff_t i = CHANNELS; i < row - CHANNELS; i++) {
        uint32_t sum = 4u * here[i];
        for (int k = -CHANNELS; k <= CHANNELS; k += CHANNELS)
          sum += (uint32_t)above[i + k] + here[i + k] + below[i + k];
        to[i] = blend((uint8_t)((sum + 6) / 13), here[i], factors[image]);
      }
    }
}

PN_TARGET_AVX2 static void adjust_sharpness_fast(const uint8_t *in, uint8_t *out, int32_t n, int32_t height,
                                                 int32_t width, const float *factors) {
  adjust_sharpness(in, out, n, height, width, factors);
}

/* Pillow's ImageEnhance.Sharpness; `in` is a copy of the images. */
PN_EXPORT void pn_adjust_sharpness(const uint8_t *in, uint8_t *out, int32_t n, int32_t height, int32_t width,
                                   const float *factors) {
  if (pn_has_avx2()) adjust_sharpness_fast(in, out, n, height, width, factors);
  else adjust_sharpness(in, out, n, height, width, factors);
}
