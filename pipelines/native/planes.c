/* The planes of a window: finds the blocks that it needs, decodes them, and makes rows of pixels. */
#include "planes.h"

#include "upsample.h"

/* Find the blocks [*first, *end) on one axis that the pixels [from, to) need. */
static void find_blocks(int32_t from, int32_t to, int32_t shift, int32_t margin, int32_t samples, int32_t *first,
                        int32_t *end) {
  int32_t low = pn_max(from - margin, 0) >> shift, high = (to - 1 + margin) >> shift;
  *first = low / 8;
  *end = pn_min(high, samples - 1) / 8 + 1;
}

void pn_plan_planes(const pn_jpeg *jpeg, pn_window window, pn_planes *planes) {
  memset(planes, 0, sizeof *planes);
  planes->jpeg = jpeg;
  planes->window = window;
  planes->count = jpeg->components;
  planes->avx2 = pn_has_avx2();
  planes->row = jpeg->mcus_high;
  const pn_component *luma = jpeg->component;
  for (int c = 0; c < jpeg->components; c++) {
    const pn_component *component = &jpeg->component[c];
    pn_plane *plane = &planes->plane[c];
    plane->wide = component->wide;
    plane->high = component->high;
    plane->shift_x = luma->h / component->h >> 1; /* of 1, 2 and 4 */
    plane->shift_y = luma->v > component->v;
    /* libjpeg repeats chroma samples if a row has at most two, or a fourth of the image's; then it does not mix rows */
    int32_t has_neighbours = component->wide > 2;
    plane->mixed = plane->shift_x == 0 || (plane->shift_x == 1 && has_neighbours);
    int32_t margin_x = plane->shift_x > 0 && has_neighbours; /* also for a fourth, as plan_cut reads it too */
    int32_t margin_y = plane->shift_y > 0 && plane->mixed;
    find_blocks(window.x, window.x + window.width, plane->shift_x, margin_x, plane->wide, &plane->column,
                &plane->column_end);
    find_blocks(window.y, window.y + window.height, plane->shift_y, margin_y, plane->high, &plane->row,
                &plane->row_end);
    plane->ring_rows = 2 * 8 * component->v;
    pn_make_quantiser(jpeg->quant[component->quant], &plane->quantiser);
    planes->row = pn_min(planes->row, plane->row / component->v);
    planes->row_end = pn_max(planes->row_end, (plane->row_end - 1) / component->v + 1);
  }
}

static size_t stride_of(const pn_plane *plane) {
  return pn_align((size_t)(plane->column_end - plane->column) * 8 + 2 * PN_ROW_SLACK);
}

static size_t chroma_bytes(const pn_planes *planes) {
  return pn_align((size_t)planes->window.width + 2 * PN_ROW_SLACK);
}

size_t pn_size_of_planes(const pn_planes *planes) {
  size_t size = 2 * chroma_bytes(planes);
  for (int c = 0; c < planes->count; c++) size += stride_of(&planes->plane[c]) * (size_t)planes->plane[c].ring_rows;
  return size;
}

void pn_place_planes(pn_planes *planes, uint8_t *memory) {
  for (int i = 0; i < 2; i++, memory += chroma_bytes(planes)) planes->chroma[i] = memory;
  for (int c = 0; c < planes->count; c++) {
    pn_plane *plane = &planes->plane[c];
    plane->stride = stride_of(plane);
    plane->samples = memory + PN_ROW_SLACK;
    memory += plane->stride * (size_t)plane->ring_rows;
  }
}

static uint8_t *row_of(const pn_plane *plane, int32_t row) {
  return plane->samples + (size_t)(row & (plane->ring_rows - 1)) * plane->stride;
}

static int transform(const pn_planes *planes, const pn_plane *plane, const int16_t *a, const int16_t *b, uint8_t *to_a,
                     uint8_t *to_b) {
  return planes->avx2 ? pn_idct_pair_avx2(a, b, &plane->quantiser, to_a, to_b, plane->stride)
                      : pn_idct_pair(a, b, &plane->quantiser, to_a, to_b, plane->stride);
}

static void clear(int16_t *block) {
  typedef int16_t eight __attribute__((vector_size(16), aligned(2)));
  for (int i = 0; i < 64; i += 8) *(eight *)(block + i) = (eight){0};
}

/* Transform a block together with the waiting one, or let it wait; 0 for damaged data. */
static int put_block(const pn_planes *planes, pn_plane *plane, const int16_t *block, int is_dc, uint8_t *to) {
  if (is_dc) return pn_idct_dc(block[0], &plane->quantiser, to, plane->stride);
  const int16_t *waiting = plane->waiting;
  if (waiting == NULL) {
    plane->waiting = block;
    plane->waiting_to = to;
    return 1;
  }
  plane->waiting = NULL;
  return transform(planes, plane, waiting, block, plane->waiting_to, to);
}

static int decode_block(const pn_planes *planes, pn_plane *plane, pn_bits *bits, uint8_t *to) {
  int16_t *block = plane->blocks[plane->waiting != NULL];
  clear(block);
  int last = planes->avx2 ? pn_decode_block_fast(bits, plane->dc, plane->ac, &plane->prediction, block)
                          : pn_decode_block(bits, plane->dc, plane->ac, &plane->prediction, block);
  return last >= 0 && put_block(planes, plane, block, last == 0, to);
}

