/* The resize: two passes over the rows of an image.
 *
 * The arithmetic is torch's for uint8: the horizontal pass comes first, and its result is rounded to uint8. A side that
 * keeps its length is not resampled. */
#include "resize.h"

#include <string.h>

#include "resize_axis.h"

static uint8_t round_sum(int32_t sum, int precision) {
  int32_t value = sum >> precision;
  return (uint8_t)(value > 255 ? 255 : value < 0 ? 0 : value);
}

void pn_horizontal_generic(const pn_axis *axis, const uint8_t *const in[PN_ROWS], uint8_t *const out[PN_ROWS]) {
  for (int row = 0; row < PN_ROWS; row++) {
    for (int32_t i = 0; i < axis->length; i++) {
      const int16_t *weights = axis->weights + (size_t)i * (size_t)axis->taps;
      const uint8_t *from = in[row] + 3 * (size_t)axis->first[i];
      int32_t red = 1 << (axis->precision - 1), green = red, blue = red;
      for (int32_t k = 0; k < axis->size[i]; k++, from += 3) {
        red += weights[k] * from[0];
        green += weights[k] * from[1];
        blue += weights[k] * from[2];
      }
      uint8_t *to = out[row] + 3 * (size_t)i;
      to[0] = round_sum(red, axis->precision);
      to[1] = round_sum(green, axis->precision);
      to[2] = round_sum(blue, axis->precision);
    }
  }
}

void pn_vertical_generic(const uint8_t *const *rows, const int16_t *weights, int32_t taps, int precision, uint8_t *out,
                         size_t bytes) {
  enum { AT_ONCE = 64 };
  for (size_t start = 0; start < bytes; start += AT_ONCE) {
    int32_t sums[AT_ONCE];
    size_t count = bytes - start < AT_ONCE ? bytes - start : AT_ONCE;
    for (size_t i = 0; i < count; i++) sums[i] = 1 << (precision - 1);
    for (int32_t k = 0; k < taps; k++) {
      const uint8_t *from = rows[k] + start;
      for (size_t i = 0; i < count; i++) sums[i] += weights[k] * from[i];
    }
    for (size_t i = 0; i < count; i++) out[start + i] = round_sum(sums[i], precision);
  }
}

static void mirror_row(const uint8_t *in, uint8_t *out, int32_t width) {
  for (const uint8_t *from = in + 3 * (size_t)width; from > in; out += 3) {
    from -= 3;
    memcpy(out, from, 3);
  }
}

/* A resize in progress: the horizontal pass writes the source's rows, in order, into a ring for the vertical pass. */
typedef struct {
  const uint8_t *rgb;
  size_t stride, reach;        /* reach: bytes from a row's start that the horizontal pass reads */
  int32_t width, height, done; /* done: rows that went through the horizontal pass */
  int across, flip;            /* across: whether the width changes */
  pn_axis axis;
  pn_horizontal *horizontal;
  uint8_t *ring, *copies; /* copies: rows that would be read beyond the pixels' end */
  size_t slot_bytes;
  int32_t slots;
} job;

static const uint8_t *row_at(const job *job, int32_t row) {
  if (!job->across && !job->flip) return job->rgb + (size_t)row * job->stride;
  return job->ring + (size_t)(row % job->slots) * job->slot_bytes;
}

static const uint8_t *find_readable_row(const job *job, int32_t row, int which) {
  size_t start = (size_t)row * job->stride, end = (size_t)(job->height - 1) * job->stride + 3 * (size_t)job->width;
  if (start + job->reach <= end) return job->rgb + start;
  return memcpy(job->copies + (size_t)which * pn_align(job->reach), job->rgb + start, 3 * (size_t)job->width);
}

/* Run the horizontal pass until `needed` rows are in the ring. */
static void fill_ring(job *job, int32_t needed) {
  if (!job->across && !job->flip) return;
  for (; job->done < needed; job->done += PN_ROWS) {
    const uint8_t *in[PN_ROWS];
    uint8_t *out[PN_ROWS];
    for (int i = 0; i < PN_ROWS; i++) {
      int32_t row = job->done + i < job->height ? job->done + i : job->height - 1;
      in[i] = find_readable_row(job, row, i);
      out[i] = job->ring + (size_t)((job->done + i) % job->slots) * job->slot_bytes;
      if (!job->across) mirror_row(in[i], out[i], job->width);
    }
    if (job->across) job->horizontal(&job->axis, in, out);
  }
}

static size_t find_reach(const pn_axis *axis, int32_t width) {
  size_t reach = 3 * (size_t)width;
  for (int32_t i = 0; i < axis->length; i++) {
    size_t end = 3 * ((size_t)axis->first[i] + (size_t)axis->taps) + PN_OVERREAD;
    reach = end > reach ? end : reach;
  }
  return reach;
}

/* Copy stored pixels to `out`, contiguous, turned upright: an `orientation` of 5 and above swaps the sides. */
static void turn_upright(const uint8_t *rgb, size_t stride, int32_t width, int32_t height, int32_t orientation,
                         uint8_t *out) {
  const int transposed = orientation > 4;
  const int mirror_x = orientation == 2 || orientation == 3 || orientation == 6 || orientation == 7;
  const int mirror_y = orientation == 3 || orientation == 4 || orientation == 7 || orientation == 8;
  ptrdiff_t right = transposed ? (ptrdiff_t)stride : 3, below = transposed ? 3 : (ptrdiff_t)stride;
  int32_t out_width = transposed ? height : width, out_height = transposed ? width : height;
  for (int32_t y = 0; y < out_height; y++) {
    const uint8_t *row = rgb + (mirror_y ? out_height - 1 - y : y) * below;
    for (int32_t x = 0; x < out_width; x++, out += 3) memcpy(out, row + (mirror_x ? out_width - 1 - x : x) * right, 3);
  }
}

