/* Chroma upsampling and colour conversion in plain C (JFIF 1.02 for the colours), rounded as libjpeg does. */
#include "upsample.h"

#include <string.h>

void pn_mix_rows(const uint8_t *near, const uint8_t *next, int bias, uint8_t *to, int32_t count) {
  for (int32_t i = 0; i < count; i++) to[i] = (uint8_t)((3 * near[i] + next[i] + bias) >> 2);
}

void pn_repeat_row(const uint8_t *from, uint8_t *to, int32_t count, int32_t times) {
  for (int32_t i = 0; i < count; i++, to += times) memset(to, from[i], (size_t)times);
}

void pn_widen_row(const uint8_t *from, uint8_t *to, int32_t count) {
  for (int32_t i = 0; i < count; i++) {
    to[2 * i] = (uint8_t)((3 * from[i] + from[i - 1] + 1) >> 2);
    to[2 * i + 1] = (uint8_t)((3 * from[i] + from[i + 1] + 2) >> 2);
  }
}

void pn_widen_rows(const uint8_t *near, const uint8_t *next, uint8_t *to, int32_t count) {
  for (int32_t i = 0; i < count; i++) {
    int here = 3 * near[i] + next[i];
    to[2 * i] = (uint8_t)((3 * here + 3 * near[i - 1] + next[i - 1] + 8) >> 4);
    to[2 * i + 1] = (uint8_t)((3 * here + 3 * near[i + 1] + next[i + 1] + 7) >> 4);
  }
}

static uint8_t clamp(int32_t value) { return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value); }

void pn_ycc_to_rgb(const uint8_t *y, const uint8_t *cb, const uint8_t *cr, uint8_t *rgb, int32_t count) {
  for (int32_t i = 0; i < count; i++) { /* 1.402, 0.34414, 0.71414 and 1.772 with 16 fractional bits */
    int32_t blue = cb[i] - 128, red = cr[i] - 128;
    rgb[3 * i] = clamp(y[i] + ((91881 * red + 32768) >> 16));
    rgb[3 * i + 1] = clamp(y[i] + ((-22554 * blue - 46802 * red + 32768) >> 16));
    rgb[3 * i + 2] = clamp(y[i] + ((116130 * blue + 32768) >> 16));
  }
}

void pn_grey_to_rgb(const uint8_t *y, uint8_t *rgb, int32_t count) {
  for (int32_t i = 0; i < count; i++) rgb[3 * i] = rgb[3 * i + 1] = rgb[3 * i + 2] = y[i];
}
