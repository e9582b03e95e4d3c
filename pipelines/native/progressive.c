/* The scans of a progressive JPEG (T.81 Annex G). Every scan is read to its end, because libjpeg does so too and
 * reports damage anywhere in it; outside the window only masks are kept, which show where a later scan has bits. */
#include "progressive.h"

#include "bands.h"

#define MAX_SCANS 32 /* Python accepts at least as many; see check_scans in header.py */
#define UNKNOWN 255

/* The number of missing low bits of each coefficient. */
typedef struct {
  uint8_t missing[3][64];
} progress;

/* Record the bits that a scan gives; 0 if libjpeg would warn, or replace known bits. */
static int note_scan(progress *known, const pn_scan_header *scan) {
  for (int i = 0; i < scan->count; i++) {
    uint8_t *missing = known->missing[scan->component[i]];
    if (scan->first > 0 && missing[0] == UNKNOWN) return 0;
    for (int k = scan->first; k <= scan->last; k++) {
      if (missing[k] != (scan->high == 0 ? UNKNOWN : scan->high)) return 0;
      missing[k] = (uint8_t)scan->low;
    }
  }
  return 1;
}

/* Whether all is known. Else libjpeg would smooth the image, see smoothing_ok in its jdcoefct.c. */
static int is_complete(const progress *known, int components) {
  for (int c = 0; c < components; c++)
    for (int k = 0; k < 64; k++)
      if (known->missing[c][k] != 0) return 0;
  return 1;
}

int pn_has_complete_scans(const pn_jpeg *jpeg, const pn_scan *scan) {
  pn_jpeg now = *jpeg;
  progress known;
  const uint8_t *at = scan->data, *end = at + scan->size;
  memset(&known, UNKNOWN, sizeof known);
  for (int scans = 0, ended = 0; scans < MAX_SCANS; scans++) {
    if (!note_scan(&known, &now.scan)) return 0;
    at = pn_find_marker(at, end, now.restart_interval > 0);
    if (at == NULL) return 0;
    at = pn_parse_next_scan(at, end, &now, &ended);
    if (ended) return is_complete(&known, jpeg->components);
    if (at == NULL) return 0;
  }
  return 0;
}

typedef struct {
  pn_band_table tables[3]; /* of the components of a scan of DC coefficients, or one */
  pn_zero_places zeros;
  uint8_t bytes[PN_SCAN_BUFFER];
} workspace;

/* The current scan. */
typedef struct {
  const pn_coefficient_planes *planes;
  const pn_jpeg *jpeg; /* with this scan's header and tables */
  workspace *space;
  int16_t *values; /* a row of DC coefficients */
  pn_dc_scan dc;
  int32_t h[3], v[3]; /* blocks per MCU, for each component */
  pn_band band;
} reader;

static size_t mask_bytes(const pn_coefficient_plane *plane) {
  return pn_align((size_t)plane->wide * (size_t)plane->high * sizeof *plane->masks);
}

static size_t block_bytes(const pn_coefficient_plane *plane) {
  size_t wide = (size_t)(plane->plane->column_end - plane->plane->column);
  return wide * (size_t)(plane->plane->row_end - plane->plane->row) * 64 * sizeof *plane->blocks;
}

void pn_plan_coefficients(const pn_planes *planes, pn_coefficient_planes *found) {
  memset(found, 0, sizeof *found);
  found->jpeg = planes->jpeg;
  found->avx2 = planes->avx2;
  for (int c = 0; c < planes->count; c++) {
    found->plane[c].plane = &planes->plane[c];
    found->plane[c].wide = pn_divide_up(planes->plane[c].wide, 8);
    found->plane[c].high = pn_divide_up(planes->plane[c].high, 8);
  }
}

static size_t value_bytes(const pn_jpeg *jpeg) {
  return pn_align((size_t)jpeg->mcus_wide * PN_MOST_MCU_BLOCKS * sizeof(int16_t));
}

size_t pn_size_of_coefficients(const pn_coefficient_planes *planes) {
  size_t size = pn_align(sizeof(workspace)) + value_bytes(planes->jpeg);
  for (int c = 0; c < planes->jpeg->components; c++)
    size += mask_bytes(&planes->plane[c]) + block_bytes(&planes->plane[c]);
  return size;
}

