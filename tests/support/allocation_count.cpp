// SPDX-License-Identifier: MIT
// Replaces the global operators new and delete by counting ones. In a file of its own, so that no caller can
// look through them.
#include "support/allocation_count.h"

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<int64_t> allocations{0};
std::atomic<int64_t> live{0};
std::atomic<int64_t> peak{0};

void release(void* memory) {
  live.fetch_sub(static_cast<int64_t>(malloc_usable_size(memory)), std::memory_order_relaxed);
  std::free(memory);
}

}  // namespace

namespace capillary::testing {
int64_t allocation_count() {
  return allocations.load();
}
int64_t live_bytes() {
  return live.load();
}
int64_t peak_bytes() {
  return peak.load();
}
void reset_peak() {
  peak.store(live.load());
}
}  // namespace capillary::testing

void* operator new(std::size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  void* memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) throw std::bad_alloc();
  const int64_t now =
      live.fetch_add(static_cast<int64_t>(malloc_usable_size(memory)), std::memory_order_relaxed) +
      static_cast<int64_t>(malloc_usable_size(memory));
  int64_t most = peak.load(std::memory_order_relaxed);
  while (now > most && !peak.compare_exchange_weak(most, now, std::memory_order_relaxed)) {
  }
  return memory;
}
void* operator new[](std::size_t size) {
  return operator new(size);
}
// Sanitizers bring their own otherwise, which do not go with the operators delete below.
void* operator new(std::size_t size, const std::nothrow_t& /*tag*/) noexcept {
  try {
    return operator new(size);
  } catch (...) {
    return nullptr;
  }
}
void* operator new[](std::size_t size, const std::nothrow_t& tag) noexcept {
  return operator new(size, tag);
}
void operator delete(void* memory) noexcept {
  release(memory);
}
void operator delete[](void* memory) noexcept {
  release(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  release(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  release(memory);
}
