// SPDX-License-Identifier: MIT
// The CPU backend's two promises, on PAT's first workload (one node of 4096 tokens under which 10 requests
// have 416 each, 32 query heads on 8 KV heads, head_dim 128):
//   decode/auto is at least 3 times as fast as decode/flat;
//   decode/flat takes at most 4 times as long as stream/flat_bytes, a plain read of as many bytes.
// Cache rows of one KV head lie apart in NHD and together in HND, which the prefetchers of a core notice; both
// are measured. Every benchmark uses all cores, and compares its output with nothing: the check table does.
#include <benchmark/benchmark.h>

#include <cstring>
#include <thread>
#include <vector>

#include "capillary/decode.h"
#include "check/batch.h"
#include "check/trees.h"

namespace capillary {
namespace {

constexpr ModelShape kShape = {.num_q_heads = 32, .num_kv_heads = 8, .head_dim = 128};
constexpr int32_t kPageSize = 32;

int64_t bytes_per_token() {
  return static_cast<int64_t>(kShape.num_kv_heads) * (kShape.head_dim + kShape.v_dim()) *
         dtype_bytes(kShape.dtype);
}

struct Step {
  check::HostBatch batch;
  PrefixForest forest;
};

Step make_pat_01(check::CacheLayout layout) {
  const check::TreeSpec tree = check::level_tree({1, 10}, {4096, 416});
  check::HostBatch batch = check::make_batch(
      {.shape = kShape, .layout = layout, .table = check::make_table(tree, kPageSize, 1)});
  PrefixForest forest =
      PrefixForest::from_block_table(batch.block_table_view(), batch.seq_lens, kPageSize);
  return {std::move(batch), std::move(forest)};
}

// Made once: repetitions should not wait for hundreds of megabytes of random data.
Step& pat_01(check::CacheLayout layout) {
  static Step nhd = make_pat_01(check::CacheLayout::kNhd);
  static Step hnd = make_pat_01(check::CacheLayout::kHnd);
  return layout == check::CacheLayout::kNhd ? nhd : hnd;
}

void decode_step(benchmark::State& state, Mode mode, check::CacheLayout layout) {
  Step& step = pat_01(layout);
  Planner planner(kShape, builtin_h200(), {.mode = mode});
  const Plan& plan = planner.plan(step.forest);
  for (auto _ : state) decode_cpu(plan, step.batch.tensors());
  const int64_t tokens =
      mode == Mode::kFlat ? step.forest.flat_tokens() : step.forest.unique_tokens();
  state.SetBytesProcessed(state.iterations() * tokens * bytes_per_token());
}
#define CAPILLARY_DECODE_BENCHMARK(name, mode, layout) \
  BENCHMARK_CAPTURE(decode_step, name, mode, layout)->UseRealTime()->Unit(benchmark::kMillisecond)
CAPILLARY_DECODE_BENCHMARK(auto_nhd, Mode::kAuto, check::CacheLayout::kNhd);
CAPILLARY_DECODE_BENCHMARK(flat_nhd, Mode::kFlat, check::CacheLayout::kNhd);
CAPILLARY_DECODE_BENCHMARK(auto_hnd, Mode::kAuto, check::CacheLayout::kHnd);
CAPILLARY_DECODE_BENCHMARK(flat_hnd, Mode::kFlat, check::CacheLayout::kHnd);

uint64_t sum_words(const uint64_t* words, size_t count) {
  // Independent sums, or the additions and not the memory would set the pace.
  uint64_t sums[32] = {};
  size_t i = 0;
  for (; i + 32 <= count; i += 32)
    for (size_t j = 0; j < 32; ++j) sums[j] += words[i + j];
  uint64_t total = 0;
  for (const uint64_t sum : sums) total += sum;
  return total;
}

void stream_flat_bytes(benchmark::State& state) {
  const auto bytes = static_cast<size_t>(pat_01(check::CacheLayout::kNhd).forest.flat_tokens() *
                                         bytes_per_token());
  const std::vector<uint64_t> memory(bytes / 8, 1);
  const size_t num_threads = std::max(1u, std::thread::hardware_concurrency());
  const size_t share = memory.size() / num_threads;
  std::vector<uint64_t> sums(num_threads);
  for (auto _ : state) {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < num_threads; ++i)
      threads.emplace_back([&, i] { sums[i] = sum_words(memory.data() + i * share, share); });
    threads.clear();
    benchmark::DoNotOptimize(sums.data());
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(bytes));
}
BENCHMARK(stream_flat_bytes)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace capillary
