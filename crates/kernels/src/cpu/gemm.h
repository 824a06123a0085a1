// The products of linear layers, computed in tiles. Each tile is a small product (product.h). A thread packs a part of a
// weight once for many rows, and finishes a tile of the result while the tile is in the cache. Products of bf16 values
// are summed in float.

#pragma once

#include <vector>

#include "product.h"

namespace stagecoach::CPU_CAPABILITY {

// The number of rows and of columns of a tile.
constexpr int64_t TILE = 64;
// The largest number of rows of a task, which computes one tile's width of columns. A thread packs a part of a weight
// once for all its tasks of the same columns. If there are more threads than tiles of columns, several threads share the
// rows of the same columns.
constexpr int64_t ROWS_PER_TASK = 512;
// The number of tokens whose products are added to an accumulator at a time.
constexpr int64_t TOKENS_PER_SUM = 1024;

// Makes a thread's buffer hold at least `size` values, whose contents are undefined.
template <typename T>
void grow(std::vector<T>& buffer, int64_t size) {
  if ((int64_t)buffer.size() < size) buffer.resize(size);
}

// Prefetches a part of a matrix, so that the part reaches the cache while the thread computes the preceding products.
template <typename T>
void prefetch(const T* from, int64_t stride, int64_t rows, int64_t columns) {
  constexpr int64_t line = 64 / sizeof(T);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; column += line) __builtin_prefetch(from + row * stride + column, 0, 2);
  }
}

// out[rows, columns] = a[rows, inner] b + residual. `residual` may be null. b.pack(column, columns, buffer) packs some
// columns of b, and b.prefetch(column, columns) prefetches them.
template <typename T, typename Out, typename Right>
void tiled_product(const T* a, const Out* residual, Out* out, int64_t rows, int64_t columns, int64_t inner, const Right& b) {
  int64_t tiles = (columns + TILE - 1) / TILE, parts = (rows + ROWS_PER_TASK - 1) / ROWS_PER_TASK;
  at::parallel_for(0, tiles * parts, 1, [&](int64_t begin, int64_t end) {
    static thread_local std::vector<T> packed;
    for (int64_t task = begin; task < end; ++task) {
      int64_t column = task / parts * TILE, width = std::min(TILE, columns - column);
      int64_t row = task % parts * ROWS_PER_TASK, last_row = std::min(row + ROWS_PER_TASK, rows);
      if (task == begin || row == 0) {
        grow(packed, inner * width);
        b.pack(column, width, packed.data());
        if (int64_t next = column + TILE; next < columns) b.prefetch(next, std::min(TILE, columns - next));
      }
      for (; row < last_row; row += TILE) {
        int64_t height = std::min(TILE, last_row - row), at = row * columns + column;
        const T* block = a + row * inner;
        if constexpr (std::is_same_v<Out, float>) {
          for (int64_t i = 0; residual && i < height; ++i) {
            std::memcpy(out + at + i * columns, residual + at + i * columns, width * sizeof(float));
          }
          product(height, width, inner, residual != nullptr, block, inner, packed.data(), width, out + at, columns);
        } else {
          alignas(64) float tile[TILE * TILE];
          product(height, width, inner, false, block, inner, packed.data(), width, tile, width);
          for (int64_t i = 0; i < height; ++i) {
            for_each_vec(width, [&](int64_t j, int64_t n) {
              Vec value = load(tile + i * width + j, n);
              if (residual) value = value + load(residual + at + i * columns + j, n);
              store(value, out + at + i * columns + j, n);
            });
          }
        }
      }
    }
    end_products();
  });
}

// weight[outputs, inputs]^T as the right operand.
template <typename T>
struct TransposedWeight {
  const T* weight;
  int64_t inputs;
  void pack(int64_t column, int64_t width, T* to) const {
    pack_transposed(weight + column * inputs, inputs, to, width, inputs, width);
  }
  void prefetch(int64_t column, int64_t width) const {
    CPU_CAPABILITY::prefetch(weight + column * inputs, inputs, width, inputs);
  }
};

// weight[outputs, inputs] as the right operand.
template <typename T>
struct Weight {
  const T* weight;
  int64_t inputs, outputs;
  void pack(int64_t column, int64_t width, T* to) const {
    CPU_CAPABILITY::pack(weight + column, inputs, to, outputs, width);
  }
  void prefetch(int64_t column, int64_t width) const {
    CPU_CAPABILITY::prefetch(weight + column, inputs, outputs, width);
  }
};

template <typename T, typename Out>
void linear(const T* x, const T* weight, const Out* residual, Out* y, int64_t rows, int64_t inputs, int64_t outputs) {
  tiled_product(x, residual, y, rows, outputs, inputs, TransposedWeight<T>{weight, inputs});
}

template <typename T>
void linear_backward(const T* dy, const T* weight, T* dx, int64_t rows, int64_t inputs, int64_t outputs) {
  tiled_product<T, T>(dy, nullptr, dx, rows, inputs, outputs, Weight<T>{weight, inputs, outputs});
}

template <typename T>
void accumulate_linear(const T* dy, const T* x, float* accumulator, int64_t rows, int64_t inputs, int64_t outputs) {
  static thread_local std::vector<T> packed;
  for (int64_t first = 0; first < rows; first += TOKENS_PER_SUM) {
    int64_t tokens = std::min(TOKENS_PER_SUM, rows - first);
    // Zeros pad the tokens, so that oneDNN compiles products for few sizes, and because bf16 is multiplied in pairs.
    int64_t inner = round_up(tokens, 16);
    grow(packed, inner * inputs);
    // packs x in tiles
    T* right = packed.data();
    at::parallel_for(0, (inputs + TILE - 1) / TILE, 1, [&](int64_t begin, int64_t end) {
      for (int64_t column = begin * TILE; column < std::min(end * TILE, inputs); column += TILE) {
        int64_t width = std::min(TILE, inputs - column);
        T* tile = right + column * inner;
        pack(x + first * inputs + column, inputs, tile, tokens, width);
        int64_t packed_tokens = std::is_same_v<T, float> ? tokens : round_up(tokens, 2);
        std::fill_n(tile + packed_tokens * width, (inner - packed_tokens) * width, T(0.f));
      }
    });
    const T* left = dy + first * outputs;
    at::parallel_for(0, (outputs + TILE - 1) / TILE, 1, [&](int64_t begin, int64_t end) {
      static thread_local std::vector<T> transposed;
      grow(transposed, TILE * inner);
      for (int64_t output = begin * TILE; output < std::min(end * TILE, outputs); output += TILE) {
        int64_t height = std::min(TILE, outputs - output);
        transpose(left + output, outputs, transposed.data(), inner, tokens, height);
        for (int64_t i = 0; i < height; ++i) std::fill_n(&transposed[i * inner + tokens], inner - tokens, T(0.f));
        if (int64_t next = output + TILE; next < outputs) {
          prefetch(left + next, outputs, tokens, std::min(TILE, outputs - next));
        }
        for (int64_t column = 0; column < inputs; column += TILE) {
          int64_t width = std::min(TILE, inputs - column);
          product(height, width, inner, true, transposed.data(), inner, right + column * inner, width,
                  accumulator + output * inputs + column, inputs);
        }
      }
      end_products();
    });
  }
}

}  // namespace stagecoach::CPU_CAPABILITY
