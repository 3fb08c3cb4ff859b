// SPDX-License-Identifier: MIT
#include "cpu/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace capillary::cpu {

int32_t resolve_threads(int32_t num_threads, int64_t num_tasks) {
  int64_t count = num_threads;
  if (count <= 0) count = std::max(1u, std::thread::hardware_concurrency());
  return static_cast<int32_t>(std::clamp<int64_t>(num_tasks, 1, count));
}

void parallel_for(int64_t num_tasks, int32_t num_threads,
                  const std::function<void(int64_t, int32_t)>& body) {
  std::atomic<int64_t> next{0};
  std::exception_ptr failure;
  std::mutex failure_mutex;
  const auto work = [&](int32_t worker) {
    while (true) {
      const int64_t task = next.fetch_add(1, std::memory_order_relaxed);
      if (task >= num_tasks) return;
      try {
        body(task, worker);
      } catch (...) {
        const std::lock_guard lock(failure_mutex);
        if (!failure) failure = std::current_exception();
        next.store(num_tasks, std::memory_order_relaxed);
      }
    }
  };
  {
    std::vector<std::jthread> threads;
    threads.reserve(static_cast<size_t>(std::max(0, num_threads - 1)));
    for (int32_t worker = 1; worker < num_threads; ++worker) threads.emplace_back(work, worker);
    work(0);
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace capillary::cpu
