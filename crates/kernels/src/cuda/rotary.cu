// Rotary position embedding of queries and keys. A pair is (x[i], x[i + half]). A block processes one row after
// another.
#include "block.cuh"

// Rows of queries, of keys and of values. The widths are the distances between rows. `v` is null if the values stay in
// place.
template <typename T>
struct Qkv {
  const T *q, *k, *v;
  i64 q_width, kv_width;
};

// Writes queries, keys and values side by side to `out`. `q` and `k` may point into `out`.
template <typename T>
__device__ void rotary(Qkv<T> from, T* out, const float* __restrict__ cos, const float* __restrict__ sin, i64 rows, i64 length,
                       i64 q_heads, i64 kv_heads, i64 head_half, float sign) {
  int half = (int)head_half, heads = (int)q_heads, groups_of_head = (half + GROUP - 1) / GROUP;
  int groups = (heads + (int)kv_heads) * groups_of_head, columns = 2 * half * (int)kv_heads;
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    const float *cosines = cos + row % length * half, *sines = sin + row % length * half;
    T* to = out + row * 2 * half * (heads + 2 * kv_heads);
    for (int group = threadIdx.x; group < groups; group += blockDim.x) {
      int head = group / groups_of_head, at = GROUP * (group - head * groups_of_head), count = half - at;
      bool is_query = head < heads;
      const T* part = is_query ? from.q + row * from.q_width : from.k + row * from.kv_width;
      const T *first = part + (is_query ? head : head - heads) * 2 * half + at, *second = first + half;
      Group x1 = load_group(first, count), x2 = load_group(second, count);
      Group c = load_group(cosines + at, count), s = load_group(sines + at, count);
      for (int i = 0; i < GROUP; ++i) {
        float a = x1.at[i], b = x2.at[i], sine = s.at[i] * sign;
        x1.at[i] = a * c.at[i] - b * sine;
        x2.at[i] = b * c.at[i] + a * sine;
      }
      store_group(x1, to + head * 2 * half + at, count);
      store_group(x2, to + head * 2 * half + half + at, count);
    }
    T* values = to + (heads + kv_heads) * 2 * half;
    for (int at = first_column(); from.v && at < columns; at += column_step()) {
      store_group(load_group(from.v + row * from.kv_width + at, columns - at), values + at, columns - at);
    }
  }
}

#define ROTARY(NAME, T)                                                                                                   \
  KERNEL(NAME, (const T* q, const T* k, const T* v, i64 q_width, i64 kv_width, T* out, const float* cos, const float* sin, \
                i64 rows, i64 length, i64 heads, i64 kv_heads, i64 half, float sign)) {                                   \
    rotary(Qkv<T>{q, k, v, q_width, kv_width}, out, cos, sin, rows, length, heads, kv_heads, half, sign);                 \
  }
ROTARY(rotary_f32, float)
ROTARY(rotary_bf16, bf16)
