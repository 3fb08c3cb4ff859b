// SPDX-License-Identifier: MIT
// The whole check table, and seeded random trees, on the kernel: what tests/cpu/decode_cpu_test.cpp does on the
// CPU. Plans are made for the cluster limits of the card at hand. Every case is skipped where there is no
// Hopper card, and says so.
#include <gtest/gtest.h>

#include <cctype>
#include <memory>
#include <string>

#include "capillary/cuda.h"
#include "capillary/error.h"
#include "check/runner.h"

namespace capillary::check {
namespace {

// Empty when device 0 can run the kernels, else why not.
std::string why_not() {
  if (cuda::device_count() == 0) return "no CUDA device";
  try {
    cuda::require_supported(0);
  } catch (const UnsupportedArch& error) {
    return error.what();
  }
  return "";
}

class OnCard : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (why_not().empty()) backend_ = make_cuda_backend(0);
  }
  static void TearDownTestSuite() { backend_.reset(); }
  void SetUp() override {
    if (backend_ == nullptr) GTEST_SKIP() << why_not();
  }

  static void expect_passes(const CheckCase& check_case, uint64_t seed) {
    const Backend::Support support = backend_->supports(check_case);
    if (!support.ok) GTEST_SKIP() << support.reason;
    const DeviceProfile profile =
        cuda::profile_for_device(0, check_case.shape.dtype, check_case.shape.head_dim);
    const CheckResult result = run_case(check_case, seed, *backend_, profile);
    EXPECT_EQ(result.outcome, CheckResult::Outcome::kPassed) << result.message << "\n"
                                                             << describe(check_case) << "\n"
                                                             << result.reproducer;
  }

 private:
  static std::unique_ptr<Backend> backend_;
};
std::unique_ptr<Backend> OnCard::backend_;

class CudaCheckTable : public OnCard, public ::testing::WithParamInterface<CheckCase> {};

TEST_P(CudaCheckTable, MatchesOracle) {
  expect_passes(GetParam(), 1);
}

INSTANTIATE_TEST_SUITE_P(Cuda, CudaCheckTable, ::testing::ValuesIn(case_table()),
                         [](const auto& test) {
                           std::string text = test.param.name;
                           for (char& letter : text)
                             if (std::isalnum(static_cast<unsigned char>(letter)) == 0)
                               letter = '_';
                           return text;
                         });

class CudaRandomTrees : public OnCard, public ::testing::WithParamInterface<int> {};

TEST_P(CudaRandomTrees, MatchOracle) {
  const auto seed = static_cast<uint64_t>(GetParam());
  expect_passes(random_case(seed), seed);
}

INSTANTIATE_TEST_SUITE_P(Seeds, CudaRandomTrees, ::testing::Range(0, 200));

}  // namespace
}  // namespace capillary::check
