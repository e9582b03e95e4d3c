/* A batch: what Python says of its rows, and the two calls that read them and turn them into pixels. */
#ifndef PENSTOCK_BATCH_H
#define PENSTOCK_BATCH_H

#include "window.h"

/* How the bytes of a row are stored. */
enum {
  PN_ELSEWHERE = 0, /* not for this library */
  PN_FILE = 1,      /* a file of its own, named by folder and name */
  PN_STORED = 2,    /* a whole file inside a cache */
  PN_STRIPS = 3,    /* a JPEG with restart markers inside a cache */
  PN_PIXELS = 4,    /* rows of pixels inside a cache */
  PN_MEMORY = 5     /* pixels in memory */
};

/* One row; batch.py describes the same fields to numpy. */
typedef struct {
  int64_t sample;        /* number of the image, for the progress table */
  int64_t offset;        /* of the stored bytes: in the file `fd`, or an address for PN_MEMORY */
  int64_t size;          /* stored bytes */
  int64_t mtime_ns;      /* modification time that a file must have */
  int64_t folder, name;  /* where the names begin in the tables of names */
  int64_t at;            /* where load() put the file's bytes, or cut() the part's */
  int32_t folder_bytes, name_bytes;
  int32_t fd;
  int32_t width, height; /* as stored: told by Python, or found by load() for whole files */
  int32_t row;           /* of the batch's memory */
  int32_t result;        /* a pn_result */
  pn_window window;      /* in pixels of the upright image */
  uint32_t head, crc;    /* as in a cache's record: bytes before the strips, CRC-32 of these or of all */
  uint16_t segment_mcus, strip_rows, height_offset;
  uint8_t kind, orientation, mcu_width, mcu_height, flip;
} pn_row;

/* What all rows of a batch have in common. */
typedef struct {
  const uint8_t *root;    /* path of the folder, ending in a slash */
  const uint8_t *folders; /* names of the folders below it, and of the files in these */
  const uint8_t *names;
  uint8_t *images;        /* uint8 [rows][height][width][3]; NULL to decode and not to resize */
  uint8_t *files, *parts; /* where load() puts whole files, NULL for memory of the worker's own; where cut() puts parts */
  volatile int64_t *sample_now, *since_ns; /* progress: the sample that is worked on, and since when */
  const volatile int64_t *generation;      /* the work is wanted as long as this is `wanted` */
  int64_t wanted;
  int64_t max_pixels;
  int64_t read_ns;        /* time spent reading; added up */
  int64_t files_bytes, parts_bytes; /* size of that memory */
  int32_t root_bytes;
  int32_t apply_exif;
  int32_t width, height;  /* of an output image */
} pn_task;

/* Memory of one thread. */
typedef struct {
  pn_memory files, head, part, pixels, decoding, resizing;
  pn_jpeg jpeg; /* of the image at hand */
} pn_worker;

/* Strips that are read and checked: the header of their image, and what is coded in them. */
typedef struct {
  const uint8_t *header;
  size_t header_bytes;
  pn_scan scan;
} pn_strips;

/* Pixels somewhere in memory: rows of RGB, `stride` bytes apart. */
typedef struct {
  const uint8_t *pixels;
  size_t stride;
} pn_view;

/* Read a file of a folder, or a part of a cache; see reading.c. */
pn_result pn_read_file(const pn_task *task, const pn_row *row, uint8_t *out);
pn_result pn_read_at(int fd, int64_t offset, size_t size, uint8_t *out);
int64_t pn_now_ns(void);

/* Read the strips that a window needs of an image that a cache holds as strips, and parse its header to worker->jpeg;
 * or decode the window too; or find it in an image of pixels; see stored.c. */
pn_result pn_read_strips(pn_worker *worker, pn_task *task, const pn_row *row, pn_window window, pn_strips *strips);
pn_result pn_stored_strips(pn_worker *worker, pn_task *task, const pn_row *row, pn_window window, uint8_t *pixels);
pn_result pn_stored_pixels(pn_worker *worker, pn_task *task, const pn_row *row, pn_window window, pn_view *view);

/* Note what is worked on; say whether the batch is still wanted. */
int pn_goes_on(pn_task *task, const pn_row *row);

/* Whether a row is a whole file; where its bytes are, once load() has read it. */
int pn_is_whole(const pn_row *row);
uint8_t *pn_file_bytes(const pn_worker *worker, const pn_task *task, const pn_row *row);

/* Find where a row's window, of the upright image, lies in the stored one; 0 where it does not lie in it. */
int pn_stored_window(const pn_row *row, pn_window *out);

/* Point `view` at the pixels of a stored window, decoding them where they are coded. */
pn_result pn_find_pixels(pn_worker *worker, pn_task *task, const pn_row *row, pn_window window, pn_view *view);

PN_EXPORT pn_worker *pn_worker_new(void);
PN_EXPORT void pn_worker_free(pn_worker *worker);
PN_EXPORT pn_memory *pn_resizing_memory(pn_worker *worker);
PN_EXPORT size_t pn_row_bytes(void);
PN_EXPORT size_t pn_task_bytes(void);

/* Read whole files and find the size of their images; say which rows are not for this library. */
PN_EXPORT int pn_load(pn_worker *worker, pn_task *task, pn_row *rows, int32_t count);

/* Decode, crop, resize and mirror the rows whose result is PN_OK into their place in `images`. */
PN_EXPORT int pn_fill(pn_worker *worker, pn_task *task, pn_row *rows, int32_t count);

/* Prepare the rows whose result is PN_OK for another decoder; see cut.c. */
PN_EXPORT int pn_cut(pn_worker *worker, pn_task *task, pn_row *rows, int32_t count);

#endif
