// What the kernels share: types, and sums over a block. The same source is compiled by NVRTC for a GPU and, in the tests, by a
// C++ compiler for the host (`host.h`). Sums have a fixed order, and nothing uses atomics on floats: the same input gives the
// same bits.
#pragma once

#ifdef __CUDACC_RTC__
#define INFINITY __int_as_float(0x7f800000)
// A kernel, found by its name.
#define KERNEL(NAME, PARAMETERS) extern "C" __global__ void NAME PARAMETERS
#else
#include "host.h"
#endif

typedef long long i64;

struct bf16 {
  unsigned short bits;
};

union FloatBits {
  float value;
  unsigned bits;
};

__device__ static inline float load(const float* at) { return *at; }

__device__ static inline float load(const bf16* at) {
  FloatBits word;
  word.bits = (unsigned)at->bits << 16;
  return word.value;
}

__device__ static inline void store(float value, float* at) { *at = value; }

// Rounds to nearest, ties to even.
__device__ static inline void store(float value, bf16* at) {
  FloatBits word;
  word.value = value;
  at->bits = value != value ? 0x7fc0 : (word.bits + 0x7fff + (word.bits >> 16 & 1)) >> 16;
}

// The sum of `value` over all threads of a block of whole warps, at most 32, known to each.
template <typename T>
__device__ static T block_sum(T value) {
  __shared__ T sums[32];
  for (int lane = 16; lane > 0; lane /= 2) value += __shfl_xor_sync(0xffffffffu, value, lane);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
  __syncthreads();
  T total = 0;
  for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) total += sums[warp];
  __syncthreads();  // the next sum writes `sums`
  return total;
}

// The largest `value` likewise, that are numbers.
__device__ static float block_max(float value) {
  __shared__ float largest[32];
  for (int lane = 16; lane > 0; lane /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, lane));
  if (threadIdx.x % 32 == 0) largest[threadIdx.x / 32] = value;
  __syncthreads();
  float result = largest[0];
  for (unsigned warp = 1; warp < blockDim.x / 32; ++warp) result = fmaxf(result, largest[warp]);
  __syncthreads();  // the next maximum writes `largest`
  return result;
}

// Index of this thread among all, and their number.
__device__ static inline i64 first_index() { return (i64)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ static inline i64 index_step() { return (i64)gridDim.x * blockDim.x; }
