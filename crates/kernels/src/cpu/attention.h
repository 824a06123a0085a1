#pragma once

#include <cmath>
#include <vector>

#include "kernels.h"
#include "product.h"
#include "vec.h"

namespace stagecoach::CPU_CAPABILITY {

// The number of queries in a block. A thread holds the scores of only one block in memory. Attention is causal, so a
// block skips the keys after its last query.
constexpr int64_t QUERY_BLOCK = 64;

// A row-major matrix, or a part of one: `stride` is the distance between rows.
template <typename T>
struct Matrix {
  T* data;
  int64_t stride;
};

// The unit of parallel work: one sequence, one head of keys and values, and the query heads that share this head. No
// two units write to the same memory.
template <typename T>
struct Unit {
  Heads heads;
  int64_t first_row, length, kv_head;

  int64_t group() const { return heads.heads / heads.kv_heads; }
  int64_t query_head(int64_t member) const { return kv_head * group() + member; }
  // Returns the columns of a query head in the rows from `row` of this sequence.
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

// Computes the softmax of a block of scores in place. The first query sees the keys [0, first_visible), and each
// further query sees one key more. The weights of hidden keys become 0.
inline void softmax(float* scores, int64_t queries, int64_t stride, int64_t first_visible, float scale, float* lse,
                    int64_t lse_stride) {
  for (int64_t i = 0; i < queries; ++i) {
    float* weights = scores + i * stride;
    int64_t visible = first_visible + i;
    Vec largest(weights[0]);
    for_each_vec(visible, [&](int64_t j, int64_t n) {
      largest = Vec::set(largest, at::vec::maximum(largest, load(weights + j, n)), n);
    });
    float shift = max(largest) * scale;
    Vec total(0.f);
    for_each_vec(visible, [&](int64_t j, int64_t n) {
      Vec e = (load(weights + j, n) * Vec(scale) - Vec(shift)).exp();
      total = Vec::set(total, total + e, n);
      store(e, weights + j, n);
    });
    float denominator = sum(total);
    for_each_vec(visible, [&](int64_t j, int64_t n) {
      store(load(weights + j, n) * Vec(1.f / denominator), weights + j, n);
    });
    std::fill(weights + visible, weights + stride, 0.f);
    lse[i * lse_stride] = shift + std::log(denominator);
  }
}

// Returns the number of keys, rounded up to whole blocks, that the block of queries beginning at `row` sees.
inline int64_t keys_seen(int64_t row) { return row + QUERY_BLOCK; }

// The keys and values of a unit as operands of products. Zeros pad them to whole blocks. With the padding, oneDNN
// compiles products for few sizes, and hidden keys have finite values.
template <typename T>
struct Keys {
  int64_t length, dim, padded;
  std::vector<T> key_transposed, value, key, value_transposed;

  Keys(const Unit<T>& unit, const T* qkv, bool backward)
      : length(unit.length), dim(unit.heads.head_dim), padded(round_up(unit.length, QUERY_BLOCK)) {
    pack_rows(unit.key(qkv), key_transposed, true);
    pack_rows(unit.value(qkv), value, false);
    if (backward) {
      pack_rows(unit.key(qkv), key, false);
      pack_rows(unit.value(qkv), value_transposed, true);
    }
  }

