/* Lossless re-coding of a JPEG. The first pass lists the symbols of all blocks, the second writes them with optimal
 * codes. In a baseline JPEG the value bits after a symbol's code stay the same, except for DC coefficients, which are
 * differences from the segment's previous block. The symbols of a progressive JPEG are made from its coefficients. */
#include "recode.h"

#include "huffman_write.h"
#include "progressive.h"
#include "window.h"

#define MAX_BLOCKS 6     /* per MCU */
#define READ_BEYOND 1024 /* symbols that may be read beyond the end of damaged data before pn_bits_ready notices */
#define MAX_HEADER 1600  /* three quantisation tables of 16 bits, four Huffman tables, and 80 bytes */

enum { SOF0 = 0xC0, SOF1 = 0xC1, DHT = 0xC4, RST0 = 0xD0, SOI = 0xD8, EOI, SOS, DQT, DRI = 0xDD, APP0 = 0xE0 };

typedef struct {
  pn_jpeg jpeg;
  pn_symbol_table dc[3], ac[3]; /* of each component */
  int component[MAX_BLOCKS];    /* of each block of an MCU */
  int num_blocks, avx2;
  pn_predictions before[3];
  pn_code codes[PN_SYMBOL_TABLES];
  uint32_t counts[PN_SYMBOL_TABLES][256];
  pn_code_words words;
  uint8_t bytes[PN_SCAN_BUFFER];
} workspace;

static void plan(workspace *space) {
  const pn_jpeg *jpeg = &space->jpeg;
  space->num_blocks = 0;
  memset(space->bytes, 0, sizeof space->bytes); /* as in pn_decode_window */
  for (int c = 0; c < jpeg->components; c++) {
    const pn_component *component = &jpeg->component[c];
    pn_make_symbol_table(&jpeg->dc[component->dc], c > 0, &space->dc[c]);
    pn_make_symbol_table(&jpeg->ac[component->ac], 2 + (c > 0), &space->ac[c]);
    for (int i = 0; i < component->h * component->v; i++) space->component[space->num_blocks++] = c;
  }
}

static pn_symbol *read_mcu(workspace *space, pn_bits *bits, pn_symbol *to) {
  for (int i = 0; i < space->num_blocks && to != NULL; i++) {
    int c = space->component[i];
    to = space->avx2 ? pn_read_symbols_fast(bits, &space->dc[c], &space->ac[c], &space->before[c], to)
                     : pn_read_symbols(bits, &space->dc[c], &space->ac[c], &space->before[c], to);
  }
  return to;
}

/* Read the symbols of all segments of the copy; `ends` receives their number up to the end of each segment. */
static int read_symbols(workspace *space, const uint8_t *scan, size_t size, int32_t segment_mcus, pn_symbol *symbols,
                        uint32_t *ends) {
  pn_symbol *to = symbols;
  int32_t interval = space->jpeg.restart_interval, left = interval, restarts = 0, segment_left = segment_mcus;
  pn_bits bits;
  pn_bits_start(&bits, scan, size, space->bytes);
  memset(space->before, 0, sizeof space->before);
  for (int64_t mcus = (int64_t)space->jpeg.mcus_wide * space->jpeg.mcus_high; mcus > 0; mcus--) {
    if (interval > 0 && left-- == 0) {
      if (!pn_bits_restart(&bits, restarts++)) return 0;
      for (int c = 0; c < 3; c++) space->before[c].read = 0;
      left = interval - 1;
    }
    if (segment_left-- == 0) {
      *ends++ = (uint32_t)(to - symbols);
      for (int c = 0; c < 3; c++) space->before[c].written = 0;
      segment_left = segment_mcus - 1;
    }
    if (!pn_bits_ready(&bits) || (to = read_mcu(space, &bits, to)) == NULL) return 0;
  }
  *ends = (uint32_t)(to - symbols);
  return pn_bits_done(&bits) && bits.marker == EOI;
}

