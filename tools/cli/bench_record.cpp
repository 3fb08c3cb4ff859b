// SPDX-License-Identifier: MIT
// bench's JSON line (bench_record.h).
#include "cli/bench_record.h"

#include <algorithm>
#include <ctime>

#include "capillary/version.h"
#include "cli/common.h"

namespace capillary::cli {
namespace {

constexpr int kBenchSchemaVersion = 1;

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm parts = {};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d", &parts);
  return text;
}

}  // namespace

std::string row_name(const PlanReport& report) {
  return report.name + " " + heads_name({report.shape.num_q_heads, report.shape.num_kv_heads});
}

nlohmann::ordered_json bench_record(const BenchResult& result, const MeasureOptions& options,
                                    const TimedDevice& device) {
  using nlohmann::ordered_json;
  const PlanSummary& summary = result.report.summary;
  const auto time_of = [&](TimingKind kind) {
    const double us = result.measurement.median_us(kind);
    return us < 0 ? ordered_json() : ordered_json(us);
  };
  const double time_us = result.measurement.headline_us();
  const bool cuda = device.type() == DeviceType::kCuda;
  double widest = 0;
  for (const auto& [kind, times] : result.measurement.times_us) {
    widest = std::max(widest, spread(times));
  }
  return {
      {"schema_version", kBenchSchemaVersion},
      {"workload", result.report.name},
      {"heads", heads_name({result.report.shape.num_q_heads, result.report.shape.num_kv_heads})},
      {"head_dim", result.report.shape.head_dim},
      {"dtype", dtype_name(result.report.shape.dtype)},
      {"page_size", result.report.forest.page_size()},
      {"layout", options.layout},
      {"requests", summary.num_requests},
      {"mode", mode_name(result.report.options.mode)},
      {"path", mode_name(summary.mode)},
      {"cluster_size", summary.cluster_size},
      {"forced_cluster_size", result.report.options.cluster_size},
      {"num_groups", result.report.digest.num_groups},
      {"num_jobs", summary.num_jobs},
      {"time_us_graph_cold", time_of(TimingKind::kGraphCold)},
      {"time_us_graph_dependent", time_of(TimingKind::kGraphDependent)},
      {"time_us_graph_warm", time_of(TimingKind::kGraphWarm)},
      {"time_us_eager", time_of(TimingKind::kEager)},
      {"spread", widest},
      {"repeats", options.repeats},
      {"floor_us", result.floor.us},
      {"floor_kind", result.floor.kind},
      {"efficiency", time_us > 0 ? result.floor.us / time_us : 0.0},
      {"unique_bytes", summary.unique_bytes},
      {"flat_bytes", summary.flat_bytes},
      {"planned_bytes", summary.planned_bytes},
      {"exchange_bytes", summary.exchange_bytes},
      {"split_bytes", summary.split_bytes},
      {"plan_us", result.report.warm_plan_us},
      {"predicted_us", summary.predicted_us},
      {"profile", result.report.profile.name},
      {"checked", result.measurement.check.has_value()},
      {"passed", result.measurement.passed()},
      {"max_rel_err", result.measurement.check
                          ? ordered_json(result.measurement.check->worst_rel_err)
                          : ordered_json()},
      {"capillary", CAPILLARY_VERSION_STRING},
      {"commit", build_commit()},
      {"date", today()},
      {"device", device.description()},
      {"gpu", cuda ? ordered_json(device.description()) : ordered_json()},
      {"driver", cuda ? ordered_json(device.driver_version()) : ordered_json()},
      {"toolkit", cuda ? ordered_json(device.toolkit_version()) : ordered_json()}};
}

std::string json_line(const nlohmann::ordered_json& record) {
  return record.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace capillary::cli
