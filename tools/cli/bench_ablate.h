// SPDX-License-Identifier: MIT
// `capillary bench --ablate`: every workload x heads planned in every way that can be forced and as the planner
// would, all measured in one run.
#pragma once

#include <cstdint>
#include <string>

#include "cli/batch_options.h"
#include "cli/measure.h"

namespace capillary::cli {

struct AblateOptions {
  BatchOptions batch;
  int32_t sample = 0;  // 0: all that the batch options choose
  MeasureOptions measure;
  bool json = false;
  std::string out;     // JSON lines
  std::string plot;    // SVG
  std::string report;  // Markdown
  std::string from;    // an earlier run's JSON lines, told again in place of a measurement
};

// The verb's work; an exit code. What was measured before an interruption or an error is kept.
int run_ablation(const AblateOptions& options);

}  // namespace capillary::cli
