/* Philox4x32-10 for the random draws of a batch: the same words as plan/philox.py, without a numpy call per step. */
#include "philox.h"

#define ROUNDS 10

/* Replace the counter in `words` by its random words. */
static void philox(uint32_t words[PN_BLOCK_WORDS], uint32_t key0, uint32_t key1) {
  for (int round = 0; round < ROUNDS; round++) {
    uint64_t first = (uint64_t)0xD2511F53 * words[0], second = (uint64_t)0xCD9E8D57 * words[2];
    uint32_t of_second = (uint32_t)(second >> 32) ^ words[1] ^ key0,
             of_first = (uint32_t)(first >> 32) ^ words[3] ^ key1;
    words[0] = of_second;
    words[1] = (uint32_t)second;
    words[2] = of_first;
    words[3] = (uint32_t)first;
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
}

void pn_draw_block(uint64_t seed, uint32_t epoch, uint32_t stream, int64_t sample, uint32_t block,
                   uint32_t words[PN_BLOCK_WORDS]) {
  words[0] = (uint32_t)(uint64_t)sample;
  words[1] = (uint32_t)((uint64_t)sample >> 32);
  words[2] = epoch;
  words[3] = stream << 16 | block;
  philox(words, (uint32_t)seed, (uint32_t)(seed >> 32));
}

/* Write `count` words for each of `n` samples to `out`, one sample after the other. */
PN_EXPORT void pn_random_words(uint64_t seed, uint32_t epoch, uint32_t stream, const int64_t *samples, int32_t n,
                               int32_t count, uint64_t *out) {
  uint32_t words[PN_BLOCK_WORDS];
  for (int32_t i = 0; i < n; i++) {
    for (int32_t begin = 0; begin < count; begin += PN_BLOCK_WORDS) {
      pn_draw_block(seed, epoch, stream, samples[i], (uint32_t)(begin / PN_BLOCK_WORDS), words);
      for (int32_t k = 0; k < PN_BLOCK_WORDS && begin + k < count; k++) *out++ = words[k];
    }
  }
}
