#pragma once

#include <cmath>
#include <vector>

#include "blas.h"
#include "kernels.h"
#include "vec.h"

namespace stagecoach::CPU_CAPABILITY {

// Queries whose scores exist at the same time. Causal attention skips keys after the last of them.
constexpr int64_t QUERY_BLOCK = 64;

// Copies a matrix of floats into one of T.
template <typename T>
void convert(int64_t rows, int64_t columns, Matrix<const float> from, Matrix<T> to) {
  for (int64_t row = 0; row < rows; ++row) {
    for_each_vec(columns, [&](int64_t i, int64_t n) {
      store(load(from.data + row * from.stride + i, n), to.data + row * to.stride + i, n);
    });
  }
}

// One sequence and one head of keys and values, with the heads of queries that it serves: the unit of parallel work. No
// two units write to the same memory.
template <typename T>
struct Unit {
  Heads heads;
  int64_t first_row, length, kv_head;

  int64_t group() const { return heads.heads / heads.kv_heads; }
  int64_t query_head(int64_t member) const { return kv_head * group() + member; }
  // The columns of a head in rows [row, ...) of this sequence.
  template <typename U>
  Matrix<U> query(U* qkv, int64_t head, int64_t row) const { return column(qkv, head, row); }
  template <typename U>
  Matrix<U> key(U* qkv) const { return column(qkv, heads.heads + kv_head, 0); }
  template <typename U>
  Matrix<U> value(U* qkv) const { return column(qkv, heads.heads + heads.kv_heads + kv_head, 0); }
  template <typename U>
  Matrix<U> output(U* out, int64_t head, int64_t row) const {
    int64_t stride = heads.heads * heads.head_dim;
    return {out + (first_row + row) * stride + head * heads.head_dim, stride};
  }
  template <typename L>
  L* lse(L* lse, int64_t head, int64_t row) const { return lse + (first_row + row) * heads.heads + head; }

 private:
  template <typename U>
  Matrix<U> column(U* qkv, int64_t head, int64_t row) const {
    return {qkv + (first_row + row) * heads.width() + head * heads.head_dim, heads.width()};
  }
};

template <typename T, typename Body>
void for_each_unit(const int64_t* cu_seqlens, int64_t sequences, Heads heads, const Body& body) {
  at::parallel_for(0, sequences * heads.kv_heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      int64_t sequence = i / heads.kv_heads, first_row = cu_seqlens[sequence];
      body(Unit<T>{heads, first_row, cu_seqlens[sequence + 1] - first_row, i % heads.kv_heads});
    }
  });
}

// scores[queries, keys] of a block that begins at `row`: the product with keys [0, keys), scaled, not yet masked.
template <typename T>
void scores_of(const Unit<T>& unit, const T* qkv, int64_t head, int64_t row, int64_t queries, int64_t keys, float* scores) {
  float scale = 1.f / std::sqrt((float)unit.heads.head_dim);
  gemm<T>(false, true, queries, keys, unit.heads.head_dim, scale, unit.query(qkv, head, row), unit.key(qkv), 0.f,
          {scores, keys});
}

// Temporary memory of one unit. For float, products are written where they belong; for BFloat16 they pass through these.
template <typename T>
struct Buffers {
  static constexpr bool rounds = !std::is_same_v<T, float>;
  std::vector<float> scores, gradients, block;
  std::vector<T> rounded;

  explicit Buffers(const Unit<T>& unit, bool backward) {
    int64_t block_size = std::min(QUERY_BLOCK, unit.length);
    scores.resize(block_size * unit.length);
    if (backward) gradients.resize(block_size * unit.length);
    if (rounds) {
      block.resize(block_size * unit.heads.head_dim);
      rounded.resize(block_size * unit.length);
    }
  }

  // `matrix` as T, valid until the next call.
  Matrix<const T> as_input(const std::vector<float>& matrix, int64_t rows, int64_t columns) {
    if constexpr (rounds) {
      convert<T>(rows, columns, {matrix.data(), columns}, {rounded.data(), columns});
      return {rounded.data(), columns};
    } else {
      return {matrix.data(), columns};
    }
  }

  // out[m, n] = a[m, k] b[k, n], rounded once.
  void product(int64_t m, int64_t n, int64_t k, Matrix<const T> a, Matrix<const T> b, Matrix<T> out) {
    if constexpr (rounds) {
      gemm<T>(false, false, m, n, k, 1.f, a, b, 0.f, {block.data(), n});
      convert<T>(m, n, {block.data(), n}, out);
    } else {
      gemm<T>(false, false, m, n, k, 1.f, a, b, 0.f, out);
    }
  }
};

