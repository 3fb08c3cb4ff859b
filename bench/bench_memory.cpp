// SPDX-License-Identifier: MIT
// Host memory at its peak, as counters: what a full radix cache takes for a page of its pool, and what the forest
// and the plan of a batch take. In a program of its own, since counting slows allocation down. Budget: linear in
// pages, which is a constant number of bytes a page. tests/unit/memory_test.cpp asserts it.
#include <benchmark/benchmark.h>

#include "support/host_memory.h"

namespace {

using capillary::testing::HalfShared;
using capillary::testing::peak_bytes_of;

void radix_cache(benchmark::State& state) {
  const int64_t num_pages = state.range(0);
  int64_t bytes = 0;
  for (auto _ : state)
    bytes = peak_bytes_of([&] { capillary::testing::fill_radix_cache(num_pages, 256, 16); });
  state.counters["bytes"] = static_cast<double>(bytes);
  state.counters["bytes_per_page"] = static_cast<double>(bytes) / static_cast<double>(num_pages);
}
BENCHMARK(radix_cache)
    ->Name("memory/radix_cache_pages")
    ->RangeMultiplier(4)
    ->Range(1 << 12, 1 << 18)
    ->Iterations(1);

void forest_and_plan(benchmark::State& state) {
  const HalfShared batch(256, static_cast<int32_t>(state.range(0)), 16);
  int64_t bytes = 0;
  for (auto _ : state) bytes = peak_bytes_of([&] { capillary::testing::plan_step(batch); });
  state.counters["bytes"] = static_cast<double>(bytes);
  state.counters["bytes_per_page"] =
      static_cast<double>(bytes) / static_cast<double>(batch.table.size());
}
BENCHMARK(forest_and_plan)
    ->Name("memory/forest_and_plan_pages_each_of_256")
    ->RangeMultiplier(4)
    ->Range(64, 4096)
    ->Iterations(1);

}  // namespace