/* The parts of a resize's memory. */
enum { TURNED, AXIS_X, AXIS_Y, EXACT, ROWS, COPIES, RING, PARTS };

static size_t max(size_t a, size_t b) { return a > b ? a : b; }

pn_result pn_resize_part(const uint8_t *rgb, size_t stride, const pn_side *x, const pn_side *y, uint8_t *out,
                         ptrdiff_t out_stride, int flip, int32_t orientation, int32_t interpolation,
                         pn_memory *scratch) {
  const int32_t width = x->in_count, height = y->in_count;
  if (width < 1 || height < 1 || orientation < 1 || orientation > 8) return PN_UNSUPPORTED;
  const int32_t stored_width = orientation > 4 ? height : width, stored_height = orientation > 4 ? width : height;
  if (stride < 3 * (size_t)stored_width) return PN_UNSUPPORTED;
  const int across = x->in != x->out, down = y->in != y->out, avx2 = pn_has_avx2();

  size_t parts[PARTS] = {0}, total = 0, rows = down ? pn_max_taps(y, interpolation) : 1;
  size_t slots = (rows < (size_t)height ? rows : (size_t)height) + PN_ROWS;
  size_t slot_bytes = pn_align(3 * pn_pad_length(x->count) + PN_OVERWRITE);
  size_t max_reach = 3 * ((size_t)width + pn_max_taps(x, interpolation)) + PN_OVERREAD;
  if (orientation > 1) parts[TURNED] = 3 * (size_t)width * (size_t)height;
  if (across) parts[AXIS_X] = pn_axis_bytes(x, interpolation);
  if (down) parts[AXIS_Y] = pn_axis_bytes(y, interpolation);
  if (across) parts[EXACT] = pn_exact_bytes(x, interpolation);
  if (down) parts[EXACT] = max(parts[EXACT], pn_exact_bytes(y, interpolation));
  parts[ROWS] = rows * sizeof(uint8_t *);
  parts[COPIES] = across ? PN_ROWS * pn_align(max_reach) : 0;
  parts[RING] = across || flip ? slots * slot_bytes : 0;
  for (int i = 0; i < PARTS; i++) total += pn_align(parts[i]);
  uint8_t *places[PARTS], *place = pn_reserve(scratch, total);
  if (place == NULL) return PN_NO_MEMORY;
  for (int i = 0; i < PARTS; place += pn_align(parts[i++])) places[i] = place;

  if (orientation > 1) {
    turn_upright(rgb, stride, stored_width, stored_height, orientation, places[TURNED]);
    rgb = places[TURNED];
    stride = 3 * (size_t)width;
  }
  job job = {.rgb = rgb, .stride = stride, .width = width, .height = height, .across = across, .flip = flip};
  job.ring = places[RING], job.copies = places[COPIES], job.slots = (int32_t)slots, job.slot_bytes = slot_bytes;
  job.horizontal = avx2 ? pn_horizontal_avx2 : pn_horizontal_generic;
  pn_vertical *vertical = avx2 ? pn_vertical_avx2 : pn_vertical_generic;
  if (across) {
    job.axis = pn_make_axis(x, interpolation, flip, places[AXIS_X], (double *)places[EXACT]);
    job.reach = find_reach(&job.axis, width);
  }
  pn_axis axis = {0};
  if (down) axis = pn_make_axis(y, interpolation, 0, places[AXIS_Y], (double *)places[EXACT]);
  const uint8_t **from = (const uint8_t **)places[ROWS];
  const size_t row_bytes = 3 * (size_t)x->count;
  for (int32_t made = 0; made < y->count; made++, out += out_stride) {
    if (!down) {
      fill_ring(&job, made + 1);
      memcpy(out, row_at(&job, made), row_bytes);
      continue;
    }
    int32_t last = axis.first[made] + axis.size[made] - 1;
    fill_ring(&job, last + 1);
    for (int32_t k = 0; k < axis.taps; k++) {
      int32_t row = axis.first[made] + k;
      from[k] = row_at(&job, row < last ? row : last);
    }
    vertical(from, axis.weights + (size_t)made * (size_t)axis.taps, axis.taps, axis.precision, out, row_bytes);
  }
  return PN_OK;
}

pn_result pn_resize(const uint8_t *rgb, size_t stride, int32_t width, int32_t height, uint8_t *out,
                    ptrdiff_t out_stride, int32_t out_width, int32_t out_height, int flip, int32_t orientation,
                    int32_t interpolation, pn_memory *scratch) {
  const int swap = orientation > 4;
  pn_side x = pn_cut_side(swap ? height : width, out_width, 0, out_width, interpolation);
  pn_side y = pn_cut_side(swap ? width : height, out_height, 0, out_height, interpolation);
  return pn_resize_part(rgb, stride, &x, &y, out, out_stride, flip, orientation, interpolation, scratch);
}
