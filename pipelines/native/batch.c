/* Making a batch: pn_load reads files and sizes, pn_plan or Python draws the crops, pn_fill makes the pixels. */
#include "batch.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "crc32.h"
#include "resize.h"

#define MAX_FILE_BYTES ((uint64_t)256 << 20) /* per batch; Python reads the rest, one by one */

pn_worker *pn_worker_new(void) { return calloc(1, sizeof(pn_worker)); }

void pn_worker_free(pn_worker *worker) {
  pn_memory *all[] = {&worker->files,    &worker->head,     &worker->part, &worker->pixels,
                      &worker->decoding, &worker->resizing, &worker->whole};
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

/* An encoded image in memory is copied only if the caller keeps all of them. */
static int is_used_in_place(const pn_task *task, const pn_row *row) {
  return row->kind == PN_ENCODED && task->files == NULL;
}

const uint8_t *pn_find_file_bytes(const pn_worker *worker, const pn_task *task, const pn_row *row) {
  if (is_used_in_place(task, row)) return (const uint8_t *)(uintptr_t)row->offset;
  return (task->files != NULL ? task->files : worker->files.data) + row->at;
}

static int swaps_sides(int orientation) { return orientation >= 5; }

/* Read an encoded image to its place, unless it is already in memory. */
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
  row->exif = (uint8_t)(jpeg->exif_unsupported ? 0 : jpeg->orientation);
  return PN_OK;
}

static void copy_loaded(const pn_row *from, pn_row *to) {
  to->at = from->at;
  to->width = from->width;
  to->height = from->height;
  to->orientation = from->orientation;
  to->result = from->result;
}

int pn_load(pn_worker *worker, pn_task *task, pn_row *rows, int32_t count) {
  size_t total = 0;
  for (int32_t i = 0; i < count; i++) {
    pn_row *row = &rows[i];
    if (i > 0 && row->repeats) continue;
    if (row->kind == PN_STRIPS || row->kind == PN_PIXELS)
      posix_fadvise(row->fd, row->offset, row->size, POSIX_FADV_WILLNEED);
    row->result = row->kind == PN_ELSEWHERE ? PN_UNSUPPORTED : PN_OK;
    if (!pn_is_whole(row)) {
      if (row->kind != PN_MEMORY && (int64_t)row->width * row->height > task->max_pixels) row->result = PN_UNSUPPORTED;
      if (row->orientation < 1 || row->orientation > 8) row->orientation = 1;
      row->exif = row->orientation;
      if (!task->apply_exif) row->orientation = 1;
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
    if (i > 0 && rows[i].repeats) {
      copy_loaded(&rows[i - 1], &rows[i]);
      continue;
    }
    if (rows[i].result != PN_OK || !pn_is_whole(&rows[i])) continue;
    if (!pn_still_wanted(task, &rows[i])) return PN_STOPPED;
    rows[i].result = no_memory ? PN_NO_MEMORY : load_file(worker, task, &rows[i]);
  }
  return PN_OK;
}

int pn_find_stored_window(const pn_row *row, pn_window w, pn_window *out) {
  int swap = swaps_sides(row->orientation);
  if (row->width < 1 || row->height < 1 || row->width > PN_MAX_SIDE || row->height > PN_MAX_SIDE) return 0;
  int32_t width = swap ? row->height : row->width, height = swap ? row->width : row->height;
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
  return pn_decode_window(jpeg, &scan, window, pixels, view->stride, &worker->decoding, &worker->tables);
}

/* What a row's image depends on: an area of the stored image, and how its sides (of the upright one) are resized. */
typedef struct {
  pn_window stored;
  pn_side x, y;
} part;

static pn_canvas find_canvas(const pn_task *task, const pn_row *row) {
  pn_canvas canvas = {.width = row->out_width, .height = row->out_height, .channels = task->channels};
  canvas.place = row->place, canvas.fill = task->fill, canvas.interpolation = row->interpolation;
  canvas.turn = row->turn, canvas.flip = row->flip;
  return canvas;
}

/* Find a row's part: its window, or what of it shows in the image; 0 if it does not lie within the stored image. */
static int find_part(const pn_task *task, const pn_row *row, part *found) {
  pn_window window = row->window;
  const pn_canvas canvas = find_canvas(task, row);
  if (!pn_find_stored_window(row, window, &found->stored)) return 0;
  pn_find_shown(&canvas, window.width, window.height, &found->x, &found->y);
  const pn_side *x = &found->x, *y = &found->y;
  if (x->count < 1 || y->count < 1) return 1; /* pn_draw refuses it */
  pn_window shown = {window.x + x->in_first, window.y + y->in_first, x->in_count, y->in_count};
  return pn_find_stored_window(row, shown, &found->stored);
}

/* Draw a row's image; `view` shows the pixels of `all`, which contains the row's part. */
static pn_result draw_row(pn_worker *worker, const pn_task *task, const pn_row *row, const part *part, pn_window all,
                          pn_view view) {
  const pn_window *at = &part->stored;
  const uint8_t *pixels = view.pixels + (size_t)(at->y - all.y) * view.stride + 3 * (size_t)(at->x - all.x);
  pn_canvas canvas = find_canvas(task, row);
  canvas.pixels = task->images + row->out;
  return pn_draw(pixels, view.stride, &part->x, &part->y, row->orientation, &canvas, &worker->resizing, &worker->whole);
}

static pn_window join_windows(pn_window a, pn_window b) {
  int32_t x = pn_min(a.x, b.x), y = pn_min(a.y, b.y);
  int32_t right = pn_max(a.x + a.width, b.x + b.width), bottom = pn_max(a.y + a.height, b.y + b.height);
  return (pn_window){x, y, right - x, bottom - y};
}

/* Decode the area that the rows of one image need, once, and draw each row. */
static void fill_rows(pn_worker *worker, pn_task *task, pn_row *rows, int32_t count) {
  pn_window all = {0};
  part part;
  pn_view view;
  for (int32_t i = 0, found = 0; i < count; i++) {
    if (rows[i].result != PN_OK) continue;
    rows[i].result = find_part(task, &rows[i], &part) ? PN_OK : PN_UNSUPPORTED;
    if (rows[i].result == PN_OK) all = found++ > 0 ? join_windows(all, part.stored) : part.stored;
  }
  pn_result result = all.width > 0 ? pn_find_pixels(worker, task, rows, all, &view) : PN_UNSUPPORTED;
  for (int32_t i = 0; i < count; i++) {
    if (rows[i].result != PN_OK) continue;
    rows[i].result = result;
    if (result == PN_OK && task->images != NULL && find_part(task, &rows[i], &part))
      rows[i].result = draw_row(worker, task, &rows[i], &part, all, view);
  }
}

/* Free memory that only a very large image needed; the memory of files serves a whole batch, and stays. */
void pn_trim_worker(pn_worker *worker) {
  pn_memory *all[] = {&worker->head,     &worker->part,     &worker->pixels,
                      &worker->decoding, &worker->resizing, &worker->whole};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) pn_trim(all[i]);
}

