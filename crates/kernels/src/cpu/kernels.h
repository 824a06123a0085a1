// The CPU kernels, compiled once for each instruction set (isa.cpp) and chosen at run time (shim.cpp).
//
// Matrices are row-major and contiguous. T is the type of activations: float or BFloat16. Statistics, norms' weights and
// sums are float whatever T is. Results do not depend on the number of threads.

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
  // Number of this update, from 1.
  double step;
  // The gradient is multiplied by it first.
  double clip;
};

template <typename T>
struct Kernels {
  // Products of a linear layer with weight[outputs, inputs]; null without AVX512. In bf16, inputs and outputs are even.
  // y = x weight^T + residual, which may be null.
  void (*linear)(const T* x, const T* weight, const T* residual, T* y, int64_t rows, int64_t inputs, int64_t outputs);
  // The same in float; residual may be null.
  void (*linear_to_float)(const T* x, const T* weight, const float* residual, float* y, int64_t rows, int64_t inputs,
                          int64_t outputs);
  // dx = dy weight.
  void (*linear_backward)(const T* dy, const T* weight, T* dx, int64_t rows, int64_t inputs, int64_t outputs);
  // accumulator += dy^T x.
  void (*accumulate_linear)(const T* dy, const T* x, float* accumulator, int64_t rows, int64_t inputs, int64_t outputs);
  // Causal attention of each sequence, from row cu_seqlens[i] to cu_seqlens[i + 1], to itself; lse[rows, heads] is the
  // logarithm of the softmax's denominator. In bf16 null without AVX512.
  void (*attention)(const T* qkv, const int64_t* cu_seqlens, int64_t sequences, T* out, float* lse, Heads heads);
  void (*attention_backward)(const T* dout, const T* qkv, const T* out, const float* lse, const int64_t* cu_seqlens,
                             int64_t sequences, T* dqkv, Heads heads);
  // sums[width] = the sum of all rows of x.
  void (*column_sums)(const T* x, float* sums, int64_t rows, int64_t width);
  // y = x * rstd * weight with rstd = 1 / sqrt(mean(x^2) + eps) of each row (Zhang and Sennrich 2019).
  void (*rms_norm)(const T* x, const float* weight, T* y, float* rstd, int64_t rows, int64_t width, float eps);
  // From the gradient dy of y: dx (plus residual_gradient unless null), the weight's gradient dweight[width], and y again.
  void (*rms_norm_backward)(const T* dy, const T* x, const float* weight, const float* rstd, const T* residual_gradient,
                            T* dx, float* dweight, T* y, int64_t rows, int64_t width);
  // out = silu(gate) * up; gate_up holds [gate, up] in each row, each `width` wide (Shazeer 2020).
  void (*swiglu)(const T* gate_up, T* out, int64_t rows, int64_t width);
  // From the gradient dout of out: the gradient of gate_up, which may be gate_up itself, and out again.
  void (*swiglu_backward)(const T* dout, const T* gate_up, T* dgate_up, T* out, int64_t rows, int64_t width);
  // Rotates queries and keys in place by position, which is the row's index modulo `length` (Su et al. 2021); by the
  // opposite angle if `inverse`. cos and sin are [length, head_dim / 2].
  void (*rotary)(T* qkv, const float* cos, const float* sin, int64_t rows, int64_t length, Heads heads, bool inverse);
  // The sum of the cross-entropies of rows whose target is not negative. losses becomes the cross-entropy of each row,
  // 0 for the others. dlogits, unless null, becomes the gradient of that sum times `scale`; it may be logits itself.
  double (*cross_entropy)(const float* logits, const int64_t* targets, T* dlogits, double* losses, int64_t rows,
                          int64_t vocab, double scale);
  // One update (Loshchilov and Hutter 2019); compute, unless null, becomes a copy of value as T.
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
