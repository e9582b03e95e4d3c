/* The bits of a segment of entropy-coded data (T.81 F.1.2.3: a zero is stuffed after each byte 0xFF). */
#include "scan_bits.h"

/* Unstuff until the buffer is full or a marker is reached. */
static void unstuff(pn_bits *bits) {
  uint8_t *to = bits->filled, *stop = bits->buffer + PN_CHUNK;
  const uint8_t *at = bits->at;
  while (to < stop && at < bits->end) {
    size_t room = (size_t)(stop - to), left = (size_t)(bits->end - at), span = room < left ? room : left;
    const uint8_t *escape = memchr(at, 0xFF, span);
    size_t plain = escape == NULL ? span : (size_t)(escape - at);
    memcpy(to, at, plain);
    to += plain;
    at += plain;
    if (escape == NULL) continue;
    if (bits->end - at < 2 || at[1] != 0) {
      bits->marker = bits->end - at < 2 ? PN_NO_MARKER : at[1];
      break;
    }
    *to++ = 0xFF;
    at += 2;
  }
  if (at == bits->end) bits->marker = PN_NO_MARKER;
  bits->at = at;
  bits->filled = to;
}

int pn_bits_more(pn_bits *bits) {
  if (bits->marker != 0) return 0;
  size_t kept = (size_t)(bits->filled - bits->next);
  memmove(bits->buffer, bits->next - PN_LOOK_BACK, PN_LOOK_BACK + kept);
  bits->next = bits->buffer + PN_LOOK_BACK;
  bits->filled = bits->buffer + PN_LOOK_BACK + kept;
  unstuff(bits);
  bits->limit = bits->marker != 0 ? bits->filled + 8 : bits->filled - PN_RESERVE;
  return 1;
}

void pn_bits_start(pn_bits *bits, const uint8_t *data, size_t size, uint8_t *buffer) {
  *bits = (pn_bits){.at = data, .end = data + size, .buffer = buffer};
  bits->next = bits->filled = buffer + PN_LOOK_BACK;
  pn_bits_more(bits);
}

static ptrdiff_t bits_left(const pn_bits *bits) { return 8 * (bits->filled - bits->next) + bits->count; }

int pn_bits_in_range(const pn_bits *bits) { return bits_left(bits) >= 0; }

int pn_bits_done(pn_bits *bits) {
  if (bits->marker == 0 && bits->filled - bits->next < PN_RESERVE) pn_bits_more(bits);
  return bits->marker != 0 && bits_left(bits) >= 0 && bits_left(bits) < 8;
}

int pn_bits_restart(pn_bits *bits, int32_t number) {
  if (!pn_bits_done(bits) || bits->marker != PN_RST0 + (number & 7)) return 0;
  pn_bits_start(bits, bits->at + 2, (size_t)(bits->end - bits->at - 2), bits->buffer);
  return 1;
}
