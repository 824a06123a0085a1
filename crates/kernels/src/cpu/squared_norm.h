#pragma once

#include <vector>

#include "vec.h"

namespace stagecoach::CPU_CAPABILITY {

// The number of values in a block. A thread sums a block in lanes, and adds the sums of the lanes in order. The sums of
// the blocks are then added in order. The result is the same for any number of threads and any instruction set.
constexpr int64_t VALUES_PER_SUM = 1 << 16;
constexpr int64_t LANES = 16;

inline double squared_norm(const float* values, int64_t size) {
  int64_t blocks = (size + VALUES_PER_SUM - 1) / VALUES_PER_SUM;
  std::vector<double> sums(blocks);
  at::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const float *at = values + block * VALUES_PER_SUM, *last = std::min(at + VALUES_PER_SUM, values + size);
      double lanes[LANES] = {};
      for (; at + LANES <= last; at += LANES) {
        for (int64_t lane = 0; lane < LANES; ++lane) lanes[lane] += (double)at[lane] * (double)at[lane];
      }
      for (int64_t lane = 0; at < last; ++at, ++lane) lanes[lane] += (double)*at * (double)*at;
      for (double lane : lanes) sums[block] += lane;
    }
  });
  double total = 0.0;
  for (double block_sum : sums) total += block_sum;
  return total;
}

}  // namespace stagecoach::CPU_CAPABILITY
