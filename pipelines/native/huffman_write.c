/* Finds optimal Huffman codes of limited length, and writes symbols with them: first the bits, then stuffed zeros. */
#include "huffman_write.h"

#define MAX_LENGTH 16
#define MAX_LEAVES 257 /* all symbols, and one that never occurs: it gets the code of all ones */

typedef struct {
  uint64_t weight;
  int symbol; /* 256 for the leaf that gets the code of all ones; PACKAGE for two items of the previous list */
} item;

#define PACKAGE 257

static int is_before(const item *a, const item *b) {
  return a->weight != b->weight ? a->weight < b->weight : a->symbol > b->symbol;
}

/* Sort by weight, rarest first; of equal weights the higher symbol comes first and so gets the longer code. */
static void sort_leaves(item *leaves, int count) {
  for (int gap = 121; gap > 0; gap /= 3) {
    for (int i = gap; i < count; i++) {
      item moved = leaves[i];
      int at = i;
      for (; at >= gap && is_before(&moved, &leaves[at - gap]); at -= gap) leaves[at] = leaves[at - gap];
      leaves[at] = moved;
    }
  }
}

/* Merge the leaves with pairs of items of the previous list, and mark packages. Returns the number of items. */
static int merge(const item *leaves, int count, const uint64_t *before, int before_count, uint64_t *list,
                 uint8_t *is_package) {
  int leaf = 0, pair = 0, pairs = before_count / 2, size = 0;
  for (; leaf < count || pair < pairs; size++) {
    uint64_t package = pair < pairs ? before[2 * pair] + before[2 * pair + 1] : UINT64_MAX;
    is_package[size] = leaf == count || package < leaves[leaf].weight;
    list[size] = is_package[size] ? package : leaves[leaf].weight;
    *(is_package[size] ? &pair : &leaf) += 1;
  }
  return size;
}

/* The package-merge method: each list holds the leaves and the pairs of the previous list, lightest first. The first
 * 2n - 2 items of the last list consist of leaves; a leaf's code length is the number of lists that contain it. */
static void find_lengths(const item *leaves, int count, uint8_t *lengths) {
  uint64_t lists[2][2 * MAX_LEAVES];
  uint8_t packages[MAX_LENGTH][2 * MAX_LEAVES];
  int size = 0;
  for (int level = 0; level < MAX_LENGTH; level++)
    size = merge(leaves, count, lists[level & 1], size, lists[~level & 1], packages[level]);
  memset(lengths, 0, (size_t)count);
  for (int level = MAX_LENGTH - 1, taken = 2 * count - 2; level >= 0; level--) {
    int pairs = 0;
    for (int i = 0; i < taken; i++) pairs += packages[level][i];
    for (int i = 0; i < taken - pairs; i++) lengths[i]++;
    taken = 2 * pairs;
  }
}

void pn_optimal_code(const uint32_t counts[256], pn_code *code) {
  item leaves[MAX_LEAVES] = {{.weight = 0, .symbol = 256}};
  uint8_t lengths[MAX_LEAVES];
  int count = 1;
  for (int symbol = 0; symbol < 256; symbol++)
    if (counts[symbol] > 0) leaves[count++] = (item){counts[symbol], symbol};
  sort_leaves(leaves, count);
  find_lengths(leaves, count, lengths);
  memset(code, 0, sizeof *code);
  code->defined = 1;
  for (int i = count - 1; i > 0; i--) { /* leaf 0 never occurs: it gets the last of the longest codes */
    code->counts[lengths[i] - 1]++;
    code->symbols[count - 1 - i] = (uint8_t)leaves[i].symbol;
  }
}

void pn_set_code_words(const pn_code *code, int number, pn_code_words words) {
  uint32_t next = 0;
  int place = 0;
  for (uint32_t length = 1; length <= MAX_LENGTH; length++, next <<= 1) {
    for (int i = 0; i < code->counts[length - 1]; i++, place++, next++) {
      uint32_t symbol = code->symbols[place], extra = number >= 2 ? symbol & 15 : symbol;
      words[(uint32_t)number << 8 | symbol] = next << extra << 5 | (length + extra);
    }
  }
}

static inline void store64(uint64_t value, uint8_t *to) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  value = __builtin_bswap64(value);
#endif
  memcpy(to, &value, 8);
}

static inline __attribute__((always_inline)) uint8_t *write(const pn_symbol *symbols, const pn_symbol *end,
                                                            const pn_code_words words, uint8_t *to) {
  const uint32_t mask = (1u << PN_SYMBOL_BITS) - 1;
  uint64_t bits = 0; /* the lowest `count` of them are not written yet */
  uint32_t count = 0;
  while (symbols < end) { /* one or two: 27 bits each, and 7 remaining bits */
    uint32_t word = words[*symbols & mask];
    bits = bits << (word & 31) | (word >> 5 | *symbols >> PN_SYMBOL_BITS);
    count += word & 31;
    if (++symbols < end) {
      word = words[*symbols & mask];
      bits = bits << (word & 31) | (word >> 5 | *symbols >> PN_SYMBOL_BITS);
      count += word & 31;
      symbols++;
    }
    store64(bits << (63 - count) << 1, to);
    to += count >> 3;
    count &= 7;
  }
  if (count > 0) *to++ = (uint8_t)(bits << (8 - count) | (0xFFu >> count));
  return to;
}

uint8_t *pn_write_symbols(const pn_symbol *symbols, const pn_symbol *end, const pn_code_words words, uint8_t *to) {
  return write(symbols, end, words, to);
}

PN_TARGET_AVX2 uint8_t *pn_write_symbols_fast(const pn_symbol *symbols, const pn_symbol *end, const pn_code_words words,
                                              uint8_t *to) {
  return write(symbols, end, words, to);
}

uint8_t *pn_stuff(const uint8_t *from, size_t size, uint8_t *to) {
  const uint8_t *end = from + size;
  while (from < end) {
    uint64_t eight;
    memcpy(&eight, from, 8);
    memcpy(to, &eight, 8);
    size_t step = end - from < 8 ? (size_t)(end - from) : 8;
    if ((eight & ~(eight + 0x0101010101010101u) & 0x8080808080808080u) == 0) { /* no byte is 0xFF */
      from += step;
      to += step;
      continue;
    }
    for (; step > 0; step--) {
      *to++ = *from;
      if (*from++ == 0xFF) *to++ = 0;
    }
  }
  return to;
}
