/* Decodes a window of a JPEG: chooses the segments of entropy-coded data to read, and checks their ends. */
#include "window.h"

#include "planes.h"
#include "progressive.h"

typedef struct {
  pn_planes planes;
  const pn_scan *scan;
  uint8_t *rgb, *bytes;
  size_t stride;
  int32_t made; /* row of pixels after the last one made */
} task;

/* End a row of MCUs: make all available rows of pixels. */
static int finish_row(task *work, int32_t row) {
  const pn_window *window = &work->planes.window;
  if (row < work->planes.row || row >= work->planes.row_end) return 1;
  if (!pn_finish_row(&work->planes, row)) return 0;
  for (int32_t ready = pn_count_ready_rows(&work->planes, row); work->made < ready; work->made++)
    pn_make_pixels(&work->planes, work->made, work->rgb + (size_t)(work->made - window->y) * work->stride);
  return 1;
}

const uint8_t *pn_find_marker(const uint8_t *at, const uint8_t *end, int restarts) {
  while (end - at >= 2 && (at = memchr(at, 0xFF, (size_t)(end - at - 1))) != NULL) {
    if (at[1] != 0 && !(restarts && (at[1] & 0xF8) == PN_RST0)) return at;
    at += 2;
  }
  return NULL;
}

int pn_leads_to_end(const uint8_t *at, const uint8_t *end, int restarts) {
  const uint8_t *marker = pn_find_marker(at, end, restarts);
  return marker != NULL && marker[1] == PN_EOI;
}

/* Read a whole file's MCUs, up to the last that a decoder reads if it stops below the window. */
static pn_result decode_file(task *work) {
  const pn_jpeg *jpeg = work->planes.jpeg;
  const uint8_t *end = work->scan->data + work->scan->size;
  int32_t bottom = work->planes.window.y + work->planes.window.height + 2; /* see rows_to_decode in header.py */
  int32_t rows = ((bottom < jpeg->height ? bottom : jpeg->height) - 1) / jpeg->mcu_height + 1;
  int32_t interval = jpeg->restart_interval, left = interval, restarts = 0;
  pn_bits bits;
  pn_bits_start(&bits, work->scan->data, work->scan->size, work->bytes);
  for (int32_t row = 0; row < rows; row++) {
    for (int32_t mcu = 0, run; mcu < jpeg->mcus_wide; mcu += run) {
      if (interval > 0 && left == 0) {
        if (!pn_bits_restart(&bits, restarts++)) return PN_UNSUPPORTED;
        pn_reset_predictions(&work->planes);
        left = interval;
      }
      run = jpeg->mcus_wide - mcu;
      if (interval > 0 && run > left) run = left;
      left -= interval > 0 ? run : 0;
      if (!pn_decode_mcus(&work->planes, &bits, row, mcu, mcu + run)) return PN_UNSUPPORTED;
    }
    if (!finish_row(work, row)) return PN_UNSUPPORTED;
  }
  if (rows == jpeg->mcus_high) return pn_bits_done(&bits) && bits.marker == PN_EOI ? PN_OK : PN_UNSUPPORTED;
  return pn_bits_in_range(&bits) && pn_leads_to_end(bits.at, end, interval > 0) ? PN_OK : PN_UNSUPPORTED;
}

const uint8_t *pn_find_segment_end(const uint8_t *at, const uint8_t *end) {
  while (end - at >= 2 && (at = memchr(at, 0xFF, (size_t)(end - at - 1))) != NULL) {
    if ((at[1] & 0xF8) == PN_RST0) return at;
    at++;
  }
  return NULL;
}

static int decode_segment(task *work, const uint8_t *data, size_t size, int32_t row, int32_t mcu) {
  pn_bits bits;
  pn_bits_start(&bits, data, size, work->bytes);
  pn_reset_predictions(&work->planes);
  if (!pn_decode_mcus(&work->planes, &bits, row, mcu, mcu + work->scan->segment_mcus)) return 0;
  return pn_bits_done(&bits) && bits.marker == PN_NO_MARKER && bits.at == bits.end;
}

/* Decode the segments of restart strips that the window needs, the same as plan_cut in prepare.c finds. */
static pn_result decode_strips(task *work) {
  const pn_jpeg *jpeg = work->planes.jpeg;
  const pn_planes *planes = &work->planes;
  const pn_plane *last = &planes->plane[planes->count - 1];
  int32_t length = work->scan->segment_mcus, segments = jpeg->mcus_wide / length;
  int32_t first = last->column / length, first_end = (last->column_end - 1) / length + 1; /* it has one block per MCU */
  const uint8_t *at = work->scan->data, *end = at + work->scan->size;
  for (int32_t row = work->scan->first_row; row < planes->row_end; row++) {
    for (int32_t segment = 0; segment < segments; segment++) {
      const uint8_t *stop = pn_find_segment_end(at, end);
      int is_last = row == jpeg->mcus_high - 1 && segment == segments - 1;
      if ((stop == NULL) != is_last || (is_last && !work->scan->at_end)) return PN_UNSUPPORTED;
      if (is_last) stop = end;
      int wanted = row >= planes->row && segment >= first && segment < first_end;
      if (wanted && !decode_segment(work, at, (size_t)(stop - at), row, segment * length)) return PN_UNSUPPORTED;
      if (!is_last) at = stop + 2;
    }
    if (!finish_row(work, row)) return PN_UNSUPPORTED;
  }
  return PN_OK;
}