/* Count the symbols, alternating between two tables: a processor waits if it counts the same one twice in a row. */
static void count_symbols(workspace *space, const pn_symbol *symbols, const pn_symbol *end) {
  const uint32_t mask = (1u << PN_SYMBOL_BITS) - 1;
  uint32_t *counts = &space->counts[0][0], *more = space->words; /* not in use yet */
  memset(space->counts, 0, sizeof space->counts);
  memset(space->words, 0, sizeof space->words);
  for (; end - symbols >= 2; symbols += 2) {
    counts[symbols[0] & mask]++;
    more[symbols[1] & mask]++;
  }
  if (symbols < end) counts[*symbols & mask]++;
  for (uint32_t i = 0; i <= mask; i++) counts[i] += more[i];
}

/* Find the codes; returns an upper bound of the coded symbols' size in bytes, without stuffed zeros and markers. */
static uint64_t find_codes(workspace *space) {
  uint64_t bits = 0;
  memset(space->words, 0, sizeof space->words);
  for (int number = 0; number < PN_SYMBOL_TABLES; number++) {
    if (space->jpeg.components == 1 && number & 1) continue;
    pn_optimal_code(space->counts[number], &space->codes[number]);
    pn_set_code_words(&space->codes[number], number, space->words);
    for (int i = 0; i < 256; i++) bits += (uint64_t)space->counts[number][i] * (space->words[number << 8 | i] & 31);
  }
  return bits / 8 + 1;
}

static uint8_t *put_word(uint8_t *to, int value) {
  *to++ = (uint8_t)(value >> 8);
  *to++ = (uint8_t)value;
  return to;
}

/* Begin a segment of the header; end_segment writes its length. */
static uint8_t *begin_segment(uint8_t *to, int marker) {
  *to++ = 0xFF;
  *to++ = (uint8_t)marker;
  return to + 2;
}

static uint8_t *end_segment(uint8_t *begin, uint8_t *end) {
  put_word(begin - 2, (int)(end - begin + 2));
  return end;
}

static uint8_t *put_quantisers(const pn_jpeg *jpeg, uint8_t *to, int *any_wide) {
  uint8_t *begin = to = begin_segment(to, DQT);
  unsigned put = 0;
  for (int c = 0; c < jpeg->components; c++) {
    int number = jpeg->component[c].quant, wide = 0;
    if (put >> number & 1) continue;
    put |= 1u << number;
    for (int k = 0; k < 64; k++) wide |= jpeg->quant[number][k] > 255;
    *to++ = (uint8_t)(wide << 4 | number);
    for (int k = 0; k < 64; k++) {
      if (wide) *to++ = (uint8_t)(jpeg->quant[number][k] >> 8);
      *to++ = (uint8_t)jpeg->quant[number][k];
    }
    *any_wide |= wide;
  }
  return end_segment(begin, to);
}

static uint8_t *put_codes(const workspace *space, uint8_t *to) {
  uint8_t *begin = to = begin_segment(to, DHT);
  for (int number = 0; number < PN_SYMBOL_TABLES; number++) {
    const pn_code *code = &space->codes[number];
    if (space->jpeg.components == 1 && number & 1) continue;
    size_t total = 0;
    for (int i = 0; i < 16; i++) total += code->counts[i];
    *to++ = (uint8_t)((number & 2) << 3 | (number & 1)); /* AC or not, then whether it is for chroma */
    memcpy(to, code->counts, 16);
    memcpy(to + 16, code->symbols, total);
    to += 16 + total;
  }
  return end_segment(begin, to);
}

