/* Finds where the samples of a batch are stored, like numpy but without a call per column. */
#include "locate.h"

#include <string.h>

#define MAX_NAME_BYTES (1 << 16) /* no system opens files with longer names */

static uint64_t load_integer(const uint8_t *from, int64_t bytes) {
  uint64_t found = 0;
  memcpy(&found, from, (size_t)bytes); /* little-endian, like the tables */
  return found;
}

static int64_t look_up(const pn_column *column, int64_t at) {
  return (int64_t)load_integer(column->data + at * column->bytes, column->bytes);
}

/* Set where a name begins and its length; 0 if it is invalid. */
static int find_name(const pn_column *offsets, int64_t at, int64_t names_bytes, int64_t *begin, int32_t *bytes) {
  int64_t end = look_up(offsets, at + 1);
  *begin = look_up(offsets, at);
  if (*begin < 0 || *begin > end || end > names_bytes || end - *begin >= MAX_NAME_BYTES) return 0;
  *bytes = (int32_t)(end - *begin);
  return 1;
}

int pn_locate_files(const pn_files *files, int64_t max_bytes, const int64_t *samples, pn_row *rows, int32_t count) {
  for (int32_t i = 0; i < count; i++) {
    int64_t sample = samples[i];
    if (sample < 0 || sample >= files->file_folders.length) return 0;
    int64_t folder = look_up(&files->file_folders, sample);
    if (folder < 0 || folder >= files->folder_offsets.length - 1) return 0;
    pn_row *row = &rows[i];
    int sound = find_name(&files->folder_offsets, folder, files->folder_names_bytes, &row->folder, &row->folder_bytes);
    sound &= find_name(&files->file_offsets, sample, files->file_names_bytes, &row->name, &row->name_bytes);
    if (!sound) row->name_bytes = 0; /* left to Python */
    row->size = row->file_size = look_up(&files->file_sizes, sample);
    row->mtime_ns = look_up(&files->file_mtimes, sample);
    if (row->size <= max_bytes) row->kind = PN_FILE;
  }
  return 1;
}

#pragma pack(push, 1)
typedef struct {
  int64_t offset;
  uint32_t length, head, crc, width, height;
  int32_t label;
  uint8_t kind, orientation, mcu_width, mcu_height;
  uint16_t segment_mcus, strip_rows, height_offset;
} record;
#pragma pack(pop)

int pn_locate_stored(const uint8_t *records, int64_t num_records, int32_t fd, int64_t start, const int64_t *samples,
                     pn_row *rows, int32_t count) {
  for (int32_t i = 0; i < count; i++) {
    record found;
    if (samples[i] < 0 || samples[i] >= num_records) return 0;
    memcpy(&found, records + samples[i] * (int64_t)sizeof found, sizeof found);
    pn_row *row = &rows[i];
    row->fd = fd;
    row->offset = start + found.offset;
    row->size = found.length;
    row->head = found.head;
    row->crc = found.crc;
    row->width = (int32_t)found.width;
    row->height = (int32_t)found.height;
    row->kind = (uint8_t)(PN_STORED + found.kind); /* FILE, STRIPS and PIXELS of a record, in the same order */
    row->orientation = found.orientation;
    row->mcu_width = found.mcu_width;
    row->mcu_height = found.mcu_height;
    row->segment_mcus = found.segment_mcus;
    row->strip_rows = found.strip_rows;
    row->height_offset = found.height_offset;
  }
  return 1;
}