 private:
  void pack_rows(Matrix<const T> from, std::vector<T>& to, bool transposed) {
    to.assign(padded * dim, T(0.f));
    if (transposed) {
      pack_transposed(from.data, from.stride, to.data(), padded, dim, length);
    } else {
      pack(from.data, from.stride, to.data(), length, dim);
    }
  }
};

// Returns a block of rows, padded with zero rows to a whole block.
template <typename T>
const T* whole_block(Matrix<const T> from, int64_t rows, int64_t columns, std::vector<T>& to) {
  to.resize(QUERY_BLOCK * columns);
  for (int64_t row = 0; row < rows; ++row) std::copy_n(from.data + row * from.stride, columns, to.data() + row * columns);
  std::fill(to.begin() + rows * columns, to.end(), T(0.f));
  return to.data();
}

// Converts `size` floats to T and returns the result. If T is float, returns the data of `from` without a copy.
template <typename T>
const T* as_type(const std::vector<float>& from, int64_t size, std::vector<T>& to) {
  if constexpr (std::is_same_v<T, float>) {
    return from.data();
  } else {
    to.resize(from.size());
    for_each_vec(size, [&](int64_t i, int64_t n) { store(load(from.data() + i, n), to.data() + i, n); });
    return to.data();
  }
}

template <typename T>
void copy_rows(const float* from, int64_t rows, int64_t columns, Matrix<T> to) {
  for (int64_t row = 0; row < rows; ++row) {
    for_each_vec(columns, [&](int64_t i, int64_t n) {
      store(load(from + row * columns + i, n), to.data + row * to.stride + i, n);
    });
  }
}

template <typename T>
void attention(const T* qkv, const int64_t* cu_seqlens, int64_t sequences, T* out, float* lse, Heads heads) {
  int64_t dim = heads.head_dim;
  float scale = 1.f / std::sqrt((float)dim);
  for_each_unit<T>(cu_seqlens, sequences, heads, [&](const Unit<T>& unit) {
    Keys<T> keys(unit, qkv, false);
    std::vector<float> weights(QUERY_BLOCK * keys.padded), result(QUERY_BLOCK * dim);
    std::vector<T> query, rounded;
    for (int64_t member = 0; member < unit.group(); ++member) {
      int64_t head = unit.query_head(member);
      for (int64_t row = 0; row < unit.length; row += QUERY_BLOCK) {
        int64_t queries = std::min(QUERY_BLOCK, unit.length - row), seen = keys_seen(row);
        const T* q = whole_block(unit.query(qkv, head, row), queries, dim, query);
        product(QUERY_BLOCK, seen, dim, false, q, dim, keys.key_transposed.data(), keys.padded, weights.data(), seen);
        softmax(weights.data(), queries, seen, row + 1, scale, unit.lse(lse, head, row), heads.heads);
        const T* p = as_type(weights, QUERY_BLOCK * seen, rounded);
        product(QUERY_BLOCK, dim, seen, false, p, seen, keys.value.data(), dim, result.data(), dim);
        copy_rows(result.data(), queries, dim, unit.output(out, head, row));
      }
    }
    end_products();
  });
}

// Replaces the scores in `weights` by their softmax, and the gradients of the weights in `gradients` by the gradients
// of the scores.
template <typename T>
void softmax_backward(float* weights, float* gradients, int64_t queries, int64_t stride, int64_t first_visible, float scale,
                      const float* lse, int64_t lse_stride, Matrix<const T> dout, Matrix<const T> out, int64_t dim) {
  for (int64_t i = 0; i < queries; ++i) {
    Vec products(0.f);
    for_each_vec(dim, [&](int64_t j, int64_t n) {
      products = at::vec::fmadd(load(dout.data + i * dout.stride + j, n), load(out.data + i * out.stride + j, n), products);
    });
    Vec delta(sum(products)), shift(lse[i * lse_stride]);
    float *w = weights + i * stride, *g = gradients + i * stride;
    int64_t visible = first_visible + i;
    for_each_vec(visible, [&](int64_t j, int64_t n) {
      Vec weight = (load(w + j, n) * Vec(scale) - shift).exp();
      store(weight, w + j, n);
      store((load(g + j, n) - delta) * weight * Vec(scale), g + j, n);
    });
    std::fill(w + visible, w + stride, 0.f);
    std::fill(g + visible, g + stride, 0.f);
  }
  // the padding rows after the last query
  std::fill(weights + queries * stride, weights + QUERY_BLOCK * stride, 0.f);
  std::fill(gradients + queries * stride, gradients + QUERY_BLOCK * stride, 0.f);
}

template <typename T>
void attention_backward(const T* dout, const T* qkv, const T* out, const float* lse, const int64_t* cu_seqlens,
                        int64_t sequences, T* dqkv, Heads heads) {
  int64_t dim = heads.head_dim;
  float scale = 1.f / std::sqrt((float)dim);
  for_each_unit<T>(cu_seqlens, sequences, heads, [&](const Unit<T>& unit) {
    Keys<T> keys(unit, qkv, true);
    std::vector<float> weights(QUERY_BLOCK * keys.padded), gradients(QUERY_BLOCK * keys.padded), dquery(QUERY_BLOCK * dim);
    // the gradients of keys and values, summed over the queries of all heads of the unit
    std::vector<float> dkey(keys.padded * dim, 0.f), dvalue(keys.padded * dim, 0.f);
    std::vector<T> query, dblock, rounded, transposed(keys.padded * QUERY_BLOCK), packed(QUERY_BLOCK * dim);
    // sums[keys, dim] += matrix[queries, keys]^T block[queries, dim]
    auto add_transposed = [&](const T* matrix, int64_t seen, const T* block, std::vector<float>& sums) {
      transpose(matrix, seen, transposed.data(), QUERY_BLOCK, QUERY_BLOCK, seen);
      pack(block, dim, packed.data(), QUERY_BLOCK, dim);
      product(seen, dim, QUERY_BLOCK, true, transposed.data(), QUERY_BLOCK, packed.data(), dim, sums.data(), dim);
    };
    for (int64_t member = 0; member < unit.group(); ++member) {
      int64_t head = unit.query_head(member);
      for (int64_t row = 0; row < unit.length; row += QUERY_BLOCK) {
        int64_t queries = std::min(QUERY_BLOCK, unit.length - row), seen = keys_seen(row);
        const T* q = whole_block(unit.query(qkv, head, row), queries, dim, query);
        const T* d = whole_block(unit.output(dout, head, row), queries, dim, dblock);
        product(QUERY_BLOCK, seen, dim, false, q, dim, keys.key_transposed.data(), keys.padded, weights.data(), seen);
        product(QUERY_BLOCK, seen, dim, false, d, dim, keys.value_transposed.data(), keys.padded, gradients.data(), seen);
        softmax_backward<T>(weights.data(), gradients.data(), queries, seen, row + 1, scale, unit.lse(lse, head, row),
                            heads.heads, unit.output(dout, head, row), unit.output(out, head, row), dim);
        add_transposed(as_type(weights, QUERY_BLOCK * seen, rounded), seen, d, dvalue);
        const T* dscores = as_type(gradients, QUERY_BLOCK * seen, rounded);
        add_transposed(dscores, seen, q, dkey);
        product(QUERY_BLOCK, dim, seen, false, dscores, seen, keys.key.data(), dim, dquery.data(), dim);
        copy_rows(dquery.data(), queries, dim, unit.query(dqkv, head, row));
      }
    }
    copy_rows(dkey.data(), unit.length, dim, unit.key(dqkv));
    copy_rows(dvalue.data(), unit.length, dim, unit.value(dqkv));
    end_products();
  });
}

}  // namespace stagecoach::CPU_CAPABILITY