static int is_wanted_row(const pn_plane *plane, int32_t y) { return y >= plane->row && y < plane->row_end; }

static int16_t *row_of_blocks(const pn_coefficient_plane *plane, int32_t y) {
  const pn_plane *wanted = plane->plane;
  return plane->blocks + 64 * (ptrdiff_t)(y - wanted->row) * (wanted->column_end - wanted->column);
}

const int16_t *pn_find_blocks(const pn_coefficient_plane *plane, int32_t row) { return row_of_blocks(plane, row); }

const uint64_t *pn_find_masks(const pn_coefficient_plane *plane, int32_t row) {
  return plane->masks + (size_t)row * (size_t)plane->wide + plane->plane->column;
}

/* Store the values of MCUs [mcu, mcu_end) that the window needs; `from` is the first of the component's values. */
static void put_dc(const reader *scan, int i, int32_t row, int32_t mcu, int32_t mcu_end, const int16_t *from) {
  const pn_coefficient_plane *plane = &scan->planes->plane[scan->jpeg->scan.component[i]];
  const pn_plane *wanted = plane->plane;
  int32_t h = scan->h[i], v = scan->v[i];
  for (int32_t y = row * v; y < (row + 1) * v; y++, from += h) {
    if (!is_wanted_row(wanted, y)) continue;
    int16_t *blocks = row_of_blocks(plane, y);
    int32_t end = pn_min(wanted->column_end, mcu_end * h);
    for (int32_t x = pn_max(wanted->column, mcu * h); x < end; x++) {
      int16_t *to = blocks + 64 * (ptrdiff_t)(x - wanted->column);
      to[0] = (int16_t)(to[0] | from[(ptrdiff_t)(x / h - mcu) * scan->dc.blocks + x % h]);
    }
  }
}

/* Read MCUs [mcu, mcu_end) of row `row` of a scan of DC coefficients. */
static int read_dc(reader *scan, pn_bits *bits, int32_t row, int32_t mcu, int32_t mcu_end) {
  const int16_t *from = scan->values;
  if (!(scan->jpeg->scan.high > 0 ? pn_refine_dc(bits, &scan->dc, scan->values, mcu_end - mcu)
                                  : pn_read_dc(bits, &scan->dc, scan->values, mcu_end - mcu)))
    return 0;
  for (int i = 0; i < scan->jpeg->scan.count; from += scan->h[i] * scan->v[i], i++)
    put_dc(scan, i, row, mcu, mcu_end, from);
  return 1;
}

/* Read blocks [x, end) of row `y` of a band; `blocks` as in pn_read_band. */
static int read_part(reader *scan, pn_bits *bits, int32_t x, int32_t end, int32_t y, int16_t *blocks) {
  const pn_coefficient_plane *plane = &scan->planes->plane[scan->jpeg->scan.component[0]];
  uint64_t *masks = plane->masks + (size_t)y * (size_t)plane->wide + x;
  if (x >= end) return 1;
  if (scan->jpeg->scan.high > 0)
    return (scan->planes->avx2 ? pn_refine_band_fast : pn_refine_band)(bits, &scan->band, masks, blocks, end - x);
  return (scan->planes->avx2 ? pn_read_band_fast : pn_read_band)(bits, &scan->band, masks, blocks, end - x);
}

static int32_t clip(int32_t value, int32_t low, int32_t high) { return pn_max(low, pn_min(value, high)); }

/* Read blocks [x, end) of row `y` of a band: before, in and after the window. */
static int read_band(reader *scan, pn_bits *bits, int32_t y, int32_t x, int32_t end) {
  const pn_coefficient_plane *plane = &scan->planes->plane[scan->jpeg->scan.component[0]];
  const pn_plane *wanted = plane->plane;
  if (!is_wanted_row(wanted, y)) return read_part(scan, bits, x, end, y, NULL);
  int32_t first = clip(wanted->column, x, end), behind = clip(wanted->column_end, x, end);
  int16_t *blocks = row_of_blocks(plane, y) + 64 * (ptrdiff_t)(first - wanted->column);
  return read_part(scan, bits, x, first, y, NULL) && read_part(scan, bits, first, behind, y, blocks) &&
         read_part(scan, bits, behind, end, y, NULL);
}

