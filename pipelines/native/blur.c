/* Gaussian blur of the batch stage, as in batch/blur.py, with equal results: three box blurs along each axis. */
#include "native.h"

#include <string.h>

#define CHANNELS 3
#define BLOCK 1024 /* sums on the stack */
#define INLINE static inline __attribute__((always_inline))

/* Weights of a box blur, in units of 2**-24: `inner` of a pixel and of `whole` pixels on either side, `edge` of the
 * next one on either side. */
typedef struct {
  uint32_t inner, edge;
  ptrdiff_t whole;
} box;

/* Blur `count` values; neighbours are `stride` values apart, and are read on both sides of `in` too. */
INLINE void blur_once(const uint8_t *restrict in, uint8_t *restrict out, ptrdiff_t count, ptrdiff_t stride, box box) {
  const ptrdiff_t beyond = (box.whole + 1) * stride;
  for (ptrdiff_t done = 0; done < count; done += BLOCK, in += BLOCK, out += BLOCK) {
    const ptrdiff_t length = count - done < BLOCK ? count - done : BLOCK;
    uint16_t sums[BLOCK];
    for (ptrdiff_t i = 0; i < length; i++) sums[i] = in[i];
    for (ptrdiff_t k = stride; k < beyond; k += stride)
      for (ptrdiff_t i = 0; i < length; i++) sums[i] = (uint16_t)(sums[i] + in[i - k] + in[i + k]);
    for (ptrdiff_t i = 0; i < length; i++)
      out[i] =
          (uint8_t)((box.inner * sums[i] + box.edge * ((uint32_t)in[i - beyond] + in[i + beyond]) + (1u << 23)) >> 24);
  }
}

/* Repeat the first and the last `stride` values of `count` on their sides. */
INLINE void repeat_edges(uint8_t *values, ptrdiff_t count, ptrdiff_t stride, ptrdiff_t times) {
  for (ptrdiff_t k = 1; k <= times; k++) {
    memcpy(values - k * stride, values, (size_t)stride);
    memcpy(values + count + (k - 1) * stride, values + count - stride, (size_t)stride);
  }
}

/* Blur `count` values three times, in place; `memory` has room for two copies with their sides. */
INLINE void blur_along(uint8_t *values, ptrdiff_t count, ptrdiff_t stride, box box, uint8_t *memory) {
  const ptrdiff_t side = (box.whole + 1) * stride;
  uint8_t *one = memory + side, *two = one + count + 2 * side;
  memcpy(one, values, (size_t)count);
  repeat_edges(one, count, stride, box.whole + 1);
  blur_once(one, two, count, stride, box);
  repeat_edges(two, count, stride, box.whole + 1);
  blur_once(two, one, count, stride, box);
  repeat_edges(one, count, stride, box.whole + 1);
  blur_once(one, values, count, stride, box);
}

INLINE void blur_image(uint8_t *pixels, int32_t height, int32_t width, const int32_t *weights, int32_t taps,
                       uint8_t *memory) {
  while (taps > 1 && weights[taps - 1] == 0) taps--;
  if (taps == 1) return; /* the weight of the pixel itself is 1 */
  const box box = {.inner = (uint32_t)weights[0], .edge = (uint32_t)weights[taps - 1], .whole = taps - 2};
  const ptrdiff_t row = (ptrdiff_t)width * CHANNELS;
  for (int32_t y = 0; y < height; y++) blur_along(pixels + y * row, row, CHANNELS, box, memory);
  blur_along(pixels, height * row, row, box, memory);
}

INLINE void blur(uint8_t *pixels, int32_t n, int32_t height, int32_t width, const int32_t *weights, int32_t taps,
                 uint8_t *memory) {
  for (int32_t i = 0; i < n; i++, pixels += (ptrdiff_t)height * width * CHANNELS, weights += taps)
    blur_image(pixels, height, width, weights, taps, memory);
}

PN_TARGET_AVX2 static void blur_fast(uint8_t *pixels, int32_t n, int32_t height, int32_t width, const int32_t *weights,
                                     int32_t taps, uint8_t *memory) {
  blur(pixels, n, height, width, weights, taps, memory);
}

/* Blur n images in place. weights: result of blur.weigh_taps, [n, taps], at most 128 taps; memory: as many bytes as two
 * images with taps - 1 more rows on either side. */
PN_EXPORT void pn_blur(uint8_t *pixels, int32_t n, int32_t height, int32_t width, const int32_t *weights, int32_t taps,
                       uint8_t *memory) {
  if (pn_has_avx2()) blur_fast(pixels, n, height, width, weights, taps, memory);
  else blur(pixels, n, height, width, weights, taps, memory);
}
