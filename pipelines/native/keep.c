/* Writes of fetched samples into a local copy, with their CRC-32: one call, because each costs the interpreter lock. */
#include "keep.h"

#include <errno.h>
#include <unistd.h>

#include "crc32.h"

static int write_all(int fd, const uint8_t *data, size_t size, int64_t offset) {
  while (size > 0) {
    ssize_t done = pwrite(fd, data, size, (off_t)offset);
    if (done < 0) {
      if (errno == EINTR) continue;
      return errno;
    }
    if (done == 0) return EIO;
    data += done, size -= (size_t)done, offset += done;
  }
  return 0;
}

int pn_keep(const uint8_t *data, size_t size, int fd, int64_t offset, int table, int64_t place) {
  int error = write_all(fd, data, size, offset);
  if (error != 0) return error;
  uint32_t crc = pn_crc32(data, size, 0); /* the write has brought the bytes into the processor's cache */
  uint8_t record[5] = {(uint8_t)crc, (uint8_t)(crc >> 8), (uint8_t)(crc >> 16), (uint8_t)(crc >> 24), 1};
  return write_all(table, record, sizeof record, place);
}
