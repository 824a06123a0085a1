// The types, the groups of eight elements, and the sums over a block that all kernels share. NVRTC compiles this source
// for a GPU, and in the tests, a C++ compiler compiles it for the host (`host.h`). Sums have a fixed order, and no
// kernel uses atomics on floats, so the same input gives the same bits.
#pragma once

#ifdef __CUDACC_RTC__
#define INFINITY __int_as_float(0x7f800000)
// A kernel, which the host finds by its name.
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

// The number of neighbouring elements of a row that a thread reads or writes at a time. Sums over a row add whole
// groups, so that neither the alignment nor the type of loads changes their order.
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

// A group in the form in which memory holds it. The thread can compute while such a load continues, because it does not
// convert the values yet.
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

// Returns the group of elements at `from`. The row has `count` more elements, or none if `count` is negative. The
// elements beyond the row are `missing`.
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

// Stores four words at once. The compiler splits an assignment into four stores, unless it can prove that no other
// pointer refers to the memory.
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

// Returns two values as bf16 in one word, rounded to nearest, ties to even.
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

// Writes the first `count` elements of the group.
template <typename T>
__device__ static inline void store_group(const Group& group, T* to, int count) {
  if (count >= GROUP && is_aligned(to)) return store_vectors(group, to);
  for (int i = 0; i < GROUP && i < count; ++i) store(group.at[i], to + i);
}

// The column of this thread's first group in a row that the block shares, and the distance to its next group.
__device__ static inline int first_column() { return GROUP * (int)threadIdx.x; }
__device__ static inline int column_step() { return GROUP * (int)blockDim.x; }

// exp(x) and 1 / (1 + exp(-x)), as exact as results of the second argument's type need them.
__device__ static inline float exponential(float x, const float*) { return expf(x); }
__device__ static inline float exponential(float x, const bf16*) { return __expf(x); }
__device__ static inline float sigmoid(float x, const float*) { return 1.f / (1.f + expf(-x)); }
__device__ static inline float sigmoid(float x, const bf16*) { return __fdividef(1.f, 1.f + __expf(-x)); }

// Returns to each thread the sum of `value` over all threads of the block, which has at most 32 warps, all of them
// whole.
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

// Returns to each thread the largest `value` in the block, without regard to NaNs.
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

// The index of this thread among the threads of the grid's first dimension, and the number of these threads.
__device__ static inline i64 first_index() { return (i64)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ static inline i64 index_step() { return (i64)gridDim.x * blockDim.x; }
