// SPDX-License-Identifier: MIT
// Forest building and updating on one thread, page 16: what a decoding step pays before it can be planned.
// Budgets: 256 requests x 4k tokens 150 us, 1024 x 4k 1 ms, a step that restructures nothing 10 us at 256.
// Building rotates over several tables, so that ids come from the last-level cache at best. Results are checked
// against the batch's known token count (building) or a rebuild (updating).
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "capillary/prefix_forest.h"

namespace {

using capillary::BlockTableView;
using capillary::PrefixForest;

constexpr int32_t kPageSize = 16;
constexpr int32_t kTokens = 4096;

// Depths in pages at which the groups of a batch split; the fan-outs multiply up to the number of requests.
struct Shape {
  const char* name;
  std::vector<int32_t> shared_pages;  // one level each, then the requests' own pages
  std::vector<int32_t> num_groups;
};

const Shape kShapes[] = {
    {"flat", {}, {}},
    {"one_prefix_2k", {128}, {1}},
    {"groups_of_16", {192}, {-16}},
    {"levels", {16, 64, 128, 192}, {1, 4, 16, 64}},
    {"all_but_tail", {255}, {1}},
};

struct Batch {
  std::vector<int32_t> table;
  std::vector<int32_t> lens;
  int32_t num_columns;
  int64_t unique_tokens;

