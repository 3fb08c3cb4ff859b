// SPDX-License-Identifier: MIT
// One planned step checked and timed (measure.h).
#include "cli/measure.h"

#include "CLI/CLI.hpp"
#include "cli/common.h"

namespace capillary::cli {

void add_measure_options(CLI::App& app, MeasureOptions& options) {
  app.add_option("--layout", options.layout,
                 "nhd, hnd, packed-page, packed-dim, cross-layer or mixed")
      ->capture_default_str();
  app.add_option("--device", options.device, "auto, cpu or cuda")->capture_default_str();
  app.add_option("--threads", options.num_threads, "CPU threads [all]")->check(CLI::Range(1, 4096));
  app.add_option("--repeat", options.repeats, "Timed runs of each step")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000000));
  app.add_flag("--no-check", options.no_check, "Skip the comparison with the oracle");
}

double Measurement::median_us(TimingKind kind) const {
  for (const auto& [measured, times] : times_us) {
    if (measured == kind) return median(times);
  }
  return -1;
}

double Measurement::headline_us() const {
  const double cold = median_us(TimingKind::kGraphCold);
  return cold > 0 ? cold : median_us(TimingKind::kEager);
}

Measurement measure(TimedDevice& device, MeasuredStep& step, const Plan& plan,
                    const MeasureOptions& options) {
  Measurement measurement;
  step.load(plan);
  if (!options.no_check) measurement.check = step.check();
  for (const TimingKind kind : device.timing_kinds()) {
    throw_if_interrupted();
    measurement.times_us.emplace_back(kind, step.time_us(kind, options.repeats));
  }
  return measurement;
}

}  // namespace capillary::cli
