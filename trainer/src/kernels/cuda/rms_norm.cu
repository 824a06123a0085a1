// Root-mean-square norm of rows. Each thread keeps its first group of a row in registers; rows of more than 8 columns a thread
// are read again from the cache.
#include "block.cuh"

template <typename T>
__device__ void rms_norm(const T* __restrict__ x, const float* __restrict__ weight, T* __restrict__ y, float* rstd,
                         i64 rows, i64 width, float eps) {
  int columns = (int)width, first = first_column();
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* in = x + row * width;
    Group held = load_group(in + first, columns - first);
    float squares = 0.f;
    auto add = [&](const Group& group) {
      for (int i = 0; i < GROUP; ++i) squares += group.at[i] * group.at[i];
    };
    add(held);
    for (int at = first + column_step(); at < columns; at += column_step()) add(load_group(in + at, columns - at));
    float scale = 1.f / sqrtf(block_sum(squares) / width + eps);
    if (threadIdx.x == 0) rstd[row] = scale;
    auto finish = [&](Group group, int at) {
      Group w = load_group(weight + at, columns - at);
      for (int i = 0; i < GROUP; ++i) group.at[i] *= scale * w.at[i];
      store_group(group, y + row * width + at, columns - at);
    };
    finish(held, first);
    for (int at = first + column_step(); at < columns; at += column_step()) finish(load_group(in + at, columns - at), at);
  }
}

// A block takes a piece of the rows: partial[piece, column] is the gradient of the weight from these rows, for `sum_pieces`.
// `residual` may be null.
template <typename T>
__device__ void rms_norm_backward(const T* __restrict__ dy, const T* __restrict__ x, const float* __restrict__ weight,
                                  const float* __restrict__ rstd, const T* __restrict__ residual, T* __restrict__ dx,
                                  T* __restrict__ y, float* __restrict__ partial, i64 rows, i64 width, i64 rows_per_piece) {
  int columns = (int)width, first = first_column();
  i64 begin = blockIdx.x * rows_per_piece, end = begin + rows_per_piece < rows ? begin + rows_per_piece : rows;
  float* sums = partial + blockIdx.x * width;
  Group first_sums = {}, w = load_group(weight + first, columns - first);
  for (int at = first + column_step(); at < columns; at += column_step()) store_group(first_sums, sums + at, columns - at);
  for (i64 row = begin; row < end; ++row) {
    i64 start = row * width;
    float scale = rstd[row], products = 0.f;
    auto load_xhat = [&](int at) {
      Group group = load_group(x + start + at, columns - at);
      for (int i = 0; i < GROUP; ++i) group.at[i] *= scale;
      return group;
    };
    auto add = [&](const Group& d, const Group& w, const Group& xhat) {
      for (int i = 0; i < GROUP; ++i) products += d.at[i] * w.at[i] * xhat.at[i];
    };
    auto load_residual = [&](int at) {
      Group around = {};
      if (residual) around = load_group(residual + start + at, columns - at);
      return around;
    };
    Group d = load_group(dy + start + first, columns - first), xhat = load_xhat(first), around = load_residual(first);
    add(d, w, xhat);
    for (int at = first + column_step(); at < columns; at += column_step()) {
      add(load_group(dy + start + at, columns - at), load_group(weight + at, columns - at), load_xhat(at));
    }
    float mean = block_sum(products) / width;
    auto finish = [&](const Group& d, const Group& w, const Group& xhat, const Group& around, Group& sums, int at) {
      Group gradient, again;
      for (int i = 0; i < GROUP; ++i) {
        gradient.at[i] = (d.at[i] * w.at[i] - xhat.at[i] * mean) * scale + around.at[i];
        again.at[i] = xhat.at[i] * w.at[i];
        sums.at[i] += d.at[i] * xhat.at[i];
      }
      store_group(gradient, dx + start + at, columns - at);
      store_group(again, y + start + at, columns - at);
    };
    finish(d, w, xhat, around, first_sums, first);
    for (int at = first + column_step(); at < columns; at += column_step()) {
      Group so_far = load_group(sums + at, columns - at);
      finish(load_group(dy + start + at, columns - at), load_group(weight + at, columns - at), load_xhat(at),
             load_residual(at), so_far, at);
      store_group(so_far, sums + at, columns - at);
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
