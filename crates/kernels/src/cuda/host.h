// Simulates the threads of a block on the host, for tests. Each thread is a fiber that runs until it waits for other
// threads. Shared memory holds NaNs when a block begins. A kernel becomes a C function `NAME(blocks_x, blocks_y,
// threads, arguments, backwards)`, whose arguments are those of cuLaunchKernel. If `backwards` is set, the function runs
// the blocks and their threads in the opposite order. The function returns null or an error message.
#pragma once

#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#define __device__
#define __restrict__
#define __expf expf
#define __fdividef(a, b) ((a) / (b))

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

#define __shared__ static __attribute__((section("block_shared")))
#define __syncthreads() host::wait(host::BLOCK)
#define __shfl_xor_sync(mask, value, lane) host::shuffle(value, lane)

struct Dim {
  unsigned x, y;
};
static Dim threadIdx, blockIdx, blockDim, gridDim;

// The linker defines symbols for the begin and the end of the section of all shared variables. This variable ensures
// that the section exists and is writable.
static __attribute__((section("block_shared"), used)) unsigned host_shared_memory = 0;
extern "C" __attribute__((visibility("hidden"))) char __start_block_shared[], __stop_block_shared[];

namespace host {

enum State { RUNS, WARP, BLOCK, DONE };

struct Fiber {
  ucontext_t context;
  State state;
  std::vector<char> stack;
};

static std::vector<Fiber> fibers;
static unsigned current;
static ucontext_t scheduler;
static void (*body)(void**);
static void** arguments;
static double exchanged[1024];
static sigjmp_buf fault;
static char message[200];

static void wait(State for_whom) {
  fibers[current].state = for_whom;
  swapcontext(&fibers[current].context, &scheduler);
}

template <typename T>
T shuffle(T value, int lane) {
  exchanged[threadIdx.x] = value;
  wait(WARP);
  T other = (T)exchanged[threadIdx.x ^ lane];
  wait(WARP);
  return other;
}

static void run_fiber() {
  body(arguments);
  fibers[current].state = DONE;
  swapcontext(&fibers[current].context, &scheduler);
}

// Lets the threads from `begin` to `end` run again if all of them wait in `state`; otherwise returns false. A thread that
// has returned does not wait, so it keeps the others waiting.
static bool release(unsigned begin, unsigned end, State state) {
  for (unsigned i = begin; i < end; ++i) {
    if (fibers[i].state != state) return false;
  }
  for (unsigned i = begin; i < end; ++i) fibers[i].state = RUNS;
  return true;
}

static const char* run_block(bool backwards) {
  unsigned threads = blockDim.x;
  memset(__start_block_shared, 0xff, __stop_block_shared - __start_block_shared);
  for (Fiber& fiber : fibers) {
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.data();
    fiber.context.uc_stack.ss_size = fiber.stack.size();
    makecontext(&fiber.context, run_fiber, 0);
    fiber.state = RUNS;
  }
  // A warp runs until all its threads wait for other warps. It is therefore ahead of the other warps by as much as the
  // barriers allow.
  unsigned warps = (threads + 31) / 32;
  do {
    for (unsigned number = 0; number < warps; ++number) {
      unsigned begin = 32 * (backwards ? warps - 1 - number : number), end = std::min(begin + 32, threads);
      do {
        for (unsigned i = begin; i < end; ++i) {
          current = backwards ? begin + end - 1 - i : i;
          if (fibers[current].state != RUNS) continue;
          threadIdx = {current, 0};
          swapcontext(&scheduler, &fibers[current].context);
        }
      } while (release(begin, end, WARP));
    }
  } while (release(0, threads, BLOCK));
  for (Fiber& fiber : fibers) {
    if (fiber.state != DONE) return "threads wait for others that never come";
  }
  return nullptr;
}

static void on_fault(int) { siglongjmp(fault, 1); }

static const char* launch(const char* name, void (*kernel)(void**), unsigned blocks_x, unsigned blocks_y, unsigned threads,
                          void** kernel_arguments, bool backwards) {
  static std::mutex one_at_a_time;
  std::lock_guard<std::mutex> lock(one_at_a_time);
  gridDim = {blocks_x, blocks_y}, blockDim = {threads, 1};
  body = kernel, arguments = kernel_arguments;
  fibers.resize(threads);
  for (Fiber& fiber : fibers) fiber.stack.resize(32 << 10);
  struct sigaction action = {}, previous;
  action.sa_handler = on_fault;
  sigaction(SIGSEGV, &action, &previous);
  const char* failure = nullptr;
  if (sigsetjmp(fault, 1)) {
    failure = "a thread reads or writes outside of a buffer";
  } else {
    for (unsigned block = 0; block < blocks_x * blocks_y && !failure; ++block) {
      unsigned index = backwards ? blocks_x * blocks_y - 1 - block : block;
      blockIdx = {index % blocks_x, index / blocks_x};
      failure = run_block(backwards);
    }
  }
  sigaction(SIGSEGV, &previous, nullptr);
  if (!failure) return nullptr;
  snprintf(message, sizeof message, "%s: %s (block %u %u, thread %u)", name, failure, blockIdx.x, blockIdx.y, threadIdx.x);
  return message;
}

template <typename... A, size_t... I>
void call(void (*kernel)(A...), void** arguments, std::index_sequence<I...>) {
  kernel(*(A*)arguments[I]...);
}

template <typename... A>
void call(void (*kernel)(A...), void** arguments) {
  call(kernel, arguments, std::index_sequence_for<A...>());
}

}  // namespace host

#define KERNEL(NAME, PARAMETERS)                                                                                       \
  static void NAME##_thread PARAMETERS;                                                                                \
  extern "C" const char* NAME(unsigned blocks_x, unsigned blocks_y, unsigned threads, void** arguments, bool backwards) { \
    return host::launch(#NAME, [](void** arguments) { host::call(NAME##_thread, arguments); }, blocks_x, blocks_y,     \
                        threads, arguments, backwards);                                                                \
  }                                                                                                                    \
  static void NAME##_thread PARAMETERS
