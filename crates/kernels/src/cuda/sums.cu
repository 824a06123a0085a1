// Sums over rows, and sums of squares. A sum takes two launches. The first adds the values of each piece, whose bounds
// depend only on the shape. The second adds the pieces in a fixed order.
#include "block.cuh"

// partial[piece, column] = the sum of a piece's rows; the second dimension of the grid counts pieces.
template <typename T>
__device__ void column_sums(const T* __restrict__ x, float* __restrict__ partial, i64 rows, i64 width, i64 rows_per_piece) {
  i64 begin = blockIdx.y * rows_per_piece, end = begin + rows_per_piece < rows ? begin + rows_per_piece : rows;
  for (i64 column = GROUP * first_index(); column < width; column += GROUP * index_step()) {
    int count = width - column < GROUP ? (int)(width - column) : GROUP;
    Group sum = {};
    for (i64 row = begin; row < end; ++row) {
      Group group = load_group(x + row * width + column, count);
      for (int i = 0; i < GROUP; ++i) sum.at[i] += group.at[i];
    }
    store_group(sum, partial + blockIdx.y * width + column, count);
  }
}

#define COLUMN_SUMS(NAME, T)                                                                     \
  KERNEL(NAME, (const T* x, float* partial, i64 rows, i64 width, i64 rows_per_piece)) {          \
    column_sums(x, partial, rows, width, rows_per_piece);                                        \
  }
COLUMN_SUMS(column_sums_f32, float)
COLUMN_SUMS(column_sums_bf16, bf16)

// sums[column] = the sum of partial[pieces, width] over its rows. A block of at most 512 threads processes 32 columns
// at a time. Its warps share the pieces, and the first warp adds the sums of the warps in their order.
KERNEL(sum_pieces, (const float* partial, float* sums, i64 pieces, i64 width)) {
  __shared__ float of_warps[16][32];
  unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  for (i64 start = 32 * (i64)blockIdx.x; start < width; start += 32 * (i64)gridDim.x) {
    i64 column = start + lane;
    float sum = 0.f;
#pragma unroll 8
    for (i64 piece = warp; column < width && piece < pieces; piece += warps) sum += partial[piece * width + column];
    of_warps[warp][lane] = sum;
    __syncthreads();
    for (unsigned other = 1; warp == 0 && other < warps; ++other) sum += of_warps[other][lane];
    if (warp == 0 && column < width) sums[column] = sum;
    __syncthreads();  // the next columns write `of_warps`
  }
}

// sums[row] = the sum of values[row, width]. Each row has a block.
KERNEL(row_sums_f64, (const double* values, double* sums, i64 width)) {
  double sum = 0.;
  for (i64 at = threadIdx.x; at < width; at += blockDim.x) sum += values[blockIdx.x * width + at];
  sum = block_sum(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

struct Values {
  const float* values;
  i64 size;
};

// partial[list, piece] = the sum of the squares of a piece of a list; the grid is [pieces, lists].
KERNEL(squared_norms, (const Values* lists, double* partial)) {
  Values list = lists[blockIdx.y];
  double sum = 0.;
  for (i64 at = first_index(); at < list.size; at += index_step()) sum += (double)list.values[at] * list.values[at];
  sum = block_sum(sum);
  if (threadIdx.x == 0) partial[blockIdx.y * gridDim.x + blockIdx.x] = sum;
}
