// Counts the bytes that kernels, compiled for the host, read and write in watched memory. The option -fsanitize=thread
// makes the compiler insert a function call before each memory access of a kernel. This file, and not ThreadSanitizer,
// defines the called functions. The count includes accesses that a GPU would serve from a cache.
#include <cstddef>
#include <vector>

namespace {

struct Memory {
  const char* begin;
  std::vector<bool> was_read, was_written;
};

// The watched memory. The first access creates the list, and nothing destroys it, because the kernels access their
// static variables before and after `main`.
std::vector<Memory>& watched() {
  static std::vector<Memory>& all = *new std::vector<Memory>;
  return all;
}

// `moved` is the number of bytes of all accesses. `least` is the number of bytes that were read at least once, plus the
// number of bytes that were written at least once.
long long moved, least;

void access(const void* address, size_t bytes, bool writes) {
  for (Memory& memory : watched()) {
    std::vector<bool>& touched = writes ? memory.was_written : memory.was_read;
    size_t offset = (const char*)address - memory.begin;
    if (offset >= touched.size()) continue;
    moved += bytes;
    for (size_t at = offset; at < offset + bytes && at < touched.size(); ++at) {
      least += !touched[at];
      touched[at] = true;
    }
    return;
  }
}

}  // namespace

extern "C" {
void host_watch(const void* begin, size_t bytes) {
  watched().push_back({(const char*)begin, std::vector<bool>(bytes), std::vector<bool>(bytes)});
}

// Reports the traffic since the last call, and forgets which bytes were touched.
void host_traffic(long long* all, long long* fewest) {
  *all = moved, *fewest = least;
  moved = least = 0;
  for (Memory& memory : watched()) {
    memory.was_read.assign(memory.was_read.size(), false);
    memory.was_written.assign(memory.was_written.size(), false);
  }
}

#define ACCESS(BYTES)                                                    \
  void __tsan_read##BYTES(void* at) { access(at, BYTES, false); }        \
  void __tsan_write##BYTES(void* at) { access(at, BYTES, true); }
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)
void __tsan_read_range(void* at, size_t bytes) { access(at, bytes, false); }
void __tsan_write_range(void* at, size_t bytes) { access(at, bytes, true); }
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_init() {}
}
