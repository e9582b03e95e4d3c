/* The bits of a segment of entropy-coded data, between two markers: stuffed zeros are taken out ahead, in chunks. */
#ifndef PENSTOCK_SCAN_BITS_H
#define PENSTOCK_SCAN_BITS_H

#include <string.h>

#include "native.h"

/* More bytes than an MCU takes, with those that a reader looks ahead: 6 blocks of 64 codes, 16 + 11 bits at most. */
#define PN_RESERVE 1408
#define PN_LOOK_BACK 16 /* bytes before `next` that stay, for a reader that goes back to bits which it has taken */
#define PN_CHUNK 8192
#define PN_SCAN_BUFFER (PN_CHUNK + PN_RESERVE)
#define PN_NO_MARKER (-1)

typedef struct {
  uint64_t bits;        /* the next bits, from the highest on; those behind `count` may be set already */
  int32_t count;        /* how many of them are there, at most 63 */
  int32_t marker;       /* second byte of the marker that ends the segment; PN_NO_MARKER at the end of the data; or 0,
                           while it is not reached */
  const uint8_t *next;  /* the unstuffed byte behind them */
  const uint8_t *limit; /* where `next` may be at most when an MCU begins */
  const uint8_t *at;    /* what is still to be unstuffed; where `marker` is set, the marker's first byte */
  const uint8_t *end;
  uint8_t *buffer;
  uint8_t *filled; /* end of the unstuffed bytes; a reader may go on into what is behind, and is told so afterwards */
} pn_bits;

/* Begin a segment: `size` bytes at `data` at most. `buffer` has PN_SCAN_BUFFER bytes,
 * which may hold anything. */
void pn_bits_start(pn_bits *bits, const uint8_t *data, size_t size, uint8_t *buffer);

/* Unstuff more; 0 where more bits were read than there are. Call pn_bits_ready, before each MCU. */
int pn_bits_more(pn_bits *bits);

/* Whether not more bits were read than there are. */
int pn_bits_sound(const pn_bits *bits);

/* Whether all bytes of the segment were read, and not more. */
int pn_bits_done(pn_bits *bits);

static inline int pn_bits_ready(pn_bits *bits) { return bits->next <= bits->limit || pn_bits_more(bits); }

static inline uint64_t pn_load64(const uint8_t *at) {
  uint64_t value;
  memcpy(&value, at, 8);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  value = __builtin_bswap64(value);
#endif
  return value;
}

#endif
