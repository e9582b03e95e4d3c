/* The two calls that make a batch: pn_load reads and finds sizes, Python draws the crops, pn_fill makes the pixels. */
#include "batch.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "crc32.h"
#include "resize.h"

#define MAX_FILE_BYTES ((uint64_t)256 << 20) /* of a batch; Python reads the rest, one image at a time */

pn_worker *pn_worker_new(void) { return calloc(1, sizeof(pn_worker)); }

void pn_worker_free(pn_worker *worker) {
  pn_memory *all[] = {&worker->files,  &worker->head,     &worker->part,
                      &worker->pixels, &worker->decoding, &worker->resizing};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) pn_release(all[i]);
  free(worker);
}

pn_memory *pn_resizing_memory(pn_worker *worker) { return &worker->resizing; }

size_t pn_row_bytes(void) { return sizeof(pn_row); }
size_t pn_task_bytes(void) { return sizeof(pn_task); }

int pn_still_wanted(pn_task *task, const pn_row *row) {
  *task->sample_now = row->sample;
  *task->since_ns = pn_now_ns();
  return *task->generation == task->wanted;
}

int pn_is_whole(const pn_row *row) { return row->kind == PN_FILE || row->kind == PN_STORED || row->kind == PN_ENCODED; }

/* An encoded image in memory is copied only where the caller keeps all of them. */
static int is_used_in_place(const pn_task *task, const pn_row *row) {
  return row->kind == PN_ENCODED && task->files == NULL;
}

const uint8_t *pn_find_file_bytes(const pn_worker *worker, const pn_task *task, const pn_row *row) {
  if (is_used_in_place(task, row)) return (const uint8_t *)(uintptr_t)row->offset;
  return (task->files != NULL ? task->files : worker->files.data) + row->at;
}

static int swaps_sides(int orientation) { return orientation >= 5; }

/* Read an encoded image to its place, unless it is in memory already. */
static pn_result read_encoded(pn_worker *worker, pn_task *task, const pn_row *row) {
  if (is_used_in_place(task, row)) return PN_OK;
  uint8_t *data = (task->files != NULL ? task->files : worker->files.data) + row->at;
  size_t size = (size_t)row->size;
  if (row->kind == PN_ENCODED) {
    memcpy(data, (const uint8_t *)(uintptr_t)row->offset, size);
    return PN_OK;
  }
  int64_t begin = pn_now_ns();
  pn_result result =
      row->kind == PN_FILE ? pn_read_file(task, row, data) : pn_read_at(row->fd, row->offset, size, data);
  task->read_ns += pn_now_ns() - begin;
  if (result == PN_OK && row->kind == PN_STORED && pn_crc32(data, size, 0) != row->crc) return PN_UNSUPPORTED;
  return result;
}

/* Read an encoded image and find its size. */
static pn_result load_file(pn_worker *worker, pn_task *task, pn_row *row) {
  pn_result result = read_encoded(worker, task, row);
  if (result != PN_OK) return result;
  pn_jpeg *jpeg = &worker->jpeg;
  result = pn_parse_jpeg(pn_find_file_bytes(worker, task, row), (size_t)row->size, jpeg);
  if (result != PN_OK) return result;
  if ((int64_t)jpeg->width * jpeg->height > task->max_pixels) return PN_UNSUPPORTED;
  if (task->apply_exif && jpeg->exif_unsupported) return PN_UNSUPPORTED;
  row->width = jpeg->width;
  row->height = jpeg->height;
  row->orientation = (uint8_t)(task->apply_exif ? jpeg->orientation : 1);
  return PN_OK;
}

