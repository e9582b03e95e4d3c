/* libjpeg's "fancy" chroma upsampling and its colour conversion, from planes of samples to rows of RGB pixels. */
#pragma once

#include "native.h"

/* The rows of samples have one more sample on either side, which upsampling mixes in. These functions may read and
 * write this many bytes beyond the rows. */
#define PN_ROW_SLACK 64

/* Mix a row of samples with the next nearest one, above or below: (3 near + next + bias) / 4. */
void pn_mix_rows(const uint8_t *near, const uint8_t *next, int bias, uint8_t *to, int32_t count);

/* Repeat each of `count` samples this number of times. */
void pn_repeat_row(const uint8_t *from, uint8_t *to, int32_t count, int32_t times);

/* Double `count` samples: mix each with its neighbours. */
void pn_widen_row(const uint8_t *from, uint8_t *to, int32_t count);

/* The same with the next nearest row mixed in, rounded once. */
void pn_widen_rows(const uint8_t *near, const uint8_t *next, uint8_t *to, int32_t count);

/* Convert `count` pixels; exactly 3 * count bytes are written. */
void pn_ycc_to_rgb(const uint8_t *y, const uint8_t *cb, const uint8_t *cr, uint8_t *rgb, int32_t count);
void pn_grey_to_rgb(const uint8_t *y, uint8_t *rgb, int32_t count);

/* The variants for AVX2, with the same results. */
void pn_widen_row_avx2(const uint8_t *from, uint8_t *to, int32_t count);
void pn_widen_rows_avx2(const uint8_t *near, const uint8_t *next, uint8_t *to, int32_t count);
void pn_ycc_to_rgb_avx2(const uint8_t *y, const uint8_t *cb, const uint8_t *cr, uint8_t *rgb, int32_t count);
#if !defined(__x86_64__) /* never called there: pn_has_avx2 is 0 */
#define pn_widen_row_avx2 pn_widen_row
#define pn_widen_rows_avx2 pn_widen_rows
#define pn_ycc_to_rgb_avx2 pn_ycc_to_rgb
#endif
