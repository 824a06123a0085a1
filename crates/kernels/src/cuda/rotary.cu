// Rotary position embedding of queries and keys, in place; pairs are (x[i], x[i + half]). A block takes one row after another.
#include "block.cuh"

template <typename T>
__device__ void rotary(T* qkv, const float* __restrict__ cos, const float* __restrict__ sin, i64 rows, i64 length,
                       i64 rotated_heads, i64 all_heads, i64 head_half, float sign) {
  int half = (int)head_half, groups_of_head = (half + GROUP - 1) / GROUP, groups = (int)rotated_heads * groups_of_head;
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    const float *cosines = cos + row % length * half, *sines = sin + row % length * half;
    for (int group = threadIdx.x; group < groups; group += blockDim.x) {
      int head = group / groups_of_head, at = GROUP * (group - head * groups_of_head), count = half - at;
      T *first = qkv + (row * all_heads + head) * 2 * half + at, *second = first + half;
      Group x1 = load_group(first, count), x2 = load_group(second, count);
      Group c = load_group(cosines + at, count), s = load_group(sines + at, count);
      for (int i = 0; i < GROUP; ++i) {
        float a = x1.at[i], b = x2.at[i], sine = s.at[i] * sign;
        x1.at[i] = a * c.at[i] - b * sine;
        x2.at[i] = b * c.at[i] + a * sine;
      }
      store_group(x1, first, count);
      store_group(x2, second, count);
    }
  }
}

#define ROTARY(NAME, T)                                                                                              \
  KERNEL(NAME, (T * qkv, const float* cos, const float* sin, i64 rows, i64 length, i64 rotated_heads, i64 all_heads, \
                i64 half, float sign)) {                                                                             \
    rotary(qkv, cos, sin, rows, length, rotated_heads, all_heads, half, sign);                                       \
  }
ROTARY(rotary_f32, float)
ROTARY(rotary_bf16, bf16)
