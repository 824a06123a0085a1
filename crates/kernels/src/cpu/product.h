// Small products of matrices, of which attention and linear layers are made, and the operands' layouts.
//
// With AVX512 they are those that oneDNN compiles at run time and libtorch exports ("brgemm"): every element of a result is
// one sum over the inner dimension in its order, so that it depends neither on the number of threads nor on the maker of
// the processor. With other instruction sets they are BLAS's, for float alone.

#pragma once

#include <ATen/native/CPUBlas.h>

#include <cstring>

#include "vec.h"

#ifndef CPU_CAPABILITY_AVX512
// The BLAS inside libtorch (MKL) exports its functions under their Fortran names.
extern "C" void sgemm_(const char* transa, const char* transb, const int* m, const int* n, const int* k, const float* alpha,
                       const float* a, const int* lda, const float* b, const int* ldb, const float* beta, float* c,
                       const int* ldc);
#endif

namespace stagecoach::CPU_CAPABILITY {

inline int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// c[m, n] = a[m, k] b[k, n], added to what c holds if `add`. `lda`, `ldb` and `ldc` are distances between rows. In bf16, k
// is even and pairs of rows of b are interleaved: `pack` and `pack_transposed` do that.
template <typename T>
void product(int64_t m, int64_t n, int64_t k, bool add, const T* a, int64_t lda, const T* b, int64_t ldb, float* c,
             int64_t ldc) {
#ifdef CPU_CAPABILITY_AVX512
  at::native::cpublas::brgemm(m, n, k, lda, ldb, ldc, add, a, b, c, !std::is_same_v<T, float>);
#else
  static_assert(std::is_same_v<T, float>);
  // row-major for us is the transpose for BLAS: c^T = b^T a^T
  const char plain = 'N';
  const int rows = m, columns = n, inner = k, stride_a = lda, stride_b = ldb, stride_c = ldc;
  const float one = 1.f, beta = add ? 1.f : 0.f;
  sgemm_(&plain, &plain, &columns, &rows, &inner, &one, b, &stride_b, a, &stride_a, &beta, c, &stride_c);
#endif
}

// To be called by a thread after its last product: it leaves the mode in which a processor with AMX computes.
inline void end_products() {
#ifdef CPU_CAPABILITY_AVX512
  at::native::cpublas::brgemm_release(true);
#endif
}

// to[columns, rows] = from[rows, columns]^T.
template <typename T>
void transpose(const T* from, int64_t from_stride, T* to, int64_t to_stride, int64_t rows, int64_t columns) {
  constexpr int64_t block = 32;
  for (int64_t row = 0; row < rows; row += block) {
    for (int64_t column = 0; column < columns; column += block) {
      at::vec::transpose_mxn<T>(from + row * from_stride + column, from_stride, to + column * to_stride + row, to_stride,
                                std::min(block, rows - row), std::min(block, columns - column));
    }
  }
}

// The right operand b[inner, columns] of a product, whose rows are `columns` apart.
template <typename T>
void pack(const T* from, int64_t from_stride, T* to, int64_t inner, int64_t columns) {
  if constexpr (std::is_same_v<T, float>) {
    for (int64_t row = 0; row < inner; ++row) std::memcpy(to + row * columns, from + row * from_stride, columns * sizeof(T));
  } else {
#ifdef CPU_CAPABILITY_AVX512
    at::vec::pack_vnni2(from, to, from_stride, inner, columns);
#endif
  }
}

// The same of b = from[columns, inner]^T, with rows `to_stride` apart. Pairs of values in bf16 are moved as if they were one
// of 32 bits.
template <typename T>
void pack_transposed(const T* from, int64_t from_stride, T* to, int64_t to_stride, int64_t inner, int64_t columns) {
  constexpr int64_t pair = sizeof(float) / sizeof(T);
  transpose<float>(reinterpret_cast<const float*>(from), from_stride / pair, reinterpret_cast<float*>(to), to_stride,
                   columns, inner / pair);
}

}  // namespace stagecoach::CPU_CAPABILITY
