/* The bits of a segment of entropy-coded data, between two markers; stuffed zeros are removed ahead, in chunks. */
#pragma once

#include <string.h>

#include "native.h"

/* More bytes than an MCU needs, including look-ahead: 6 blocks of 64 codes of at most 16 + 11 bits. */
#define PN_RESERVE 1408
#define PN_LOOK_BACK 16 /* bytes kept before `next`, for a reader that goes back */
#define PN_CHUNK 8192
#define PN_SCAN_BUFFER (PN_CHUNK + PN_RESERVE)
#define PN_NO_MARKER (-1)
#define PN_RST0 0xD0

typedef struct {
  uint64_t bits;        /* the next bits, from the highest on; bits after `count` may already be set */
  int32_t count;        /* number of these bits, at most 63 */
  int32_t marker;       /* second byte of the marker that ends the segment; PN_NO_MARKER at the end of the data; 0 while
                           neither is reached */
  const uint8_t *next;  /* the unstuffed byte after them */
  const uint8_t *limit; /* the highest `next` at which an MCU may begin */
  const uint8_t *at;    /* the next byte to unstuff; once `marker` is set, the marker's first byte */
  const uint8_t *end;
  uint8_t *buffer;
  uint8_t *filled; /* end of the unstuffed bytes; a reader may go beyond it, and pn_bits_in_range says so afterwards */
} pn_bits;

/* Begin a segment of at most `size` bytes at `data`. `buffer` has PN_SCAN_BUFFER bytes of any content. */
void pn_bits_start(pn_bits *bits, const uint8_t *data, size_t size, uint8_t *buffer);

/* Unstuff more bytes; 0 if more bits were read than there are. Readers call pn_bits_ready before each MCU instead. */
int pn_bits_more(pn_bits *bits);

/* Whether all bits read so far were in the data. */
int pn_bits_in_range(const pn_bits *bits);

/* Whether all bytes of the segment were read, and no more. */
int pn_bits_done(pn_bits *bits);

/* Continue after a restart marker; 0 unless all bytes of the segment were read and the marker has this number mod 8. */
int pn_bits_restart(pn_bits *bits, int32_t number);

static inline int pn_bits_ready(pn_bits *bits) { return bits->next <= bits->limit || pn_bits_more(bits); }

static inline uint64_t pn_load64(const uint8_t *at) {
  uint64_t value;
  memcpy(&value, at, 8);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  value = __builtin_bswap64(value);
#endif
  return value;
}

#define PN_INLINE static inline __attribute__((always_inline))
#define PN_REFILLED 56 /* bits available at least after a refill */

/* The part of a pn_bits that changes with each symbol: opened, it stays in registers until it is closed. */
typedef struct {
  uint64_t bits;
  int32_t count;
  const uint8_t *next;
} pn_cursor;

PN_INLINE pn_cursor pn_open(const pn_bits *bits) { return (pn_cursor){bits->bits, bits->count, bits->next}; }

PN_INLINE void pn_close(pn_cursor at, pn_bits *bits) {
  bits->bits = at.bits;
  bits->count = at.count;
  bits->next = at.next;
}

PN_INLINE void pn_refill(pn_cursor *at) {
  at->bits |= pn_load64(at->next) >> at->count;
  at->next += (63 - at->count) >> 3;
  at->count |= PN_REFILLED;
}

/* Skip at most 63 bits. */
PN_INLINE void pn_consume(pn_cursor *at, int32_t count) {
  at->bits <<= count & 63;
  at->count -= count;
}
