#pragma once

#include <cmath>

#include "vec.h"

namespace stagecoach::CPU_CAPABILITY {

template <typename T>
double cross_entropy(const float* logits, const int64_t* targets, T* dlogits, double* losses, int64_t rows,
                     int64_t vocab, double scale) {
  for_each_row(rows, vocab, [&](int64_t row) {
    const float* in = logits + row * vocab;
    T* out = dlogits ? dlogits + row * vocab : nullptr;
    int64_t target = targets[row];
    if (target < 0) {
      losses[row] = 0.0;
      if (out) std::fill(out, out + vocab, T(0.f));
      return;
    }
    Vec largest(in[0]);
    for_each_vec(vocab, [&](int64_t i, int64_t n) {
      largest = n == Vec::size() ? at::vec::maximum(largest, load(in + i, n))
                                 : Vec::set(largest, at::vec::maximum(largest, load(in + i, n)), n);
    });
    float shift = max(largest);
    Vec exponentials(0.f);
    for_each_vec(vocab, [&](int64_t i, int64_t n) {
      Vec e = (load(in + i, n) - Vec(shift)).exp();
      exponentials = n == Vec::size() ? exponentials + e : Vec::set(exponentials, exponentials + e, n);
    });
    float total = sum(exponentials), target_logit = in[target];
    losses[row] = std::log((double)total) + ((double)shift - (double)target_logit);
    if (!out) return;
    Vec factor((float)scale / total);
    for_each_vec(vocab, [&](int64_t i, int64_t n) {
      store((load(in + i, n) - Vec(shift)).exp() * factor, out + i, n);
    });
    // the gradient of the target's logit is its probability minus 1: the difference is computed in double, then rounded
    out[target] = T((float)((std::exp((double)target_logit - shift) / total - 1.0) * scale));
  });
  double loss = 0.0;
  for (int64_t row = 0; row < rows; ++row) loss += losses[row];
  return loss;
}

}  // namespace stagecoach::CPU_CAPABILITY
