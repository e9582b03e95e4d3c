/* Decoding a window of a baseline JPEG, from a whole file or from restart strips of it. */
#ifndef PENSTOCK_WINDOW_H
#define PENSTOCK_WINDOW_H

#include "jpeg_header.h"

#define PN_RST0 0xD0
#define PN_EOI 0xD9

/* Entropy-coded bytes. */
typedef struct {
  const uint8_t *data;
  size_t size;
  int32_t first_row;    /* strips: row of MCUs with which they begin */
  int32_t segment_mcus; /* strips: MCUs before each restart marker; they divide a row of MCUs evenly */
  int at_end;           /* strips: whether they go on to the image's end (without its marker) */
  int whole_file;       /* whether they are all of a file from its scan offset on, and no strips */
} pn_scan;

/* Decode `window` (in pixels as stored) to RGB, rows `stride` bytes apart, bit for bit as libjpeg does with its
 * accurate inverse DCT and fancy upsampling.
 *
 * Of a whole file all MCUs down to the window are followed, and the end-of-image marker must be the first marker after
 * them but for restarts. Of strips only the segments that the window needs are looked into. PN_ODD for whatever libjpeg
 * would warn of or repair in what is followed, for a window that does not lie in the image, and for strips that do not
 * have the restart markers that the image's size demands. `rgb` may have been written to then. */
pn_result pn_decode_window(const pn_jpeg *jpeg, const pn_scan *scan, pn_window window, uint8_t *rgb, size_t stride,
                           pn_memory *scratch);

/* Whether the first marker from `at` on is the end of the image, restart markers aside where the file has them. */
int pn_leads_to_end(const uint8_t *at, const uint8_t *end, int restarts);

/* Return where the restart marker is that ends a segment, NULL if there is none. */
const uint8_t *pn_segment_end(const uint8_t *at, const uint8_t *end);

#endif
