/* Prepares rows for another decoder: checks whole files, and extracts from a cache the part that a crop needs. */
#include <string.h>

#include "batch.h"

/* Whether all decoders return the same pixels for a whole file: Python's checks (dali_tasks.py), for baseline JPEGs. */
static pn_result check_file(pn_worker *worker, const pn_task *task, const pn_row *row) {
  const uint8_t *data = pn_find_file_bytes(worker, task, row), *end = data + row->size;
  const pn_jpeg *jpeg = &worker->jpeg;
  pn_result result = pn_parse_jpeg(data, (size_t)row->size, &worker->jpeg);
  if (result != PN_OK) return result;
  if (jpeg->progressive || !jpeg->certainly_ycc ||
      !pn_leads_to_end(data + jpeg->scan_offset, end, jpeg->restart_interval > 0))
    return PN_UNSUPPORTED;
  return PN_OK;
}

/* A rectangle of segments: rows of MCUs, and segments of each row. */
typedef struct {
  int32_t row, row_end, segment, segment_end, segments;
  pn_window covers; /* in pixels */
} cut;

/* Find the segments that a window needs, including the neighbours that upsampling of halved chroma reads. */
static cut plan_cut(const pn_jpeg *jpeg, int32_t segment_mcus, pn_window window) {
  int32_t margin_x = jpeg->mcu_width > 8, margin_y = jpeg->mcu_height > 8;
  int32_t step_x = segment_mcus * jpeg->mcu_width, step_y = jpeg->mcu_height;
  cut found = {.segments = jpeg->mcus_wide / segment_mcus};
  found.segment = (window.x > margin_x ? window.x - margin_x : 0) / step_x;
  found.row = (window.y > margin_y ? window.y - margin_y : 0) / step_y;
  found.segment_end = pn_min(found.segments, pn_divide_up(window.x + window.width + margin_x, step_x));
  found.row_end = pn_min(jpeg->mcus_high, pn_divide_up(window.y + window.height + margin_y, step_y));
  found.covers.x = found.segment * step_x;
  found.covers.y = found.row * step_y;
  found.covers.width = pn_min(jpeg->width, found.segment_end * step_x) - found.covers.x;
  found.covers.height = pn_min(jpeg->height, found.row_end * step_y) - found.covers.y;
  return found;
}

/* Append the segments of `part` to `to`, with markers renumbered and the last one replaced by an end of image. NULL if
 * the markers do not match the image's size. `to` must have room for the whole scan and a marker. */
static uint8_t *join_segments(const pn_jpeg *jpeg, const pn_scan *scan, const cut *part, uint8_t *to) {
  const uint8_t *at = scan->data, *end = at + scan->size;
  int32_t joined = 0;
  for (int32_t row = scan->first_row; row < part->row_end; row++) {
    for (int32_t segment = 0; segment < part->segments; segment++) {
      const uint8_t *stop = pn_find_segment_end(at, end);
      int is_last = row == jpeg->mcus_high - 1 && segment == part->segments - 1;
      if ((stop == NULL) != is_last) return NULL;
      if (is_last) stop = end;
      if (row >= part->row && segment >= part->segment && segment < part->segment_end) {
        memcpy(to, at, (size_t)(stop - at));
        to += stop - at;
        *to++ = 0xFF;
        *to++ = (uint8_t)(PN_RST0 + (joined++ & 7));
      }
      at = is_last ? end : stop + 2;
    }
  }
  to[-1] = PN_EOI;
  return to;
}

static void put_word(uint8_t *to, int32_t value) {
  to[0] = (uint8_t)(value >> 8);
  to[1] = (uint8_t)value;
}

/* Write the part of an image in strips that contains the row's window to `to`, as a JPEG of `*size` bytes. */
static pn_result cut_strips(pn_worker *worker, pn_task *task, pn_row *row, uint8_t *to, size_t room, size_t *size) {
  pn_strips strips;
  pn_window window = row->window;
  pn_result result = pn_read_strips(worker, task, row, window, &strips);
  if (result != PN_OK) return result;
  const pn_jpeg *jpeg = &worker->jpeg;
  if (row->segment_mcus < 1 || jpeg->mcus_wide % row->segment_mcus != 0) return PN_UNSUPPORTED;
  if (strips.header_bytes + strips.scan.size + 2 > room) return PN_NO_MEMORY;
  cut part = plan_cut(jpeg, row->segment_mcus, window);
  memcpy(to, strips.header, strips.header_bytes);
  put_word(to + jpeg->height_offset, part.covers.height);
  put_word(to + jpeg->height_offset + 2, part.covers.width);
  const uint8_t *end = join_segments(jpeg, &strips.scan, &part, to + strips.header_bytes);
  if (end == NULL) return PN_UNSUPPORTED;
  *size = (size_t)(end - to);
  row->window.x -= part.covers.x;
  row->window.y -= part.covers.y;
  return PN_OK;
}

/* Copy the pixels of the row's window to `to`, without gaps. */
static pn_result cut_pixels(pn_worker *worker, pn_task *task, pn_row *row, uint8_t *to, size_t room, size_t *size) {
  size_t stride = 3 * (size_t)row->window.width, height = (size_t)row->window.height;
  *size = stride * height;
  if (*size > room) return PN_NO_MEMORY;
  pn_view view;
  pn_result result = pn_find_pixels(worker, task, row, row->window, &view);
  if (result != PN_OK) return result;
  for (size_t y = 0; y < height; y++) memcpy(to + y * stride, view.pixels + y * view.stride, stride);
  row->window.x = row->window.y = 0;
  return PN_OK;
}

static pn_result cut_row(pn_worker *worker, pn_task *task, pn_row *row, size_t *used) {
  pn_window window;
  if (!pn_find_stored_window(row, row->window, &window)) return PN_UNSUPPORTED;
  if (window.width < 2 || row->orientation != 1) return PN_UNSUPPORTED; /* Python decodes these itself */
  if (pn_is_whole(row)) return check_file(worker, task, row);
  uint8_t *to = task->parts + *used;
  size_t room = (size_t)task->parts_bytes - *used, size = 0;
  pn_result result = row->kind == PN_STRIPS ? cut_strips(worker, task, row, to, room, &size)
                                            : cut_pixels(worker, task, row, to, room, &size);
  if (result != PN_OK) return result;
  row->at = (int64_t)*used;
  row->size = (int64_t)size;
  *used += size;
  return PN_OK;
}

int pn_cut(pn_worker *worker, pn_task *task, pn_row *rows, int32_t count) {
  size_t used = 0;
  int result = PN_OK;
  for (int32_t i = 0; i < count && result == PN_OK; i++) {
    if (rows[i].result != PN_OK) continue;
    if (!pn_still_wanted(task, &rows[i])) result = PN_STOPPED;
    else rows[i].result = cut_row(worker, task, &rows[i], &used);
  }
  pn_trim_worker(worker);
  return result;
}
