/* The random words of a sample. */
#pragma once

#include "native.h"

#define PN_BLOCK_WORDS 4

/* Draw words 4 * block to 4 * block + 3 of a sample, as plan/philox.py defines them. */
void pn_draw_block(uint64_t seed, uint32_t epoch, uint32_t stream, int64_t sample, uint32_t block,
                   uint32_t words[PN_BLOCK_WORDS]);
