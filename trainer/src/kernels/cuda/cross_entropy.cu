// Cross-entropy of rows of logits, and its gradient; a block takes one row after another.
#include "block.cuh"

// losses[row] is 0 where the target is negative. `dlogits` may be null, or the logits themselves.
template <typename T>
__device__ void cross_entropy(const float* logits, const i64* targets, T* dlogits, double* losses, i64 rows, i64 vocab,
                              double scale) {
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    const float* in = logits + row * vocab;
    i64 target = targets[row];
    if (target < 0) {
      if (threadIdx.x == 0) losses[row] = 0.;
      for (i64 i = threadIdx.x; dlogits && i < vocab; i += blockDim.x) store(0.f, dlogits + row * vocab + i);
      continue;
    }
    float shift = -INFINITY, exponentials = 0.f, target_logit = in[target];
    for (i64 i = threadIdx.x; i < vocab; i += blockDim.x) shift = fmaxf(shift, in[i]);
    shift = block_max(shift);
    for (i64 i = threadIdx.x; i < vocab; i += blockDim.x) exponentials += expf(in[i] - shift);
    float total = block_sum(exponentials);  // after it all threads have read `target_logit`
    if (threadIdx.x == 0) losses[row] = log((double)total) + ((double)shift - (double)target_logit);
    if (!dlogits) continue;
    float factor = (float)scale / total;
    for (i64 i = threadIdx.x; i < vocab; i += blockDim.x) {
      // the target's in double, so that it is rounded once
      float gradient = i == target ? (float)((exp((double)target_logit - shift) / total - 1.) * scale)
                                   : expf(in[i] - shift) * factor;
      store(gradient, dlogits + row * vocab + i);
    }
  }
}

#define CROSS_ENTROPY(NAME, T)                                                                                       \
  KERNEL(NAME, (const float* logits, const i64* targets, T* dlogits, double* losses, i64 rows, i64 vocab, double scale)) { \
    cross_entropy(logits, targets, dlogits, losses, rows, vocab, scale);                                             \
  }
CROSS_ENTROPY(cross_entropy_f32, float)
CROSS_ENTROPY(cross_entropy_bf16, bf16)
