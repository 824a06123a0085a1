// silu(gate) * up, of rows that hold gate and up side by side.
#include "block.cuh"

__device__ static inline float sigmoid(float x) { return 1.f / (1.f + expf(-x)); }

template <typename T>
__device__ void swiglu(const T* gate_up, T* out, i64 rows, i64 width) {
  for (i64 at = first_index(); at < rows * width; at += index_step()) {
    const T* gate = gate_up + at / width * 2 * width + at % width;
    float g = load(gate);
    store(g * sigmoid(g) * load(gate + width), out + at);
  }
}

// The gradient takes the place of gate and up.
template <typename T>
__device__ void swiglu_backward(const T* dout, T* gate_up, T* out, i64 rows, i64 width) {
  for (i64 at = first_index(); at < rows * width; at += index_step()) {
    T *gate = gate_up + at / width * 2 * width + at % width, *up = gate + width;
    float d = load(dout + at), g = load(gate), u = load(up), s = sigmoid(g), silu = g * s;
    store(silu * u, out + at);
    store(d * silu, up);
    store(d * u * (s + silu * (1.f - s)), gate);
  }
}

#define SWIGLU(SUFFIX, T)                                                                          \
  KERNEL(swiglu_##SUFFIX, (const T* gate_up, T* out, i64 rows, i64 width)) {                       \
    swiglu(gate_up, out, rows, width);                                                             \
  }                                                                                                \
  KERNEL(swiglu_backward_##SUFFIX, (const T* dout, T* gate_up, T* out, i64 rows, i64 width)) {     \
    swiglu_backward(dout, gate_up, out, rows, width);                                              \
  }
SWIGLU(f32, float)
SWIGLU(bf16, bf16)