  BlockTableView view() const {
    return {table.data(), static_cast<int64_t>(lens.size()), num_columns, num_columns};
  }
};

// Rows in random order; ids random but unique to a (level, group, page).
Batch make_batch(const Shape& shape, int32_t num_requests, uint32_t seed) {
  constexpr int32_t kPages = kTokens / kPageSize;
  Batch batch;
  batch.num_columns = kPages + 8;
  batch.lens.assign(static_cast<size_t>(num_requests), kTokens);
  batch.table.assign(static_cast<size_t>(num_requests) * batch.num_columns, -1);
  std::mt19937 random(seed);
  std::vector<int32_t> ids(static_cast<size_t>(num_requests) * kPages);
  std::iota(ids.begin(), ids.end(), 0);
  std::shuffle(ids.begin(), ids.end(), random);
  std::vector<int32_t> rows(static_cast<size_t>(num_requests));
  std::iota(rows.begin(), rows.end(), 0);
  std::shuffle(rows.begin(), rows.end(), random);
  size_t next = 0;
  int32_t begin = 0;
  for (size_t level = 0; level <= shape.shared_pages.size(); ++level) {
    const bool own = level == shape.shared_pages.size();
    const int32_t end = own ? kPages : shape.shared_pages[level];
    int32_t groups = own ? num_requests : shape.num_groups[level];
    if (groups < 0) groups = num_requests / -groups;
    const size_t first = next;
    for (int32_t i = 0; i < num_requests; ++i) {
      const auto group = static_cast<size_t>(int64_t{i} * groups / num_requests);
      int32_t* row = batch.table.data() + int64_t{rows[i]} * batch.num_columns;
      for (int32_t page = begin; page < end; ++page) {
        row[page] = ids[first + group * (end - begin) + (page - begin)];
      }
    }
    next += static_cast<size_t>(groups) * (end - begin);
    begin = end;
  }
  batch.unique_tokens = static_cast<int64_t>(next) * kPageSize;
  return batch;
}

void build(benchmark::State& state, const Shape& shape, int32_t num_requests) {
  std::vector<Batch> batches;
  for (uint32_t i = 0; i < 16; ++i) {
    batches.push_back(make_batch(shape, num_requests, i));
    const auto forest =
        PrefixForest::from_block_table(batches[i].view(), batches[i].lens, kPageSize);
    if (forest.unique_tokens() != batches[i].unique_tokens) state.SkipWithError("wrong forest");
  }
  size_t next = 0;
  for (auto _ : state) {
    const Batch& batch = batches[next++ % batches.size()];
    benchmark::DoNotOptimize(PrefixForest::from_block_table(batch.view(), batch.lens, kPageSize));
  }
}

// Every request appends a token a step; after kSteps steps everything starts over from a rebuild, outside the
// measured time.
void append(benchmark::State& state, const Shape& shape, int32_t num_requests) {
  constexpr int32_t kSteps = 64;
  Batch batch = make_batch(shape, num_requests, 1);
  const std::vector<int32_t> first_lens = batch.lens;
  int32_t fresh = num_requests * (kTokens / kPageSize);
  for (size_t r = 0; r < batch.lens.size(); ++r) {
    int32_t* row = batch.table.data() + static_cast<int64_t>(r) * batch.num_columns;
    for (int32_t page = kTokens / kPageSize; page < batch.num_columns; ++page) row[page] = fresh++;
  }
  capillary::ForestTracker tracker(kPageSize);
  int32_t step = kSteps;
  for (auto _ : state) {
    if (step == kSteps) {
      state.PauseTiming();
      if (tracker.restructured() && tracker.forest().num_requests() > 0) {
        state.SkipWithError("restructured");
        break;
      }
      batch.lens = first_lens;
      const std::vector<int32_t> nobody(first_lens.size(), -1);
      tracker.update(batch.view(), batch.lens, nobody);
      // The first tokens of pages of their own, where there are none yet.
      for (int32_t& len : batch.lens) len += kPageSize;
      tracker.update(batch.view(), batch.lens);
      step = 0;
      state.ResumeTiming();
    }
    for (int32_t& len : batch.lens) ++len;
    benchmark::DoNotOptimize(&tracker.update(batch.view(), batch.lens));
    ++step;
  }
}

// One request leaves and another takes its row, forked from a neighbour's first half.
void replace_one(benchmark::State& state, const Shape& shape, int32_t num_requests) {
  Batch batch = make_batch(shape, num_requests, 1);
  capillary::ForestTracker tracker(kPageSize);
  std::vector<int32_t> previous(batch.lens.size());
  std::iota(previous.begin(), previous.end(), 0);
  tracker.update(batch.view(), batch.lens);
  std::mt19937 random(7);
  int32_t fresh = num_requests * (kTokens / kPageSize);
  for (auto _ : state) {
    const size_t row = random() % batch.lens.size();
    const size_t from = random() % batch.lens.size();
    int32_t* to = batch.table.data() + static_cast<int64_t>(row) * batch.num_columns;
    const int32_t* source = batch.table.data() + static_cast<int64_t>(from) * batch.num_columns;
    constexpr int32_t kHalf = kTokens / kPageSize / 2;
    std::copy(source, source + kHalf, to);
    std::iota(to + kHalf, to + 2 * kHalf, fresh);
    fresh = (fresh + kHalf) % (1 << 30);
    previous[row] = -1;
    benchmark::DoNotOptimize(&tracker.update(batch.view(), batch.lens, previous));
    previous[row] = static_cast<int32_t>(row);
  }
  const auto rebuilt = PrefixForest::from_block_table(batch.view(), batch.lens, kPageSize);
  if (tracker.forest().nodes().size() != rebuilt.nodes().size())
    state.SkipWithError("wrong forest");
}

const bool kRegistered = [] {
  for (const int32_t num_requests : {256, 1024}) {
    for (const Shape& shape : kShapes) {
      const std::string batch_name = std::string(shape.name) + "/" + std::to_string(num_requests);
      const auto add = [&](const std::string& name, auto* run) {
        benchmark::RegisterBenchmark((name + "/" + batch_name).c_str(),
                                     [&shape, num_requests, run](benchmark::State& state) {
                                       run(state, shape, num_requests);
                                     })
            ->Unit(benchmark::kMicrosecond);
      };
      add("forest_build", build);
      add("forest_append", append);
      add("forest_replace_one", replace_one);
    }
  }
  return true;
}();

}  // namespace
