// SPDX-License-Identifier: MIT
// parallel_for: tasks 0 .. num_tasks are taken in order by a few threads. The first exception of a task
// stops the rest from starting and is thrown again in the calling thread.
#pragma once

#include <cstdint>
#include <functional>

namespace capillary::cpu {

// Threads that a request for num_threads (0: all cores) gets for this many tasks; at least 1.
int32_t resolve_threads(int32_t num_threads, int64_t num_tasks);

// body(task, worker) with 0 <= worker < num_threads; worker 0 is the calling thread.
void parallel_for(int64_t num_tasks, int32_t num_threads,
                  const std::function<void(int64_t task, int32_t worker)>& body);

}  // namespace capillary::cpu
