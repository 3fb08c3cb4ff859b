// SPDX-License-Identifier: MIT
// Planning on one thread, warm: what a decoding step pays on top of the forest. Budgets: 50 us at 256 requests
// in 2 levels, 300 us at 1024 requests in 7 levels; 5 us at 256 requests where the last plan is only lengthened.
// Every plan is proven once before it is timed. For whole plans the forest alternates between two of a shape, so
// that nothing is remembered from one plan to the next.
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
  // The leaves are long enough to have begun a hundred tokens ago.
  bool grows = false;
};

// PAT's workload 14, with each of its head counts.
constexpr const char* kSevenLevels = "1x256,8x128,16x64,32x32,64x32,128x32,1024x32";

const Case kCases[] = {
    {"256_in_16_groups", "16x1024,256x200", 16, {32, 8, 128}, 0, true},
    {"256_in_16_groups_ragged", "16x1024,256x300", 16, {32, 8, 128}, 150, true},
    {"256_one_prefix", "1x2048,256x200", 16, {32, 8, 128}, 0, true},
    {"256_flat", "256x1000", 16, {32, 8, 128}, 500, true},
    {"256_in_16_groups_1_head", "16x1024,256x300", 16, {8, 1, 128}, 150, true},
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

PrefixForest make_forest(const Case& c, uint64_t seed, int32_t steps_back = 0) {
  const Workload workload = capillary::workload_from_shorthand(c.tree);
  capillary::Batch batch = capillary::make_batch(workload, c.page_size, {seed, true, true});
  std::mt19937_64 rng(seed);
  if (c.ragged > 0)
    for (int32_t& length : batch.seq_lens)
      length -= static_cast<int32_t>(rng() % static_cast<uint64_t>(c.ragged));
  for (int32_t& length : batch.seq_lens) length -= steps_back;
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

// Steps in which every request gets a token; after a few it goes back to the first, which is one more change of
// nothing but lengths.
void lengthen(benchmark::State& state, const Case& c) {
  std::vector<PrefixForest> forests;
  for (int32_t back = 4; back > 0; --back) forests.push_back(make_forest(c, 1, back));
  Planner planner(c.shape);
  planner.plan(forests[0]);
  for (const PrefixForest& forest : forests) {
    const Plan& made = planner.update(forest);
    capillary::validate_plan(made.data(), made.size_bytes(), forest);
  }
  size_t turn = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(planner.update(forests[turn++ % forests.size()]).data());
    if (planner.planned_anew()) {
      state.SkipWithError("planned anew");
      break;
    }
  }
}

// What a step costs on average where every request gets a token a step, plans made anew included.
void append(benchmark::State& state, const Case& c) {
  constexpr int32_t kSteps = 96;
  std::vector<PrefixForest> forests;
  for (int32_t back = kSteps; back > 0; --back) forests.push_back(make_forest(c, 1, back));
  Planner planner(c.shape);
  size_t turn = 0, anew = 0;
  for (auto _ : state) {
    const size_t step = turn++ % forests.size();
    const Plan& made = step == 0 ? planner.plan(forests[0]) : planner.update(forests[step]);
    benchmark::DoNotOptimize(made.data());
    anew += planner.planned_anew() ? 1 : 0;
  }
  state.counters["planned_anew"] =
      static_cast<double>(anew) / static_cast<double>(state.iterations());
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
    if (c.grows) {
      benchmark::RegisterBenchmark(("plan_lengthen/" + name).c_str(), [&c](
                                                                          benchmark::State& state) {
        lengthen(state, c);
      })->Unit(benchmark::kMicrosecond);
      benchmark::RegisterBenchmark(("plan_append/" + name).c_str(), [&c](benchmark::State& state) {
        append(state, c);
      })->Unit(benchmark::kMicrosecond);
    }
    benchmark::RegisterBenchmark(("validate_plan/" + name).c_str(), [&c](benchmark::State& state) {
      validate(state, c);
    })->Unit(benchmark::kMicrosecond);
  }
  return 0;
}();

}  // namespace
