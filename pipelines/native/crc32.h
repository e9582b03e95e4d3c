/* zlib's CRC-32, as fast as memory can be read. */
#pragma once

#include "native.h"

/* Return what zlib.crc32(data, before) does: `before` is the CRC-32 of the bytes before these, 0 if there are none. */
PN_EXPORT uint32_t pn_crc32(const uint8_t *data, size_t size, uint32_t before);
