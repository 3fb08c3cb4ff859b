// SPDX-License-Identifier: MIT
// One measured plan as bench's JSON line; docs/cli.md lists the fields.
#pragma once

#include <string>

#include "cli/device.h"
#include "cli/measure.h"
#include "cli/plan_report.h"
#include "nlohmann/json.hpp"

namespace capillary::cli {

struct BenchResult {
  const PlanReport& report;
  const Measurement& measurement;
  Floor floor;
};

// "workload heads".
std::string row_name(const PlanReport& report);

nlohmann::ordered_json bench_record(const BenchResult& result, const MeasureOptions& options,
                                    const TimedDevice& device);

// With its newline; names that are no UTF-8 are mended.
std::string json_line(const nlohmann::ordered_json& record);

}  // namespace capillary::cli
