/* Feeds damaged JPEGs to the window decoder: `fuzz MUTATED TRUNCATED SEED FILE...`. Built with sanitizers, which end it
 * at the first fault; inputs and pixels lie in memory of exactly their size. Prints how many were decoded. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "recode.h"
#include "window.h"

#define MAX_SEEDS 256

typedef struct {
  uint8_t *data;
  size_t size;
} bytes;

static bytes seeds[MAX_SEEDS];
static size_t num_seeds;
static uint64_t state;

static uint32_t draw(uint32_t below) { /* xorshift64* */
  state ^= state >> 12;
  state ^= state << 25;
  state ^= state >> 27;
  return (uint32_t)((state * 2685821657736338717ull) >> 33) % (below == 0 ? 1 : below);
}

static bytes read_file(const char *path) {
  FILE *file = fopen(path, "rb");
  if (file == NULL) exit(2);
  fseek(file, 0, SEEK_END);
  bytes found = {NULL, (size_t)ftell(file)};
  rewind(file);
  found.data = malloc(found.size);
  if (found.data == NULL || fread(found.data, 1, found.size, file) != found.size) exit(2);
  fclose(file);
  return found;
}

/* Return a damaged copy: flips, stomps, cuts, gaps, splices, header fields, stray markers. */
static bytes damaged(bytes from) {
  const bytes *other = &seeds[draw((uint32_t)num_seeds)];
  size_t at = draw((uint32_t)from.size), end = from.size;
  uint8_t *data = malloc(from.size + other->size);
  memcpy(data, from.data, from.size);
  uint32_t header = from.size < 700 ? (uint32_t)from.size : 700, kind = draw(8);
  for (uint32_t times = 1 + (draw(3) == 0 ? draw(8) : 0); times > 0; times--) {
    size_t place = draw((uint32_t)from.size);
    if (kind == 0) data[place] ^= (uint8_t)(1 << draw(8));
    if (kind == 1) data[place] = (uint8_t)draw(256);
    if (kind == 2) data[draw(header)] = (uint8_t)(draw(2) ? draw(256) : (draw(2) ? 0xFF : draw(3)));
    if (kind == 3 && place + 1 < from.size) data[place] = 0xFF, data[place + 1] = (uint8_t)draw(256);
  }
  if (kind == 4) end = at;
  if (kind == 5) {
    size_t gap = 1 + draw(60);
    if (at + gap < end) memmove(data + at, data + at + gap, end - at - gap), end -= gap;
  }
  if (kind == 6) {
    size_t start = draw((uint32_t)other->size);
    memcpy(data + at, other->data + start, other->size - start);
    end = at + other->size - start;
  }
  if (kind == 7) {
    size_t length = draw(200), source = draw((uint32_t)from.size);
    if (at + length <= end && source + length <= end) memmove(data + at, data + source, length);
  }
  bytes found = {malloc(end + (end == 0)), end};
  memcpy(found.data, data, end);
  free(data);
  return found;
}

/* Return a number of [0, below), half of the time one at an end. */
static int32_t place(int32_t below) {
  uint32_t edge = draw(4);
  return edge == 0 ? 0 : edge == 1 ? below - 1 : (int32_t)draw((uint32_t)below);
}

/* Decode a window, from the file or as if its scan were strips; 1 if it was decoded. */
static int attempt(bytes input, pn_memory *scratch) {
  pn_jpeg jpeg;
  if (pn_parse_jpeg(input.data, input.size, &jpeg) != PN_OK) return 0;
  pn_window window = {.x = place(jpeg.width), .y = place(jpeg.height)};
  int32_t wide = jpeg.width - window.x, high = jpeg.height - window.y;
  window.width = 1 + place(wide < 300 ? wide : 300);
  window.height = 1 + place(high < 300 ? high : 300);
  size_t stride = 3 * (size_t)window.width;
  uint8_t *rgb = malloc(stride * (size_t)window.height);
  pn_scan scan = {.data = input.data + jpeg.scan_offset, .size = input.size - jpeg.scan_offset, .whole_file = 1};
  if (draw(3) == 0) {
    scan.whole_file = 0;
    scan.segment_mcus = draw(8) ? jpeg.restart_interval : (int32_t)draw(9);
    scan.at_end = draw(8) != 0;
    scan.first_row = draw(4) ? 0 : (int32_t)draw(5);
    if (scan.size >= 2 && draw(8)) scan.size -= 2;
  }
  pn_use_avx2((int)draw(2));
  pn_result result = pn_decode_window(&jpeg, &scan, window, rgb, stride, scratch, NULL);
  if (result != PN_OK && result != PN_ODD) abort();
  free(rgb);
  return result == PN_OK;
}

