// Small products of matrices, from which attention and linear layers are built, and the layouts of their operands.
//
// With AVX512, libtorch exports products that oneDNN compiles at run time ("brgemm"). Every element of their result is
// one sum in the order of the inner dimension. The result therefore depends neither on the number of threads nor on the
// vendor of the processor. With the other instruction sets, BLAS computes the products, and only float is supported.

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

// c[m, n] = a[m, k] b[k, n], or with `add`, c[m, n] += a[m, k] b[k, n]. `lda`, `ldb` and `ldc` are distances between
// rows. In bf16, k must be even, and the rows of b must be interleaved in pairs, as `pack` or `pack_transposed` does.
template <typename T>
void product(int64_t m, int64_t n, int64_t k, bool add, const T* a, int64_t lda, const T* b, int64_t ldb, float* c,
             int64_t ldc) {
#ifdef CPU_CAPABILITY_AVX512
  at::native::cpublas::brgemm(m, n, k, lda, ldb, ldc, add, a, b, c, !std::is_same_v<T, float>);
#else
  static_assert(std::is_same_v<T, float>);
  // BLAS is column-major, so this call computes the transpose: c^T = b^T a^T
  const char plain = 'N';
  const int rows = m, columns = n, inner = k, stride_a = lda, stride_b = ldb, stride_c = ldc;
  const float one = 1.f, beta = add ? 1.f : 0.f;
  sgemm_(&plain, &plain, &columns, &rows, &inner, &one, b, &stride_b, a, &stride_a, &beta, c, &stride_c);
#endif
}

// Ends the AMX mode that products set in the processor. Each thread calls this function after its last product.
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

// Writes the right operand b[inner, columns] of a product to `to`, whose rows are `columns` apart.
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

// Writes the right operand b = from[columns, inner]^T to `to`, whose rows are `to_stride` apart. In bf16, this function
// moves each pair of values as one value of 32 bits.
template <typename T>
void pack_transposed(const T* from, int64_t from_stride, T* to, int64_t to_stride, int64_t inner, int64_t columns) {
  constexpr int64_t pair = sizeof(float) / sizeof(T);
  transpose<float>(reinterpret_cast<const float*>(from), from_stride / pair, reinterpret_cast<float*>(to), to_stride,
                   columns, inner / pair);
}

}  // namespace stagecoach::CPU_CAPABILITY
