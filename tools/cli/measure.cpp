// SPDX-License-Identifier: MIT
// One planned step checked and timed (measure.h).
#include "cli/measure.h"

#include "cli/common.h"

namespace capillary::cli {

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

Measurement measure(TimedDevice& device, MeasuredStep& step, const Plan& plan, int repeats,
                    bool check) {
  Measurement measurement;
  step.load(plan);
  if (check) measurement.check = step.check();
  for (const TimingKind kind : device.timing_kinds()) {
    throw_if_interrupted();
    measurement.times_us.emplace_back(kind, step.time_us(kind, repeats));
  }
  return measurement;
}

}  // namespace capillary::cli
