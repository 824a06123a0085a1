#pragma once

#include "vec.h"

namespace stagecoach::CPU_CAPABILITY {

inline Vec sigmoid(Vec x) { return Vec(1.f) / (Vec(1.f) + x.neg().exp()); }

template <typename T>
void swiglu(const T* gate_up, T* out, int64_t rows, int64_t width) {
  for_each_row(rows, width, [&](int64_t row) {
    const T *gate = gate_up + row * 2 * width, *up = gate + width;
    for_each_vec(width, [&](int64_t i, int64_t n) {
      Vec g = load(gate + i, n);
      store(g * sigmoid(g) * load(up + i, n), out + row * width + i, n);
    });
  });
}

template <typename T>
void swiglu_backward(const T* dout, const T* gate_up, T* dgate_up, T* out, int64_t rows, int64_t width) {
  for_each_row(rows, width, [&](int64_t row) {
    const T *gate = gate_up + row * 2 * width, *up = gate + width;
    T *dgate = dgate_up + row * 2 * width, *dup = dgate + width;
    for_each_vec(width, [&](int64_t i, int64_t n) {
      Vec d = load(dout + row * width + i, n), g = load(gate + i, n), u = load(up + i, n);
      Vec s = sigmoid(g), silu = g * s;
      store(silu * u, out + row * width + i, n);
      store(d * silu, dup + i, n);
      // silu' = s + g s (1 - s)
      store(d * u * at::vec::fmadd(silu, Vec(1.f) - s, s), dgate + i, n);
    });
  });
}

}  // namespace stagecoach::CPU_CAPABILITY
