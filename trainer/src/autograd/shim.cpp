// What libtorch offers and tch does not expose: gradients of one segment with a given output gradient, layers whose
// weight gradient is computed later by the caller, and the fused AdamW kernel. Functions that can fail return 0, or -1
// with a message in sc_last_error(). Returned tensors are new references owned by the caller.

#include <ATen/ATen.h>
#include <ATen/Version.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <deque>
#include <mutex>
#include <string>

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

namespace {

thread_local std::string last_error;

template <typename F>
int guarded(F&& body) {
  try {
    body();
    return 0;
  } catch (const std::exception& e) {
    last_error = e.what();
    return -1;
  }
}

Tensor rows(const Tensor& t) { return t.reshape({-1, t.size(-1)}); }

// The inputs of a weight gradient: dy^T x if x is defined, else dy itself.
struct DeferredGradient {
  int64_t parameter;
  Tensor dy, x;
};

// Filled by backward passes, drained by the caller. The lock is for CUDA, whose backward runs on autograd's threads.
struct GradientSink {
  std::mutex mutex;
  std::deque<DeferredGradient> gradients;
  void push(int64_t parameter, Tensor dy, Tensor x) {
    std::lock_guard<std::mutex> lock(mutex);
    gradients.push_back({parameter, std::move(dy), std::move(x)});
  }
};

void save_sink(AutogradContext* ctx, int64_t sink, int64_t parameter) {
  ctx->saved_data["sink"] = sink;
  ctx->saved_data["parameter"] = parameter;
}

void push_gradient(AutogradContext* ctx, Tensor dy, Tensor x) {
  auto* sink = reinterpret_cast<GradientSink*>(ctx->saved_data["sink"].toInt());
  sink->push(ctx->saved_data["parameter"].toInt(), std::move(dy), std::move(x));
}

// y = x w^T. Backward returns dx and pushes (dy, x) to the sink.
struct Linear : torch::autograd::Function<Linear> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& w, int64_t sink, int64_t parameter) {
    ctx->save_for_backward({x, w});
    save_sink(ctx, sink, parameter);
    return at::linear(x, w);
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    auto saved = ctx->get_saved_variables();
    Tensor dy = grads[0].contiguous();
    Tensor dx = at::mm(rows(dy), saved[1]).view_as(saved[0]);
    push_gradient(ctx, rows(dy), rows(saved[0]));
    return {dx, Tensor(), Tensor(), Tensor()};
  }
};

// y = x * rsqrt(mean(x^2) + eps) * w (Zhang and Sennrich 2019), in fp32 whatever x is.
struct RmsNorm : torch::autograd::Function<RmsNorm> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& w, double eps, int64_t sink,
                        int64_t parameter) {
    Tensor xf = x.to(at::kFloat);
    Tensor rstd = xf.square().mean(-1, true).add_(eps).rsqrt_();
    ctx->save_for_backward({x, w, rstd});
    save_sink(ctx, sink, parameter);
    return (xf * rstd).mul_(w).to(x.scalar_type());
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    auto saved = ctx->get_saved_variables();
    Tensor x = saved[0].to(at::kFloat), rstd = saved[2], dy = grads[0].to(at::kFloat);
    Tensor xhat = x * rstd;
    Tensor dw = rows(dy * xhat).sum(0);
    Tensor g = dy * saved[1];
    Tensor dx = (g - xhat * (g * xhat).mean(-1, true)).mul_(rstd).to(saved[0].scalar_type());
    push_gradient(ctx, dw, Tensor());
    return {dx, Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

// Rotates the halves (x1, x2) of the last dimension: (x1 cos - x2 sin, x2 cos + x1 sin), Hugging Face's layout.
Tensor rotate(const Tensor& x, const Tensor& cos, const Tensor& sin, bool inverse) {
  int64_t half = x.size(-1) / 2;
  Tensor x1 = x.narrow(-1, 0, half), x2 = x.narrow(-1, half, half);
  Tensor y = at::empty(x.sizes(), x.options());
  Tensor y1 = y.narrow(-1, 0, half), y2 = y.narrow(-1, half, half);
  double sign = inverse ? 1.0 : -1.0;
  at::mul_out(y1, x1, cos).addcmul_(x2, sin, sign);
  at::mul_out(y2, x2, cos).addcmul_(x1, sin, -sign);
  return y;
}

struct Rotary : torch::autograd::Function<Rotary> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& cos, const Tensor& sin) {
    ctx->save_for_backward({cos, sin});
    return rotate(x, cos, sin, false);
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    auto saved = ctx->get_saved_variables();
    return {rotate(grads[0], saved[0], saved[1], true), Tensor(), Tensor()};
  }
};

}  // namespace

