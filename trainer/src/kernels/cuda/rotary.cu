// Rotary position embedding of queries and keys, in place; pairs are (x[i], x[i + half]).
#include "block.cuh"

template <typename T>
__device__ void rotary(T* qkv, const float* cos, const float* sin, i64 rows, i64 length, i64 rotated_heads, i64 all_heads,
                       i64 half, float sign) {
  for (i64 pair = first_index(); pair < rows * rotated_heads * half; pair += index_step()) {
    i64 column = pair % half, head = pair / half % rotated_heads, row = pair / half / rotated_heads;
    T *first = qkv + (row * all_heads + head) * 2 * half + column, *second = first + half;
    float c = cos[row % length * half + column], s = sin[row % length * half + column] * sign;
    float x1 = load(first), x2 = load(second);
    store(x1 * c - x2 * s, first);
    store(x2 * c + x1 * s, second);
  }
}

#define ROTARY(NAME, T)                                                                                              \
  KERNEL(NAME, (T * qkv, const float* cos, const float* sin, i64 rows, i64 length, i64 rotated_heads, i64 all_heads, \
                i64 half, float sign)) {                                                                             \
    rotary(qkv, cos, sin, rows, length, rotated_heads, all_heads, half, sign);                                       \
  }
ROTARY(rotary_f32, float)
ROTARY(rotary_bf16, bf16)
