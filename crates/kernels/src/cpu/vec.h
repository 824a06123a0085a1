// Vectors of floats, loaded from and stored to float or BFloat16.

#pragma once

#include <ATen/Parallel.h>
#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>

#include <algorithm>

namespace stagecoach::CPU_CAPABILITY {

using at::BFloat16;
using Vec = at::vec::Vectorized<float>;

// Returns the first n values of `from`. The other values of the vector are 0.
inline Vec load(const float* from, int64_t n) { return Vec::loadu(from, n); }

inline Vec load(const BFloat16* from, int64_t n) {
  if (n == Vec::size()) {
    Vec out;
    at::vec::load_fp32_from_bf16(from, out);
    return out;
  }
  return std::get<0>(at::vec::convert_bfloat16_float(at::vec::Vectorized<BFloat16>::loadu(from, n)));
}

inline void store(Vec values, float* to, int64_t n) { values.store(to, n); }

inline void store(Vec values, BFloat16* to, int64_t n) {
  at::vec::convert_float_bfloat16(values, Vec(0.f)).store(to, n);
}

// Calls body(i, n) for each vector of `size` values: n values from index i.
template <typename Body>
inline void for_each_vec(int64_t size, const Body& body) {
  int64_t i = 0;
  for (; i + Vec::size() <= size; i += Vec::size()) body(i, Vec::size());
  if (i < size) body(i, size - i);
}

inline float sum(Vec values) {
  return at::vec::vec_reduce_all<float>([](Vec& a, Vec& b) { return a + b; }, values);
}

inline float max(Vec values) {
  return at::vec::vec_reduce_all<float>([](Vec& a, Vec& b) { return at::vec::maximum(a, b); }, values);
}

// The number of values that are worth a further thread, equal to libtorch's grain size.
constexpr int64_t GRAIN = 1 << 15;

// Calls body(row) for each row, on all threads.
template <typename Body>
inline void for_each_row(int64_t rows, int64_t width, const Body& body) {
  int64_t grain = std::max<int64_t>(1, GRAIN / std::max<int64_t>(width, 1));
  at::parallel_for(0, rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) body(row);
  });
}

}  // namespace stagecoach::CPU_CAPABILITY
