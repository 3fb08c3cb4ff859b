// SPDX-License-Identifier: MIT
#include "check/runner.h"

#include <fmt/format.h>

#include <chrono>

#include "capillary/error.h"

namespace capillary::check {
namespace {

// Empty when all is well.
std::string check_step(const CheckCase& check_case, uint64_t seed, Backend& backend,
                       const DeviceProfile& profile, Comparison& comparison) {
  HostBatch batch = case_batch(check_case, seed);
  const PrefixForest forest = case_forest(check_case, batch);
  Planner planner(check_case.shape, profile, check_case.options);
  const Plan& plan = planner.plan(forest);
  validate_plan(plan.data(), plan.size_bytes(), forest);

  batch.poison_outputs();
  const uint64_t fences = batch.fence_hash();
  backend.decode(plan, forest, batch);
  if (batch.fence_hash() != fences)
    return "the step wrote outside of its outputs (an input or a guard band changed)";
  comparison = compare_with_oracle(batch, backend.rounds_weights());
  if (!comparison.passed) {
    return fmt::format("{} ({} of {} values)", comparison.first_failure, comparison.num_failures,
                       batch.q.shape[0] * batch.q.shape[1]);
  }

  const auto first_out = batch.buffers[batch.out.buffer].bytes;
  const auto first_lse = batch.buffers[batch.lse.buffer].bytes;
  batch.poison_outputs();
  backend.decode(plan, forest, batch);
  if (batch.buffers[batch.out.buffer].bytes != first_out ||
      batch.buffers[batch.lse.buffer].bytes != first_lse) {
    return "a second run of the same plan gave other bits";
  }
  return {};
}

}  // namespace

CheckResult run_case(const CheckCase& check_case, uint64_t seed, Backend& backend,
                     const DeviceProfile& profile) {
  const auto begin = std::chrono::steady_clock::now();
  CheckResult result;
  result.case_name = check_case.name;
  result.reproducer = fmt::format("capillary check --device {} --case {} --seed {}", backend.name(),
                                  check_case.name, seed);
  const Backend::Support support = backend.supports(check_case);
  if (!support.ok) {
    result.outcome = CheckResult::Outcome::kUnsupported;
    result.message = support.reason;
    return result;
  }
  try {
    result.message = check_step(check_case, seed, backend, profile, result.comparison);
  } catch (const Error& error) {
    result.message = error.what();
  }
  if (!result.message.empty()) result.outcome = CheckResult::Outcome::kFailed;
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  result.seconds = elapsed.count();
  return result;
}

}  // namespace capillary::check
