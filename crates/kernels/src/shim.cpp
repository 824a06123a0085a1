// C functions that run the CPU kernels on tensors, and C functions for parts of libtorch that tch does not expose. A
// function that can fail returns 0, or -1 with a message in sc_last_error(). The caller owns the returned tensors.

#include <ATen/Context.h>
#include <ATen/Version.h>
#include <ATen/core/Tensor.h>
#include <ATen/cpu/Utils.h>
#include <ATen/native/CPUBlas.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <torch/headeronly/version.h>

#include <string>

#include "cpu/kernels.h"
#include "shim.h"

// Returns the branch to which MKL dispatches (2 is AUTO, 3 COMPATIBLE, 10 AVX2, 12 AVX512). Some builds of libtorch
// lack this function.
extern "C" __attribute__((weak)) int mkl_serv_cbwr_get_auto_branch();

using at::Tensor;
using stagecoach::Heads;
using stagecoach::KernelTable;
using stagecoach::guarded;

namespace {

template <typename T>
bool small_products_work() {
  try {
    T values[4] = {T(1.f), T(1.f), T(1.f), T(1.f)};
    float product[4];
    at::native::cpublas::brgemm(2, 2, 2, 2, 2, 2, false, values, values, product, !std::is_same_v<T, float>);
    at::native::cpublas::brgemm_release(true);
    return product[0] == 2.f;
  } catch (const std::exception&) {
    return false;
  }
}

// Returns the kernels for the instruction set that libtorch chose. The environment variable ATEN_CPU_CAPABILITY can
// select a lower instruction set.
const KernelTable& table() {
  static const KernelTable& chosen = [&]() -> const KernelTable& {
    std::string capability = at::get_cpu_capability();
#ifdef __x86_64__
    if (capability == "AVX512" && small_products_work<float>()) return stagecoach::kernels_avx512();
    if (capability == "AVX512" || capability == "AVX2") return stagecoach::kernels_avx2();
#endif
    return stagecoach::kernels_default();
  }();
  return chosen;
}

// Whether the chosen kernels have products of this type.
bool has_products(at::ScalarType type) {
  if (type == at::kFloat) return table().f32.linear;
  static const bool in_bf16 = table().bf16.linear && small_products_work<at::BFloat16>();
  return in_bf16;
}

void check(const Tensor& tensor, at::ScalarType type) {
  TORCH_CHECK(tensor.device().is_cpu() && tensor.is_contiguous() && tensor.scalar_type() == type,
              "a kernel takes contiguous ", type, " tensors on the CPU, got ", tensor.toString(), tensor.sizes());
}

template <typename T>
T* data(const Tensor& tensor) {
  check(tensor, c10::CppTypeToScalarType<T>::value);
  return tensor.mutable_data_ptr<T>();
}

// Returns null if the tensor is null.
template <typename T>
T* data_or_null(const Tensor* tensor) {
  return tensor ? data<T>(*tensor) : nullptr;
}

// Calls body(kernels, T()), where T is the type of `tensor`, for the kernels with activations of this type.
template <typename Body>
void dispatch(const Tensor& tensor, const Body& body) {
  if (tensor.scalar_type() == at::kBFloat16) {
    body(table().bf16, at::BFloat16());
  } else {
    body(table().f32, float());
  }
}

int64_t width(const Tensor& matrix) { return matrix.size(-1); }
int64_t rows(const Tensor& matrix) { return matrix.numel() / std::max<int64_t>(width(matrix), 1); }

void check_product(const Tensor& matrix, int64_t inputs, int64_t outputs) {
  bool even = inputs % 2 == 0 && outputs % 2 == 0;
  TORCH_CHECK(has_products(matrix.scalar_type()) && (even || matrix.scalar_type() == at::kFloat),
              "there is no product of ", matrix.scalar_type(), " with a weight of ", outputs, " x ", inputs);
}

// Returns the type in which the kernels compute attention: that of `qkv`, or float if there are no products of its
// type.
at::ScalarType attention_type(const Tensor& qkv) { return has_products(qkv.scalar_type()) ? qkv.scalar_type() : at::kFloat; }

void check_attention(const Tensor& qkv, const Tensor& cu_seqlens, Heads heads) {
  TORCH_CHECK(width(qkv) == heads.width() && heads.kv_heads > 0 && heads.heads % heads.kv_heads == 0,
              "heads do not fit ", qkv.sizes());
  const int64_t *first = data<int64_t>(cu_seqlens), *last = first + cu_seqlens.numel() - 1;
  TORCH_CHECK(cu_seqlens.numel() > 0 && *first == 0 && *last == rows(qkv) && std::is_sorted(first, last + 1),
              "cu_seqlens must rise from 0 to ", rows(qkv));
}

}  // namespace

