// SPDX-License-Identifier: MIT
// The whole check table, and seeded random trees, on the CPU backend: forest, plan, its proof, interpreter,
// oracle, fences. One test a case, so that a failure names it; every failure prints its reproducer.
#include <gtest/gtest.h>

#include <cctype>
#include <string>

#include "check/runner.h"
#include "shared/plan_layout.h"

namespace capillary::check {
namespace {

void expect_passes(const CheckCase& check_case, uint64_t seed) {
  const auto backend = make_cpu_backend();
  const CheckResult result = run_case(check_case, seed, *backend);
  EXPECT_EQ(result.outcome, CheckResult::Outcome::kPassed) << result.message << "\n"
                                                           << describe(check_case) << "\n"
                                                           << result.reproducer;
}

std::string test_name(const std::string& name) {
  std::string text = name;
  for (char& letter : text)
    if (std::isalnum(static_cast<unsigned char>(letter)) == 0) letter = '_';
  return text;
}

class CheckTable : public ::testing::TestWithParam<CheckCase> {};

TEST_P(CheckTable, MatchesOracle) {
  expect_passes(GetParam(), 1);
}

INSTANTIATE_TEST_SUITE_P(Cpu, CheckTable, ::testing::ValuesIn(case_table()),
                         [](const auto& test) { return test_name(test.param.name); });

// The cases that are there for the kernel's sake have what they are there for: with other figures the planner might come to
// plan them differently.
Plan plan_of(const std::string& name) {
  const CheckCase found = find_case(name, 1);
  HostBatch batch = case_batch(found, 1);
  Planner planner(found.shape, builtin_h200(), found.options);
  return planner.plan(case_forest(found, batch));
}

TEST(CheckCases, LongItemsTakeStepsInPairs) {
  for (const char* name : {"long-items/d64-p16-1152", "long-items/d128-p16-1221",
                           "long-items/d128-p1-1152", "long-items/d96-p1-1221"}) {
    const Plan plan = plan_of(name);
    const PlanView view(plan.data());
    int paired = 0;
    for (uint32_t p = 0; p < view.header().num_phases; ++p) {
      const Phase& phase = view.phases()[p];
      for (uint32_t i = 0; phase.kind == PhaseKind::kWide && i < phase.num_items; ++i) {
        const WorkItem& item = view.items()[phase.item_begin + i];
        paired += item.num_rows > 64 && item.num_tiles >= 18 * kWideTiles ? 1 : 0;
      }
    }
    EXPECT_GT(paired, 0) << name;
  }
}

TEST(CheckCases, ManyJobsHaveWidePhasesBehindNarrowOnes) {
  for (const char* name :
       {"token-pages/d64-many-jobs", "token-pages/d128-many-jobs", "token-pages/d256-many-jobs"}) {
    const Plan plan = plan_of(name);
    const PlanView view(plan.data());
    EXPECT_EQ(view.header().cluster_size, 1) << name;
    int behind = 0;  // narrow phases that a wide one of the same CTA follows
    for (uint32_t cta = 0; cta < static_cast<uint32_t>(view.header().num_clusters); ++cta) {
      bool narrow = false;
      const RankStart& start = view.rank_starts()[cta];
      for (uint32_t entry = start.schedule_begin; entry < start.schedule_end; ++entry) {
        const RankWork& work = view.rank_works()[view.schedule()[entry].job];
        for (uint32_t i = 0; i < work.num_phases; ++i) {
          const bool wide = view.phases()[work.phase_begin + i].kind == PhaseKind::kWide;
          behind += wide && narrow ? 1 : 0;
          narrow = !wide;
        }
      }
    }
    EXPECT_GT(behind, 0) << name;
  }
}

class RandomTrees : public ::testing::TestWithParam<int> {};

TEST_P(RandomTrees, MatchOracle) {
  for (int i = 0; i < 10; ++i) {
    const auto seed = static_cast<uint64_t>(GetParam() * 10 + i);
    expect_passes(random_case(seed), seed);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomTrees, ::testing::Range(0, 20));

}  // namespace
}  // namespace capillary::check
