// SPDX-License-Identifier: MIT
// The whole check table, and seeded random trees, on the CPU backend: forest, plan, its proof, interpreter,
// oracle, fences. One test a case, so that a failure names it; every failure prints its reproducer.
#include <gtest/gtest.h>

#include <cctype>
#include <string>

#include "check/runner.h"

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
