// libtorch's flash attention (Dao 2023) over sequences of any lengths. tch does not expose flash attention, which runs
// only on GPUs. Both functions of this file call it through libtorch's dispatcher, so that the file compiles and links
// without CUDA.

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/empty.h>

#include <optional>

#include "shim.h"

using at::Tensor;
using stagecoach::Heads;

namespace {

// While an object of this class exists, flash attention adds the gradients of queries in a fixed order.
class Deterministic {
 public:
  Deterministic() {
    at::globalContext().setDeterministicAlgorithms(true, false);
    at::globalContext().setDeterministicFillUninitializedMemory(false);
  }
  ~Deterministic() {
    at::globalContext().setDeterministicAlgorithms(was_on, was_warning_only);
    at::globalContext().setDeterministicFillUninitializedMemory(was_filling);
  }

 private:
  bool was_on = at::globalContext().deterministicAlgorithms();
  bool was_warning_only = at::globalContext().deterministicAlgorithmsWarnOnly();
  bool was_filling = at::globalContext().deterministicFillUninitializedMemory();
};

// Views of queries, keys and values, [rows, heads, head_dim].
struct Parts {
  Tensor q, k, v;

  Parts(const Tensor& qkv, Heads heads) {
    Tensor all = qkv.view({-1, heads.heads + 2 * heads.kv_heads, heads.head_dim});
    q = all.narrow(1, 0, heads.heads);
    k = all.narrow(1, heads.heads, heads.kv_heads);
    v = all.narrow(1, heads.heads + heads.kv_heads, heads.kv_heads);
  }
};

// Returns an upper bound of the lengths of sequences, at least 2. libtorch needs only a bound, and with a bound of 1 it
// would return its results in another layout.
int64_t bound(int64_t max_length) { return std::max<int64_t>(max_length, 2); }

}  // namespace

extern "C" {

// `lse` becomes [rows, heads], a view of libtorch's [heads, rows].
int sc_flash_attention(Tensor* qkv, Tensor* cu_seqlens, int64_t max_length, Heads heads, Tensor** out, Tensor** lse) {
  return stagecoach::guarded([&] {
    Parts parts(*qkv, heads);
    Tensor bounds = cu_seqlens->to(at::kInt);
    auto results = at::_flash_attention_forward(parts.q, parts.k, parts.v, bounds, bounds, bound(max_length),
                                                bound(max_length), 0., true, false);
    *out = new Tensor(std::get<0>(results).reshape({-1, heads.heads * heads.head_dim}));
    *lse = new Tensor(std::get<1>(results).transpose(0, 1));
  });
}

int sc_flash_attention_backward(Tensor* dout, Tensor* qkv, Tensor* out, Tensor* lse, Tensor* cu_seqlens, int64_t max_length,
                                Heads heads, bool is_deterministic, Tensor** dq, Tensor** dk, Tensor** dv) {
  return stagecoach::guarded([&] {
    std::optional<Deterministic> deterministic;
    if (is_deterministic) deterministic.emplace();
    Parts parts(*qkv, heads);
    Tensor bounds = cu_seqlens->to(at::kInt);
    auto by_head = [&](const Tensor& x) { return x.view({-1, heads.heads, heads.head_dim}); };
    // the state of a random generator, which libtorch reads only with dropout
    Tensor state = at::empty({2}, qkv->options().dtype(at::kUInt64)), unused = at::empty({}, state.options());
    auto gradients = at::_flash_attention_backward(by_head(*dout), parts.q, parts.k, parts.v, by_head(*out),
                                                   lse->transpose(0, 1), bounds, bounds, bound(max_length),
                                                   bound(max_length), 0., true, state, unused);
    *dq = new Tensor(std::get<0>(gradients).contiguous());
    *dk = new Tensor(std::get<1>(gradients).contiguous());
    *dv = new Tensor(std::get<2>(gradients).contiguous());
  });
}
}
