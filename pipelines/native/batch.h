/* A batch: how Python describes its rows, and the calls that read them and turn them into pixels. */
#pragma once

#include "canvas.h"
#include "crops.h"

/* How the bytes of a row are stored. */
enum {
  PN_ELSEWHERE = 0, /* not for this library: Python reads it */
  PN_FILE = 1,      /* a file, or a range of one, named by folder and name */
  PN_STORED = 2,    /* a whole file inside a cache */
  PN_STRIPS = 3,    /* a JPEG with restart markers inside a cache */
  PN_PIXELS = 4,    /* rows of pixels inside a cache */
  PN_MEMORY = 5,    /* pixels in memory */
  PN_ENCODED = 6    /* an encoded image in memory */
};

/* One row; ROW in rows.py describes the same fields to numpy. */
typedef struct {
  int64_t sample;       /* index of the sample, for the progress table */
  int64_t offset;       /* of the stored bytes in their file; an address for PN_MEMORY and PN_ENCODED */
  int64_t size;         /* stored bytes */
  int64_t file_size;    /* required size of the file of a PN_FILE */
  int64_t mtime_ns;     /* required modification time of this file */
  int64_t folder, name; /* where the names begin in the tables of names */
  int64_t at;           /* where pn_load put the file's bytes, or pn_cut the part's */
  int64_t out;          /* where the row's image begins in `images`, in bytes */
  int32_t folder_bytes, name_bytes;
  int32_t fd;
  int32_t width, height;         /* as stored: set by Python, or by pn_load for whole files */
  int32_t row;                   /* of the batch's memory */
  int32_t result;                /* a pn_result */
  int32_t out_width, out_height; /* size of the row's image */
  pn_window window;              /* in pixels of the upright image */
  pn_window place;               /* where in the row's image it goes; it may extend beyond the image */
  uint32_t head, crc;            /* as in a cache's record: bytes before the strips, CRC-32 of these or of all */
  uint16_t segment_mcus, strip_rows, height_offset;
  uint8_t kind, orientation, mcu_width, mcu_height, flip, turn;
  uint8_t repeats; /* the same image as in the previous row: it is read and decoded once for all rows that repeat it */
  uint8_t exif;    /* EXIF orientation of the file, applied or not; 0 if Python must read it */
  uint8_t interpolation; /* filter of the resize */
} pn_row;

/* Settings and memory that all rows of a batch share. */
typedef struct {
  const uint8_t *root;    /* path of the folder, ending in a slash */
  const uint8_t *folders; /* names of the folders below it, and of the files in these */
  const uint8_t *names;
  uint8_t *images;        /* memory of the images; NULL to decode without resizing */
  uint8_t *files, *parts; /* where pn_load puts whole files (NULL: in the worker's memory), and pn_cut puts parts */
  volatile int64_t *sample_now, *since_ns; /* progress: the current sample, and when work on it began */
  const volatile int64_t *generation;      /* the batch is wanted as long as this equals `wanted` */
  const pn_crops *crops;                   /* for pn_make: how crops are drawn, for each of `views` */
  const int64_t *keys;                     /* numbers that the draws depend on; NULL for the images' samples */
  uint8_t *notes; /* where pn_make records how each row was made, `note_bytes` each; NULL for nowhere */
  int64_t wanted;
  int64_t max_pixels;
  int64_t read_ns;                                /* total time spent reading */
  int64_t files_bytes, parts_bytes, images_bytes; /* size of that memory */
  int32_t root_bytes;
  int32_t apply_exif;
  int32_t channels; /* of an output image */
  int32_t views, note_bytes;
  int32_t num_made; /* images that pn_make has made */
  uint8_t fill[4];  /* its colour outside the crop, and an unused byte */
} pn_task;

/* Memory of one thread. */
typedef struct {
  pn_memory files, head, part, pixels, decoding, resizing, whole;
  pn_jpeg jpeg; /* header of the current image */
  pn_kept_tables tables;
} pn_worker;

/* Strips after reading and checking: the header of their image, and their entropy-coded data. */
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

/* Read a file or a range of one, or a part of a cache; see reading.c. */
pn_result pn_read_file(const pn_task *task, const pn_row *row, uint8_t *out);
pn_result pn_read_at(int fd, int64_t offset, size_t size, uint8_t *out);
int64_t pn_now_ns(void);

/* Read the strips that a window needs and parse their header to worker->jpeg; also decode the window; or read the
 * stored rows of pixels that it needs. See stored.c. */
pn_result pn_read_strips(pn_worker *worker, pn_task *task, const pn_row *row, pn_window window, pn_strips *strips);
pn_result pn_decode_strips(pn_worker *worker, pn_task *task, const pn_row *row, pn_window window, uint8_t *pixels);
pn_result pn_read_pixels(pn_worker *worker, pn_task *task, const pn_row *row, pn_window window, pn_view *view);

/* Record the current sample for the watchdog, and return whether the batch is still wanted. */
int pn_still_wanted(pn_task *task, const pn_row *row);

/* Free memory that only a very large image needed. */
void pn_trim_worker(pn_worker *worker);

/* Whether a row is a complete encoded image; where its bytes are after pn_load. */
int pn_is_whole(const pn_row *row);
const uint8_t *pn_find_file_bytes(const pn_worker *worker, const pn_task *task, const pn_row *row);

/* Convert a window of a row's upright image to the stored one; 0 if it does not lie within the image. */
int pn_find_stored_window(const pn_row *row, pn_window window, pn_window *out);

/* Point `view` at the pixels of a stored window, after decoding if they are coded. */
pn_result pn_find_pixels(pn_worker *worker, pn_task *task, const pn_row *row, pn_window window, pn_view *view);

PN_EXPORT pn_worker *pn_worker_new(void);
PN_EXPORT void pn_worker_free(pn_worker *worker);
PN_EXPORT pn_memory *pn_resizing_memory(pn_worker *worker);
PN_EXPORT size_t pn_row_bytes(void);
PN_EXPORT size_t pn_task_bytes(void);

/* Read whole files, find the size of their images, and mark the rows that are not for this library. */
PN_EXPORT int pn_load(pn_worker *worker, pn_task *task, pn_row *rows, int32_t count);

/* Decode, crop, resize and mirror each row whose result is PN_OK into its place in `images`. */
PN_EXPORT int pn_fill(pn_worker *worker, pn_task *task, pn_row *rows, int32_t count);

/* Draw the crop of each row whose result is PN_OK; row i belongs to view i % views. */
PN_EXPORT int pn_plan(pn_worker *worker, pn_task *task, pn_row *rows, int32_t count);

/* All steps in one call: load, plan, fill, and record how rows were made. */
PN_EXPORT int pn_make(pn_worker *worker, pn_task *task, pn_row *rows, int32_t count);

/* Prepare each row whose result is PN_OK for another decoder; see prepare.c. */
PN_EXPORT int pn_cut(pn_worker *worker, pn_task *task, pn_row *rows, int32_t count);
