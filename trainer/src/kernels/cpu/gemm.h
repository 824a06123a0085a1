// The products of linear layers, each in tiles that are small products: a weight is packed once for many rows, the result's
// tile is finished while it is in the cache, and bf16 is summed in float.

#pragma once

#include <vector>

#include "product.h"

namespace stagecoach::CPU_CAPABILITY {

// Rows and columns of a tile.
constexpr int64_t TILE = 64;
// Rows that share one packed part of a weight, at least; more threads than columns' tiles divide the rows further.
constexpr int64_t ROWS_PER_TASK = 512;
// Tokens whose products are added to an accumulator at a time.
constexpr int64_t TOKENS_PER_SUM = 1024;

// At least `size` values that a thread uses again: what they hold is not kept, and not cleared.
template <typename T>
void grow(std::vector<T>& buffer, int64_t size) {
  if ((int64_t)buffer.size() < size) buffer.resize(size);
}

// Calls body(column, columns, first_row, last_row) for columns of tiles of a result, on all threads.
template <typename Body>
void for_each_tile_column(int64_t rows, int64_t columns, const Body& body) {
  int64_t tiles = (columns + TILE - 1) / TILE, parts = (rows + ROWS_PER_TASK - 1) / ROWS_PER_TASK;
  at::parallel_for(0, tiles * parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      int64_t column = i / parts * TILE, row = i % parts * ROWS_PER_TASK;
      body(column, std::min(TILE, columns - column), row, std::min(row + ROWS_PER_TASK, rows));
    }
    end_products();
  });
}

// out[rows, columns] = a[rows, inner] b + residual, where pack_part(column, columns, buffer) packs some columns of b.
// residual may be null.
template <typename T, typename Out, typename PackPart>
void tiled_product(const T* a, const Out* residual, Out* out, int64_t rows, int64_t columns, int64_t inner,
             const PackPart& pack_part) {
  for_each_tile_column(rows, columns, [&](int64_t column, int64_t width, int64_t row, int64_t last_row) {
    static thread_local std::vector<T> packed;
    grow(packed, inner * width);
    pack_part(column, width, packed.data());
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
  });
}

template <typename T, typename Out>
void linear(const T* x, const T* weight, const Out* residual, Out* y, int64_t rows, int64_t inputs, int64_t outputs) {
  tiled_product(x, residual, y, rows, outputs, inputs, [&](int64_t column, int64_t width, T* packed) {
    pack_transposed(weight + column * inputs, inputs, packed, width, inputs, width);
  });
}

template <typename T>
void linear_backward(const T* dy, const T* weight, T* dx, int64_t rows, int64_t inputs, int64_t outputs) {
  tiled_product<T, T>(dy, nullptr, dx, rows, inputs, outputs, [&](int64_t column, int64_t width, T* packed) {
    pack(weight + column, inputs, packed, outputs, width);
  });
}

template <typename T>
void accumulate_linear(const T* dy, const T* x, float* accumulator, int64_t rows, int64_t inputs, int64_t outputs) {
  static thread_local std::vector<T> dy_transposed;
  for (int64_t first = 0; first < rows; first += TOKENS_PER_SUM) {
    int64_t tokens = std::min(TOKENS_PER_SUM, rows - first);
    // Zeros behind the tokens: products are compiled for few sizes, and bf16 is multiplied in pairs.
    int64_t inner = round_up(tokens, 16);
    grow(dy_transposed, outputs * inner);
    T* transposed = dy_transposed.data();
    at::parallel_for(0, (outputs + TILE - 1) / TILE, 1, [&](int64_t begin, int64_t end) {
      int64_t output = begin * TILE, last = std::min(end * TILE, outputs);
      transpose(dy + first * outputs + output, outputs, transposed + output * inner, inner, tokens, last - output);
      for (; output < last; ++output) std::fill_n(transposed + output * inner + tokens, inner - tokens, T(0.f));
    });
    for_each_tile_column(outputs, inputs, [&](int64_t column, int64_t width, int64_t row, int64_t last_row) {
      static thread_local std::vector<T> packed;
      grow(packed, inner * width);
      pack(x + first * inputs + column, inputs, packed.data(), tokens, width);
      int64_t packed_tokens = std::is_same_v<T, float> ? tokens : round_up(tokens, 2);
      std::fill_n(packed.data() + packed_tokens * width, (inner - packed_tokens) * width, T(0.f));
      for (; row < last_row; row += TILE) {
        product(std::min(TILE, last_row - row), width, inner, true, transposed + row * inner, inner, packed.data(), width,
                accumulator + row * inputs + column, inputs);
      }
    });
  }
}

}  // namespace stagecoach::CPU_CAPABILITY
