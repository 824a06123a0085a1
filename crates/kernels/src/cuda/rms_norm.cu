// Root-mean-square norm of rows. After the sum over a row, the forward pass reads the row again from the cache. The
// backward pass reads again only the columns beyond the first group of each thread.
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

// The operands of the backward pass.
template <typename T>
struct RmsNormInput {
  const T *__restrict__ dy, *__restrict__ x;
  const float *__restrict__ weight, *__restrict__ rstd;
  const T* __restrict__ residual;  // may be null
};

// The groups of `dy`, `x` and `residual` at the same columns of a row.
template <typename T>
struct RowGroups {
  Packed<T> dy, x, residual;

  __device__ RowGroups() : dy{}, x{}, residual{} {}

  __device__ RowGroups(const RmsNormInput<T>& in, i64 offset, int count) : residual{} {
    dy = load_packed(in.dy + offset, count), x = load_packed(in.x + offset, count);
    if (in.residual) residual = load_packed(in.residual + offset, count);
  }

  // Returns the contribution of these columns to the sum over the row.
  __device__ float products(const Group& weight, float scale) const {
    Group d = unpack(dy), in = unpack(x);
    float sum = 0.f;
    for (int i = 0; i < GROUP; ++i) sum += d.at[i] * weight.at[i] * (in.at[i] * scale);
    return sum;
  }

  // Writes the input's gradient and the norm's output, and adds the row to the gradient of the weight.
  __device__ void finish(const Group& weight, float scale, float mean, Group& sums, T* dx_at, T* y_at, int count) const {
    Group d = unpack(dy), in = unpack(x), around = unpack(residual), gradient, again;
    for (int i = 0; i < GROUP; ++i) {
      float xhat = in.at[i] * scale;
      gradient.at[i] = (d.at[i] * weight.at[i] - xhat * mean) * scale + around.at[i];
      again.at[i] = xhat * weight.at[i];
      sums.at[i] += d.at[i] * xhat;
    }
    store_group(gradient, dx_at, count);
    store_group(again, y_at, count);
  }
};

// A block processes a piece of the rows. It writes the gradient of the weight from these rows to partial[piece,
// column], and `sum_pieces` adds the pieces. Each thread keeps the sums of its first group of columns in registers, and
// the sums of further groups in `partial`. It loads its first groups of the next row before the sum over this row, so
// that the load continues while the block waits.
template <typename T>
__device__ void rms_norm_backward(const RmsNormInput<T>& in, T* __restrict__ dx, T* __restrict__ y,
                                  float* __restrict__ partial, i64 rows, i64 width, i64 rows_per_piece) {
  int columns = (int)width, first = first_column(), further = first + column_step();
  i64 begin = blockIdx.x * rows_per_piece, end = begin + rows_per_piece < rows ? begin + rows_per_piece : rows;
  float* sums = partial + blockIdx.x * width;
  Group first_sums = {}, first_weight = load_group(in.weight + first, columns - first);
  for (int at = further; at < columns; at += column_step()) store_group(Group{}, sums + at, columns - at);
  RowGroups<T> next;
  float next_scale = 0.f;
  if (begin < end) next = RowGroups<T>(in, begin * width + first, columns - first), next_scale = in.rstd[begin];
  for (i64 row = begin; row < end; ++row) {
    i64 start = row * width;
    RowGroups<T> groups = next;
    float scale = next_scale;
    if (row + 1 < end) next = RowGroups<T>(in, start + width + first, columns - first), next_scale = in.rstd[row + 1];
    float products = groups.products(first_weight, scale);
    for (int at = further; at < columns; at += column_step()) {
      Group weight = load_group(in.weight + at, columns - at);
      products += RowGroups<T>(in, start + at, columns - at).products(weight, scale);
    }
    float mean = block_sum(products) / width;
    groups.finish(first_weight, scale, mean, first_sums, dx + start + first, y + start + first, columns - first);
    for (int at = further; at < columns; at += column_step()) {
      Group weight = load_group(in.weight + at, columns - at), so_far = load_group(sums + at, columns - at);
      RowGroups<T> again(in, start + at, columns - at);
      again.finish(weight, scale, mean, so_far, dx + start + at, y + start + at, columns - at);
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
    rms_norm_backward(RmsNormInput<T>{dy, x, weight, rstd, residual}, dx, y, partial, rows, width, rows_per_piece);       \
  }
RMS_NORM(f32, float)
RMS_NORM(bf16, bf16)