/* Re-code a file, with a plausible number of segments or another, and decode what was made; 1 if it was re-coded. */
static int recode(bytes input, pn_recoder *recoder) {
  pn_jpeg jpeg;
  pn_recoded made;
  if (pn_parse_jpeg(input.data, input.size, &jpeg) != PN_OK) return 0;
  int32_t mcus = 1 + (int32_t)draw(9);
  int64_t segments = ((int64_t)jpeg.mcus_wide * jpeg.mcus_high + mcus - 1) / mcus + (draw(9) == 0);
  if (segments > 1000000) return 0;
  uint32_t *ends = malloc((size_t)segments * sizeof *ends);
  pn_use_avx2((int)draw(2));
  int result = pn_recode(input.data, input.size, mcus, ends, segments, recoder, &made);
  if (result != PN_OK && result != PN_ODD) abort();
  if (result == PN_OK) {
    if (made.scan_offset + ends[segments - 1] + 2 != made.size) abort();
    pn_recoder other = {{NULL, 0}, {NULL, 0}, {NULL, 0}}; /* a copy of a copy has the same bytes */
    pn_recoded again;
    if (pn_recode(recoder->copy.data, made.size, mcus, ends, segments, &other, &again) != PN_OK) abort();
    if (again.size != made.size || memcmp(other.copy.data, recoder->copy.data, made.size) != 0) abort();
    pn_release(&other.copy);
    pn_release(&other.scratch);
  }
  free(ends);
  return result == PN_OK;
}

int main(int count, char **words) {
  if (count < 5) return 2;
  long mutated = atol(words[1]), truncated = atol(words[2]), sound = 0, sound_truncated = 0;
  state = strtoull(words[3], NULL, 10) * 2 + 1;
  for (int i = 4; i < count && num_seeds < MAX_SEEDS; i++) seeds[num_seeds++] = read_file(words[i]);
  pn_memory scratch = {NULL, 0};
  pn_recoder recoder = {{NULL, 0}, {NULL, 0}, {NULL, 0}};
  long recoded = 0;
  for (long i = 0; i < mutated; i++) {
    bytes input = damaged(seeds[draw((uint32_t)num_seeds)]);
    if (draw(5) == 0 && input.size > 0) {
      bytes again = damaged(input);
      free(input.data);
      input = again;
    }
    sound += attempt(input, &scratch);
    recoded += recode(input, &recoder);
    if (i % 64 == 0) pn_release(&recoder.scratch), pn_release(&recoder.copy);
    if (i % 64 == 0) pn_release(&scratch); /* so that memory is of just the size that an image asks for */
    free(input.data);
  }
  for (long i = 0; i < truncated; i++) {
    const bytes *from = &seeds[draw((uint32_t)num_seeds)];
    bytes input = {NULL, draw((uint32_t)from->size)};
    input.data = malloc(input.size + (input.size == 0));
    memcpy(input.data, from->data, input.size);
    sound_truncated += attempt(input, &scratch);
    if (i % 8 == 0) recode(input, &recoder);
    free(input.data);
  }
  pn_release(&scratch);
  pn_release(&recoder.scratch);
  pn_release(&recoder.copy);
  for (size_t i = 0; i < num_seeds; i++) free(seeds[i].data);
  printf("%ld of %ld mutated and %ld of %ld truncated files were decoded\n", sound, mutated, sound_truncated,
         truncated);
  printf("%ld were re-coded\n", recoded);
  return 0;
}
