/* Declarations that the files of the native library share: results of calls, memory that grows, images and windows. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define PN_ABI 11 /* raised with every change of the interface to Python; library.py has the same number */
#define PN_EXPORT __attribute__((visibility("default")))

/* The result for one image. Any result other than PN_OK leaves the image to the Python path, which alone diagnoses
 * errors: so the two paths never disagree. */
typedef enum {
  PN_OK = 0,
  PN_UNSUPPORTED = 1, /* damaged, or not a JPEG that this library decodes */
  PN_NO_MEMORY = 2,   /* malloc failed */
  PN_STOPPED = 3,     /* the batch is no longer wanted */
  PN_UNREADABLE = 4   /* the file is gone, changed, or could not be read */
} pn_result;

static inline int32_t pn_divide_up(int32_t n, int32_t by) { return (int32_t)(((int64_t)n + by - 1) / by); }
static inline int32_t pn_min(int32_t a, int32_t b) { return a < b ? a : b; }
static inline int32_t pn_max(int32_t a, int32_t b) { return a > b ? a : b; }
static inline size_t pn_align(size_t size) { return (size + 63) / 64 * 64; }

/* Memory of one thread, reused for the next image. */
typedef struct {
  uint8_t *data;
  size_t size;
} pn_memory;

/* Return at least `size` bytes, aligned to 64, with undefined content; NULL if malloc fails. */
uint8_t *pn_reserve(pn_memory *memory, size_t size);
PN_EXPORT void pn_release(pn_memory *memory);

/* Free memory that is too large to be kept for the next batch. */
void pn_trim(pn_memory *memory);

/* A rectangle of an image, in pixels. */
typedef struct {
  int32_t x, y, width, height;
} pn_window;

/* Whether this processor has AVX2, BMI1 and BMI2 (an emulator may lack the latter) and the library may use them. Tests
 * switch it off with pn_use_avx2(0). */
PN_EXPORT int pn_has_avx2(void);
PN_EXPORT void pn_use_avx2(int allowed);

/* Compiles a function for the processors that pn_has_avx2 accepts: BMI2 shifts by a variable in one operation, not
 * three. */
#if defined(__x86_64__)
#define PN_TARGET_AVX2 __attribute__((target("avx2,bmi,bmi2")))
#else
#define PN_TARGET_AVX2
#endif
