/* Strict parsing of the headers of a JPEG and its scans (ITU-T T.81, Annex B): ambiguous headers are unsupported. */
#include "jpeg_header.h"

#include <string.h>

#include "exif.h"

#define MAX_SEGMENTS 2000       /* Python allows 10,000; a photo has ten */
#define MAX_SEGMENTS_BETWEEN 16 /* of two scans: eight tables, and a restart interval */
#define MAX_MISSING_BITS 13
#define MAX_QUANTISER 2047
#define MAX_SIDE 65500 /* libjpeg's limit, in pixels */

enum { SOF0 = 0xC0, SOF1, SOF2, DHT = 0xC4, SOI = 0xD8, EOI = 0xD9, SOS = 0xDA, DQT = 0xDB, DRI = 0xDD };
enum { APP0 = 0xE0, APP1 = 0xE1, APP2 = 0xE2, APP14 = 0xEE, APP15 = 0xEF, COM = 0xFE };

const uint8_t pn_natural_order[256] = {0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18,
                                       11, 4,  5,  12, 19, 26, 33, 40, 48, 41, 34, 27, 20,
                                       13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43,
                                       36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45,
                                       38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63, [64 ... 255] = 64};

/* State needed only until the last segment is read. */
typedef struct {
  int frame, jfif, adobe, exif; /* adobe: the last transform, -1 for none */
  int adobe_rgb;                /* whether any transform is 0 */
  uint8_t ids[3];
  int icc_chunks, icc_seen; /* chunks of a colour profile: declared, and read so far */
} state;

static int word(const uint8_t *at) { return at[0] << 8 | at[1]; }

/* Read quantisation tables. Here and below, `body` and `size` describe the segment after its length field. */
static int read_quantisers(const uint8_t *body, size_t size, pn_jpeg *jpeg) {
  while (size > 0) {
    int wide = body[0] >> 4, number = body[0] & 15;
    size_t bytes = 1 + (wide ? 128 : 64);
    if (wide > 1 || number > 3 || size < bytes) return 0;
    for (int k = 0; k < 64; k++) {
      int value = wide ? word(body + 1 + 2 * k) : body[1 + k];
      if (value < 1 || value > MAX_QUANTISER) return 0;
      jpeg->quant[number][k] = (uint16_t)value;
    }
    body += bytes;
    size -= bytes;
  }
  return 1;
}

/* Whether the codes fit: not too many of a length, and none of all ones, in the order of T.81 C.2. */
static int is_valid_code(const pn_code *code, int total, int max_symbol) {
  int32_t next = 0;
  for (int length = 1; length <= 16; length++) {
    next += code->counts[length - 1];
    if (code->counts[length - 1] > 0 && next >= 1 << length) return 0;
    next <<= 1;
  }
  for (int i = 0; i < total; i++)
    if (code->symbols[i] > max_symbol) return 0;
  return total > 0;
}

static int read_codes(const uint8_t *body, size_t size, pn_jpeg *jpeg) {
  while (size > 0) {
    int is_ac = body[0] >> 4, number = body[0] & 15, total = 0;
    if (is_ac > 1 || number > 3 || size < 17) return 0;
    for (int i = 0; i < 16; i++) total += body[1 + i];
    if (total > 256 || (size_t)total > size - 17) return 0;
    pn_code *code = is_ac ? &jpeg->ac[number] : &jpeg->dc[number];
    memset(code, 0, sizeof *code);
    memcpy(code->counts, body + 1, 16);
    memcpy(code->symbols, body + 17, (size_t)total);
    if (!is_valid_code(code, total, is_ac ? 255 : 15)) return 0;
    code->defined = 1;
    body += 17 + total;
    size -= 17 + (size_t)total;
  }
  return 1;
}

