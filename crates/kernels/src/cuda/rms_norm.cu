// Root-mean-square norm of rows. A row is read from memory once: what follows its sum reads it again from the cache.
#include "block.cuh"

template <typename T>
__device__ void rms_norm(const T* __restrict__ x, const float* __restrict__ weight, T* __restrict__ y, float* rstd,
                         i64 rows, i64 width, float eps) {
  int columns = (int)width;
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* in = x + row * width;
    float squares = 0.f;
    for (int at = first_column(); at < columns; at += column_step()) {
      Group group = load_group(in + at, columns - at);
      for (int i = 0; i < GROUP; ++i) squares += group.at[i] * group.at[i];
    }
    float scale = 1.f / sqrtf(block_sum(squares) / width + eps);
    if (threadIdx.x == 0) rstd[row] = scale;
    for (int at = first_column(); at < columns; at += column_step()) {
      Group group = load_group(in + at, columns - at), w = load_group(weight + at, columns - at);
      for (int i = 0; i < GROUP; ++i) group.at[i] *= scale * w.at[i];
      store_group(group, y + row * width + at, columns - at);
    }
  }
}

// A block takes a piece of the rows: partial[piece, column] is the gradient of the weight from these rows, for `sum_pieces`.
// Each thread has the sums of its first group of columns in registers, and of further groups in `partial`. `residual` may be
// null.
template <typename T>
__device__ void rms_norm_backward(const T* __restrict__ dy, const T* __restrict__ x, const float* __restrict__ weight,
                                  const float* __restrict__ rstd, const T* __restrict__ residual, T* __restrict__ dx,
                                  T* __restrict__ y, float* __restrict__ partial, i64 rows, i64 width, i64 rows_per_piece) {
  int columns = (int)width, first = first_column();
  i64 begin = blockIdx.x * rows_per_piece, end = begin + rows_per_piece < rows ? begin + rows_per_piece : rows;
  float* sums = partial + blockIdx.x * width;
  Group first_sums = {};
  for (int at = first + column_step(); at < columns; at += column_step()) store_group(first_sums, sums + at, columns - at);
  for (i64 row = begin; row < end; ++row) {
    i64 start = row * width;
    float scale = rstd[row], products = 0.f;
    for (int at = first; at < columns; at += column_step()) {
      Group d = load_group(dy + start + at, columns - at), in = load_group(x + start + at, columns - at);
      Group w = load_group(weight + at, columns - at);
      for (int i = 0; i < GROUP; ++i) products += d.at[i] * w.at[i] * (in.at[i] * scale);
    }
    float mean = block_sum(products) / width;
    for (int at = first; at < columns; at += column_step()) {
      Group d = load_group(dy + start + at, columns - at), in = load_group(x + start + at, columns - at);
      Group w = load_group(weight + at, columns - at), around = {}, gradient, again;
      if (residual) around = load_group(residual + start + at, columns - at);
      Group so_far = at == first ? first_sums : load_group(sums + at, columns - at);
      for (int i = 0; i < GROUP; ++i) {
        float xhat = in.at[i] * scale;
        gradient.at[i] = (d.at[i] * w.at[i] - xhat * mean) * scale + around.at[i];
        again.at[i] = xhat * w.at[i];
        so_far.at[i] += d.at[i] * xhat;
      }
      store_group(gradient, dx + start + at, columns - at);
      store_group(again, y + start + at, columns - at);
      if (at == first) {
        first_sums = so_far;
      } else {
        store_group(so_far, sums + at, columns - at);
      }
    }
  }
  store_group(first_sums, sums + first, columns - first);
}

#define RMS_NORM(SUFFIX, T)                                                                                               \
  KERNEL(rms_norm_##SUFFIX, (const T* x, const float* weight, T* y, float* rstd, i64 rows, i64 width, float eps)) {       \
    rms_norm(x, weight, y, rstd, rows, width, eps);                                                                       \
  }                                                                                                                       \
  KERNEL(rms_norm_backward_##SUFFIX, (const T* dy, const T* x, const float* weight, const float* rstd, const T* residual, \
                                      T* dx, T* y, float* partial, i64 rows, i64 width, i64 rows_per_piece)) {            \
    rms_norm_backward(dy, x, weight, rstd, residual, dx, y, partial, rows, width, rows_per_piece);                        \
  }
RMS_NORM(f32, float)
RMS_NORM(bf16, bf16)
