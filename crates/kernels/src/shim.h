// The error handling of the shim's functions.
#pragma once

#include <c10/core/GradMode.h>

#include <exception>
#include <string>

#include "cpu/kernels.h"

namespace stagecoach {

// The message of the last failure on this thread.
inline thread_local std::string last_error;

// Runs `body` and returns 0. If `body` throws, stores the message and returns -1.
template <typename F>
int guarded(F&& body) {
  try {
    c10::NoGradGuard no_grad;
    body();
    return 0;
  } catch (const std::exception& e) {
    last_error = e.what();
    return -1;
  }
}

}  // namespace stagecoach
