"""Lines of C, and the parts of every program: types, random numbers, products without a BLAS, subnormal numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

HEAD = """\
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

/* The iterations of the next loop do not depend on each other. */
#if defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define INDEPENDENT _Pragma("GCC ivdep")
#else
#define INDEPENDENT
#endif
/* nan stays nan; | needs no branch */
#define LARGER(a, b) (((a) > (b)) | ((a) != (a)) ? (a) : (b))
#define SMALLER(a, b) (((a) < (b)) | ((a) != (a)) ? (a) : (b))

#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__)
#if __GLIBC_PREREQ(2, 35) /* computes these for several numbers at once, within 4 units in the last place */
#define VECTORS __attribute__((simd("notinbranch")))
VECTORS float expf(float), logf(float), tanhf(float), erff(float), expm1f(float), log1pf(float);
VECTORS double exp(double), log(double), tanh(double), erf(double), expm1(double), log1p(double);
#endif
#endif
"""
FLUSHED = """
/* Treat subnormal numbers as 0 from here on, and return the mode before. */
static uint64_t flush_subnormals(void) {
#if defined(__SSE2__)
  const unsigned int before = _mm_getcsr();
  _mm_setcsr(before | 0x8040);
  return before;
#elif defined(__aarch64__)
  uint64_t before;
  __asm__ volatile("mrs %0, fpcr" : "=r"(before));
  __asm__ volatile("msr fpcr, %0" : : "r"(before | (UINT64_C(1) << 24)));
  return before;
#else
  return 0;
#endif
}

static void restore_subnormals(uint64_t before) {
#if defined(__SSE2__)
  _mm_setcsr((unsigned int) before);
#elif defined(__aarch64__)
  __asm__ volatile("msr fpcr, %0" : : "r"(before));
#else
  (void) before;
#endif
}
"""
PRODUCT = """
/* c = alpha * a * b + beta * c for a [m, k], b [k, n] and c [m, n]; `down` and `along` are steps between entries. */
static inline void multiply_TYPE(int m, int n, int k, TYPE alpha, const TYPE *a, int a_down, int a_along,
                                   const TYPE *b, int b_down, int b_along, TYPE beta, TYPE *c) {
"""
LOOPS = """\
#ifdef MULTIPLY_TYPE /* another library's, which returns whether it computed the product */
  if (MULTIPLY_TYPE(m, n, k, alpha, a, a_down, a_along, b, b_down, b_along, beta, c)) return;
#endif
  for (int i = 0; i < m; i++) {
    TYPE *const row = c + i * n;
    for (int j = 0; j < n; j++) row[j] = beta == 0 ? 0 : beta * row[j];
    for (int p = 0; p < k; p++) {
      const TYPE x = alpha * a[i * a_down + p * a_along];
      INDEPENDENT
      for (int j = 0; j < n; j++) row[j] += x * b[p * b_down + j * b_along];
    }
  }
}
"""
BLAS = """\
  void cblas_LETTERgemm(int, int, int, int, int, int, TYPE, const TYPE *, int, const TYPE *, int, TYPE, TYPE *, int);
  enum { ROWS = 101, PLAIN = 111, TRANSPOSED = 112 }; /* CBLAS: order, and whether a matrix is transposed */
  int rows = m, inner = k; /* of each part */
#if defined(__AVX512F__) /* OpenBLAS has faster kernels for products of at most 10^6 multiplications */
  const int most = (int) (1000000 / ((int64_t) n * (m > k ? k : m))) / 16 * 16;
  if (b_along == 1 && most > 0) *(m > k ? &rows : &inner) = most;
#endif
  for (int i = 0; i < m; i += rows)
    for (int p = 0; p < k; p += inner)
      cblas_LETTERgemm(ROWS, a_along == 1 ? PLAIN : TRANSPOSED, b_along == 1 ? PLAIN : TRANSPOSED,
                       m - i < rows ? m - i : rows, n, k - p < inner ? k - p : inner, alpha,
                       a + i * a_down + p * a_along, a_along == 1 ? a_down : a_along, b + p * b_down,
                       b_along == 1 ? b_down : b_along, p == 0 ? beta : 1, c + i * n, n);
}
"""
RANDOM = """
/* Threefry-2x32 with 20 rounds (Salmon et al. 2011), as JAX uses it. */
static inline void threefry(uint32_t k0, uint32_t k1, uint32_t *x0, uint32_t *x1) {
  static const int turns[8] = {13, 15, 26, 6, 17, 29, 16, 24};
  const uint32_t keys[3] = {k0, k1, k0 ^ k1 ^ UINT32_C(0x1BD11BDA)};
  uint32_t a = *x0 + k0, b = *x1 + k1;
  for (int round = 0; round < 5; round++) {
    for (int i = 0; i < 4; i++) {
      const int turn = turns[4 * (round % 2) + i];
      a += b;
      b = (b << turn | b >> (32 - turn)) ^ a;
    }
    a += keys[(round + 1) % 3];
    b += keys[(round + 2) % 3] + (uint32_t) (round + 1);
  }
  *x0 = a;
  *x1 = b;
}

static inline uint64_t folded(uint64_t key, uint32_t number) {
  uint32_t x0 = 0, x1 = number;
  threefry((uint32_t) (key >> 32), (uint32_t) key, &x0, &x1);
  return (uint64_t) x0 << 32 | x1;
}

/* A number in [0, 1) with 23 bits. */
static inline float uniform(uint64_t key, uint64_t place) {
  uint32_t x0 = (uint32_t) (place >> 32), x1 = (uint32_t) place;
  threefry((uint32_t) (key >> 32), (uint32_t) key, &x0, &x1);
  return (float) ((x0 ^ x1) >> 9) * 0x1p-23f;
}
"""


class CodeLines:
    """Lines of C with an indentation."""

    def __init__(self) -> None:
        self.lines, self._depth = list[str](), 1

    def add(self, *lines: str) -> None:
        """Append lines."""
        self.lines += ["  " * self._depth + line for line in lines]

    @contextmanager
    def block(self, head: str, *, independent: bool = False) -> Iterator[None]:
        """Write a block around the lines of the caller's; `independent` is for loops."""
        self.add(*(["INDEPENDENT"] if independent else []), f"{head} {{")
        self._depth += 1
        yield
        self._depth -= 1
        self.add("}")

    @contextmanager
    def loops(self, bounds: Mapping[str, int], *, independent: bool = True) -> Iterator[None]:
        """Write nested loops around the caller's lines; the iterations of the innermost one are independent."""
        with ExitStack() as stack:
            for place, (v, n) in enumerate(bounds.items()):
                last = independent and place == len(bounds) - 1
                stack.enter_context(self.block(f"for (int64_t {v} = 0; {v} < {n}; {v}++)", independent=last))
            yield

    def loop(self, head: str, lines: Iterable[str], *, independent: bool = False) -> None:
        """Write a loop around lines."""
        with self.block(head, independent=independent):
            self.add(*lines)
