/* Locations of samples: rows of a batch, filled from the tables of a folder's index or of a cache. */
#pragma once

#include "batch.h"

/* A column of unsigned integers of 2, 4 or 8 bytes. */
typedef struct {
  const uint8_t *data;
  int64_t length;
  int64_t bytes; /* of one value */
} pn_column;

/* The tables of a folder's index, as loaders/data/samples/samples.py describes them. */
typedef struct {
  pn_column folder_offsets, file_offsets; /* where names begin; the last value is where they end */
  pn_column file_folders, file_sizes, file_mtimes;
  int64_t folder_names_bytes, file_names_bytes;
} pn_files;

/* Fill zeroed `rows` with the locations of samples; 0 if one is not in the tables. A file of more than `max_bytes`
 * stays PN_ELSEWHERE; a file with an invalid name gets an empty name. */
PN_EXPORT int pn_locate_files(const pn_files *files, int64_t max_bytes, const int64_t *samples, pn_row *rows,
                              int32_t count);

/* The same for `records` of one cache file, RECORD of loaders/data/cache/format.py; its payload begins at `start` of
 * `fd`.
 */
PN_EXPORT int pn_locate_stored(const uint8_t *records, int64_t num_records, int32_t fd, int64_t start,
                               const int64_t *samples, pn_row *rows, int32_t count);
