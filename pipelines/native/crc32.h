/* zlib's CRC-32, as fast as memory is read. */
#ifndef PENSTOCK_CRC32_H
#define PENSTOCK_CRC32_H

#include "native.h"

/* The CRC-32 of `size` bytes behind others whose CRC-32 is `before` (0: behind none), as zlib.crc32(data, before). */
PN_EXPORT uint32_t pn_crc32(const uint8_t *data, size_t size, uint32_t before);

#endif
