// One update of AdamW for a list of parameters. The second dimension of the grid counts the parameters.
#include "block.cuh"

// `compute` may be null.
struct AdamWParameter {
  float* value;
  const float* gradient;
  float *exp_avg, *exp_avg_sq;
  bf16* compute;
  i64 size;
  double weight_decay;
};

struct CudaAdamWOptions {
  float step_size, rsqrt_bias_correction2, beta1, one_minus_beta1, beta2, one_minus_beta2, eps, clip;
  double lr;
};

KERNEL(adamw, (const AdamWParameter* parameters, CudaAdamWOptions o)) {
  AdamWParameter p = parameters[blockIdx.y];
  float decay = (float)(1. - o.lr * p.weight_decay);
  for (i64 i = first_index(); i < p.size; i += index_step()) {
    float g = p.gradient[i] * o.clip;
    float m = p.exp_avg[i] * o.beta1 + g * o.one_minus_beta1;
    float v = p.exp_avg_sq[i] * o.beta2 + g * g * o.one_minus_beta2;
    float w = p.value[i] * decay - o.step_size * m / (sqrtf(v) * o.rsqrt_bias_correction2 + o.eps);
    p.exp_avg[i] = m;
    p.exp_avg_sq[i] = v;
    p.value[i] = w;
    if (p.compute) store(w, p.compute + i);
  }
}
