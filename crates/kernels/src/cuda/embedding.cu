// The gradient of an embedding's weight: for each token, the sum of the rows of its occurrences, in their order. The
// rows are sorted by token, and each `positions` of them form a piece. One block adds the rows of a token in a piece.
// Another kernel adds the pieces of a token in their order. Several blocks therefore share the rows of a frequent
// token.
#include "block.cuh"

// Returns the row of `partial` for the sum of a token's rows in a piece, if the token has other pieces. A piece has at
// most two such tokens, its first and its last.
__device__ static inline i64 slot(i64 begin, i64 positions) {
  return 2 * (begin / positions) + (begin % positions > 0);
}

// `ids` has the sorted tokens, and `order` has the row of `dy` of each. A block adds the rows of one token in one piece
// if they begin at the block's position. Otherwise it skips the position. The sum of a token's first piece begins with
// the accumulator.
template <typename T>
__device__ void embedding_backward(float* __restrict__ accumulator, float* __restrict__ partial, const i64* __restrict__ ids,
                                   const i64* __restrict__ order, const T* __restrict__ dy, i64 tokens, i64 width,
                                   i64 positions) {
  int columns = (int)width;
  for (i64 begin = blockIdx.x; begin < tokens; begin += gridDim.x) {
    i64 id = ids[begin];
    bool is_first = begin == 0 || ids[begin - 1] != id;
    if (!is_first && begin % positions > 0) continue;
    i64 end = begin + 1, limit = (begin / positions + 1) * positions;
    while (end < limit && end < tokens && ids[end] == id) ++end;
    bool is_whole = is_first && (end == tokens || ids[end] != id);
    float* to = is_whole ? accumulator + id * width : partial + slot(begin, positions) * width;
    for (int at = first_column(); at < columns; at += column_step()) {
      Group sum = {};
      if (is_first) sum = load_group(accumulator + id * width + at, columns - at);
#pragma unroll 4
      for (i64 position = begin; position < end; ++position) {
        Group row = load_group(dy + order[position] * width + at, columns - at);
        for (int i = 0; i < GROUP; ++i) sum.at[i] += row.at[i];
      }
      store_group(sum, to + at, columns - at);
    }
  }
}

// Adds the pieces of each token that has several pieces. A block processes the token whose rows begin at its position.
KERNEL(embedding_pieces, (float* accumulator, const float* partial, const i64* ids, i64 tokens, i64 width, i64 positions)) {
  int columns = (int)width;
  for (i64 begin = blockIdx.x; begin < tokens; begin += gridDim.x) {
    i64 id = ids[begin], next = (begin / positions + 1) * positions;
    bool is_first = begin == 0 || ids[begin - 1] != id;
    if (!is_first || next >= tokens || ids[next] != id) continue;
    for (int at = first_column(); at < columns; at += column_step()) {
      Group sum = load_group(partial + slot(begin, positions) * width + at, columns - at);
      for (i64 piece = next; piece < tokens && ids[piece] == id; piece += positions) {
        Group rows = load_group(partial + slot(piece, positions) * width + at, columns - at);
        for (int i = 0; i < GROUP; ++i) sum.at[i] += rows.at[i];
      }
      store_group(sum, accumulator + id * width + at, columns - at);
    }
  }
}

#define EMBEDDING_BACKWARD(NAME, T)                                                                                 \
  KERNEL(NAME, (float* accumulator, float* partial, const i64* ids, const i64* order, const T* dy, i64 tokens, i64 width, \
                i64 positions)) {                                                                                   \
    embedding_backward(accumulator, partial, ids, order, dy, tokens, width, positions);                             \
  }
EMBEDDING_BACKWARD(embedding_backward_f32, float)
EMBEDDING_BACKWARD(embedding_backward_bf16, bf16)
