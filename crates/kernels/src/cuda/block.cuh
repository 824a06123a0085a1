// Types, rows in groups of eight, and sums over a block, which all kernels share. NVRTC compiles the same source for a GPU
// and, in the tests, a C++ compiler for the host (`host.h`). Sums have a fixed order, and nothing uses atomics on floats: the
// same input gives the same bits.
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

// Neighbouring elements of a row, as floats: a thread reads and writes eight at a time. Sums over a row take its groups of
// eight, so that neither the alignment nor the type of loads changes their order.
constexpr int GROUP = 8;

struct Group {
  float at[GROUP];
};

__device__ static inline bool is_aligned(const void* address) { return ((unsigned long long)address & 15) == 0; }

__device__ static inline float from_bits(unsigned bits) {
  FloatBits word;
  word.bits = bits;
  return word.value;
}

__device__ static inline unsigned to_bits(float value) {
  FloatBits word;
  word.value = value;
  return word.bits;
}

// A group as memory holds it: a load that nothing converts can be under way while the thread computes.
template <typename T>
struct Packed {
  uint4 vectors[sizeof(T) * GROUP / sizeof(uint4)];
};

__device__ static inline Packed<float> pack(const float (&v)[GROUP]) {
  return {{{to_bits(v[0]), to_bits(v[1]), to_bits(v[2]), to_bits(v[3])},
           {to_bits(v[4]), to_bits(v[5]), to_bits(v[6]), to_bits(v[7])}}};
}

__device__ static inline Packed<bf16> pack(const bf16 (&v)[GROUP]) {
  unsigned words[4];
  for (int i = 0; i < 4; ++i) words[i] = (unsigned)v[2 * i + 1].bits << 16 | v[2 * i].bits;
  return {{{words[0], words[1], words[2], words[3]}}};
}

__device__ static inline Group unpack(const Packed<float>& packed) {
  uint4 a = packed.vectors[0], b = packed.vectors[1];
  return {{from_bits(a.x), from_bits(a.y), from_bits(a.z), from_bits(a.w), from_bits(b.x), from_bits(b.y), from_bits(b.z),
           from_bits(b.w)}};
}

__device__ static inline Group unpack(const Packed<bf16>& packed) {
  uint4 pairs = packed.vectors[0];
  unsigned words[4] = {pairs.x, pairs.y, pairs.z, pairs.w};
  Group group;
  for (int i = 0; i < 4; ++i) {
    group.at[2 * i] = from_bits(words[i] << 16);
    group.at[2 * i + 1] = from_bits(words[i] & 0xffff0000u);
  }
  return group;
}

// The elements from `from` on, of which the row has `count`, or none; the others are `missing`.
template <typename T>
__device__ static inline Packed<T> load_packed(const T* from, int count, float missing = 0.f) {
  if (count >= GROUP && is_aligned(from)) {
    Packed<T> packed;
    for (int i = 0; i < (int)(sizeof packed / sizeof(uint4)); ++i) packed.vectors[i] = ((const uint4*)from)[i];
    return packed;
  }
  T elements[GROUP];
  for (int i = 0; i < GROUP; ++i) {
    if (i < count) {
      elements[i] = from[i];
    } else {
      store(missing, elements + i);
    }
  }
  return pack(elements);
}

template <typename T>
__device__ static inline Group load_group(const T* from, int count, float missing = 0.f) {
  return unpack(load_packed(from, count, missing));
}

// The compiler splits an assignment of four words where it does not know that nothing else refers to them.
__device__ static inline void store_vector(unsigned a, unsigned b, unsigned c, unsigned d, void* to) {
#ifdef __CUDACC_RTC__
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
#else
  *(uint4*)to = {a, b, c, d};
#endif
}

__device__ static inline void store_vectors(const Group& group, float* to) {
  const float* v = group.at;
  store_vector(to_bits(v[0]), to_bits(v[1]), to_bits(v[2]), to_bits(v[3]), to);
  store_vector(to_bits(v[4]), to_bits(v[5]), to_bits(v[6]), to_bits(v[7]), to + 4);
}

// Two values as bf16, rounded to nearest, ties to even.
__device__ static inline unsigned pair(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  unsigned word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
#else
  bf16 halves[2];
  store(low, halves), store(high, halves + 1);
  return (unsigned)halves[1].bits << 16 | halves[0].bits;
#endif
}

__device__ static inline void store_vectors(const Group& group, bf16* to) {
  const float* v = group.at;
  store_vector(pair(v[0], v[1]), pair(v[2], v[3]), pair(v[4], v[5]), pair(v[6], v[7]), to);
}

// Writes the first `count` elements.
template <typename T>
__device__ static inline void store_group(const Group& group, T* to, int count) {
  if (count >= GROUP && is_aligned(to)) return store_vectors(group, to);
  for (int i = 0; i < GROUP && i < count; ++i) store(group.at[i], to + i);
}

// Column of the first group of this thread in a row that the block shares, and the distance to its next one.
__device__ static inline int first_column() { return GROUP * (int)threadIdx.x; }
__device__ static inline int column_step() { return GROUP * (int)blockDim.x; }

// exp(x) and 1 / (1 + exp(-x)), as exact as results of type T need them.
__device__ static inline float exponential(float x, const float*) { return expf(x); }
__device__ static inline float exponential(float x, const bf16*) { return __expf(x); }
__device__ static inline float sigmoid(float x, const float*) { return 1.f / (1.f + expf(-x)); }
__device__ static inline float sigmoid(float x, const bf16*) { return __fdividef(1.f, 1.f + __expf(-x)); }

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
