/* Memory that grows and is reused, the processor's instructions, and the version of the library. */
#include <stdlib.h>

#include "native.h"

#define PN_ALIGNMENT 64
#define PN_KEPT ((size_t)150000000)        /* larger memory is freed after the image that needed it */
#define PN_KEPT_BETWEEN ((size_t)32 << 20) /* larger memory is freed after the batch: eleven megapixels */

uint8_t *pn_reserve(pn_memory *memory, size_t size) {
  if (memory->data != NULL && memory->size >= size && (memory->size <= PN_KEPT || size > PN_KEPT)) return memory->data;
  pn_release(memory);
  if (size > SIZE_MAX - (size >> 2) - PN_ALIGNMENT) return NULL;
  size_t wanted = size > PN_KEPT ? size : size + (size >> 2);
  wanted = (wanted + PN_ALIGNMENT - 1) / PN_ALIGNMENT * PN_ALIGNMENT;
  if (wanted == 0) wanted = PN_ALIGNMENT;
  memory->data = aligned_alloc(PN_ALIGNMENT, wanted);
  memory->size = memory->data == NULL ? 0 : wanted;
  return memory->data;
}

void pn_release(pn_memory *memory) {
  free(memory->data);
  memory->data = NULL;
  memory->size = 0;
}

void pn_trim(pn_memory *memory) {
  if (memory->size > PN_KEPT_BETWEEN) pn_release(memory);
}

static int avx2_allowed = 1;

int pn_has_avx2(void) {
#if defined(__x86_64__)
  return avx2_allowed && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
         __builtin_cpu_supports("bmi2");
#else
  return 0;
#endif
}

void pn_use_avx2(int allowed) { avx2_allowed = allowed; }

PN_EXPORT int pn_abi(void);
int pn_abi(void) { return PN_ABI; }
