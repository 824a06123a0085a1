// The gradient of an embedding's weight: for each token the rows that used it, in their order. Rows are sorted by token, and
// `positions` of them at a time make a piece; the rows of a token in one piece are added by one block, and the pieces of a token in
// their order. A frequent token thus takes no longer than its pieces.
#include "block.cuh"

// Where the sum of a token's rows in a piece is kept if the token has other pieces: at most two tokens of a piece have.
__device__ static inline i64 slot(i64 begin, i64 positions) {
  return 2 * (begin / positions) + (begin % positions > 0);
}

// `ids` are the sorted tokens and `order` the rows of `dy` that they come from. A block adds the rows of one token in one piece,
// from its position on; the other blocks have nothing to do. The first piece of a token begins with the accumulator.
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

// Adds the pieces of each token that has several. A block takes the token that begins at its position.
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