/* Write everything before the entropy-coded data. */
static uint8_t *put_header(const workspace *space, int32_t segment_mcus, uint8_t *to) {
  static const uint8_t start[20] = {0xFF, SOI, 0xFF, APP0, 0, 16, 'J', 'F', 'I', 'F', 0, 1, 1, 0, 0, 1, 0, 1, 0, 0};
  const pn_jpeg *jpeg = &space->jpeg;
  int wide = 0;
  memcpy(to, start, sizeof start);
  to = put_quantisers(jpeg, to + sizeof start, &wide);
  uint8_t *begin = to = begin_segment(to, wide ? SOF1 : SOF0);
  *to++ = 8;
  to = put_word(put_word(to, jpeg->height), jpeg->width);
  *to++ = (uint8_t)jpeg->components;
  for (int c = 0; c < jpeg->components; c++) {
    const pn_component *component = &jpeg->component[c];
    *to++ = (uint8_t)(c + 1);
    *to++ = (uint8_t)(component->h << 4 | component->v);
    *to++ = (uint8_t)component->quant;
  }
  to = put_codes(space, end_segment(begin, to));
  begin = begin_segment(to, DRI);
  begin = to = begin_segment(end_segment(begin, put_word(begin, segment_mcus)), SOS);
  *to++ = (uint8_t)jpeg->components;
  for (int c = 0; c < jpeg->components; c++) {
    *to++ = (uint8_t)(c + 1);
    *to++ = c > 0 ? 0x11 : 0;
  }
  *to++ = 0;
  *to++ = 63;
  *to++ = 0;
  return end_segment(begin, to);
}

/* Write the segments; `plain` has room for the longest without stuffed zeros. Returns the end of the file. */
static uint8_t *write_segments(const workspace *space, const pn_symbol *symbols, uint32_t *ends, int64_t segments,
                               uint8_t *plain, uint8_t *to) {
  const uint8_t *scan = to;
  const pn_symbol *from = symbols;
  for (int64_t i = 0; i < segments; i++) {
    const pn_symbol *end = symbols + ends[i];
    uint8_t *plain_end = space->avx2 ? pn_write_symbols_fast(from, end, space->words, plain)
                                     : pn_write_symbols(from, end, space->words, plain);
    to = pn_stuff(plain, (size_t)(plain_end - plain), to);
    int is_last = i == segments - 1;
    *to++ = 0xFF;
    *to++ = (uint8_t)(is_last ? EOI : RST0 + (i & 7));
    ends[i] = (uint32_t)(to - scan) - (is_last ? 2 : 0);
    from = end;
  }
  return to;
}

/* Return how many blocks the MCUs have. */
static uint64_t count_blocks(const pn_jpeg *jpeg) {
  uint64_t blocks = 0;
  for (int c = 0; c < jpeg->components; c++) blocks += (uint64_t)(jpeg->component[c].h * jpeg->component[c].v);
  return blocks * (uint64_t)jpeg->mcus_wide * (uint64_t)jpeg->mcus_high;
}

static pn_symbol *find_symbols(workspace *space) {
  return (pn_symbol *)((uint8_t *)space + pn_align(sizeof(workspace)));
}

/* Reserve a workspace with room for symbols. */
static pn_result start(const pn_jpeg *jpeg, uint64_t most_symbols, pn_recoder *recoder) {
  if (most_symbols > UINT32_MAX / sizeof(pn_symbol)) return PN_UNSUPPORTED;
  size_t size = pn_align(sizeof(workspace)) + (size_t)most_symbols * sizeof(pn_symbol);
  workspace *space = (workspace *)pn_reserve(&recoder->scratch, size);
  if (space == NULL) return PN_NO_MEMORY;
  space->jpeg = *jpeg;
  space->avx2 = pn_has_avx2();
  return PN_OK;
}

static pn_result list_baseline(const pn_jpeg *jpeg, const pn_scan *scan, int32_t segment_mcus, uint32_t *ends,
                               pn_recoder *recoder) {
  uint64_t by_size = 8 * (uint64_t)scan->size, by_blocks = count_blocks(jpeg) * PN_BLOCK_SYMBOLS;
  pn_result result = start(jpeg, (by_size < by_blocks ? by_size : by_blocks) + READ_BEYOND, recoder);
  if (result != PN_OK) return result;
  workspace *space = (workspace *)recoder->scratch.data;
  plan(space);
  return read_symbols(space, scan->data, scan->size, segment_mcus, find_symbols(space), ends) ? PN_OK : PN_UNSUPPORTED;
}

/* Return a symbol with a value of `extra` bits. */
static pn_symbol make_symbol(uint32_t symbol, int extra, int32_t value) {
  uint32_t raw = (uint32_t)(value < 0 ? value + (1 << extra) - 1 : value);
  return raw << PN_SYMBOL_BITS | symbol | (uint32_t)extra;
}

