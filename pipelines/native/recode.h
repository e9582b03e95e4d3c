/* Lossless re-coding of a baseline JPEG: the same coefficients with restart markers and optimal Huffman codes. */
#ifndef PENSTOCK_RECODE_H
#define PENSTOCK_RECODE_H

#include "native.h"

/* Memory of one thread, all zeros to begin with; each is to be released. */
typedef struct {
  pn_memory copy; /* the last image's copy, a JPEG file */
  pn_memory scratch, pixels;
} pn_recoder;

/* Where the parts of a copy are; Python knows these fields. */
typedef struct {
  uint64_t size;        /* bytes of the file */
  uint64_t scan_offset; /* where its entropy-coded data begin; they end 2 bytes before the file does */
} pn_recoded;

/* Make a copy of the JPEG file `data` in `recoder->copy`: baseline, a JFIF marker and no other metadata, one scan, a
 * restart marker after every `segment_mcus` MCUs. `ends` gets where each segment ends, its marker included, from the
 * scan's offset on (the last has none); their number `segments` must be the image's.
 *
 * PN_ODD for what pn_parse_jpeg or pn_decode_window does not take, or does not fit in 4 GiB. Memory is bounded by what
 * the file holds: 32 bytes for each of its bytes, and 256 for each of its blocks, whichever is less. */
PN_EXPORT int pn_recode(const uint8_t *data, size_t size, int32_t segment_mcus, uint32_t *ends, int64_t segments,
                        pn_recoder *recoder, pn_recoded *made);

/* Whether the window decoder takes the JPEG file `data` and makes the pixels `rgb` of it: PN_OK only if they are equal,
 * width * height * 3 bytes of them. */
PN_EXPORT int pn_same_pixels(const uint8_t *data, size_t size, int32_t width, int32_t height, const uint8_t *rgb,
                             pn_recoder *recoder);

#endif