/* Read all scans, then make pixels from the coefficients. `memory` has the planned size. */
static pn_result decode_progressive(task *work, pn_coefficient_planes *coefficients, uint8_t *memory) {
  pn_planes *planes = &work->planes;
  if (!pn_read_coefficients(coefficients, work->scan, memory)) return PN_UNSUPPORTED;
  for (int32_t row = planes->row; row < planes->row_end; row++) {
    for (int c = 0; c < planes->count; c++) {
      const pn_coefficient_plane *from = &coefficients->plane[c];
      pn_plane *plane = &planes->plane[c];
      int32_t v = planes->jpeg->component[c].v;
      for (int32_t y = row * v; y < (row + 1) * v; y++) {
        if (y < plane->row || y >= plane->row_end) continue;
        if (!pn_transform_row(planes, plane, y, pn_find_blocks(from, y), pn_find_masks(from, y))) return PN_UNSUPPORTED;
      }
    }
    if (!finish_row(work, row)) return PN_UNSUPPORTED;
  }
  return PN_OK;
}

/* Whether the scan fits the image, and has enough data: a block takes at least one bit. */
static int is_plausible(const pn_jpeg *jpeg, const pn_scan *scan, const pn_planes *planes) {
  int64_t blocks = 0, rows = scan->whole_file ? jpeg->mcus_high : planes->row_end - planes->row;
  for (int c = 0; c < jpeg->components; c++) blocks += jpeg->component[c].h * jpeg->component[c].v;
  if (scan->whole_file) return (uint64_t)(blocks * jpeg->mcus_wide * rows) <= 8 * (uint64_t)scan->size;
  if (scan->segment_mcus < 1 || scan->segment_mcus != jpeg->restart_interval) return 0;
  if (jpeg->mcus_wide % scan->segment_mcus != 0 || scan->first_row < 0 || scan->first_row > planes->row) return 0;
  return (uint64_t)(blocks * jpeg->mcus_wide * rows) <= 8 * (uint64_t)scan->size;
}

static void find_tables(const pn_jpeg *jpeg, pn_kept_tables *kept, pn_planes *planes) {
  for (int c = 0; c < planes->count; c++) {
    const pn_component *component = &jpeg->component[c];
    planes->plane[c].dc = pn_find_huffman(kept, &jpeg->dc[component->dc], 0, component->dc);
    planes->plane[c].ac = pn_find_huffman(kept, &jpeg->ac[component->ac], 1, component->ac);
  }
}

static pn_result start_progressive(task *work, pn_memory *scratch) {
  pn_coefficient_planes coefficients;
  pn_plan_coefficients(&work->planes, &coefficients);
  size_t size = pn_size_of_coefficients(&coefficients);
  if (size > PN_MAX_COEFFICIENT_BYTES || !pn_has_complete_scans(work->planes.jpeg, work->scan)) return PN_UNSUPPORTED;
  uint8_t *memory = pn_reserve(scratch, size + pn_size_of_planes(&work->planes));
  if (memory == NULL) return PN_NO_MEMORY;
  pn_place_planes(&work->planes, memory + size);
  return decode_progressive(work, &coefficients, memory);
}

pn_result pn_decode_window(const pn_jpeg *jpeg, const pn_scan *scan, pn_window window, uint8_t *rgb, size_t stride,
                           pn_memory *scratch, pn_kept_tables *kept) {
  if (window.width < 1 || window.height < 1 || window.x < 0 || window.y < 0) return PN_UNSUPPORTED;
  if (window.x > jpeg->width - window.width || window.y > jpeg->height - window.height) return PN_UNSUPPORTED;
  task work = {.scan = scan, .rgb = rgb, .stride = stride, .made = window.y};
  pn_plan_planes(jpeg, window, &work.planes);
  if (!is_plausible(jpeg, scan, &work.planes)) return PN_UNSUPPORTED;
  if (jpeg->progressive) return scan->whole_file ? start_progressive(&work, scratch) : PN_UNSUPPORTED;
  size_t fixed = pn_align(PN_SCAN_BUFFER);
  uint8_t *memory = pn_reserve(scratch, fixed + pn_size_of_planes(&work.planes));
  if (memory == NULL) return PN_NO_MEMORY;
  work.bytes = memory;
  memset(work.bytes, 0, PN_SCAN_BUFFER); /* damaged data is read beyond its end, but never undefined memory */
  find_tables(jpeg, kept, &work.planes);
  pn_place_planes(&work.planes, memory + fixed);
  return scan->whole_file ? decode_file(&work) : decode_strips(&work);
}

PN_EXPORT int pn_decode_strips_window(const uint8_t *header, size_t header_size, const pn_scan *scan,
                                      const pn_window *window, uint8_t *rgb);

/* For tests: a window of restart strips. */
int pn_decode_strips_window(const uint8_t *header, size_t header_size, const pn_scan *scan, const pn_window *window,
                            uint8_t *rgb) {
  pn_jpeg jpeg;
  pn_memory scratch = {NULL, 0};
  pn_kept_tables kept;
  memset(kept.codes, 0, sizeof kept.codes);
  pn_result result = pn_parse_jpeg(header, header_size, &jpeg);
  if (result != PN_OK) return result;
  result = pn_decode_window(&jpeg, scan, *window, rgb, 3 * (size_t)window->width, &scratch, &kept);
  pn_release(&scratch);
  return result;
}