extern "C" {

const char* sc_last_error() { return stagecoach::last_error.c_str(); }

// Returns the properties of the processor that select the products and kernels: the instruction set, the vendor (BLAS
// has different kernels for each vendor), and AMX. An example is "AVX512 Intel AMX".
const char* sc_cpu_capability() {
  static const std::string name = [] {
    std::string capability = at::get_cpu_capability();
#ifdef __x86_64__
    capability += __builtin_cpu_is("intel") ? " Intel" : __builtin_cpu_is("amd") ? " AMD" : "";
    if (at::cpu::init_amx()) capability += " AMX";
#endif
    return capability;
  }();
  return name.c_str();
}

const char* sc_torch_version() { return TORCH_VERSION; }

// Returns the version of MKL, and the branch to which MKL dispatches, if MKL reports the branch.
const char* sc_mkl() {
  static const std::string mkl = [] {
    std::string text = at::get_mkl_version();
    if (mkl_serv_cbwr_get_auto_branch) text += ", branch " + std::to_string(mkl_serv_cbwr_get_auto_branch());
    return text;
  }();
  return mkl.c_str();
}

// Returns the version of oneDNN. oneDNN dispatches by the features of the processor, and does not report its choice.
const char* sc_one_dnn() {
  static const std::string one_dnn = at::get_mkldnn_version();
  return one_dnn.c_str();
}

// Returns the largest number of bytes that tensors have used on a GPU, as libtorch's allocator counts them.
int sc_peak_device_bytes(int device, uint64_t* bytes) {
  return guarded([&] {
    const auto stats = c10::getDeviceAllocator(c10::DeviceType::CUDA)->getDeviceStats(static_cast<c10::DeviceIndex>(device));
    const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    *bytes = static_cast<uint64_t>(stats.allocated_bytes[all].peak);
  });
}

// Returns a copy in pinned memory. The call passes no device to libtorch, because libtorch warns about that argument.
int sc_pin_memory(Tensor* tensor, Tensor** pinned) {
  return stagecoach::guarded([&] { *pinned = new Tensor(tensor->pin_memory()); });
}

// Makes products on a GPU sum in fp32 and multiply fp32 values without TF32, regardless of libtorch's environment
// variables.
void sc_pin_gpu_products() {
  at::globalContext().setAllowTF32CuBLAS(false);
  at::globalContext().setAllowBF16ReductionCuBLAS(false);
}

bool sc_deterministic() { return at::globalContext().deterministicAlgorithms(); }

// Whether the kernels, and not libtorch, compute products of this type.
bool sc_has_products(bool bf16) { return has_products(bf16 ? at::kBFloat16 : at::kFloat); }

int sc_column_sums(Tensor* x, Tensor** sums) {
  return guarded([&] {
    Tensor result = at::empty({width(*x)}, x->options().dtype(at::kFloat));
    dispatch(*x, [&](const auto& kernels, auto type) {
      kernels.column_sums(data<decltype(type)>(*x), data<float>(result), rows(*x), width(*x));
    });
    *sums = new Tensor(std::move(result));
  });
}

int sc_rms_norm(Tensor* x, Tensor* weight, double eps, Tensor** y, Tensor** rstd) {
  return guarded([&] {
    TORCH_CHECK(weight->numel() == width(*x), "a weight of ", weight->sizes(), " for rows of ", x->sizes());
    Tensor out = at::empty_like(*x), scale = at::empty({rows(*x)}, weight->options());
    dispatch(*x, [&](const auto& kernels, auto type) {
      using T = decltype(type);
      kernels.rms_norm(data<T>(*x), data<float>(*weight), data<T>(out), data<float>(scale), rows(*x), width(*x), eps);
    });
    *y = new Tensor(std::move(out));
    *rstd = new Tensor(std::move(scale));
  });
}

int sc_rms_norm_backward(Tensor* dy, Tensor* x, Tensor* weight, Tensor* rstd, Tensor* residual_gradient, Tensor** dx,
                         Tensor** dweight, Tensor** y) {
  return guarded([&] {
    TORCH_CHECK(dy->sizes() == x->sizes() && weight->numel() == width(*x) && rstd->numel() == rows(*x) &&
                    (!residual_gradient || residual_gradient->sizes() == x->sizes()),
                "shapes do not fit ", x->sizes());
    Tensor din = at::empty_like(*x), out = at::empty_like(*x), dw = at::empty_like(*weight);
    dispatch(*x, [&](const auto& kernels, auto type) {
      using T = decltype(type);
      kernels.rms_norm_backward(data<T>(*dy), data<T>(*x), data<float>(*weight), data<float>(*rstd),
                                data_or_null<T>(residual_gradient), data<T>(din), data<float>(dw), data<T>(out), rows(*x),
                                width(*x));
    });
    *dx = new Tensor(std::move(din));
    *dweight = new Tensor(std::move(dw));
    *y = new Tensor(std::move(out));
  });
}

int sc_swiglu(Tensor* gate_up, Tensor** out) {
  return guarded([&] {
    int64_t half = width(*gate_up) / 2;
    Tensor result = at::empty({rows(*gate_up), half}, gate_up->options());
    dispatch(*gate_up, [&](const auto& kernels, auto type) {
      using T = decltype(type);
      kernels.swiglu(data<T>(*gate_up), data<T>(result), rows(*gate_up), half);
    });
    *out = new Tensor(std::move(result));
  });
}

// Overwrites gate_up with its gradient.
int sc_swiglu_backward(Tensor* dout, Tensor* gate_up, Tensor** out) {
  return guarded([&] {
    TORCH_CHECK(dout->numel() * 2 == gate_up->numel(), "shapes do not fit ", gate_up->sizes());
    Tensor result = at::empty_like(*dout);
    dispatch(*gate_up, [&](const auto& kernels, auto type) {
      using T = decltype(type);
      kernels.swiglu_backward(data<T>(*dout), data<T>(*gate_up), data<T>(*gate_up), data<T>(result), rows(*gate_up),
                              width(*gate_up) / 2);
    });
    *out = new Tensor(std::move(result));
  });
}

int sc_rotary(Tensor* qkv, Tensor* cos, Tensor* sin, int64_t length, Heads heads, bool inverse) {
  return guarded([&] {
    TORCH_CHECK(width(*qkv) == heads.width() && heads.head_dim % 2 == 0 && cos->sizes() == sin->sizes() &&
                    width(*cos) * 2 == heads.head_dim && rows(*cos) >= length && length > 0,
                "heads or tables do not fit ", qkv->sizes());
    dispatch(*qkv, [&](const auto& kernels, auto type) {
      using T = decltype(type);
      kernels.rotary(data<T>(*qkv), data<float>(*cos), data<float>(*sin), rows(*qkv), length, heads, inverse);
    });
  });
}

int sc_attention(Tensor* qkv, Tensor* cu_seqlens, Heads heads, Tensor** out, Tensor** lse) {
  return guarded([&] {
    check_attention(*qkv, *cu_seqlens, heads);
    Tensor input = qkv->to(attention_type(*qkv));
    Tensor result = at::empty({rows(*qkv), heads.heads * heads.head_dim}, input.options());
    Tensor denominators = at::empty({rows(*qkv), heads.heads}, qkv->options().dtype(at::kFloat));
    dispatch(input, [&](const auto& kernels, auto type) {
      using T = decltype(type);
      kernels.attention(data<T>(input), data<int64_t>(*cu_seqlens), cu_seqlens->numel() - 1, data<T>(result),
                        data<float>(denominators), heads);
    });
    *out = new Tensor(result.to(qkv->scalar_type()));
    *lse = new Tensor(std::move(denominators));
  });
}

int sc_attention_backward(Tensor* dout, Tensor* qkv, Tensor* out, Tensor* lse, Tensor* cu_seqlens, Heads heads,
                          Tensor** dqkv) {
  return guarded([&] {
    check_attention(*qkv, *cu_seqlens, heads);
    TORCH_CHECK(dout->sizes() == out->sizes() && out->numel() == rows(*qkv) * heads.heads * heads.head_dim &&
                    lse->numel() == rows(*qkv) * heads.heads,
                "shapes do not fit ", qkv->sizes());
    at::ScalarType computed = attention_type(*qkv);
    Tensor input = qkv->to(computed), doutput = dout->to(computed), output = out->to(computed);
    Tensor result = at::empty_like(input);
    dispatch(input, [&](const auto& kernels, auto type) {
      using T = decltype(type);
      kernels.attention_backward(data<T>(doutput), data<T>(input), data<T>(output), data<float>(*lse),
                                 data<int64_t>(*cu_seqlens), cu_seqlens->numel() - 1, data<T>(result), heads);
    });
    *dqkv = new Tensor(result.to(qkv->scalar_type()));
  });
}

// dlogits may be null, the logits themselves, or a BFloat16 tensor of their shape.
int sc_cross_entropy(Tensor* logits, Tensor* targets, Tensor* dlogits, Tensor* losses, double scale, double* loss) {
  return guarded([&] {
    TORCH_CHECK(targets->numel() == rows(*logits) && losses->numel() == rows(*logits) && (!dlogits || dlogits->sizes() == logits->sizes()),
                "shapes do not fit ", logits->sizes());
    dispatch(dlogits ? *dlogits : *logits, [&](const auto& kernels, auto type) {
      using T = decltype(type);
      *loss = kernels.cross_entropy(data<float>(*logits), data<int64_t>(*targets), data_or_null<T>(dlogits),
                                    data<double>(*losses), rows(*logits), width(*logits), scale);
    });
  });
}

int sc_squared_norm(Tensor* values, double* sum) {
  return guarded([&] { *sum = table().squared_norm(data<float>(*values), values->numel()); });
}

// `compute` is null, or a copy of `value` as BFloat16, which this function updates.
int sc_adamw(Tensor* value, Tensor* gradient, Tensor* exp_avg, Tensor* exp_avg_sq, Tensor* compute,
             stagecoach::CpuAdamWOptions options) {
  return guarded([&] {
    for (const Tensor* tensor : {gradient, exp_avg, exp_avg_sq, compute}) {
      TORCH_CHECK(!tensor || tensor->numel() == value->numel(), "shapes do not fit ", value->sizes());
    }
    dispatch(compute ? *compute : *value, [&](const auto& kernels, auto type) {
      using T = decltype(type);
      kernels.adamw(data<float>(*value), data<float>(*gradient), data<float>(*exp_avg), data<float>(*exp_avg_sq),
                    data_or_null<T>(compute), value->numel(), options);
    });
  });
}

// y = x weight^T + residual. `residual` may be null.
int sc_linear(Tensor* x, Tensor* weight, Tensor* residual, Tensor** y) {
  return guarded([&] {
    int64_t inputs = width(*weight), outputs = rows(*weight);
    TORCH_CHECK(width(*x) == inputs && x->scalar_type() == weight->scalar_type() &&
                    (!residual || (rows(*residual) == rows(*x) && width(*residual) == outputs)),
                "a weight of ", weight->sizes(), " for rows of ", x->sizes());
    check_product(*x, inputs, outputs);
    Tensor out = at::empty({rows(*x), outputs}, x->options());
    dispatch(*x, [&](const auto& kernels, auto type) {
      using T = decltype(type);
      kernels.linear(data<T>(*x), data<T>(*weight), data_or_null<T>(residual), data<T>(out), rows(*x), inputs, outputs);
    });
    *y = new Tensor(std::move(out));
  });
}

// y = x weight^T, summed and stored in float. x and weight are float or BFloat16.
int sc_linear_to_float(Tensor* x, Tensor* weight, Tensor* y) {
  return guarded([&] {
    int64_t inputs = width(*weight), outputs = rows(*weight);
    TORCH_CHECK(width(*x) == inputs && x->scalar_type() == weight->scalar_type() && rows(*y) == rows(*x) &&
                    width(*y) == outputs,
                "a weight of ", weight->sizes(), " for rows of ", x->sizes(), " and results of ", y->sizes());
    check_product(*x, inputs, outputs);
    dispatch(*x, [&](const auto& kernels, auto type) {
      using T = decltype(type);
      kernels.linear_to_float(data<T>(*x), data<T>(*weight), nullptr, data<float>(*y), rows(*x), inputs, outputs);
    });
  });
}

// dx = dy weight.
int sc_linear_backward(Tensor* dy, Tensor* weight, Tensor** dx) {
  return guarded([&] {
    int64_t inputs = width(*weight), outputs = rows(*weight);
    TORCH_CHECK(width(*dy) == outputs && dy->scalar_type() == weight->scalar_type(), "a weight of ", weight->sizes(),
                " for rows of ", dy->sizes());
    check_product(*dy, inputs, outputs);
    Tensor out = at::empty({rows(*dy), inputs}, dy->options());
    dispatch(*dy, [&](const auto& kernels, auto type) {
      using T = decltype(type);
      kernels.linear_backward(data<T>(*dy), data<T>(*weight), data<T>(out), rows(*dy), inputs, outputs);
    });
    *dx = new Tensor(std::move(out));
  });
}

// accumulator[out, in] += dy[n, out]^T x[n, in], summed in float. dy and x are float or BFloat16.
int sc_accumulate_linear(Tensor* accumulator, Tensor* dy, Tensor* x) {
  return guarded([&] {
    int64_t inputs = width(*x), outputs = width(*dy);
    TORCH_CHECK(rows(*dy) == rows(*x) && dy->scalar_type() == x->scalar_type() &&
                    accumulator->numel() == inputs * outputs,
                "shapes do not fit ", x->sizes());
    check_product(*x, inputs, outputs);
    dispatch(*x, [&](const auto& kernels, auto type) {
      using T = decltype(type);
      kernels.accumulate_linear(data<T>(*dy), data<T>(*x), data<float>(*accumulator), rows(*x), inputs, outputs);
    });
  });
}
}
