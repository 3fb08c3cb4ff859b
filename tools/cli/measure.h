// SPDX-License-Identifier: MIT
// One planned step checked and timed: what run does once and bench does for every line.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "cli/device.h"

namespace capillary::cli {

struct Measurement {
  std::optional<StepCheck> check;  // nothing: not checked
  std::vector<std::pair<TimingKind, std::vector<double>>> times_us;

  bool passed() const { return !check || check->passed; }
  // Median in microseconds; negative where this kind was not measured.
  double median_us(TimingKind kind) const;
  // The time that efficiency is stated for: a graph with a cold L2 where there is one, else eager.
  double headline_us() const;
};

Measurement measure(TimedDevice& device, MeasuredStep& step, const Plan& plan, int repeats,
                    bool check);

}  // namespace capillary::cli
