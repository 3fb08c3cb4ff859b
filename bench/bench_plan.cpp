// SPDX-License-Identifier: MIT
// Planning on one thread, warm: what a decoding step pays on top of the forest. Budgets: 50 us at 256 requests
// in 2 levels, 300 us at 1024 requests in 7 levels. Every plan is proven once before it is timed. The forest
// alternates between two of a shape, so that nothing is remembered from one plan to the next.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "capillary/plan.h"
#include "workload/workload.h"

namespace {

using capillary::Mode;
using capillary::ModelShape;
using capillary::Plan;
using capillary::Planner;
using capillary::PrefixForest;
using capillary::Workload;

struct Case {
  const char* name;
  const char* tree;  // nodes x tokens, level by level
  int32_t page_size;
  ModelShape shape;
  // Leaves lose up to this many tokens at random: no two groups are alike then.
  int32_t ragged;
};

// PAT's workload 14, with each of its head counts.
constexpr const char* kSevenLevels = "1x256,8x128,16x64,32x32,64x32,128x32,1024x32";

const Case kCases[] = {
    {"256_in_16_groups", "16x1024,256x200", 16, {32, 8, 128}, 0},
    {"256_in_16_groups_ragged", "16x1024,256x200", 16, {32, 8, 128}, 150},
    {"256_one_prefix", "1x2048,256x200", 16, {32, 8, 128}, 0},
    {"256_flat", "256x1000", 16, {32, 8, 128}, 500},
    {"256_in_16_groups_1_head", "16x1024,256x200", 16, {8, 1, 128}, 150},
    {"1024_in_7_levels", kSevenLevels, 32, {32, 8, 128}, 0},
    {"1024_in_7_levels_32_32", kSevenLevels, 32, {32, 32, 128}, 0},
    {"1024_in_7_levels_16_8", kSevenLevels, 32, {16, 8, 128}, 0},
    {"1024_in_7_levels_64_8", kSevenLevels, 32, {64, 8, 128}, 0},
    {"1024_in_7_levels_1_head", kSevenLevels, 32, {16, 1, 128}, 0},
    {"1024_in_7_levels_ragged",
     "1x256,8x128,16x64,32x32,64x32,128x32,1024x64",
     32,
     {32, 8, 128},
     60},
    {"8_small", "1x4000,8x16", 16, {8, 1, 128}, 15},
};

PrefixForest make_forest(const Case& c, uint64_t seed) {
  const Workload workload = capillary::workload_from_shorthand(c.tree);
  capillary::Batch batch = capillary::make_batch(workload, c.page_size, {seed, true, true});
  std::mt19937_64 rng(seed);
  if (c.ragged > 0)
    for (int32_t& length : batch.seq_lens)
      length -= static_cast<int32_t>(rng() % static_cast<uint64_t>(c.ragged));
  return PrefixForest::from_block_table(batch.view(), batch.seq_lens, c.page_size);
}

void plan(benchmark::State& state, const Case& c, Mode mode) {
  const PrefixForest forests[] = {make_forest(c, 1), make_forest(c, 2)};
  Planner planner(c.shape, capillary::builtin_h200(), {mode});
  for (const PrefixForest& forest : forests) {
    const Plan& made = planner.plan(forest);
    capillary::validate_plan(made.data(), made.size_bytes(), forest);
  }
  size_t turn = 0, bytes = 0;
  for (auto _ : state) {
    const Plan& made = planner.plan(forests[turn ^= 1]);
    bytes = made.size_bytes();
    benchmark::DoNotOptimize(made.data());
  }
  state.counters["plan_bytes"] = static_cast<double>(bytes);
  state.counters["requests"] = forests[0].num_requests();
}

void validate(benchmark::State& state, const Case& c) {
  const PrefixForest forest = make_forest(c, 1);
  Planner planner(c.shape);
  const Plan& made = planner.plan(forest);
  for (auto _ : state) capillary::validate_plan(made.data(), made.size_bytes(), forest);
}

const int registered = [] {
  for (const Case& c : kCases) {
    const std::string name = c.name;
    for (const Mode mode : {Mode::kAuto, Mode::kFlat, Mode::kSharedL2})
      benchmark::RegisterBenchmark(("plan/" + name + "/" + capillary::mode_name(mode)).c_str(),
                                   [&c, mode](benchmark::State& state) { plan(state, c, mode); })
          ->Unit(benchmark::kMicrosecond);
    benchmark::RegisterBenchmark(("validate_plan/" + name).c_str(), [&c](benchmark::State& state) {
      validate(state, c);
    })->Unit(benchmark::kMicrosecond);
  }
  return 0;
}();

}  // namespace