/* Begin a scan of DC coefficients. */
static void begin_dc(reader *scan) {
  const pn_jpeg *jpeg = scan->jpeg;
  const pn_scan_header *header = &jpeg->scan;
  scan->dc = (pn_dc_scan){.tables = scan->space->tables, .low = header->low};
  for (int i = 0; i < header->count; i++) {
    const pn_component *component = &jpeg->component[header->component[i]];
    scan->h[i] = header->count > 1 ? component->h : 1;
    scan->v[i] = header->count > 1 ? component->v : 1;
    for (int n = scan->h[i] * scan->v[i]; n > 0; n--) scan->dc.component[scan->dc.blocks++] = (uint8_t)i;
    if (header->high == 0) pn_make_band_table(&jpeg->dc[component->dc], 0, 0, header->low, &scan->space->tables[i]);
  }
}

/* Begin a scan of a band. */
static void begin_band(reader *scan) {
  const pn_jpeg *jpeg = scan->jpeg;
  const pn_scan_header *header = &jpeg->scan;
  pn_band_table *table = scan->space->tables;
  scan->band = (pn_band){table, &scan->space->zeros, header->first, header->last, header->low, 0};
  pn_make_band_table(&jpeg->ac[jpeg->component[header->component[0]].ac], 1, header->high > 0, header->low, table);
}

/* Read a scan's data and return where it ends, at a marker; NULL for damaged data. */
static const uint8_t *read_scan(reader *scan, const uint8_t *at, const uint8_t *end) {
  const pn_jpeg *jpeg = scan->jpeg;
  const pn_coefficient_plane *lone = &scan->planes->plane[jpeg->scan.component[0]]; /* its MCUs are blocks */
  int is_dc = jpeg->scan.first == 0, is_lone = jpeg->scan.count == 1;
  int32_t wide = is_lone ? lone->wide : jpeg->mcus_wide, high = is_lone ? lone->high : jpeg->mcus_high;
  int32_t interval = jpeg->restart_interval, left = interval, restarts = 0;
  pn_bits bits;
  scan->band.left = 0;
  (is_dc ? begin_dc : begin_band)(scan);
  pn_bits_start(&bits, at, (size_t)(end - at), scan->space->bytes);
  for (int32_t row = 0; row < high; row++) {
    for (int32_t mcu = 0, run; mcu < wide; mcu += run) {
      if (interval > 0 && left == 0) {
        if (scan->band.left > 0 || !pn_bits_restart(&bits, restarts++)) return NULL;
        memset(scan->dc.predictions, 0, sizeof scan->dc.predictions);
        left = interval;
      }
      run = wide - mcu;
      if (interval > 0 && run > left) run = left;
      left -= interval > 0 ? run : 0;
      if (!(is_dc ? read_dc : read_band)(scan, &bits, row, mcu, mcu + run)) return NULL;
    }
  }
  return scan->band.left == 0 && pn_bits_done(&bits) ? bits.at : NULL;
}

int pn_read_coefficients(pn_coefficient_planes *planes, const pn_scan *scan, uint8_t *memory) {
  pn_jpeg now = *planes->jpeg;
  reader reading = {.planes = planes, .jpeg = &now, .space = (workspace *)memory};
  const uint8_t *at = scan->data, *end = at + scan->size;
  memset(memory, 0, pn_size_of_coefficients(planes));
  pn_list_zero_places(reading.space->zeros);
  memory += pn_align(sizeof(workspace));
  reading.values = (int16_t *)memory;
  memory += value_bytes(&now);
  for (int c = 0; c < now.components; c++) {
    pn_coefficient_plane *plane = &planes->plane[c];
    plane->masks = (uint64_t *)memory;
    plane->blocks = (int16_t *)(memory + mask_bytes(plane));
    memory += mask_bytes(plane) + block_bytes(plane);
  }
  for (int ended = 0; !ended;) {
    at = read_scan(&reading, at, end);
    if (at == NULL) return 0;
    at = pn_parse_next_scan(at, end, &now, &ended);
    if (at == NULL && !ended) return 0;
  }
  return 1;
}
