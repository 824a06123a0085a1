#pragma once

#include <vector>

#include "vec.h"

namespace stagecoach::CPU_CAPABILITY {

// The number of rows in a block. One thread adds the rows of a block in their order, so that the sum of all rows is the
// same for any number of threads.
constexpr int64_t ROWS_PER_SUM = 64;

inline int64_t row_blocks(int64_t rows) { return (rows + ROWS_PER_SUM - 1) / ROWS_PER_SUM; }

// Adds the sums of the blocks, each `width` wide, in the order of the blocks.
inline void sum_blocks(const std::vector<float>& blocks, float* sums, int64_t width) {
  for_each_vec(width, [&](int64_t i, int64_t n) {
    Vec total(0.f);
    for (size_t start = 0; start < blocks.size(); start += width) total = total + load(blocks.data() + start + i, n);
    store(total, sums + i, n);
  });
}

template <typename T>
void column_sums(const T* x, float* sums, int64_t rows, int64_t width) {
  std::vector<float> blocks(row_blocks(rows) * width, 0.f);
  at::parallel_for(0, row_blocks(rows), 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin * ROWS_PER_SUM; row < std::min(end * ROWS_PER_SUM, rows); ++row) {
      float* block = blocks.data() + row / ROWS_PER_SUM * width;
      for_each_vec(width, [&](int64_t i, int64_t n) { store(load(block + i, n) + load(x + row * width + i, n), block + i, n); });
    }
  });
  sum_blocks(blocks, sums, width);
}

}  // namespace stagecoach::CPU_CAPABILITY