int pn_fill(pn_worker *worker, pn_task *task, pn_row *rows, int32_t count) {
  int result = PN_OK;
  for (int32_t i = 0, end; i < count && result == PN_OK; i = end) {
    for (end = i + 1; end < count && rows[end].repeats; end++) continue;
    if (rows[i].result != PN_OK) continue; /* then none of them is loaded */
    if (!pn_still_wanted(task, &rows[i])) result = PN_STOPPED;
    else fill_rows(worker, task, rows + i, end - i);
  }
  pn_trim_worker(worker);
  return result;
}

int pn_plan(pn_worker *worker, pn_task *task, pn_row *rows, int32_t count) {
  (void)worker;
  for (int32_t i = 0; i < count; i++) {
    pn_row *row = &rows[i];
    if (row->result != PN_OK) continue;
    const pn_crops *crops = &task->crops[i % task->views];
    int swap = swaps_sides(row->orientation);
    int32_t width = swap ? row->height : row->width, height = swap ? row->width : row->height;
    int fits = width > 0 && height > 0 && width <= PN_MAX_SIDE && height <= PN_MAX_SIDE && row->row >= 0;
    row->out = crops->offset + row->row * crops->row_bytes;
    if (task->images != NULL) fits = fits && row->out >= 0 && row->out + crops->row_bytes <= task->images_bytes;
    pn_crop crop;
    if (!fits ||
        !pn_draw_crop(crops, task->keys != NULL ? task->keys[i / task->views] : row->sample, width, height, &crop)) {
      row->result = PN_UNSUPPORTED;
      continue;
    }
    row->window = crop.window;
    row->place = (pn_window){0, 0, crops->width, crops->height};
    row->out_width = crops->width;
    row->out_height = crops->height;
    row->flip = crop.flip;
    row->turn = crop.turn;
    row->interpolation = crop.interpolation;
  }
  return PN_OK;
}

/* Record how the views of an image were made; loaders/run/engine/work_items.py defines this row of a slot. It is not
   aligned. */
static void write_note(const pn_task *task, const pn_row *rows) {
  size_t views = (size_t)task->views;
  uint8_t *note = task->notes + (size_t)rows->row * (size_t)task->note_bytes;
  int swap = swaps_sides(rows->orientation);
  int64_t sample_and_label[2] = {rows->sample, -1};
  int32_t size[2] = {swap ? rows->height : rows->width, swap ? rows->width : rows->height};
  memcpy(note, sample_and_label, sizeof sample_and_label);
  memcpy(note + 16, size, sizeof size);
  uint8_t *windows = note + 24, *places = windows + 16 * views, *turns = places + 16 * views, *flips = turns + views;
  for (size_t i = 0; i < views; i++) {
    memcpy(windows + 16 * i, &rows[i].window, 16);
    memcpy(places + 16 * i, &rows[i].place, 16);
    turns[i] = rows[i].turn;
    flips[i] = rows[i].flip;
  }
  flips[views] = rows->exif;
}

int pn_make(pn_worker *worker, pn_task *task, pn_row *rows, int32_t count) {
  int result = pn_load(worker, task, rows, count);
  if (result == PN_OK) result = pn_plan(worker, task, rows, count);
  if (result == PN_OK) result = pn_fill(worker, task, rows, count);
  if (result != PN_OK) return result;
  task->num_made = 0;
  for (int32_t i = 0; i < count; i += task->views) {
    int32_t failed = 0;
    for (int32_t view = 0; view < task->views; view++) failed += rows[i + view].result != PN_OK;
    if (failed > 0) continue; /* all views of an image, or none */
    task->num_made++;
    if (task->notes != NULL) write_note(task, rows + i);
  }
  return PN_OK;
}