static int skip_block(const pn_planes *planes, pn_plane *plane, pn_bits *bits) {
  return (planes->avx2 ? pn_skip_block_fast(bits, plane->dc, plane->ac, &plane->prediction)
                       : pn_skip_block(bits, plane->dc, plane->ac, &plane->prediction)) >= 0;
}

/* Decode the blocks of one plane in an MCU: `h` columns from block `x` on, of `v` rows. */
static int decode_part(const pn_planes *planes, pn_plane *plane, pn_bits *bits, int32_t x, int32_t y, int32_t h,
                       int32_t v) {
  for (int32_t y_end = y + v, x_end = x + h; y < y_end; y++) {
    int wanted_row = y >= plane->row && y < plane->row_end;
    uint8_t *to = row_of(plane, 8 * y) + 8 * (ptrdiff_t)(x - plane->column);
    for (int32_t at = x; at < x_end; at++, to += 8) {
      int wanted = wanted_row && at >= plane->column && at < plane->column_end;
      if (!(wanted ? decode_block(planes, plane, bits, to) : skip_block(planes, plane, bits))) return 0;
    }
  }
  return 1;
}

int pn_decode_mcus(pn_planes *planes, pn_bits *bits, int32_t row, int32_t mcu, int32_t mcu_end) {
  int32_t h = planes->jpeg->component[0].h, v = planes->jpeg->component[0].v;
  for (; mcu < mcu_end; mcu++) {
    if (!pn_bits_ready(bits)) return 0;
    if (!decode_part(planes, planes->plane, bits, mcu * h, row * v, h, v)) return 0;
    for (int c = 1; c < planes->count; c++)
      if (!decode_part(planes, &planes->plane[c], bits, mcu, row, 1, 1)) return 0;
  }
  return 1;
}

int pn_transform_row(const pn_planes *planes, pn_plane *plane, int32_t y, const int16_t *blocks,
                     const uint64_t *masks) {
  uint8_t *to = row_of(plane, 8 * y);
  for (int32_t count = plane->column_end - plane->column; count > 0; count--, blocks += 64, masks++, to += 8)
    if (!put_block(planes, plane, blocks, *masks == 0, to)) return 0;
  return 1;
}

void pn_reset_predictions(pn_planes *planes) {
  for (int c = 0; c < planes->count; c++) planes->plane[c].prediction = 0;
}

int pn_finish_row(pn_planes *planes, int32_t row) {
  for (int c = 0; c < planes->count; c++) {
    pn_plane *plane = &planes->plane[c];
    const int16_t *block = plane->waiting;
    plane->waiting = NULL;
    if (block != NULL && !transform(planes, plane, block, block, plane->waiting_to, plane->waiting_to)) return 0;
    if (plane->shift_x == 0) continue;
    int32_t last = plane->wide - 1 - 8 * plane->column;
    for (int32_t y = 8 * row; y < 8 * row + 8; y++) {
      uint8_t *samples = row_of(plane, y);
      if (plane->column == 0) samples[-1] = samples[0];
      if (last < 8 * (plane->column_end - plane->column)) samples[last + 1] = samples[last];
    }
  }
  return 1;
}

int32_t pn_count_ready_rows(const pn_planes *planes, int32_t row) {
  int32_t bottom = planes->window.y + planes->window.height, last = planes->count - 1;
  if (row + 1 >= planes->row_end) return bottom;
  return pn_min(bottom, (row + 1) * planes->jpeg->mcu_height - planes->plane[last].shift_y);
}

/* Return a row of chroma as wide as the image; its first sample belongs to the window's first pixel. */
static const uint8_t *upsample_row(const pn_planes *planes, const pn_plane *plane, int32_t y, uint8_t *to) {
  int32_t x = planes->window.x, x_end = x + planes->window.width;
  int32_t row = y >> plane->shift_y, next = y & 1 ? pn_min(row + 1, plane->high - 1) : pn_max(row - 1, 0);
  int32_t shift = plane->shift_x, first = x >> shift, skipped = first - 8 * plane->column;
  const uint8_t *nearest = row_of(plane, row) + skipped, *beside = row_of(plane, next) + skipped;
  if (shift == 0 && plane->shift_y == 0) return nearest;
  if (shift == 0) {
    pn_mix_rows(nearest, beside, y & 1 ? 2 : 1, to, x_end - x);
    return to;
  }
  int32_t count = ((x_end - 1) >> shift) - first + 1;
  if (!plane->mixed) pn_repeat_row(nearest, to, count, 1 << shift);
  else if (plane->shift_y) (planes->avx2 ? pn_widen_rows_avx2 : pn_widen_rows)(nearest, beside, to, count);
  else (planes->avx2 ? pn_widen_row_avx2 : pn_widen_row)(nearest, to, count);
  return to + (x - (first << shift));
}

void pn_make_pixels(const pn_planes *planes, int32_t y, uint8_t *rgb) {
  const uint8_t *light = row_of(planes->plane, y) + (planes->window.x - 8 * planes->plane->column);
  if (planes->count == 1) {
    pn_grey_to_rgb(light, rgb, planes->window.width);
    return;
  }
  const uint8_t *blue = upsample_row(planes, &planes->plane[1], y, planes->chroma[0]);
  const uint8_t *red = upsample_row(planes, &planes->plane[2], y, planes->chroma[1]);
  (planes->avx2 ? pn_ycc_to_rgb_avx2 : pn_ycc_to_rgb)(light, blue, red, rgb, planes->window.width);
}
