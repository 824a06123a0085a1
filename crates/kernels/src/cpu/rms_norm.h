#pragma once

#include "column_sums.h"

namespace stagecoach::CPU_CAPABILITY {

template <typename T>
void rms_norm(const T* x, const float* weight, T* y, float* rstd, int64_t rows, int64_t width, float eps) {
  for_each_row(rows, width, [&](int64_t row) {
    const T* in = x + row * width;
    T* out = y + row * width;
    Vec squares(0.f);
    for_each_vec(width, [&](int64_t i, int64_t n) {
      Vec value = load(in + i, n);
      squares = at::vec::fmadd(value, value, squares);
    });
    float scale = 1.f / std::sqrt(sum(squares) / width + eps);
    rstd[row] = scale;
    for_each_vec(width, [&](int64_t i, int64_t n) {
      store(load(in + i, n) * Vec(scale) * load(weight + i, n), out + i, n);
    });
  });
}

template <typename T>
void rms_norm_backward(const T* dy, const T* x, const float* weight, const float* rstd, const T* residual_gradient, T* dx,
                       float* dweight, T* y, int64_t rows, int64_t width) {
  std::vector<float> sums(row_blocks(rows) * width, 0.f);
  at::parallel_for(0, row_blocks(rows), 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin * ROWS_PER_SUM; row < std::min(end * ROWS_PER_SUM, rows); ++row) {
      const T *grad = dy + row * width, *in = x + row * width;
      float* block_sum = sums.data() + row / ROWS_PER_SUM * width;
      Vec products(0.f);
      for_each_vec(width, [&](int64_t i, int64_t n) {
        products = at::vec::fmadd(load(grad + i, n) * load(weight + i, n), load(in + i, n), products);
      });
      Vec scale(rstd[row]);
      // mean(dy * weight * xhat), to be multiplied by xhat * rstd = x * rstd^2
      Vec mean(sum(products) * rstd[row] / width);
      for_each_vec(width, [&](int64_t i, int64_t n) {
        Vec g = load(grad + i, n), w = load(weight + i, n), xhat = load(in + i, n) * scale;
        Vec d = (g * w - xhat * mean) * scale;
        if (residual_gradient) d = d + load(residual_gradient + row * width + i, n);
        store(at::vec::fmadd(g, xhat, load(block_sum + i, n)), block_sum + i, n);
        store(xhat * w, y + row * width + i, n);
        store(d, dx + row * width + i, n);
      });
    }
  });
  sum_blocks(sums, dweight, width);
}

}  // namespace stagecoach::CPU_CAPABILITY
