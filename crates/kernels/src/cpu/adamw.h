#pragma once

#include <cmath>

#include "kernels.h"
#include "vec.h"

namespace stagecoach::CPU_CAPABILITY {

template <typename T>
void adamw(float* value, const float* gradient, float* exp_avg, float* exp_avg_sq, T* compute, int64_t size,
           CpuAdamWOptions o) {
  double bias_correction1 = 1.0 - std::pow(o.beta1, o.step), bias_correction2 = 1.0 - std::pow(o.beta2, o.step);
  auto constant = [](double number) { return Vec((float)number); };
  Vec decay = constant(1.0 - o.lr * o.weight_decay), clip = constant(o.clip), eps = constant(o.eps);
  Vec beta1 = constant(o.beta1), beta2 = constant(o.beta2);
  Vec one_minus_beta1 = constant(1.0 - o.beta1), one_minus_beta2 = constant(1.0 - o.beta2);
  Vec step_size = constant(o.lr / bias_correction1), root = constant(1.0 / std::sqrt(bias_correction2));
  at::parallel_for(0, size, GRAIN, [&](int64_t begin, int64_t end) {
    for_each_vec(end - begin, [&](int64_t offset, int64_t n) {
      int64_t i = begin + offset;
      Vec g = load(gradient + i, n) * clip;
      Vec m = at::vec::fmadd(g, one_minus_beta1, load(exp_avg + i, n) * beta1);
      Vec v = at::vec::fmadd(g * g, one_minus_beta2, load(exp_avg_sq + i, n) * beta2);
      Vec w = load(value + i, n) * decay - step_size * m / at::vec::fmadd(v.sqrt(), root, eps);
      store(m, exp_avg + i, n);
      store(v, exp_avg_sq + i, n);
      store(w, value + i, n);
      if (compute) store(w, compute + i, n);
    });
  });
}

}  // namespace stagecoach::CPU_CAPABILITY
