/* Passes JPEGs, unchanged and then damaged, to the window decoder, the re-encoder, and as rows of batches to the calls
 * that make these: `fuzz MUTATED TRUNCATED SEED FILE...`. Built with sanitizers, which end it at the first fault;
 * inputs, pixels and the library's memory have exactly the requested size. Prints how many were decoded.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "batch.h"
#include "crc32.h"
#include "recode.h"
#include "window.h"

#define MAX_SEEDS 256

typedef struct {
  uint8_t *data;
  size_t size;
} bytes;

static bytes seeds[MAX_SEEDS];
static size_t num_seeds;
static uint64_t state;
static const char file_name[] = "row.jpg";
static char file_path[PATH_MAX]; /* beside the first seed */

static uint32_t draw(uint32_t below) { /* xorshift64* */
  state ^= state >> 12;
  state ^= state << 25;
  state ^= state >> 27;
  return (uint32_t)((state * 2685821657736338717ull) >> 33) % (below == 0 ? 1 : below);
}

/* Replaces pn_reserve: exactly the requested size, without the previous contents. */
static int filling; /* the byte that fills new memory: nothing may depend on it */
uint8_t *__wrap_pn_reserve(pn_memory *memory, size_t size);
uint8_t *__wrap_pn_reserve(pn_memory *memory, size_t size) {
  void *found = NULL;
  pn_release(memory);
  if (posix_memalign(&found, 64, size + (size == 0)) != 0) return NULL;
  memset(found, filling, size < 1 << 20 ? size : 1 << 20);
  memory->data = found;
  memory->size = size;
  return found;
}

/* The library's pn_reserve returns the requested size, and keeps no more than declared. */
uint8_t *__real_pn_reserve(pn_memory *memory, size_t size);
static void check_memory(void) {
  static const size_t sizes[] = {1,    64,   65,   100,       81,        82,        127, 128,
                                 4096, 5120, 5121, 150000000, 187500032, 150000001, 1};
  pn_memory memory = {NULL, 0};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    uint8_t *data = __real_pn_reserve(&memory, sizes[i]);
    if (data == NULL || data != memory.data || (uintptr_t)data % 64 != 0 || memory.size < sizes[i]) abort();
    data[0] = data[sizes[i] - 1] = data[memory.size - 1] = 1;
    if (sizes[i] == 1 && memory.size > 150000000) abort();
  }
  if (__real_pn_reserve(&memory, SIZE_MAX) != NULL || __real_pn_reserve(&memory, SIZE_MAX - 64) != NULL) abort();
  pn_release(&memory);
}

/* Replaces pread: interrupted, partial, or on a file that is written at the same time. */
static int rewritten;
ssize_t __real_pread(int fd, void *to, size_t size, off_t offset);
ssize_t __wrap_pread(int fd, void *to, size_t size, off_t offset);
ssize_t __wrap_pread(int fd, void *to, size_t size, off_t offset) {
  struct timespec other[2] = {{.tv_sec = 1}, {.tv_sec = 1}};
  if (rewritten) futimens(fd, other);
  if (draw(4) == 0) return errno = EINTR, -1;
  return __real_pread(fd, to, draw(4) ? size : 1 + draw((uint32_t)size), offset);
}

static bytes read_file(const char *path) {
  FILE *file = fopen(path, "rb");
  if (file == NULL) exit(2);
  fseek(file, 0, SEEK_END);
  bytes found = {NULL, (size_t)ftell(file)};
  rewind(file);
  found.data = malloc(found.size);
  if (found.data == NULL || fread(found.data, 1, found.size, file) != found.size) exit(2);
  fclose(file);
  return found;
}

