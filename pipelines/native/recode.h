/* Lossless re-coding of a JPEG: the same coefficients with restart markers and optimal Huffman codes. */
#pragma once

#include "native.h"

/* Memory of one thread, initially all zeros; the caller releases each part. */
typedef struct {
  pn_memory copy; /* the last image's copy, a JPEG file */
  pn_memory scratch, pixels;
} pn_recoder;

/* Offsets in a copy; recode.py has the same fields. */
typedef struct {
  uint64_t size;        /* bytes of the file */
  uint64_t scan_offset; /* where its entropy-coded data begins; it ends 2 bytes before the file's end */
} pn_recoded;

/* Make a copy of the JPEG file `data` in `recoder->copy`: baseline, a JFIF marker and no other metadata, one scan, a
 * restart marker after every `segment_mcus` MCUs. `ends` receives where each segment ends, counted from the scan's
 * offset, with its marker (the last has none); `segments`, their number, must match the image's size.
 *
 * PN_UNSUPPORTED if pn_parse_jpeg or pn_decode_window would refuse the file, or the copy does not fit in 4 GiB. Memory
 * is bounded by the file: 32 bytes per byte or 256 per block, whichever is less; for a progressive file, coefficients
 * (PN_MAX_COEFFICIENT_BYTES at most), 20 bytes per block and 4 per coefficient that is not 0. */
PN_EXPORT int pn_recode(const uint8_t *data, size_t size, int32_t segment_mcus, uint32_t *ends, int64_t segments,
                        pn_recoder *recoder, pn_recoded *made);

/* Decode the JPEG file `data` with the window decoder and compare it with the pixels `rgb`, width * height * 3 bytes:
 * PN_OK only if they are equal. */
PN_EXPORT int pn_same_pixels(const uint8_t *data, size_t size, int32_t width, int32_t height, const uint8_t *rgb,
                             pn_recoder *recoder);
