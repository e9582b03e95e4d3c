/* Reads the part that a crop needs from an image that a cache stores in strips, and checks it. */
#include "batch.h"
#include "crc32.h"

static uint32_t word(const uint8_t *at) {
  return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

/* Read `size` bytes of the row's image from `begin` on. */
static pn_result read_part(pn_task *task, const pn_row *row, size_t begin, size_t size, uint8_t *out) {
  if (begin > (size_t)row->size || size > (size_t)row->size - begin) return PN_UNSUPPORTED;
  int64_t since = pn_now_ns();
  pn_result result = pn_read_at(row->fd, row->offset + (int64_t)begin, size, out);
  task->read_ns += pn_now_ns() - since;
  return result;
}

/* Whether the head lies in the image and can hold `entry_bytes` for each strip. */
static int is_valid_head(const pn_row *row, int32_t rows, size_t entry_bytes) {
  if (row->strip_rows == 0 || row->head > row->size) return 0;
  return (size_t)pn_divide_up(rows, row->strip_rows) * entry_bytes <= row->head;
}

/* Read the head and check it. */
static pn_result read_head(pn_task *task, const pn_row *row, uint8_t *head) {
  pn_result result = read_part(task, row, 0, row->head, head);
  return result != PN_OK ? result : pn_crc32(head, row->head, 0) == row->crc ? PN_OK : PN_UNSUPPORTED;
}

/* Parse the JPEG header that follows the table of strips; it must match the cache's record. */
static pn_result parse_stored_header(const pn_row *row, const uint8_t *header, size_t size, pn_jpeg *jpeg) {
  pn_result result = pn_parse_jpeg(header, size, jpeg);
  if (result != PN_OK) return result;
  int same = !jpeg->progressive && jpeg->width == row->width && jpeg->height == row->height &&
             jpeg->mcu_width == row->mcu_width && jpeg->mcu_height == row->mcu_height &&
             jpeg->restart_interval == row->segment_mcus && jpeg->scan_offset == size &&
             jpeg->height_offset == row->height_offset;
  return same ? PN_OK : PN_UNSUPPORTED;
}

pn_result pn_read_strips(pn_worker *worker, pn_task *task, const pn_row *row, pn_window window, pn_strips *strips) {
  int32_t mcu_rows = row->mcu_height > 0 ? pn_divide_up(row->height, row->mcu_height) : 0;
  if (mcu_rows == 0 || !is_valid_head(row, mcu_rows, 8)) return PN_UNSUPPORTED;
  uint8_t *head = pn_reserve(&worker->head, row->head);
  if (head == NULL) return PN_NO_MEMORY;
  pn_result result = read_head(task, row, head);
  if (result != PN_OK) return result;
  size_t table = 8 * (size_t)pn_divide_up(mcu_rows, row->strip_rows);
  strips->header = head + table;
  strips->header_bytes = row->head - table;
  result = parse_stored_header(row, strips->header, strips->header_bytes, &worker->jpeg);
  if (result != PN_OK) return result;
  /* Upsampling of halved chroma reads one pixel more above and below. */
  int32_t margin = row->mcu_height > 8;
  int32_t above = window.y > margin ? window.y - margin : 0;
  int32_t first = above / row->mcu_height / row->strip_rows;
  int32_t row_end = pn_divide_up(window.y + window.height + margin, row->mcu_height);
  if (row_end > mcu_rows) row_end = mcu_rows;
  int32_t end = pn_divide_up(row_end, row->strip_rows);
  uint32_t start = first > 0 ? word(head + 8 * (size_t)(first - 1)) : 0;
  uint32_t before = first > 0 ? word(head + 8 * (size_t)(first - 1) + 4) : 0;
  uint32_t stop = word(head + 8 * (size_t)(end - 1)), after = word(head + 8 * (size_t)(end - 1) + 4);
  if (start > stop || stop > row->size - row->head) return PN_UNSUPPORTED;
  uint8_t *coded = pn_reserve(&worker->part, stop - start);
  if (coded == NULL) return PN_NO_MEMORY;
  result = read_part(task, row, (size_t)row->head + start, stop - start, coded);
  if (result != PN_OK) return result;
  if (pn_crc32(coded, stop - start, before) != after) return PN_UNSUPPORTED;
  int at_end = end * row->strip_rows >= mcu_rows;
  strips->scan = (pn_scan){coded, stop - start, first * row->strip_rows, row->segment_mcus, at_end, 0};
  return PN_OK;
}

pn_result pn_decode_strips(pn_worker *worker, pn_task *task, const pn_row *row, pn_window window, uint8_t *pixels) {
  pn_strips strips;
  pn_result result = pn_read_strips(worker, task, row, window, &strips);
  if (result != PN_OK) return result;
  size_t stride = 3 * (size_t)window.width;
  return pn_decode_window(&worker->jpeg, &strips.scan, window, pixels, stride, &worker->decoding, &worker->tables);
}

pn_result pn_read_pixels(pn_worker *worker, pn_task *task, const pn_row *row, pn_window window, pn_view *view) {
  if (!is_valid_head(row, row->height, 4)) return PN_UNSUPPORTED;
  size_t stride = 3 * (size_t)row->width;
  int32_t first = window.y / row->strip_rows, end = pn_divide_up(window.y + window.height, row->strip_rows);
  int32_t y = first * row->strip_rows;
  int32_t y_end = (int64_t)end * row->strip_rows < row->height ? end * row->strip_rows : row->height;
  size_t size = stride * (size_t)(y_end - y);
  if (size > (size_t)row->size) return PN_UNSUPPORTED;
  uint8_t *head = pn_reserve(&worker->head, row->head), *rows = pn_reserve(&worker->part, size);
  if (head == NULL || rows == NULL) return PN_NO_MEMORY;
  pn_result result = read_head(task, row, head);
  if (result != PN_OK) return result;
  result = read_part(task, row, (size_t)row->head + stride * (size_t)y, size, rows);
  if (result != PN_OK) return result;
  uint32_t before = first > 0 ? word(head + 4 * (size_t)(first - 1)) : 0;
  if (pn_crc32(rows, size, before) != word(head + 4 * (size_t)(end - 1))) return PN_UNSUPPORTED;
  view->pixels = rows + (size_t)(window.y - y) * stride + 3 * (size_t)window.x;
  view->stride = stride;
  return PN_OK;
}
