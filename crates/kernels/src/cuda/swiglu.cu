// silu(gate) * up, for rows of gate and up side by side. A block processes one row after another.
#include "block.cuh"

template <typename T>
__device__ void swiglu(const T* __restrict__ gate_up, T* __restrict__ out, i64 rows, i64 width) {
  int columns = (int)width;
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    const T *gates = gate_up + row * 2 * width, *ups = gates + width;
    for (int at = first_column(); at < columns; at += column_step()) {
      Group gate = load_group(gates + at, columns - at), up = load_group(ups + at, columns - at);
      for (int i = 0; i < GROUP; ++i) gate.at[i] *= sigmoid(gate.at[i], out) * up.at[i];
      store_group(gate, out + row * width + at, columns - at);
    }
  }
}

// Overwrites gate and up with their gradients.
template <typename T>
__device__ void swiglu_backward(const T* __restrict__ dout, T* gate_up, T* __restrict__ out, i64 rows, i64 width) {
  int columns = (int)width;
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    T *gates = gate_up + row * 2 * width, *ups = gates + width;
    for (int at = first_column(); at < columns; at += column_step()) {
      Group gate = load_group(gates + at, columns - at), up = load_group(ups + at, columns - at);
      Group d = load_group(dout + row * width + at, columns - at), y;
      for (int i = 0; i < GROUP; ++i) {
        float g = gate.at[i], u = up.at[i], s = sigmoid(g, out), silu = g * s;
        y.at[i] = silu * u;
        up.at[i] = d.at[i] * silu;
        gate.at[i] = d.at[i] * u * (s + silu * (1.f - s));
      }
      store_group(y, out + row * width + at, columns - at);
      store_group(up, ups + at, columns - at);
      store_group(gate, gates + at, columns - at);
    }
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
