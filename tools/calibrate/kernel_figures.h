// SPDX-License-Identifier: MIT
// The figures that are the kernel's own (a tile of a stream, an item, a phase, a job, a merge): measured by timing the
// real kernel on synthetic steps that differ in one thing, and fitting a line. docs/calibration.md lists the steps.
#pragma once

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "calibrate/calibration.h"
#include "calibrate/synthetic_step.h"

namespace capillary::calibrate {

// Whether the keys come from HBM or, as the launch before left them, from L2.
enum class Cache { kCold, kWarm };

// Runs a step; a card does, and so does a model in tests.
class StepTimer {
 public:
  virtual ~StepTimer() = default;
  // Microseconds of single launches.
  virtual std::vector<double> time_us(const SyntheticStep& step, Cache cache) = 0;
};

struct CardLimits {
  int32_t num_sms = 0;
  std::array<int32_t, kNumClusterSizes> max_clusters{};
  ByClusterSize
      dsm_load_gbps_per_cta{};  // what the bytes of an exchange take is not put down to its latency
};

// progress: called with what is about to be measured; may throw to stop.
Measurements measure_kernel(StepTimer& timer, const CardLimits& card,
                            const std::function<void(const std::string&)>& progress);

}  // namespace capillary::calibrate