/* Return a damaged copy: flips, stomps, cuts, gaps, splices, header fields, stray markers. */
static bytes damaged(bytes from) {
  const bytes *other = &seeds[draw((uint32_t)num_seeds)];
  size_t at = draw((uint32_t)from.size), end = from.size;
  uint8_t *data = malloc(from.size + other->size);
  memcpy(data, from.data, from.size);
  uint32_t header = from.size < 700 ? (uint32_t)from.size : 700, kind = draw(8);
  for (uint32_t times = 1 + (draw(3) == 0 ? draw(8) : 0); times > 0; times--) {
    size_t place = draw((uint32_t)from.size);
    if (kind == 0) data[place] ^= (uint8_t)(1 << draw(8));
    if (kind == 1) data[place] = (uint8_t)draw(256);
    if (kind == 2) data[draw(header)] = (uint8_t)(draw(2) ? draw(256) : (draw(2) ? 0xFF : draw(3)));
    if (kind == 3 && place + 1 < from.size) data[place] = 0xFF, data[place + 1] = (uint8_t)draw(256);
  }
  if (kind == 4) end = at;
  if (kind == 5) {
    size_t gap = 1 + draw(60);
    if (at + gap < end) memmove(data + at, data + at + gap, end - at - gap), end -= gap;
  }
  if (kind == 6) {
    size_t start = draw((uint32_t)other->size);
    memcpy(data + at, other->data + start, other->size - start);
    end = at + other->size - start;
  }
  if (kind == 7) {
    size_t length = draw(200), source = draw((uint32_t)from.size);
    if (at + length <= end && source + length <= end) memmove(data + at, data + source, length);
  }
  bytes found = {malloc(end + (end == 0)), end};
  memcpy(found.data, data, end);
  free(data);
  return found;
}

/* Return a number of [0, below), half of the time one at an end. */
static int32_t place(int32_t below) {
  uint32_t edge = draw(4);
  return edge == 0 ? 0 : edge == 1 ? below - 1 : (int32_t)draw((uint32_t)below);
}

/* Decode a window, from the file or as if its scan were strips, with both instruction sets, which must agree even on
 * damaged files; 1 if it was decoded. */
static int attempt(bytes input, pn_memory *scratch) {
  pn_jpeg jpeg;
  if (pn_parse_jpeg(input.data, input.size, &jpeg) != PN_OK) return 0;
  pn_window window = {.x = place(jpeg.width), .y = place(jpeg.height)};
  int32_t wide = jpeg.width - window.x, high = jpeg.height - window.y;
  window.width = 1 + place(wide < 300 ? wide : 300);
  window.height = 1 + place(high < 300 ? high : 300);
  size_t stride = 3 * (size_t)window.width;
  size_t bytes = stride * (size_t)window.height;
  uint8_t *rgb = calloc(1, bytes), *again = calloc(1, bytes);
  pn_scan scan = {.data = input.data + jpeg.scan_offset, .size = input.size - jpeg.scan_offset, .whole_file = 1};
  if (draw(3) == 0) {
    scan.whole_file = 0;
    scan.segment_mcus = draw(8) ? jpeg.restart_interval : (int32_t)draw(9);
    scan.at_end = draw(8) != 0;
    scan.first_row = draw(4) ? 0 : (int32_t)draw(5);
    if (scan.size >= 2 && draw(8)) scan.size -= 2;
  }
  filling = 0xA5, pn_use_avx2(1);
  static pn_kept_tables kept; /* of all images before */
  pn_kept_tables *fresh = calloc(1, sizeof *fresh);
  pn_result result = pn_decode_window(&jpeg, &scan, window, rgb, stride, scratch, &kept);
  filling = 0x5A, pn_use_avx2(0);
  if (pn_decode_window(&jpeg, &scan, window, again, stride, scratch, fresh) != result) abort();
  if ((result != PN_OK && result != PN_UNSUPPORTED) || memcmp(rgb, again, bytes) != 0) abort();
  free(fresh);
  free(rgb);
  free(again);
  return result == PN_OK;
}

/* Re-code a file, with a plausible number of segments or another, and decode what was made; 1 if it was re-coded. */
static int recode(bytes input, pn_recoder *recoder) {
  pn_jpeg jpeg;
  pn_recoded made, again;
  if (pn_parse_jpeg(input.data, input.size, &jpeg) != PN_OK) return 0;
  int32_t mcus = 1 + (int32_t)draw(9);
  int64_t segments = ((int64_t)jpeg.mcus_wide * jpeg.mcus_high + mcus - 1) / mcus + (draw(9) == 0);
  if (segments > 1000000) return 0;
  size_t bytes = (size_t)segments * sizeof(uint32_t);
  uint32_t *ends = calloc(1, bytes), *other_ends = calloc(1, bytes);
  pn_recoder other = {{NULL, 0}, {NULL, 0}, {NULL, 0}};
  filling = 0xA5, pn_use_avx2(1);
  int result = pn_recode(input.data, input.size, mcus, ends, segments, recoder, &made);
  filling = 0x5A, pn_use_avx2(0);
  if (pn_recode(input.data, input.size, mcus, other_ends, segments, &other, &again) != result) abort();
  if ((result != PN_OK && result != PN_UNSUPPORTED) || memcmp(ends, other_ends, bytes) != 0) abort();
  for (int copied = 0; result == PN_OK && copied < 2; copied++) { /* a copy of a copy has the same bytes */
    if (made.scan_offset + ends[segments - 1] + 2 != made.size || made.size != again.size) abort();
    if (memcmp(other.copy.data, recoder->copy.data, made.size) != 0) abort();
    if (pn_recode(recoder->copy.data, made.size, mcus, ends, segments, &other, &again) != PN_OK) abort();
  }
  pn_release(&other.copy);
  pn_release(&other.scratch);
  pn_release(&other.pixels);
  free(other_ends);
  free(ends);
  return result == PN_OK;
}

