/* Products of matrices by CMSIS-DSP, row by row; `multiply_float` of train.c calls it where MODEL_CMSIS_DSP is defined.
 * It returns false if b is no matrix of its own in memory, so that the loops there compute the product.
 * Its two rows add $cmsis bytes to the RAM of each file that includes it. */
#include "arm_math.h"
#include <stdbool.h>
#include <stdint.h>

#define MULTIPLY_float multiply_by_cmsis

static inline bool multiply_by_cmsis(int m, int n, int k, float alpha, const float *a, int a_down, int a_along,
                                     const float *b, int b_down, int b_along, float beta, float *c) {
  static float left[$widest], row[$widest];
  const bool turned = b_along != 1; /* then b is stored as [n, k] */
  const uint16_t rows = (uint16_t) (turned ? n : k), columns = (uint16_t) (turned ? k : n);
  const arm_matrix_instance_f32 one = {1, (uint16_t) k, left}, matrix = {rows, columns, (float *) b};
  arm_matrix_instance_f32 result = {1, (uint16_t) n, row};
  if ((turned ? b_along : b_down) != columns || rows * columns != n * k) return false;
  for (int i = 0; i < m; i++) {
    for (int p = 0; p < k; p++) left[p] = alpha * a[i * a_down + p * a_along];
    if (turned)
      arm_mat_vec_mult_f32(&matrix, left, row);
    else
      arm_mat_mult_f32(&one, &matrix, &result);
    for (int j = 0; j < n; j++) c[i * n + j] = row[j] + (beta == 0 ? 0 : beta * c[i * n + j]);
  }
  return true;
}
