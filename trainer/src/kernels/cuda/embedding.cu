// The gradient of an embedding's weight: of each token the rows that used it, in their order.
#include "block.cuh"

// `ids` are the sorted tokens and `order` the rows of `dy` that they come from. A block adds the run that begins at its
// position; the others have nothing to do.
template <typename T>
__device__ void embedding_backward(float* accumulator, const i64* ids, const i64* order, const T* dy, i64 tokens,
                                   i64 width) {
  for (i64 begin = blockIdx.x; begin < tokens; begin += gridDim.x) {
    i64 id = ids[begin];
    if (begin > 0 && ids[begin - 1] == id) continue;
    for (i64 column = threadIdx.x; column < width; column += blockDim.x) {
      float sum = accumulator[id * width + column];
      for (i64 at = begin; at < tokens && ids[at] == id; ++at) sum += load(dy + order[at] * width + column);
      accumulator[id * width + column] = sum;
    }
  }
}

#define EMBEDDING_BACKWARD(NAME, T)                                                                                 \
  KERNEL(NAME, (float* accumulator, const i64* ids, const i64* order, const T* dy, i64 tokens, i64 width)) {        \
    embedding_backward(accumulator, ids, order, dy, tokens, width);                                                 \
  }
EMBEDDING_BACKWARD(embedding_backward_f32, float)
EMBEDDING_BACKWARD(embedding_backward_bf16, bf16)
