// Cross-entropy of rows of logits, and its gradient. A block processes one row after another. It reads a row twice: for
// the largest logit and the sum of exponentials, and for the gradient.
#include "block.cuh"

// losses[row] is 0 where the target is negative. `dlogits` may be null, or the logits themselves.
template <typename T>
__device__ void cross_entropy(const float* logits, const i64* targets, T* dlogits, double* losses, i64 rows, i64 vocab,
                              double scale) {
  int columns = (int)vocab;
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    const float* in = logits + row * vocab;
    i64 target = targets[row];
    if (target < 0) {
      Group nothing = {};
      if (threadIdx.x == 0) losses[row] = 0.;
      for (int at = first_column(); dlogits && at < columns; at += column_step()) {
        store_group(nothing, dlogits + row * vocab + at, columns - at);
      }
      continue;
    }
    // the largest logit that this thread has read, and the sum of exponentials relative to it
    float largest = -INFINITY, exponentials = 0.f, target_logit = in[target];
    for (int at = first_column(); at < columns; at += column_step()) {
      Group group = load_group(in + at, columns - at, -INFINITY);
      float before = largest;
      for (int i = 0; i < GROUP; ++i) largest = fmaxf(largest, group.at[i]);
      if (largest > before) exponentials *= expf(before - largest);
      float origin = largest == -INFINITY ? 0.f : largest;  // logits that are all minus infinity add nothing
      for (int i = 0; i < GROUP; ++i) exponentials += expf(group.at[i] - origin);
    }
    float shift = block_max(largest);
    float total = block_sum(exponentials * expf(largest - shift));
    // after block_max, all threads have read `target_logit`, which `dlogits` may overwrite
    if (threadIdx.x == 0) losses[row] = log((double)total) + ((double)shift - (double)target_logit);
    if (!dlogits) continue;
    float factor = (float)scale / total;
    // the gradient of the target's logit: the difference is computed in double, before it is rounded
    float of_target = (float)((exp((double)target_logit - shift) / total - 1.) * scale);
    for (int at = first_column(); at < columns; at += column_step()) {
      Group group = load_group(in + at, columns - at);
      for (int i = 0; i < GROUP; ++i) {
        group.at[i] = at + i == target ? of_target : exponential(group.at[i] - shift, dlogits) * factor;
      }
      store_group(group, dlogits + row * vocab + at, columns - at);
    }
  }
}

#define CROSS_ENTROPY(NAME, T)                                                                                       \
  KERNEL(NAME, (const float* logits, const i64* targets, T* dlogits, double* losses, i64 rows, i64 vocab, double scale)) { \
    cross_entropy(logits, targets, dlogits, losses, rows, vocab, scale);                                             \
  }
CROSS_ENTROPY(cross_entropy_f32, float)
CROSS_ENTROPY(cross_entropy_bf16, bf16)