template <typename T>
void attention(const T* qkv, const int64_t* cu_seqlens, int64_t sequences, T* out, float* lse, Heads heads) {
  for_each_unit<T>(cu_seqlens, sequences, heads, [&](const Unit<T>& unit) {
    Buffers<T> buffers(unit, false);
    for (int64_t member = 0; member < unit.group(); ++member) {
      int64_t head = unit.query_head(member);
      for (int64_t row = 0; row < unit.length; row += QUERY_BLOCK) {
        int64_t queries = std::min(QUERY_BLOCK, unit.length - row), keys = row + queries;
        float* scores = buffers.scores.data();
        scores_of(unit, qkv, head, row, queries, keys, scores);
        for (int64_t i = 0; i < queries; ++i) {
          float* weights = scores + i * keys;
          int64_t visible = row + i + 1;
          Vec largest(weights[0]);
          for_each_vec(visible, [&](int64_t j, int64_t n) {
            largest = Vec::set(largest, at::vec::maximum(largest, load(weights + j, n)), n);
          });
          float shift = max(largest);
          Vec total(0.f);
          for_each_vec(visible, [&](int64_t j, int64_t n) {
            Vec e = (load(weights + j, n) - Vec(shift)).exp();
            total = Vec::set(total, total + e, n);
            store(e, weights + j, n);
          });
          float denominator = sum(total);
          for_each_vec(visible, [&](int64_t j, int64_t n) {
            store(load(weights + j, n) * Vec(1.f / denominator), weights + j, n);
          });
          std::fill(weights + visible, weights + keys, 0.f);
          *unit.lse(lse, head, row + i) = shift + std::log(denominator);
        }
        buffers.product(queries, heads.head_dim, keys, buffers.as_input(buffers.scores, queries, keys), unit.value(qkv),
                        unit.output(out, head, row));
      }
    }
  });
}

template <typename T>
void attention_backward(const T* dout, const T* qkv, const T* out, const float* lse, const int64_t* cu_seqlens,
                        int64_t sequences, T* dqkv, Heads heads) {
  int64_t dim = heads.head_dim;
  float scale = 1.f / std::sqrt((float)dim);
  for_each_unit<T>(cu_seqlens, sequences, heads, [&](const Unit<T>& unit) {
    Buffers<T> buffers(unit, true);
    // sums over the queries of all heads
    std::vector<float> dkey(unit.length * dim, 0.f), dvalue(unit.length * dim, 0.f);
    for (int64_t member = 0; member < unit.group(); ++member) {
      int64_t head = unit.query_head(member);
      for (int64_t row = 0; row < unit.length; row += QUERY_BLOCK) {
        int64_t queries = std::min(QUERY_BLOCK, unit.length - row), keys = row + queries;
        float *weights = buffers.scores.data(), *gradients = buffers.gradients.data();
        scores_of(unit, qkv, head, row, queries, keys, weights);
        Matrix<const T> dblock = unit.output(dout, head, row), block = unit.output(out, head, row);
        // the gradient of the weights, then of the scores
        gemm<T>(false, true, queries, keys, dim, 1.f, dblock, unit.value(qkv), 0.f, {gradients, keys});
        for (int64_t i = 0; i < queries; ++i) {
          Vec products(0.f);
          for_each_vec(dim, [&](int64_t j, int64_t n) {
            products = at::vec::fmadd(load(dblock.data + i * dblock.stride + j, n),
                                      load(block.data + i * block.stride + j, n), products);
          });
          Vec delta(sum(products)), shift(*unit.lse(lse, head, row + i));
          float *w = weights + i * keys, *g = gradients + i * keys;
          int64_t visible = row + i + 1;
          for_each_vec(visible, [&](int64_t j, int64_t n) {
            Vec weight = (load(w + j, n) - shift).exp();
            store(weight, w + j, n);
            store((load(g + j, n) - delta) * weight * Vec(scale), g + j, n);
          });
          std::fill(w + visible, w + keys, 0.f);
          std::fill(g + visible, g + keys, 0.f);
        }
        gemm<T>(true, false, keys, dim, queries, 1.f, buffers.as_input(buffers.scores, queries, keys), dblock, 1.f,
                {dvalue.data(), dim});
        Matrix<const T> dscores = buffers.as_input(buffers.gradients, queries, keys);
        gemm<T>(true, false, keys, dim, queries, 1.f, dscores, unit.query(qkv, head, row), 1.f, {dkey.data(), dim});
        buffers.product(queries, dim, keys, dscores, unit.key(qkv), unit.query(dqkv, head, row));
      }
    }
    convert<T>(unit.length, dim, {dkey.data(), dim}, unit.key(dqkv));
    convert<T>(unit.length, dim, {dvalue.data(), dim}, unit.value(dqkv));
  });
}

}  // namespace stagecoach::CPU_CAPABILITY
