#pragma once

#include "kernels.h"
#include "vec.h"

namespace stagecoach::CPU_CAPABILITY {

// Pairs are (x[i], x[i + head_dim / 2]): Hugging Face's layout.
template <typename T>
void rotary(T* qkv, const float* cos, const float* sin, int64_t rows, int64_t length, Heads heads, bool inverse) {
  int64_t half = heads.head_dim / 2;
  Vec sign(inverse ? -1.f : 1.f);
  for_each_row(rows, heads.width(), [&](int64_t row) {
    const float *cosines = cos + row % length * half, *sines = sin + row % length * half;
    for (int64_t head = 0; head < heads.heads + heads.kv_heads; ++head) {
      T *first = qkv + row * heads.width() + head * heads.head_dim, *second = first + half;
      for_each_vec(half, [&](int64_t i, int64_t n) {
        Vec x1 = load(first + i, n), x2 = load(second + i, n), c = load(cosines + i, n), s = load(sines + i, n) * sign;
        store(x1 * c - x2 * s, first + i, n);
        store(x2 * c + x1 * s, second + i, n);
      });
    }
  });
}

}  // namespace stagecoach::CPU_CAPABILITY
