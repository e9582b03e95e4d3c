/* The weights of a resize, as resampling.py computes them with numpy.
 *
 * They are values of a filter that is stretched by the scale when an image shrinks, computed in double, divided by
 * their sum and rounded to at most 15 bits and a sign. */
#include "resize_axis.h"

#include <math.h>
#include <string.h>

#define MAX_PRECISION 22

static double triangle(double x) { return x < 1 ? 1 - x : 0; }

/* Keys' cubic convolution with a = -0.5, as in torch and Pillow. */
static double cubic(double x) {
  const double a = -0.5;
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  return x < 2 ? ((a * x - 5 * a) * x + 8 * a) * x - 4 * a : 0;
}

static double sinc(double x) {
  const double angle = x * 3.141592653589793;
  return x == 0 ? 1 : sin(angle) / angle;
}

static double lanczos(double x) { return x < 3 ? sinc(x) * sinc(x / 3) : 0; }

/* The filters by number: their radius, and their value at a distance from the centre, which is at least 0. */
static const struct {
  double radius;
  double (*weigh)(double);
} FILTERS[] = {[PN_BILINEAR] = {1, triangle}, [PN_BICUBIC] = {2, cubic}, [PN_LANCZOS] = {3, lanczos}};

/* Box and nearest include one of their two ends, so they have no function of the distance. */
static double find_support(int32_t in, int32_t out, int32_t interpolation) {
  double scale = (double)in / out, radius = interpolation < PN_BOX ? FILTERS[interpolation].radius : 0.5;
  return scale >= 1 ? radius * scale : radius;
}

size_t pn_max_taps(int32_t in, int32_t out, int32_t interpolation) {
  if (interpolation == PN_NEAREST) return 2;
  return 2 * (size_t)ceil(find_support(in, out, interpolation)) + 2;
}

size_t pn_axis_bytes(int32_t in, int32_t out, int32_t interpolation) {
  return pn_align(2 * pn_pad_length(out) * sizeof(int32_t)) +
         pn_align(pn_pad_length(out) * pn_max_taps(in, out, interpolation) * sizeof(int16_t));
}

size_t pn_exact_bytes(int32_t in, int32_t out, int32_t interpolation) {
  return (size_t)out * pn_max_taps(in, out, interpolation) * sizeof(double);
}

/* Set the weights of one sample, which sum to 1, and return the largest. */
static double set_exact_weights(double *weights, int32_t first, int32_t size, double center, double inverse,
                                int32_t interpolation) {
  double total = 0, largest = 0;
  for (int32_t k = 0; k < size; k++) {
    double distance = ((double)(first + k) - center + 0.5) * inverse;
    if (interpolation == PN_BOX) weights[k] = distance > -0.5 && distance <= 0.5;
    else weights[k] = FILTERS[interpolation].weigh(fabs(distance));
    total += weights[k];
  }
  if (total == 0) return 0;
  for (int32_t k = 0; k < size; k++) {
    weights[k] /= total;
    largest = weights[k] > largest ? weights[k] : largest;
  }
  return largest;
}

/* Find the taps of each sample and their exact weights, `most` for each; return the largest weight. */
static double find_taps(pn_axis *axis, int32_t in, int32_t interpolation, int mirror, size_t most, double *exact) {
  const int32_t out = axis->length;
  double scale = (double)in / out, support = find_support(in, out, interpolation), inverse = scale >= 1 ? 1 / scale : 1;
  double largest = 0;
  for (int32_t i = 0; i < out; i++) {
    double center = scale * (i + 0.5), low = center - support + 0.5, high = center + support + 0.5;
    int32_t at = mirror ? out - 1 - i : i, first = low > 0 ? (int32_t)low : 0;
    /* Below `most`, because high - low is twice the support; above 0, because `low` is below `in`, and twice the
     * support is at least 1. */
    int32_t size = (high < in ? (int32_t)high : in) - first;
    double weight = set_exact_weights(exact + (size_t)at * most, first, size, center, inverse, interpolation);
    largest = weight > largest ? weight : largest;
    axis->first[at] = first;
    axis->size[at] = size;
  }
  return largest;
}

/* Take the source sample under the centre of each sample. A centre between two is rounded as Pillow's sum of steps. */
static double find_nearest(pn_axis *axis, int32_t in, int mirror, size_t most, double *exact) {
  const double scale = (double)in / axis->length;
  double at = scale / 2;
  for (int32_t i = 0; i < axis->length; i++, at += scale) {
    int32_t place = mirror ? axis->length - 1 - i : i;
    axis->first[place] = pn_min((int32_t)at, in - 1);
    axis->size[place] = 1;
    exact[(size_t)place * most] = 1;
  }
  return 1;
}

pn_axis pn_make_axis(int32_t in, int32_t out, int32_t interpolation, int mirror, uint8_t *memory, double *exact) {
  const size_t most = pn_max_taps(in, out, interpolation), padded = pn_pad_length(out);
  pn_axis axis = {.first = (int32_t *)memory, .length = out, .taps = 1};
  axis.size = axis.first + padded;
  axis.weights = (int16_t *)(memory + pn_align(2 * padded * sizeof(int32_t)));
  double largest = interpolation == PN_NEAREST ? find_nearest(&axis, in, mirror, most, exact)
                                               : find_taps(&axis, in, interpolation, mirror, most, exact);
  for (int32_t i = 0; i < out; i++) axis.taps = pn_max(axis.taps, axis.size[i]);
  axis.taps = (axis.taps + 1) & ~1;
  while (axis.precision < MAX_PRECISION && 0.5 + largest * (1 << (axis.precision + 1)) < 1 << 15) axis.precision++;
  memset(axis.weights, 0, padded * (size_t)axis.taps * sizeof(int16_t));
  for (int32_t i = 0; i < out; i++) {
    const double *from = exact + (size_t)i * most;
    int16_t *to = axis.weights + (size_t)i * (size_t)axis.taps;
    for (int32_t k = 0; k < axis.size[i]; k++)
      to[k] = (int16_t)(from[k] * (1 << axis.precision) + (from[k] < 0 ? -0.5 : 0.5));
  }
  for (size_t i = (size_t)out; i < padded; i++) {
    axis.first[i] = axis.first[out - 1];
    axis.size[i] = 0;
  }
  return axis;
}