/* List the symbols of a block, at most PN_BLOCK_SYMBOLS (T.81 F.1.2). `mask`: see pn_read_band. NULL for a coefficient
 * that a baseline JPEG cannot hold. */
static pn_symbol *list_block(const int16_t *block, uint64_t mask, int is_chroma, int32_t *before, pn_symbol *to) {
  const uint32_t dc = is_chroma ? 1u << 8 : 0, ac = dc | 2u << 8;
  int32_t difference = block[0] - *before;
  int last = 0, extra = pn_value_bits(difference);
  *before = block[0];
  if (extra > PN_MAX_DC_BITS) return NULL;
  *to++ = make_symbol(dc, extra, difference);
  for (mask &= ~(uint64_t)1; mask != 0; mask &= mask - 1) {
    int k = __builtin_ctzll(mask), run = k - last - 1;
    int32_t value = block[pn_natural_order[k]];
    extra = pn_value_bits(value);
    if (extra < 1 || extra > PN_MAX_AC_BITS) return NULL;
    for (; run > 15; run -= 16) *to++ = ac | 0xF0;
    *to++ = make_symbol(ac | (uint32_t)run << 4, extra, value);
    last = k;
  }
  if (last < 63) *to++ = ac; /* the end of the block */
  return to;
}

/* List the symbols of an MCU. Padding blocks at the image's edges do not have AC coefficients, and repeat the DC of the
 * previous block. */
static pn_symbol *list_mcu(const pn_coefficient_planes *planes, int32_t row, int32_t mcu, int32_t *before,
                           pn_symbol *to) {
  static const int16_t nothing[64];
  for (int c = 0; c < planes->jpeg->components; c++) {
    const pn_coefficient_plane *plane = &planes->plane[c];
    int32_t h = planes->jpeg->component[c].h, v = planes->jpeg->component[c].v;
    for (int32_t y = row * v; y < (row + 1) * v; y++) {
      for (int32_t x = mcu * h; x < (mcu + 1) * h && to != NULL; x++) {
        int is_there = x < plane->wide && y < plane->high;
        int32_t zero = 0;
        to = is_there ? list_block(pn_find_blocks(plane, y) + 64 * (ptrdiff_t)x, pn_find_masks(plane, y)[x], c > 0,
                                   &before[c], to)
                      : list_block(nothing, 0, c > 0, &zero, to);
      }
    }
  }
  return to;
}

/* List the symbols of all segments of the copy, as read_symbols does. */
static int list_symbols(const pn_coefficient_planes *planes, int32_t segment_mcus, pn_symbol *symbols, uint32_t *ends) {
  pn_symbol *to = symbols;
  int32_t before[3] = {0, 0, 0}, left = segment_mcus;
  for (int32_t row = 0; row < planes->jpeg->mcus_high; row++) {
    for (int32_t mcu = 0; mcu < planes->jpeg->mcus_wide; mcu++) {
      if (left-- == 0) {
        *ends++ = (uint32_t)(to - symbols);
        memset(before, 0, sizeof before);
        left = segment_mcus - 1;
      }
      to = list_mcu(planes, row, mcu, before, to);
      if (to == NULL) return 0;
    }
  }
  *ends = (uint32_t)(to - symbols);
  return 1;
}

/* Return how many symbols blocks can have: one per coefficient, runs of 16 zeros, the DC coefficient and the end. */
static uint64_t count_symbols_at_most(const pn_coefficient_planes *planes) {
  uint64_t most = count_blocks(planes->jpeg) * 5;
  for (int c = 0; c < planes->jpeg->components; c++) {
    size_t blocks = (size_t)planes->plane[c].wide * (size_t)planes->plane[c].high;
    for (size_t i = 0; i < blocks; i++) most += (uint64_t)__builtin_popcountll(planes->plane[c].masks[i]);
  }
  return most;
}

