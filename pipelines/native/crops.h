/* Drawing the crops of a batch: windows, turns and flips, with the same results as plan/crops.py. */
#pragma once

#include "native.h"

enum { PN_RANDOM_RESIZED = 0, PN_CENTRE = 1, PN_WHOLE = 2 }; /* kinds of crops */

/* The settings of one view; CROPS in crops.py has the same fields for numpy. Ranges are lowest value and width. */
typedef struct {
  uint64_t seed;
  double scale[2];                      /* share of the image's area */
  double log_ratio[2];                  /* logarithm of the window's aspect, width / height */
  double ratio[2];                      /* lowest and highest aspect */
  double aspect, fraction;              /* of PN_CENTRE: the window's aspect, and its share of the largest one */
  double flip, vertical_flip, rotate90; /* probabilities */
  int64_t offset, row_bytes;            /* of the images of this view in the batch's memory */
  uint32_t epoch, stream;
  int32_t kind, is_random;
  int32_t width, height; /* of the output image */
  int32_t interpolation; /* filter of the resize; -1 to draw bilinear or bicubic */
} pn_crops;

/* What is drawn for one image. */
typedef struct {
  pn_window window;
  uint8_t flip, turn, interpolation;
} pn_crop;

/* Draw the crop of an image of this size for the sample with this number. Return 0 if the last bits of exp decide a
 * side: numpy's exp may differ from the C library's, so such an image is left to Python, which uses numpy. */
int pn_draw_crop(const pn_crops *crops, int64_t number, int32_t width, int32_t height, pn_crop *out);

PN_EXPORT size_t pn_crops_bytes(void);
