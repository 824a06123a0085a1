// The CPU kernels, compiled once for each instruction set (isa.cpp) and chosen at run time (shim.cpp).
//
// Matrices are row-major and contiguous. T is the type of activations: float or BFloat16. Statistics, the weights of
// norms, and sums are float for both types. Results do not depend on the number of threads.

#pragma once

#include <c10/util/BFloat16.h>

#include <cstdint>

namespace stagecoach {

// The heads of one token's row of queries, keys and values: [heads + 2 * kv_heads, head_dim].
struct Heads {
  int64_t heads, kv_heads, head_dim;
  int64_t width() const { return (heads + 2 * kv_heads) * head_dim; }
};

struct CpuAdamWOptions {
  double lr, beta1, beta2, weight_decay, eps;
  // The number of this update, from 1.
  double step;
  // The factor that clips the gradient: the update first multiplies the gradient by this factor.
  double clip;
};

template <typename T>
struct Kernels {
  // The next four functions are the products of a linear layer with weight[outputs, inputs]. They are null without
  // AVX512. In bf16, inputs and outputs must be even.
  // y = x weight^T + residual. residual may be null.
  void (*linear)(const T* x, const T* weight, const T* residual, T* y, int64_t rows, int64_t inputs, int64_t outputs);
  // The same as `linear`, with residual and y in float. residual may be null.
  void (*linear_to_float)(const T* x, const T* weight, const float* residual, float* y, int64_t rows, int64_t inputs,
                          int64_t outputs);
  // dx = dy weight.
  void (*linear_backward)(const T* dy, const T* weight, T* dx, int64_t rows, int64_t inputs, int64_t outputs);
  // accumulator += dy^T x.
  void (*accumulate_linear)(const T* dy, const T* x, float* accumulator, int64_t rows, int64_t inputs, int64_t outputs);
  // Causal attention within each sequence, which has the rows from cu_seqlens[i] to cu_seqlens[i + 1]. lse[rows, heads]
  // becomes the logarithm of the softmax's denominator. In bf16, both attention functions are null without AVX512.
  void (*attention)(const T* qkv, const int64_t* cu_seqlens, int64_t sequences, T* out, float* lse, Heads heads);
  void (*attention_backward)(const T* dout, const T* qkv, const T* out, const float* lse, const int64_t* cu_seqlens,
                             int64_t sequences, T* dqkv, Heads heads);
  // sums[width] = the sum of all rows of x.
  void (*column_sums)(const T* x, float* sums, int64_t rows, int64_t width);
  // y = x * rstd * weight with rstd = 1 / sqrt(mean(x^2) + eps) of each row (Zhang and Sennrich 2019).
  void (*rms_norm)(const T* x, const float* weight, T* y, float* rstd, int64_t rows, int64_t width, float eps);
  // Computes the gradients dx (plus residual_gradient, unless it is null) and dweight[width] from dy, the gradient of y.
  // Also computes y again.
  void (*rms_norm_backward)(const T* dy, const T* x, const float* weight, const float* rstd, const T* residual_gradient,
                            T* dx, float* dweight, T* y, int64_t rows, int64_t width);
  // out = silu(gate) * up (Shazeer 2020). Each row of gate_up has first gate and then up, each `width` wide.
  void (*swiglu)(const T* gate_up, T* out, int64_t rows, int64_t width);
  // Computes dgate_up, the gradient of gate_up, from dout, the gradient of out. Also computes out again. dgate_up may be
  // gate_up.
  void (*swiglu_backward)(const T* dout, const T* gate_up, T* dgate_up, T* out, int64_t rows, int64_t width);
  // Rotates queries and keys in place by their position (Su et al. 2021). The position is the row's index modulo
  // `length`. `inverse` rotates by the opposite angle. cos and sin are [length, head_dim / 2].
  void (*rotary)(T* qkv, const float* cos, const float* sin, int64_t rows, int64_t length, Heads heads, bool inverse);
  // Returns the sum of the cross-entropies of the rows whose target is not negative. losses becomes the cross-entropy
  // of each row, or 0 if its target is negative. dlogits becomes the gradient of the sum times `scale`. dlogits may be
  // null, or logits itself.
  double (*cross_entropy)(const float* logits, const int64_t* targets, T* dlogits, double* losses, int64_t rows,
                          int64_t vocab, double scale);
  // One update of AdamW (Loshchilov and Hutter 2019). compute becomes a copy of value as T, unless it is null.
  void (*adamw)(float* value, const float* gradient, float* exp_avg, float* exp_avg_sq, T* compute, int64_t size,
                CpuAdamWOptions options);
};

struct KernelTable {
  Kernels<float> f32;
  Kernels<c10::BFloat16> bf16;
  double (*squared_norm)(const float* values, int64_t size);
};

const KernelTable& kernels_default();
const KernelTable& kernels_avx2();
const KernelTable& kernels_avx512();

}  // namespace stagecoach