/* Set the sizes that follow from the sampling factors. */
static int lay_out(pn_jpeg *jpeg) {
  const pn_component *luma = jpeg->component;
  if (jpeg->components == 1) {
    jpeg->component[0].h = jpeg->component[0].v = 1; /* T.81 A.2.2: blocks of a lone component are in rows */
  } else {
    if (luma->h == 3 || luma->v > 2 || (luma->h == 4 && luma->v > 1)) return 0;
    for (int c = 1; c < 3; c++)
      if (jpeg->component[c].h != 1 || jpeg->component[c].v != 1) return 0;
  }
  jpeg->mcu_width = 8 * luma->h;
  jpeg->mcu_height = 8 * luma->v;
  jpeg->mcus_wide = pn_divide_up(jpeg->width, jpeg->mcu_width);
  jpeg->mcus_high = pn_divide_up(jpeg->height, jpeg->mcu_height);
  for (int c = 0; c < jpeg->components; c++) {
    pn_component *component = &jpeg->component[c];
    component->wide = pn_divide_up(jpeg->width * component->h, luma->h);
    component->high = pn_divide_up(jpeg->height * component->v, luma->v);
  }
  return 1;
}

static int read_frame(const uint8_t *body, size_t size, pn_jpeg *jpeg, state *seen) {
  if (seen->frame || size < 6 || body[0] != 8) return 0;
  seen->frame = 1;
  jpeg->height = word(body + 1);
  jpeg->width = word(body + 3);
  jpeg->components = body[5];
  if (jpeg->height < 1 || jpeg->width < 1 || jpeg->height > MAX_SIDE || jpeg->width > MAX_SIDE) return 0;
  if (jpeg->components != 1 && jpeg->components != 3) return 0;
  if (size != 6 + 3 * (size_t)jpeg->components) return 0;
  for (int c = 0; c < jpeg->components; c++) {
    const uint8_t *at = body + 6 + 3 * c;
    pn_component *component = &jpeg->component[c];
    component->id = seen->ids[c] = at[0];
    component->h = at[1] >> 4;
    component->v = at[1] & 15;
    component->quant = at[2];
    if (component->h < 1 || component->h > 4 || component->v < 1 || component->v > 4 || at[2] > 3) return 0;
    for (int other = 0; other < c; other++)
      if (seen->ids[other] == at[0]) return 0;
  }
  return lay_out(jpeg);
}

/* Whether libjpeg treats three components as YCbCr without a warning. */
static int is_ycc(const state *seen) {
  if (seen->adobe >= 0) return seen->adobe == 1;
  return seen->jfif || memcmp(seen->ids, "RGB", 3) != 0;
}

/* Whether no decoder treats three components as RGB, however it guesses; same as dali_can_decode in Python. */
static int is_certainly_ycc(const state *seen) {
  return seen->adobe >= 0 ? !seen->adobe_rgb : seen->jfif || memcmp(seen->ids, "\1\2\3", 3) == 0;
}

/* Whether a scan is allowed in a progressive JPEG, by libjpeg's checks, and its tables are known. */
static int is_valid_band(const pn_jpeg *jpeg) {
  const pn_scan_header *scan = &jpeg->scan;
  if (scan->low > MAX_MISSING_BITS || (scan->high != 0 && scan->low != scan->high - 1)) return 0;
  if (scan->first > 0)
    return scan->count == 1 && scan->first <= scan->last && scan->last <= 63 &&
           jpeg->ac[jpeg->component[scan->component[0]].ac].defined;
  for (int i = 0; i < scan->count; i++)
    if (scan->high == 0 && !jpeg->dc[jpeg->component[scan->component[i]].dc].defined) return 0;
  return scan->last == 0;
}

/* Whether the scan of a baseline JPEG contains the whole image, and its tables are known. */
static int is_whole_scan(const pn_jpeg *jpeg) {
  const pn_scan_header *scan = &jpeg->scan;
  for (int c = 0; c < jpeg->components; c++)
    if (!jpeg->dc[jpeg->component[c].dc].defined || !jpeg->ac[jpeg->component[c].ac].defined) return 0;
  return scan->count == jpeg->components && scan->first == 0 && scan->last == 63 && scan->high == 0 && scan->low == 0;
}

