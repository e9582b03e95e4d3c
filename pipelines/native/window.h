/* Decodes a window of a JPEG, from a whole file or from the restart strips of a baseline JPEG. */
#pragma once

#include "huffman.h"

#define PN_EOI 0xD9

/* Entropy-coded bytes. */
typedef struct {
  const uint8_t *data;
  size_t size;
  int32_t first_row;    /* strips: their first row of MCUs */
  int32_t segment_mcus; /* strips: MCUs before each restart marker; they divide a row of MCUs evenly */
  int at_end;           /* strips: whether they reach the image's end (without its marker) */
  int whole_file;       /* whether this is a whole file from its scan offset on, instead of strips */
} pn_scan;

/* Decode `window` (in pixels as stored) to RGB, rows `stride` bytes apart, bit for bit as libjpeg does with its
 * accurate inverse DCT and fancy upsampling.
 *
 * In a whole file all MCUs down to the window are read (all scans of a progressive file), and the next marker except
 * restarts must be the end of the image. In strips only the segments that the window needs are read. PN_UNSUPPORTED if
 * libjpeg would warn about or repair the data read, if the window does not lie in the image, or if the strips do not
 * have the restart markers that the image's size requires; `rgb` may have been written to. `kept` belongs to the
 * thread, as `scratch` does. */
pn_result pn_decode_window(const pn_jpeg *jpeg, const pn_scan *scan, pn_window window, uint8_t *rgb, size_t stride,
                           pn_memory *scratch, pn_kept_tables *kept);

/* Return the first marker from `at` on, NULL if there is none; with `restarts`, restart markers are skipped. */
const uint8_t *pn_find_marker(const uint8_t *at, const uint8_t *end, int restarts);

/* Whether that marker is the end of the image. */
int pn_leads_to_end(const uint8_t *at, const uint8_t *end, int restarts);

/* Return the position of the restart marker that ends a segment; NULL if there is none. */
const uint8_t *pn_find_segment_end(const uint8_t *at, const uint8_t *end);
