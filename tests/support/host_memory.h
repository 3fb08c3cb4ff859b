// SPDX-License-Identifier: MIT
// Host memory that a serving process spends on pages: a full radix cache, and the forest and plan of a batch.
// For programs that link allocation_count.cpp.
#pragma once

#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "capillary/plan.h"
#include "capillary/radix_cache.h"
#include "support/allocation_count.h"

namespace capillary::testing {

// The most bytes that were there at once while `work` ran, beyond what was there before.
template <class Work>
int64_t peak_bytes_of(const Work& work) {
  const int64_t before = live_bytes();
  reset_peak();
  work();
  return peak_bytes() - before;
}

// A cache whose pool is used up by requests of `pages_each` pages, half of which they share with the request
// before.
inline void fill_radix_cache(int64_t num_pages, int64_t pages_each, int32_t page_size) {
  RadixCache cache(num_pages, page_size);
  std::vector<int32_t> tokens(static_cast<size_t>(pages_each * page_size));
  std::iota(tokens.begin(), tokens.end(), 0);
  auto next = static_cast<int32_t>(tokens.size());
  while (true) {
    const RadixCache::Match match = cache.match_prefix(tokens);
    const int64_t needed = pages_each - static_cast<int64_t>(match.page_ids.size());
    if (needed > cache.stats().free_pages) return;
    std::vector<int32_t> pages = match.page_ids;
    const std::vector<int32_t> fresh = cache.allocate_pages(needed);
    pages.insert(pages.end(), fresh.begin(), fresh.end());
    cache.insert(tokens, pages);
    const auto half = tokens.begin() + static_cast<int64_t>(tokens.size()) / 2;
    std::iota(half, tokens.end(), next);
    next += static_cast<int32_t>(tokens.end() - half);
  }
}

// A block table in which all requests share the first half of their pages.
struct HalfShared {
  HalfShared(int32_t num_requests, int32_t pages_each, int32_t page_size_in)
      : page_size(page_size_in), num_columns(pages_each) {
    lens.assign(static_cast<size_t>(num_requests), pages_each * page_size);
    table.resize(static_cast<size_t>(num_requests) * static_cast<size_t>(pages_each));
    std::iota(table.begin(), table.end(), 0);
    for (size_t row = 1; row < lens.size(); ++row)
      for (int32_t page = 0; page < pages_each / 2; ++page)
        table[row * static_cast<size_t>(pages_each) + static_cast<size_t>(page)] = page;
  }

  BlockTableView view() const {
    return {table.data(), static_cast<int64_t>(lens.size()), num_columns, num_columns};
  }

  int32_t page_size;
  int32_t num_columns;
  std::vector<int32_t> lens;
  std::vector<int32_t> table;
};

// One step of the batch: forest, then plan.
inline void plan_step(const HalfShared& batch) {
  ForestTracker tracker(batch.page_size);
  Planner planner({.num_q_heads = 32, .num_kv_heads = 8, .head_dim = 128});
  planner.plan(tracker.update(batch.view(), batch.lens));
}

}  // namespace capillary::testing