static int read_scan(const uint8_t *body, size_t size, pn_jpeg *jpeg) {
  pn_scan_header *scan = &jpeg->scan;
  scan->count = size > 0 ? body[0] : 0;
  if (scan->count < 1 || scan->count > jpeg->components || size != 4 + 2 * (size_t)scan->count) return 0;
  for (int i = 0, c = 0; i < scan->count; i++, c++) {
    int id = body[1 + 2 * i], dc = body[2 + 2 * i] >> 4, ac = body[2 + 2 * i] & 15;
    while (c < jpeg->components && jpeg->component[c].id != id) c++;
    if (c == jpeg->components || dc > 3 || ac > 3) return 0;
    jpeg->component[c].dc = dc;
    jpeg->component[c].ac = ac;
    scan->component[i] = c;
  }
  const uint8_t *band = body + 1 + 2 * scan->count;
  scan->first = band[0];
  scan->last = band[1];
  scan->high = band[2] >> 4;
  scan->low = band[2] & 15;
  return jpeg->progressive ? is_valid_band(jpeg) : is_whole_scan(jpeg);
}

/* Read the first scan's header, which ends the image's header. */
static int read_first_scan(const uint8_t *body, size_t size, pn_jpeg *jpeg, const state *seen) {
  if (!read_scan(body, size, jpeg)) return 0;
  for (int c = 0; c < jpeg->components; c++)
    if (jpeg->quant[jpeg->component[c].quant][0] == 0) return 0;
  int is_grey = jpeg->components == 1;
  jpeg->certainly_ycc = is_grey || is_certainly_ycc(seen);
  return (is_grey || is_ycc(seen)) && seen->icc_seen == seen->icc_chunks;
}

/* Record a colour profile's chunk. libjpeg warns unless each occurs once; here they must also be in order. */
static int note_profile(const uint8_t *body, size_t size, state *seen) {
  if (size < 14 || memcmp(body, "ICC_PROFILE\0", 12) != 0) return 1;
  if (seen->icc_chunks == 0) seen->icc_chunks = body[13];
  seen->icc_seen++;
  return size > 14 && seen->icc_chunks == body[13] && seen->icc_seen == body[12];
}

/* Record an EXIF block. As in Python, it is the first segment with "Exif" among its first 64 bytes, counted from its
 * marker, so that the segment's length may be the first two letters. */
static void note_exif(const uint8_t *body, size_t size, pn_jpeg *jpeg, state *seen) {
  const uint8_t *segment = body - 4;
  size_t searched = size < 60 ? size + 4 : 64;
  for (size_t at = 2; !seen->exif && at + 6 <= searched; at++) {
    if (memcmp(segment + at, "Exif\0\0", 6) != 0) continue;
    seen->exif = 1;
    jpeg->orientation = at == 4 ? pn_exif_orientation(body, size) : 0;
    jpeg->exif_unsupported = jpeg->orientation == 0;
    if (jpeg->exif_unsupported) jpeg->orientation = 1;
  }
}

static int note_application(int marker, const uint8_t *body, size_t size, pn_jpeg *jpeg, state *seen) {
  if (marker == APP1) note_exif(body, size, jpeg, seen);
  if (marker == APP2) return note_profile(body, size, seen);
  if (marker == APP0 && size >= 14 && memcmp(body, "JFIF\0", 5) == 0) {
    seen->jfif = 1;
    return body[5] == 1; /* libjpeg warns about other major versions */
  }
  if (marker == APP14 && size >= 12 && memcmp(body, "Adobe", 5) == 0) {
    seen->adobe = body[11];
    seen->adobe_rgb |= body[11] == 0;
    return body[11] <= 1;
  }
  return 1;
}

