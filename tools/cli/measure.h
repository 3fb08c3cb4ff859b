// SPDX-License-Identifier: MIT
// One planned step checked and timed: what run does once and bench does for every line.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/device.h"

namespace CLI {
class App;
}

namespace capillary::cli {

// Where, in which layout and how often: the same for both.
struct MeasureOptions {
  std::string layout = "hnd";
  std::string device = "auto";
  int32_t num_threads = 0;
  int repeats = 20;
  bool no_check = false;
};
void add_measure_options(CLI::App& app, MeasureOptions& options);

struct Measurement {
  std::optional<StepCheck> check;  // nothing: not checked
  std::vector<std::pair<TimingKind, std::vector<double>>> times_us;

  bool passed() const { return !check || check->passed; }
  // Median in microseconds; negative where this kind was not measured.
  double median_us(TimingKind kind) const;
  // The time that efficiency is stated for: a graph with a cold L2 where there is one, else eager.
  double headline_us() const;
};

Measurement measure(TimedDevice& device, MeasuredStep& step, const Plan& plan,
                    const MeasureOptions& options);

}  // namespace capillary::cli
