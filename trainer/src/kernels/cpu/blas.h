// Matrix products of row-major matrices by the BLAS inside libtorch (MKL), which exports them under their Fortran names.

#pragma once

#include <c10/util/BFloat16.h>

#include <cstdint>

extern "C" {
void sgemm_(const char* transa, const char* transb, const int* m, const int* n, const int* k, const float* alpha,
            const float* a, const int* lda, const float* b, const int* ldb, const float* beta, float* c, const int* ldc);
// BFloat16 inputs, products and sums in float.
void gemm_bf16bf16f32_(const char* transa, const char* transb, const int* m, const int* n, const int* k,
                       const float* alpha, const c10::BFloat16* a, const int* lda, const c10::BFloat16* b, const int* ldb,
                       const float* beta, float* c, const int* ldc);
}

namespace stagecoach {

// A row-major matrix, or a part of one: `stride` is the distance between rows.
template <typename T>
struct Matrix {
  T* data;
  int64_t stride;
};

// out[m, n] = alpha * op(a)[m, k] op(b)[k, n] + beta * out, where op transposes if its flag is set. What is row-major for
// us is the transpose for BLAS: it computes out^T = op(b)^T op(a)^T.
template <typename T>
void gemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, float alpha, Matrix<const T> a,
          Matrix<const T> b, float beta, Matrix<float> out) {
  const char op_a = transpose_a ? 'T' : 'N', op_b = transpose_b ? 'T' : 'N';
  int rows = m, columns = n, inner = k, lda = a.stride, ldb = b.stride, ldout = out.stride;
  if constexpr (std::is_same_v<T, float>) {
    sgemm_(&op_b, &op_a, &columns, &rows, &inner, &alpha, b.data, &ldb, a.data, &lda, &beta, out.data, &ldout);
  } else {
    gemm_bf16bf16f32_(&op_b, &op_a, &columns, &rows, &inner, &alpha, b.data, &ldb, a.data, &lda, &beta, out.data, &ldout);
  }
}

}  // namespace stagecoach
