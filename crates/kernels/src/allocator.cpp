// The allocator of libtorch's tensors on the CPU.

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace {

// The alignment of libtorch's default allocator, on which kernels may rely.
constexpr size_t ALIGNMENT = 64;

// Allocates with malloc, and aligns the address itself. libtorch's default allocator asks glibc for aligned memory, for
// which glibc needs a free chunk that is larger than the request. The chunk that a freed tensor leaves is then too
// small for the next tensor of the same size, and the heap grows.
class MallocAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    if (size == 0) return {nullptr, c10::Device(c10::DeviceType::CPU)};
    void* start = std::malloc(size + ALIGNMENT);
    TORCH_CHECK(start, "out of memory: no ", size, " bytes for a tensor");
    // malloc's addresses are multiples of 16, so there are at least 16 bytes for a pointer between `start` and the data
    auto address = (reinterpret_cast<uintptr_t>(start) / ALIGNMENT + 1) * ALIGNMENT;
    void* data = reinterpret_cast<void*>(address);
    static_cast<void**>(data)[-1] = start;
    return {data, data, &release, c10::Device(c10::DeviceType::CPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }

  void copy_data(void* to, const void* from, size_t size) const override { std::memcpy(to, from, size); }

 private:
  static void release(void* data) {
    if (data) std::free(static_cast<void**>(data)[-1]);
  }
};

}  // namespace

extern "C" void sc_use_malloc() {
  static MallocAllocator allocator;
  // the priority is higher than that of libtorch's own allocator, so libtorch can't replace this allocator later
  c10::SetCPUAllocator(&allocator, 1);
}