extern "C" {

const char* sc_last_error() { return last_error.c_str(); }

// The instruction set that libtorch's CPU kernels were chosen for, such as AVX512.
const char* sc_cpu_capability() {
  static const std::string name = at::get_cpu_capability();
  return name.c_str();
}

GradientSink* sc_gradient_sink_new() { return new GradientSink(); }
void sc_gradient_sink_free(GradientSink* sink) { delete sink; }

// Removes the oldest gradient. *dy stays null if there is none, *x if the gradient is dy itself.
int sc_gradient_sink_pop(GradientSink* sink, int64_t* parameter, Tensor** dy, Tensor** x) {
  return guarded([&] {
    std::lock_guard<std::mutex> lock(sink->mutex);
    if (sink->gradients.empty()) return;
    DeferredGradient& oldest = sink->gradients.front();
    *parameter = oldest.parameter;
    *dy = new Tensor(std::move(oldest.dy));
    *x = oldest.x.defined() ? new Tensor(std::move(oldest.x)) : nullptr;
    sink->gradients.pop_front();
  });
}

int sc_linear(Tensor* x, Tensor* w, GradientSink* sink, int64_t parameter, Tensor** out) {
  return guarded([&] { *out = new Tensor(Linear::apply(*x, *w, (int64_t)sink, parameter)); });
}

int sc_rms_norm(Tensor* x, Tensor* w, double eps, GradientSink* sink, int64_t parameter, Tensor** out) {
  return guarded([&] { *out = new Tensor(RmsNorm::apply(*x, *w, eps, (int64_t)sink, parameter)); });
}

int sc_rotary(Tensor* x, Tensor* cos, Tensor* sin, Tensor** out) {
  return guarded([&] { *out = new Tensor(Rotary::apply(*x, *cos, *sin)); });
}

// torch.autograd.grad: d(output)/d(input) given `grad_output`; frees the segment's graph.
int sc_grad(Tensor* output, Tensor* grad_output, Tensor* input, Tensor** grad_input) {
  return guarded([&] {
    *grad_input = new Tensor(torch::autograd::grad({*output}, {*input}, {*grad_output}, false, false, false)[0]);
  });
}

// accumulator[out, in] += dy[n, out]^T x[n, in], in fp32.
int sc_accumulate_linear(Tensor* accumulator, Tensor* dy, Tensor* x) {
  return guarded([&] {
    at::NoGradGuard no_grad;
    if (dy->scalar_type() == at::kFloat) {
      accumulator->addmm_(dy->t(), *x);
    } else {
      accumulator->add_(at::mm(dy->t(), *x));
    }
  });
}

// One parameter's AdamW update by torch's fused kernel. `step` counts from 1 and is a float scalar tensor.
int sc_adamw(Tensor* value, Tensor* gradient, Tensor* exp_avg, Tensor* exp_avg_sq, Tensor* step, double lr,
             double beta1, double beta2, double weight_decay, double eps) {
  return guarded([&] {
    at::NoGradGuard no_grad;
    at::_fused_adamw_({*value}, {*gradient}, {*exp_avg}, {*exp_avg_sq}, {}, {*step}, lr, beta1, beta2, weight_decay,
                      eps, false, false);
  });
}
}