static int read_restart_interval(const uint8_t *body, size_t size, pn_jpeg *jpeg) {
  jpeg->restart_interval = size == 2 ? word(body) : 0;
  return size == 2;
}

static int is_frame(int marker) { return marker == SOF0 || marker == SOF1 || marker == SOF2; }

static int read_segment(int marker, const uint8_t *body, size_t size, pn_jpeg *jpeg, state *seen) {
  if (marker == DQT) return read_quantisers(body, size, jpeg);
  if (marker == DHT) return read_codes(body, size, jpeg);
  if (is_frame(marker)) {
    jpeg->progressive = marker == SOF2;
    return read_frame(body, size, jpeg, seen);
  }
  if (marker == SOS) return read_first_scan(body, size, jpeg, seen);
  if (marker == DRI) return read_restart_interval(body, size, jpeg);
  if (marker >= APP0 && marker <= APP15) return note_application(marker, body, size, jpeg, seen);
  return marker == COM;
}

pn_result pn_parse_jpeg(const uint8_t *data, size_t size, pn_jpeg *jpeg) {
  state seen = {.adobe = -1};
  memset(jpeg, 0, sizeof *jpeg);
  jpeg->orientation = 1;
  if (size < 4 || data[0] != 0xFF || data[1] != SOI) return PN_UNSUPPORTED;
  size_t at = 2;
  for (int segment = 0; segment < MAX_SEGMENTS; segment++) {
    if (size - at < 4 || data[at] != 0xFF) return PN_UNSUPPORTED;
    int marker = data[at + 1];
    size_t length = (size_t)word(data + at + 2);
    if (length < 2 || length > size - at - 2) return PN_UNSUPPORTED;
    if (is_frame(marker)) jpeg->height_offset = at + 5;
    if (!read_segment(marker, data + at + 4, length - 2, jpeg, &seen)) return PN_UNSUPPORTED;
    at += 2 + length;
    if (marker == SOS) {
      jpeg->scan_offset = at;
      return PN_OK;
    }
  }
  return PN_UNSUPPORTED;
}

const uint8_t *pn_parse_next_scan(const uint8_t *at, const uint8_t *end, pn_jpeg *jpeg, int *ended) {
  *ended = end - at >= 2 && at[0] == 0xFF && at[1] == EOI;
  for (int segment = 0; segment < MAX_SEGMENTS_BETWEEN; segment++) {
    if (end - at < 4 || at[0] != 0xFF) return NULL;
    int marker = at[1], length = word(at + 2);
    if (length < 2 || length > end - at - 2) return NULL;
    const uint8_t *body = at + 4;
    size_t size = (size_t)length - 2;
    at += 2 + length;
    if (marker == SOS) return read_scan(body, size, jpeg) ? at : NULL;
    if (!(marker == DHT ? read_codes(body, size, jpeg) : marker == DRI && read_restart_interval(body, size, jpeg)))
      return NULL;
  }
  return NULL;
}

PN_EXPORT int pn_jpeg_info(const uint8_t *data, size_t size, int64_t *info);
/* For tests: read a header and return width, height, components, MCU width and height, restart interval, orientation,
 * whether Python must read it, offsets of the height and of the scan. */
int pn_jpeg_info(const uint8_t *data, size_t size, int64_t *info) {
  pn_jpeg jpeg;
  pn_result result = pn_parse_jpeg(data, size, &jpeg);
  if (result != PN_OK) return result;
  const int32_t found[8] = {jpeg.width,      jpeg.height,           jpeg.components,  jpeg.mcu_width,
                            jpeg.mcu_height, jpeg.restart_interval, jpeg.orientation, jpeg.exif_unsupported};
  for (int i = 0; i < 8; i++) info[i] = found[i];
  info[8] = (int64_t)jpeg.height_offset;
  info[9] = (int64_t)jpeg.scan_offset;
  return PN_OK;
}
