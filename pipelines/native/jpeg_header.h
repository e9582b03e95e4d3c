/* The header of a JPEG: everything that a decoder must know before the first entropy-coded byte; headers of later
 * scans. */
#pragma once

#include "native.h"

/* The position of a zigzag index's coefficient (T.81 figure A.6); all indices beyond the last share one position. */
extern const uint8_t pn_natural_order[256];

/* A Huffman table from a file (T.81 B.2.4.2), checked: no code is too long, no code is all ones. */
typedef struct {
  int defined;
  uint8_t counts[16]; /* number of codes of 1, 2, ... 16 bits */
  uint8_t symbols[256];
} pn_code;

/* The contents of a scan (T.81 B.2.3). */
typedef struct {
  int count, component[3]; /* its components, in the order of the frame */
  int first, last;         /* zigzag indices of its coefficients */
  int high, low;           /* low bits missing before it (0 in a first scan), and after it */
} pn_scan_header;

typedef struct {
  int id;
  int32_t h, v;       /* sampling factors; 1, 1 if there is one component */
  int quant, dc, ac;  /* numbers of its tables, below 4; `dc` and `ac` are for the current scan */
  int32_t wide, high; /* size of its plane without padding, in samples */
} pn_component;

typedef struct {
  int32_t width, height, components; /* components: 1 grey, 3 YCbCr */
  int progressive;                   /* 0: baseline, in a single scan */
  pn_component component[3];
  int32_t mcu_width, mcu_height; /* in pixels */
  int32_t mcus_wide, mcus_high;
  int32_t restart_interval; /* in MCUs; 0 for no restart markers */
  size_t height_offset;     /* where the frame header holds the height (16 bits), then the width */
  size_t scan_offset;       /* where the entropy-coded data begins */
  int32_t orientation;      /* EXIF orientation, 1 to 8; 1 by default */
  int32_t exif_unsupported; /* whether Python must read the orientation */
  int32_t certainly_ycc;    /* whether no decoder treats it as RGB: grey, or YCbCr by markers or component numbers */
  uint16_t quant[4][64];    /* quantisation tables in zigzag order; all 0 if missing */
  pn_code dc[4], ac[4];
  pn_scan_header scan; /* the scan that was read last */
} pn_jpeg;

/* Read the header of a JPEG. The data may end with the header, because the entropy-coded data is not read.
 *
 * PN_OK only for 8 bits, Huffman coding (SOF0 and SOF1 in a single scan, SOF2), one component or YCbCr with luma
 * factors 1x1, 2x1, 4x1, 1x2 or 2x2 and chroma factors 1x1, valid tables, and nothing that libjpeg would warn about;
 * otherwise PN_UNSUPPORTED. */
pn_result pn_parse_jpeg(const uint8_t *data, size_t size, pn_jpeg *jpeg);

/* Read the header of a progressive JPEG's next scan, starting at the marker after the previous scan's data. Returns
 * where its data begins; NULL if the image ends (`*ended`) or the header is unsupported. */
const uint8_t *pn_parse_next_scan(const uint8_t *at, const uint8_t *end, pn_jpeg *jpeg, int *ended);