static pn_result list_progressive(const pn_jpeg *jpeg, const pn_scan *scan, int32_t segment_mcus, uint32_t *ends,
                                  pn_recoder *recoder) {
  pn_planes whole;
  pn_coefficient_planes planes;
  pn_plan_planes(jpeg, (pn_window){0, 0, jpeg->width, jpeg->height}, &whole);
  pn_plan_coefficients(&whole, &planes);
  size_t size = pn_size_of_coefficients(&planes);
  if (size > PN_MAX_COEFFICIENT_BYTES || !pn_has_complete_scans(jpeg, scan)) return PN_UNSUPPORTED;
  uint8_t *memory = pn_reserve(&recoder->pixels, size);
  if (memory == NULL) return PN_NO_MEMORY;
  if (!pn_read_coefficients(&planes, scan, memory)) return PN_UNSUPPORTED;
  pn_result result = start(jpeg, count_symbols_at_most(&planes), recoder);
  if (result != PN_OK) return result;
  pn_symbol *symbols = find_symbols((workspace *)recoder->scratch.data);
  result = list_symbols(&planes, segment_mcus, symbols, ends) ? PN_OK : PN_UNSUPPORTED;
  pn_trim(&recoder->pixels);
  return result;
}

int pn_recode(const uint8_t *data, size_t size, int32_t segment_mcus, uint32_t *ends, int64_t segments,
              pn_recoder *recoder, pn_recoded *made) {
  pn_jpeg jpeg;
  if (pn_parse_jpeg(data, size, &jpeg) != PN_OK) return PN_UNSUPPORTED;
  if (segment_mcus < 1 || segment_mcus > 0xFFFF) return PN_UNSUPPORTED;
  int64_t mcus = (int64_t)jpeg.mcus_wide * jpeg.mcus_high;
  if (segments != (mcus + segment_mcus - 1) / segment_mcus) return PN_UNSUPPORTED;
  const pn_scan scan = {.data = data + jpeg.scan_offset, .size = size - jpeg.scan_offset, .whole_file = 1};
  if (count_blocks(&jpeg) > 8 * (uint64_t)scan.size) return PN_UNSUPPORTED; /* a block takes at least one bit */
  pn_result result = (jpeg.progressive ? list_progressive : list_baseline)(&jpeg, &scan, segment_mcus, ends, recoder);
  if (result != PN_OK) return result;
  workspace *space = (workspace *)recoder->scratch.data;
  const pn_symbol *symbols = find_symbols(space);
  count_symbols(space, symbols, symbols + ends[segments - 1]);
  uint64_t plain = find_codes(space) + (uint64_t)segments + PN_WRITE_SLACK; /* each segment's last byte is filled */
  uint64_t whole = pn_align(MAX_HEADER + 2 * plain + 2 * (uint64_t)segments + PN_WRITE_SLACK);
  if (whole > UINT32_MAX) return PN_UNSUPPORTED;
  uint8_t *copy = pn_reserve(&recoder->copy, (size_t)(whole + plain));
  if (copy == NULL) return PN_NO_MEMORY;
  uint8_t *coded = put_header(space, segment_mcus, copy);
  made->scan_offset = (uint64_t)(coded - copy);
  made->size = (uint64_t)(write_segments(space, symbols, ends, segments, copy + whole, coded) - copy);
  return PN_OK;
}

int pn_same_pixels(const uint8_t *data, size_t size, int32_t width, int32_t height, const uint8_t *rgb,
                   pn_recoder *recoder) {
  pn_jpeg jpeg;
  if (pn_parse_jpeg(data, size, &jpeg) != PN_OK || jpeg.width != width || jpeg.height != height) return PN_UNSUPPORTED;
  pn_scan scan = {.data = data + jpeg.scan_offset, .size = size - jpeg.scan_offset, .whole_file = 1};
  size_t stride = 3 * (size_t)width;
  uint8_t *found = pn_reserve(&recoder->pixels, stride * (size_t)height);
  if (found == NULL) return PN_NO_MEMORY;
  pn_window all = {0, 0, width, height};
  pn_kept_tables kept;
  memset(kept.codes, 0, sizeof kept.codes);
  pn_result result = pn_decode_window(&jpeg, &scan, all, found, stride, &recoder->scratch, &kept);
  return result == PN_OK && memcmp(found, rgb, stride * (size_t)height) != 0 ? PN_UNSUPPORTED : (int)result;
}
