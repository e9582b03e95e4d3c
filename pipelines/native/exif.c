/* The orientation in an EXIF block: tag 0x0112 of its first directory (TIFF 6.0, section 2). */
#include <string.h>

#include "exif.h"

#define ORIENTATION 0x0112
#define SHORT 3

typedef struct {
  const uint8_t *data;
  size_t size;
  int big_endian;
} tiff;

static uint32_t number(const tiff *file, size_t at, int bytes) {
  uint32_t value = 0;
  for (int i = 0; i < bytes; i++) value = value << 8 | file->data[at + (size_t)(file->big_endian ? i : bytes - 1 - i)];
  return value;
}

/* Return how many bytes a value of a TIFF type takes; 0 for an unknown type. */
static uint32_t type_size(uint32_t type) {
  static const uint8_t sizes[17] = {0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4, 0, 0, 8};
  return type < sizeof sizes ? sizes[type] : 0;
}

int32_t pn_exif_orientation(const uint8_t *block, size_t size) {
  if (size < 14 || memcmp(block, "Exif\0\0", 6) != 0) return 0;
  tiff file = {block + 6, size - 6, block[6] == 'M'};
  if (memcmp(file.data, "II*\0", 4) != 0 && memcmp(file.data, "MM\0*", 4) != 0) return 0;
  size_t directory = number(&file, 4, 4);
  if (directory < 8 || directory > file.size - 2) return 0;
  size_t entries = number(&file, directory, 2);
  if (entries > (file.size - directory - 2) / 12) return 0;
  int32_t found = -1;
  for (size_t i = 0; i < entries; i++) {
    size_t at = directory + 2 + 12 * i;
    uint32_t type = number(&file, at + 2, 2), count = number(&file, at + 4, 4), unit = type_size(type);
    uint64_t bytes = (uint64_t)count * unit;
    if (bytes > 4) {
      uint64_t offset = number(&file, at + 8, 4);
      if (offset > file.size || bytes > file.size - offset) return 0;
    }
    if (number(&file, at, 2) != ORIENTATION) continue;
    if (found >= 0 || type != SHORT || count != 1) return 0;
    found = (int32_t)number(&file, at + 8, 2);
  }
  return found >= 1 && found <= 8 ? found : 1;
}
