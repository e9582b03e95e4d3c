/* The antialiased resize of uint8 pixels, equal to torch's bit for bit, with mirror and EXIF orientation. */
#pragma once

#include "native.h"

#define PN_MAX_SIDE ((int32_t)1 << 20)

/* The filters, numbered as INTERPOLATIONS in resampling.py. Box and nearest are Pillow's; torch has no such filters. */
enum { PN_BILINEAR, PN_BICUBIC, PN_LANCZOS, PN_BOX, PN_NEAREST, PN_INTERPOLATIONS };

/* How one side is resized: `count` samples of the result are made, from `first` on, of the `out` that all `in` samples
 * of the source would give. They depend on `in_count` samples of the source, from `in_first` on. */
typedef struct {
  int32_t in, out, first, count, in_first, in_count;
} pn_side;

/* Return this part of a side; zeros for lengths that are impossible or above PN_MAX_SIDE, and for an unknown
 * `interpolation`. The whole result has the whole source. */
pn_side pn_cut_side(int32_t in, int32_t out, int32_t first, int32_t count, int32_t interpolation);

/* Resize `rgb`, uint8 [height, width, 3] with `stride` bytes from row to row, to `out`, uint8
 * [out_height, out_width, 3] with `out_stride` bytes (possibly negative) from row to row; first turned upright by EXIF
 * `orientation` (1 to 8), finally mirrored left to right if `flip`. No byte outside the pixels is read, except between
 * the rows. PN_UNSUPPORTED for invalid sizes, and for an unknown `interpolation`. */
PN_EXPORT pn_result pn_resize(const uint8_t *rgb, size_t stride, int32_t width, int32_t height, uint8_t *out,
                              ptrdiff_t out_stride, int32_t out_width, int32_t out_height, int flip,
                              int32_t orientation, int32_t interpolation, pn_memory *scratch);

/* Make a part of such a resize: the same samples as those of the whole. `rgb` holds the part of the source that `x` and
 * `y` (of the upright image) depend on; their values are from pn_cut_side for this `interpolation`. */
pn_result pn_resize_part(const uint8_t *rgb, size_t stride, const pn_side *x, const pn_side *y, uint8_t *out,
                         ptrdiff_t out_stride, int flip, int32_t orientation, int32_t interpolation,
                         pn_memory *scratch);

/* How one side is resized: sample i is the sum of `weights[i * taps + k]` times source sample `first[i] + k`, over k
 * below `size[i]`, shifted right by `precision`. The following weights are 0: `taps`, an even number, is the same for
 * all samples. */
typedef struct {
  int32_t *first, *size;
  int16_t *weights;
  int32_t length, taps;
  int precision;
} pn_axis;

/* The two passes, in plain C and with AVX2.
 * Horizontal: PN_ROWS rows per call, each to `axis->length` pixels. AVX2 reads PN_OVERREAD bytes after its taps, and
 * writes 4 pixels and 4 bytes after the last one.
 * Vertical: one row of `bytes` bytes from `taps` rows of the same length. */
#define PN_ROWS 4
#define PN_OVERREAD 16
#define PN_OVERWRITE 16
typedef void pn_horizontal(const pn_axis *axis, const uint8_t *const in[PN_ROWS], uint8_t *const out[PN_ROWS]);
typedef void pn_vertical(const uint8_t *const *rows, const int16_t *weights, int32_t taps, int precision, uint8_t *out,
                         size_t bytes);
pn_horizontal pn_horizontal_generic, pn_horizontal_avx2;
pn_vertical pn_vertical_generic, pn_vertical_avx2;
#if !defined(__x86_64__) /* never called there: pn_has_avx2 is 0 */
#define pn_horizontal_avx2 pn_horizontal_generic
#define pn_vertical_avx2 pn_vertical_generic
#endif
