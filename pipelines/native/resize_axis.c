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

/* A filter, stretched for one side. Box and nearest include one of their two ends, so they have no function of the
 * distance. */
typedef struct {
  int32_t in, number;
  double scale, support, inverse;
} filter;

static filter stretch_filter(int32_t in, int32_t out, int32_t interpolation) {
  double scale = (double)in / out, radius = interpolation < PN_BOX ? FILTERS[interpolation].radius : 0.5;
  return (filter){in, interpolation, scale, scale >= 1 ? radius * scale : radius, scale >= 1 ? 1 / scale : 1};
}

size_t pn_max_taps(const pn_side *side, int32_t interpolation) {
  if (interpolation == PN_NEAREST) return 2;
  return 2 * (size_t)ceil(stretch_filter(side->in, side->out, interpolation).support) + 2;
}

size_t pn_axis_bytes(const pn_side *side, int32_t interpolation) {
  size_t length = pn_pad_length(side->count);
  return pn_align(2 * length * sizeof(int32_t)) + pn_align(length * pn_max_taps(side, interpolation) * sizeof(int16_t));
}

size_t pn_exact_bytes(const pn_side *side, int32_t interpolation) {
  return ((size_t)side->count + 1) * pn_max_taps(side, interpolation) * sizeof(double); /* see find_weights */
}

/* Return the first tap of sample `i` of the whole result, and set their number: above 0, because the first is below
 * `in`, and twice the support is at least 1; and at most pn_max_taps. */
static int32_t find_taps(const filter *filter, int32_t i, int32_t *size) {
  double center = filter->scale * (i + 0.5), low = center - filter->support + 0.5;
  double high = center + filter->support + 0.5;
  int32_t first = low > 0 ? (int32_t)low : 0;
  *size = (high < filter->in ? (int32_t)high : filter->in) - first;
  return first;
}

/* Return the source sample under the centre of sample `*i`, and set `*i` and `*at` to the next one, from 0 and half the
 * scale on. A centre between two samples is rounded as Pillow's sum of steps. */
static int32_t step_nearest(const filter *filter, int32_t *i, double *at) {
  int32_t found = pn_min((int32_t)*at, filter->in - 1);
  *i += 1, *at += filter->scale;
  return found;
}

pn_side pn_cut_side(int32_t in, int32_t out, int32_t first, int32_t count, int32_t interpolation) {
  if (in < 1 || out < 1 || in > PN_MAX_SIDE || out > PN_MAX_SIDE) return (pn_side){0};
  if (first < 0 || count < 1 || count > out - first) return (pn_side){0};
  if (interpolation < 0 || interpolation >= PN_INTERPOLATIONS) return (pn_side){0};
  if (count == out) return (pn_side){in, out, 0, out, 0, in};
  if (in == out) return (pn_side){in, out, first, count, first, count};
  filter filter = stretch_filter(in, out, interpolation);
  int32_t begin = 0, end = 0, size = 1;
  if (interpolation == PN_NEAREST) {
    double at = filter.scale / 2;
    for (int32_t i = 0; i < first + count;) {
      end = step_nearest(&filter, &i, &at);
      if (i <= first + 1) begin = end;
    }
  } else {
    begin = find_taps(&filter, first, &size);
    end = find_taps(&filter, first + count - 1, &size);
  }
  return (pn_side){in, out, first, count, begin, end + size - begin};
}

/* Set the weights of one sample, which sum to 1, and return the largest. */
static double set_exact_weights(double *weights, int32_t first, int32_t size, double center, const filter *filter) {
  double total = 0, largest = 0;
  for (int32_t k = 0; k < size; k++) {
    double distance = ((double)(first + k) - center + 0.5) * filter->inverse;
    if (filter->number == PN_BOX) weights[k] = distance > -0.5 && distance <= 0.5;
    else weights[k] = FILTERS[filter->number].weigh(fabs(distance));
    total += weights[k];
  }
  if (total == 0) return 0;
  for (int32_t k = 0; k < size; k++) {
    weights[k] /= total;
    largest = weights[k] > largest ? weights[k] : largest;
  }
  return largest;
}

/* Find the taps of each sample and their exact weights, `most` for each; return the largest weight of the whole result.
 * It determines the precision, so the samples of a part are those of the whole; `exact` has room for one other. */
static double find_weights(pn_axis *axis, const pn_side *side, int32_t interpolation, int mirror, size_t most,
                           double *exact) {
  const filter filter = stretch_filter(side->in, side->out, interpolation);
  double largest = 0;
  for (int32_t i = 0; i < side->out; i++) {
    int32_t at = i - side->first, size, first = find_taps(&filter, i, &size);
    int is_made = at >= 0 && at < side->count;
    if (mirror) at = side->count - 1 - at;
    double *weights = exact + (size_t)(is_made ? at : side->count) * most;
    double weight = set_exact_weights(weights, first, size, filter.scale * (i + 0.5), &filter);
    largest = weight > largest ? weight : largest;
    if (!is_made) continue;
    axis->first[at] = first - side->in_first;
    axis->size[at] = size;
  }
  return largest;
}

static double find_nearest(pn_axis *axis, const pn_side *side, int mirror, size_t most, double *exact) {
  const filter filter = stretch_filter(side->in, side->out, PN_NEAREST);
  double sum = filter.scale / 2;
  for (int32_t i = 0; i < side->first + side->count;) {
    int32_t at = i - side->first, source = step_nearest(&filter, &i, &sum);
    if (at < 0) continue;
    if (mirror) at = side->count - 1 - at;
    axis->first[at] = source - side->in_first;
    axis->size[at] = 1;
    exact[(size_t)at * most] = 1;
  }
  return 1;
}

pn_axis pn_make_axis(const pn_side *side, int32_t interpolation, int mirror, uint8_t *memory, double *exact) {
  const int32_t out = side->count;
  const size_t most = pn_max_taps(side, interpolation), padded = pn_pad_length(out);
  pn_axis axis = {.first = (int32_t *)memory, .length = out, .taps = 1};
  axis.size = axis.first + padded;
  axis.weights = (int16_t *)(memory + pn_align(2 * padded * sizeof(int32_t)));
  double largest = interpolation == PN_NEAREST ? find_nearest(&axis, side, mirror, most, exact)
                                               : find_weights(&axis, side, interpolation, mirror, most, exact);
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