static void put32(uint8_t *at, uint32_t value) {
  for (int i = 0; i < 4; i++) at[i] = (uint8_t)(value >> 8 * i);
}

/* Write the checksums of a cache's image: one of all strips so far for each of them, and one of the head. */
static void seal(bytes stored, pn_row *row, int32_t strips, size_t entry) {
  uint32_t crc = 0, begin = 0;
  for (int32_t i = 0; i < strips; i++) {
    uint8_t *at = stored.data + entry * (size_t)i;
    uint32_t end = (uint32_t)(stored.size - row->head), rows = row->strip_rows * 3u * (uint32_t)row->width;
    if (entry == 8) end = (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
    else if (end - begin > rows) end = begin + rows;
    if (end < begin || end > stored.size - row->head) break;
    crc = pn_crc32(stored.data + row->head + begin, end - begin, crc);
    put32(at + entry - 4, crc);
    begin = end;
  }
  row->crc = pn_crc32(stored.data, row->head, 0);
}

static void damage(bytes stored, size_t begin) {
  for (uint32_t times = draw(3); times > 0; times--) {
    uint8_t *at = stored.data + begin + draw((uint32_t)(stored.size - begin));
    *at = (uint8_t)(draw(2) ? *at ^ 1u << draw(8) : draw(3) ? draw(256) : 0xFF);
  }
}

/* Return a JPEG as stored in a cache, as strips with restart markers, with a row for it; empty if unsupported. */
static bytes as_strips(bytes input, pn_row *row, pn_recoder *recoder) {
  bytes none = {NULL, 0};
  pn_jpeg jpeg;
  pn_recoded made;
  if (pn_parse_jpeg(input.data, input.size, &jpeg) != PN_OK || jpeg.mcus_high * jpeg.mcus_wide > 10000) return none;
  int32_t mcus = 1 + (int32_t)draw((uint32_t)jpeg.mcus_wide);
  while (jpeg.mcus_wide % mcus) mcus++;
  int32_t a_row = jpeg.mcus_wide / mcus, segments = a_row * jpeg.mcus_high;
  uint32_t ends[10000];
  if (pn_recode(input.data, input.size, mcus, ends, segments, recoder, &made) != PN_OK) return none;
  pn_parse_jpeg(recoder->copy.data, made.size, &jpeg);
  row->strip_rows = (uint16_t)(1 + draw(3));
  int32_t strips = (jpeg.mcus_high + row->strip_rows - 1) / row->strip_rows;
  row->width = jpeg.width, row->height = jpeg.height, row->mcu_width = (uint8_t)jpeg.mcu_width;
  row->mcu_height = (uint8_t)jpeg.mcu_height, row->segment_mcus = (uint16_t)mcus;
  row->height_offset = (uint16_t)jpeg.height_offset, row->head = (uint32_t)(8 * (size_t)strips + made.scan_offset);
  bytes stored = {malloc(row->head + made.size), row->head + made.size - made.scan_offset - 2};
  memcpy(stored.data + 8 * (size_t)strips, recoder->copy.data, made.size);
  for (int32_t i = 0; i < strips; i++) {
    int32_t end = (i + 1) * row->strip_rows;
    put32(stored.data + 8 * (size_t)i, ends[a_row * (end < jpeg.mcus_high ? end : jpeg.mcus_high) - 1]);
  }
  if (draw(2)) damage(stored, draw(2) ? row->head : 0);
  if (draw(8) == 0) put32(stored.data + 8 * draw((uint32_t)strips), draw(2) ? UINT32_MAX : 0);
  seal(stored, row, strips, 8);
  return stored;
}

/* Return pixels as a cache stores them. */
static bytes as_pixels(pn_row *row) {
  row->width = 1 + (int32_t)draw(40), row->height = 1 + (int32_t)draw(40), row->strip_rows = (uint16_t)(1 + draw(20));
  int32_t strips = (row->height + row->strip_rows - 1) / row->strip_rows;
  row->head = 4 * (uint32_t)strips;
  size_t size = row->head + 3 * (size_t)row->width * (size_t)row->height;
  bytes stored = {calloc(size, 1), size};
  seal(stored, row, strips, 4);
  return stored;
}

/* Overwrite a field that comes from the cache, not the numbers and addresses that Python determines. */
static void lie(pn_row *row, int in_memory) {
  static const int64_t lies[] = {0,     1,         -1,        8,          255,       65535,
                                 65536, INT32_MAX, INT32_MIN, UINT32_MAX, INT64_MAX, INT64_MIN};
  int64_t word = draw(3) ? lies[draw(12)] : (int64_t)draw(1u << 30) - 1000;
  switch (in_memory ? 12 + draw(6) : draw(19)) {
    case 0: row->offset = word; break;
    case 1: row->size = word; break;
    case 2: row->mtime_ns = word; break;
    case 3: row->fd = -1; break;
    case 4: row->width = (int32_t)word; break;
    case 5: row->height = (int32_t)word; break;
    case 6: row->head = (uint32_t)word; break;
    case 7: row->segment_mcus = (uint16_t)word; break;
    case 8: row->strip_rows = (uint16_t)word; break;
    case 9: row->height_offset = (uint16_t)word; break;
    case 10: row->mcu_width = (uint8_t)word; break;
    case 11: row->mcu_height = (uint8_t)word; break;
    case 12: row->orientation = (uint8_t)word; break;
    case 13: row->window.x = (int32_t)word; break;
    case 14: row->window.y = (int32_t)word; break;
    case 15: row->window.width = (int32_t)word; break;
    case 16: row->window.height = (int32_t)word; break;
    case 18: row->file_size = word; break;
    default: row->row = 0;
  }
}

/* Prepare a loaded row for another decoder, in as much memory as Python allocates, or less. */
static void prepare(pn_worker *worker, pn_task *task, pn_row *row) {
  int64_t room =
      row->kind == PN_STRIPS ? row->size % (1 << 21) + 2 : 3 * (int64_t)row->window.width * row->window.height;
  if (room < 0 || room > 1 << 20) room = 1 << 20;
  if (draw(8) == 0) room = draw((uint32_t)room);
  task->parts = malloc((size_t)room + (room == 0));
  task->parts_bytes = room;
  pn_cut(worker, task, row, 1);
  if (row->result == PN_OK && row->kind == PN_STRIPS) {
    pn_jpeg made;
    const uint8_t *end = task->parts + row->size;
    if (row->size > room || pn_parse_jpeg(task->parts, (size_t)row->size, &made) != PN_OK) abort();
    if (end[-2] != 0xFF || end[-1] != PN_EOI) abort();
    if (row->window.x > made.width - row->window.width || row->window.y > made.height - row->window.height) abort();
  }
  free(task->parts);
}

/* Load and fill a batch of one row that is stored in one of five ways, or cut it; 1 on success. */
static int batch(bytes input, pn_recoder *recoder) {
  static int fd = -1;
  if (fd < 0) fd = memfd_create("fuzz", 0);
  static const int kinds[] = {PN_FILE,   PN_STORED, PN_STRIPS,  PN_STRIPS,   PN_STRIPS,
                              PN_PIXELS, PN_MEMORY, PN_ENCODED, PN_ELSEWHERE};
  pn_row row = {.kind = (uint8_t)kinds[draw(9)], .fd = fd, .offset = draw(3), .orientation = (uint8_t)(1 + draw(8))};
  bytes stored = input;
  if (row.kind == PN_STRIPS) stored = as_strips(input, &row, recoder);
  if (row.kind == PN_PIXELS || row.kind == PN_MEMORY) stored = as_pixels(&row);
  if (stored.data == NULL) return 0;
  row.size = (int64_t)stored.size;
  row.name_bytes = (int32_t)sizeof file_name - 1;
  if (row.kind == PN_STORED) row.crc = pn_crc32(stored.data, stored.size, 0);
  int in_memory = row.kind == PN_MEMORY || row.kind == PN_ENCODED;
  off_t begin = row.offset; /* of the stored bytes in their file */
  row.file_size = begin + row.size;
  if (in_memory) row.offset = (int64_t)(uintptr_t)(stored.data + row.head);
  int out = row.kind == PN_FILE ? open(file_path, O_CREAT | O_TRUNC | O_WRONLY, 0600) : fd;
  size_t cut = draw(8) || in_memory ? stored.size : draw((uint32_t)stored.size);
  if (ftruncate(out, 0) != 0 || pwrite(out, stored.data, cut, begin) != (ssize_t)cut) exit(2);
  struct timespec far[2] = {{.tv_sec = 12000000000}, {.tv_sec = 12000000000}}; /* in ns not 64 bits */
  struct stat status;
  fstat(out, &status);
  int as_said = cut == stored.size && (draw(64) || futimens(out, far) != 0);
  row.mtime_ns = (int64_t)status.st_mtim.tv_sec * 1000000000 + status.st_mtim.tv_nsec;
  if (out != fd) close(out);

  int64_t progress[3] = {0, 0, 0};
  pn_task task = {.root = (const uint8_t *)file_path,
                  .root_bytes = (int32_t)(strlen(file_path) - sizeof file_name + 1),
                  .folders = (const uint8_t *)"",
                  .names = (const uint8_t *)file_name,
                  .sample_now = progress,
                  .since_ns = progress + 1,
                  .generation = progress + 2,
                  .max_pixels = draw(4) ? 1 << 24 : INT64_MAX,
                  .apply_exif = (int)draw(2),
                  .channels = draw(4) ? 3 : 1};
  pn_worker *worker = pn_worker_new();
  pn_use_avx2((int)draw(2));
  int honest = draw(4) != 0;
  if (!honest) lie(&row, in_memory);
  if (row.kind >= PN_STRIPS && row.head <= stored.size) row.crc = pn_crc32(stored.data, row.head, 0); /* sealed */
  rewritten = row.kind == PN_FILE && draw(8) == 0;
  if (draw(2)) task.files = malloc(stored.size + (stored.size == 0)), task.files_bytes = (int64_t)stored.size;
  pn_load(worker, &task, &row, 1);
  if (row.result == PN_OK && pn_is_whole(&row)) {
    if (rewritten || cut < stored.size || memcmp(pn_find_file_bytes(worker, &task, &row), stored.data, cut) != 0)
      abort();
  }
  if (row.result == PN_OK) {
    int swap = row.orientation >= 5;
    int32_t wide = swap ? row.height : row.width, high = swap ? row.width : row.height;
    row.window = (pn_window){place(9), place(9), 1 + place(9), 1 + place(9)};
    if (wide > 0 && high > 0) {
      row.window.x = place(wide), row.window.y = place(high);
      row.window.width = 1 + place(wide - row.window.x), row.window.height = 1 + place(high - row.window.y);
    }
    row.flip = (uint8_t)draw(2);
    row.turn = draw(3) ? 0 : (uint8_t)draw(4);
    row.out_width = 1 + (int32_t)draw(40);
    row.out_height = draw(2) ? row.out_width : 1 + (int32_t)draw(40);
    row.place = (pn_window){0, 0, row.out_width, row.out_height};
    if (draw(3) == 0) {
      row.place.x = place(row.out_width), row.place.y = place(row.out_height);
      row.place.width = 1 + place(row.out_width - row.place.x + (draw(8) == 0));
      row.place.height = 1 + place(row.out_height - row.place.y);
    }
    if (draw(8) == 0) lie(&row, 1);
    if (draw(3) == 0) {
      prepare(worker, &task, &row);
    } else {
      size_t bytes = (size_t)task.channels * (size_t)row.out_width * (size_t)row.out_height;
      uint8_t *images = calloc(5, bytes);
      pn_row two[2] = {row, row}, twin[2], alone = row; /* the second shows another part of the same image */
      two[1].repeats = 1, two[1].out = (int64_t)bytes;
      if (row.window.width > 1 && row.window.x < PN_MAX_SIDE) two[1].window.x++, two[1].window.width--;
      alone.window = two[1].window;
      memcpy(twin, two, sizeof two);
      task.images = draw(16) ? images : NULL;
      filling = 0xA5, pn_use_avx2(1), pn_fill(worker, &task, two, 2);
      if (task.images != NULL) task.images = images + 2 * bytes;
      filling = 0x5A, pn_use_avx2(0), pn_fill(worker, &task, twin, 2);
      if (task.images != NULL) task.images = images + 4 * bytes;
      pn_fill(worker, &task, &alone, 1);
      row.result = two[0].result;
      if (row.result != twin[0].result || two[1].result != twin[1].result) abort();
      if (memcmp(images, images + 2 * bytes, 2 * bytes) != 0) abort();
      if (two[1].result == PN_OK && alone.result == PN_OK && memcmp(images + bytes, images + 4 * bytes, bytes) != 0)
        abort();
      free(images);
    }
  }
  free(task.files);
  if (row.result == PN_UNREADABLE && honest && as_said && !rewritten) abort();
  if (row.result < PN_OK || row.result > PN_UNREADABLE || row.result == PN_STOPPED) abort();
  if (row.size <= (int64_t)stored.size) { /* memory for the actual data, not for the header's size */
    if (worker->head.size + worker->part.size > 2 * stored.size) abort();
    if (worker->pixels.size > 3 * 512 * (1 + stored.size)) abort();
    if (worker->decoding.size > (1 << 18) + 2400 * stored.size) abort(); /* 8 blocks a byte, of 64 coefficients */
  }
  pn_worker_free(worker);
  if (stored.data != input.data) free(stored.data);
  return row.result == PN_OK;
}

int main(int count, char **words) {
  if (count < 5) return 2;
  long mutated = atol(words[1]), truncated = atol(words[2]), sound = 0, sound_truncated = 0;
  state = strtoull(words[3], NULL, 10) * 2 + 1;
  for (int i = 4; i < count && num_seeds < MAX_SEEDS; i++) seeds[num_seeds++] = read_file(words[i]);
  const char *slash = strrchr(words[4], '/');
  snprintf(file_path, sizeof file_path, "%.*s%s", slash == NULL ? 0 : (int)(slash + 1 - words[4]), words[4], file_name);
  check_memory();
  pn_memory scratch = {NULL, 0};
  pn_recoder recoder = {{NULL, 0}, {NULL, 0}, {NULL, 0}};
  long recoded = 0, rows = 0;
  for (long i = 0; i < mutated; i++) {
    const bytes *from = &seeds[i % (long)num_seeds];
    bytes input =
        i < (long)num_seeds ? (bytes){memcpy(malloc(from->size), from->data, from->size), from->size} : damaged(*from);
    if (i >= (long)num_seeds && draw(5) == 0 && input.size > 0) {
      bytes again = damaged(input);
      free(input.data);
      input = again;
    }
    sound += attempt(input, &scratch);
    recoded += recode(input, &recoder);
    rows += batch(draw(2) ? input : seeds[draw((uint32_t)num_seeds)], &recoder);
    if (i % 64 == 0) pn_release(&recoder.scratch), pn_release(&recoder.copy), pn_release(&recoder.pixels);
    if (i % 64 == 0) pn_release(&scratch); /* so that memory has just the size that an image needs */
    free(input.data);
  }
  for (long i = 0; i < truncated; i++) {
    const bytes *from = &seeds[draw((uint32_t)num_seeds)];
    bytes input = {NULL, draw((uint32_t)from->size)};
    input.data = malloc(input.size + (input.size == 0));
    memcpy(input.data, from->data, input.size);
    sound_truncated += attempt(input, &scratch);
    if (i % 8 == 0) recode(input, &recoder), batch(input, &recoder);
    free(input.data);
  }
  pn_release(&scratch);
  pn_release(&recoder.scratch);
  pn_release(&recoder.copy);
  pn_release(&recoder.pixels);
  for (size_t i = 0; i < num_seeds; i++) free(seeds[i].data);
  printf("%ld of %ld mutated and %ld of %ld truncated files were decoded\n", sound, mutated, sound_truncated,
         truncated);
  printf("%ld were re-coded, %ld made as rows of batches\n", recoded, rows);
  return 0;
}
