/* Writes of fetched samples into a local copy. */
#pragma once

#include "native.h"

/* Write `size` bytes at `offset` of file `fd`, then their CRC-32 (little endian) and the byte 1 at `place` of the file
 * `table`. Return 0, or the error number of the write that failed; then the table is unchanged or written in part. */
PN_EXPORT int pn_keep(const uint8_t *data, size_t size, int fd, int64_t offset, int table, int64_t place);
