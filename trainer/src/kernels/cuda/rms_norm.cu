// Root-mean-square norm of rows; a block takes one row after another.
#include "block.cuh"

template <typename T>
__device__ void rms_norm(const T* x, const float* weight, T* y, float* rstd, i64 rows, i64 width, float eps) {
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* in = x + row * width;
    float squares = 0.f;
    for (i64 i = threadIdx.x; i < width; i += blockDim.x) squares += load(in + i) * load(in + i);
    float scale = 1.f / sqrtf(block_sum(squares) / width + eps);
    if (threadIdx.x == 0) rstd[row] = scale;
    for (i64 i = threadIdx.x; i < width; i += blockDim.x) store(load(in + i) * scale * weight[i], y + row * width + i);
  }
}

// `residual` may be null.
template <typename T>
__device__ void rms_norm_backward(const T* dy, const T* x, const float* weight, const float* rstd, const T* residual,
                                  T* dx, T* y, i64 rows, i64 width) {
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    i64 start = row * width;
    float scale = rstd[row], products = 0.f;
    for (i64 i = threadIdx.x; i < width; i += blockDim.x) {
      products += load(dy + start + i) * weight[i] * (load(x + start + i) * scale);
    }
    float mean = block_sum(products) / width;
    for (i64 i = threadIdx.x; i < width; i += blockDim.x) {
      float xhat = load(x + start + i) * scale;
      float d = (load(dy + start + i) * weight[i] - xhat * mean) * scale;
      store(residual ? d + load(residual + start + i) : d, dx + start + i);
      store(xhat * weight[i], y + start + i);
    }
  }
}

// partial[piece, column] = the gradient of the weight from a piece's rows, for `sum_pieces`.
template <typename T>
__device__ void rms_norm_dweight(const T* dy, const T* x, const float* rstd, float* partial, i64 rows, i64 width,
                                 i64 rows_per_piece) {
  i64 begin = blockIdx.y * rows_per_piece, end = begin + rows_per_piece < rows ? begin + rows_per_piece : rows;
  for (i64 column = first_index(); column < width; column += index_step()) {
    float sum = 0.f;
    for (i64 row = begin; row < end; ++row) {
      sum += load(dy + row * width + column) * (load(x + row * width + column) * rstd[row]);
    }
    partial[blockIdx.y * width + column] = sum;
  }
}

#define RMS_NORM(SUFFIX, T)                                                                                               \
  KERNEL(rms_norm_##SUFFIX, (const T* x, const float* weight, T* y, float* rstd, i64 rows, i64 width, float eps)) {       \
    rms_norm(x, weight, y, rstd, rows, width, eps);                                                                       \
  }                                                                                                                       \
  KERNEL(rms_norm_backward_##SUFFIX, (const T* dy, const T* x, const float* weight, const float* rstd, const T* residual, \
                                      T* dx, T* y, i64 rows, i64 width)) {                                                \
    rms_norm_backward(dy, x, weight, rstd, residual, dx, y, rows, width);                                                 \
  }                                                                                                                       \
  KERNEL(rms_norm_dweight_##SUFFIX, (const T* dy, const T* x, const float* rstd, float* partial, i64 rows, i64 width,     \
                                     i64 rows_per_piece)) {                                                               \
    rms_norm_dweight(dy, x, rstd, partial, rows, width, rows_per_piece);                                                  \
  }
RMS_NORM(f32, float)
RMS_NORM(bf16, bf16)