int pn_load(pn_worker *worker, pn_task *task, pn_row *rows, int32_t count) {
  size_t total = 0;
  for (int32_t i = 0; i < count; i++) {
    pn_row *row = &rows[i];
    if (row->kind == PN_STRIPS || row->kind == PN_PIXELS)
      posix_fadvise(row->fd, row->offset, row->size, POSIX_FADV_WILLNEED);
    row->result = row->kind == PN_ELSEWHERE ? PN_UNSUPPORTED : PN_OK;
    if (!pn_is_whole(row)) {
      if (row->kind != PN_MEMORY && (int64_t)row->width * row->height > task->max_pixels) row->result = PN_UNSUPPORTED;
      if (!task->apply_exif || row->orientation < 1 || row->orientation > 8) row->orientation = 1;
      continue;
    }
    if (row->size < 4 || (uint64_t)row->size > MAX_FILE_BYTES - total) {
      row->result = PN_UNSUPPORTED;
      continue;
    }
    row->at = (int64_t)total;
    if (!is_used_in_place(task, row)) total += (size_t)row->size;
  }
  int no_memory = task->files != NULL ? total > (uint64_t)task->files_bytes
                                      : total > 0 && pn_reserve(&worker->files, total) == NULL;
  for (int32_t i = 0; i < count; i++) {
    if (rows[i].result != PN_OK || !pn_is_whole(&rows[i])) continue;
    if (!pn_still_wanted(task, &rows[i])) return PN_STOPPED;
    rows[i].result = no_memory ? PN_NO_MEMORY : load_file(worker, task, &rows[i]);
  }
  return PN_OK;
}

int pn_find_stored_window(const pn_row *row, pn_window *out) {
  int swap = swaps_sides(row->orientation);
  if (row->width < 1 || row->height < 1 || row->width > PN_MAX_SIDE || row->height > PN_MAX_SIDE) return 0;
  int32_t width = swap ? row->height : row->width, height = swap ? row->width : row->height;
  pn_window w = row->window;
  if (w.x < 0 || w.y < 0 || w.width < 1 || w.height < 1 || w.width > width - w.x || w.height > height - w.y) return 0;
  int mirror_x = row->orientation == 2 || row->orientation == 3 || row->orientation == 6 || row->orientation == 7;
  int mirror_y = row->orientation == 3 || row->orientation == 4 || row->orientation == 7 || row->orientation == 8;
  if (mirror_y) w.y = height - w.y - w.height;
  if (mirror_x) w.x = width - w.x - w.width;
  *out = swap ? (pn_window){w.y, w.x, w.height, w.width} : w;
  return 1;
}

pn_result pn_find_pixels(pn_worker *worker, pn_task *task, const pn_row *row, pn_window window, pn_view *view) {
  if (row->kind == PN_MEMORY) {
    view->stride = 3 * (size_t)row->width;
    view->pixels = (const uint8_t *)(uintptr_t)row->offset + (size_t)window.y * view->stride + 3 * (size_t)window.x;
    return PN_OK;
  }
  if (row->kind == PN_PIXELS) return pn_read_pixels(worker, task, row, window, view);
  /* A block of 64 pixels takes at least one bit, so a header alone cannot make us allocate much. */
  if ((int64_t)window.width * window.height / 512 > row->size) return PN_UNSUPPORTED;
  view->stride = 3 * (size_t)window.width;
  uint8_t *pixels = pn_reserve(&worker->pixels, view->stride * (size_t)window.height);
  if (pixels == NULL) return PN_NO_MEMORY;
  view->pixels = pixels;
  if (row->kind == PN_STRIPS) return pn_decode_strips(worker, task, row, window, pixels);
  const uint8_t *data = pn_find_file_bytes(worker, task, row);
  pn_jpeg *jpeg = &worker->jpeg;
  pn_result result = pn_parse_jpeg(data, (size_t)row->size, jpeg);
  if (result != PN_OK) return result;
  pn_scan scan = {data + jpeg->scan_offset, (size_t)row->size - jpeg->scan_offset, 0, 0, 1, 1};
  return pn_decode_window(jpeg, &scan, window, pixels, view->stride, &worker->decoding);
}

static pn_result fill_row(pn_worker *worker, pn_task *task, const pn_row *row) {
  pn_window window;
  pn_view view;
  if (!pn_find_stored_window(row, &window)) return PN_UNSUPPORTED;
  pn_result result = pn_find_pixels(worker, task, row, window, &view);
  if (result != PN_OK) return result;
  if (task->images == NULL) return PN_OK;
  uint8_t *out = task->images + (size_t)row->row * 3 * (size_t)task->width * (size_t)task->height;
  return pn_resize(view.pixels, view.stride, window.width, window.height, out, task->width, task->height, row->flip,
                   row->orientation, &worker->resizing);
}

int pn_fill(pn_worker *worker, pn_task *task, pn_row *rows, int32_t count) {
  for (int32_t i = 0; i < count; i++) {
    if (rows[i].result != PN_OK) continue;
    if (!pn_still_wanted(task, &rows[i])) return PN_STOPPED;
    rows[i].result = fill_row(worker, task, &rows[i]);
  }
  return PN_OK;
}
