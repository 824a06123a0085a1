// All CPU kernels for one instruction set. The build compiles this file once for each instruction set, and defines
// KERNELS as the name of the function that returns the table of kernels.

#include "adamw.h"
#include "attention.h"
#include "column_sums.h"
#include "cross_entropy.h"
#include "gemm.h"
#include "kernels.h"
#include "rms_norm.h"
#include "rotary.h"
#include "squared_norm.h"
#include "swiglu.h"

namespace stagecoach {

namespace CPU_CAPABILITY {

template <typename T>
constexpr Kernels<T> kernels = {
#ifdef CPU_CAPABILITY_AVX512
    linear<T, T>, linear<T, float>, linear_backward<T>, accumulate_linear<T>, attention<T>, attention_backward<T>,
#else
    nullptr, nullptr, nullptr, nullptr, nullptr, nullptr,
#endif
    column_sums<T>, rms_norm<T>, rms_norm_backward<T>, swiglu<T>, swiglu_backward<T>, rotary<T>, cross_entropy<T>, adamw<T>,
};

}  // namespace CPU_CAPABILITY

const KernelTable& KERNELS() {
  using namespace CPU_CAPABILITY;
  static const KernelTable table = [] {
    KernelTable table = {kernels<float>, kernels<at::BFloat16>, squared_norm};
    table.f32.attention = attention<float>;
    table.f32.attention_backward = attention_backward<float>;
    return table;
  }();
  return table;
}

}  // namespace stagecoach
