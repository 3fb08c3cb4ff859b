// SPDX-License-Identifier: MIT
// The replay's report as JSON (report.h).
#include "nlohmann/json.hpp"
#include "workload/report.h"

namespace capillary {
namespace {

using nlohmann::ordered_json;

double ratio(double part, double whole) {
  return whole == 0 ? 0 : part / whole;
}

ordered_json options_json(const ReplayReport& report) {
  const ReplayOptions& options = report.options;
  return {{"max_batch", options.batching.max_batch},
          {"pages", options.batching.num_pages},
          {"page_size", options.batching.page_size},
          {"max_prefill_tokens", options.batching.max_prefill_tokens},
          {"time_scale", options.batching.time_scale},
          {"num_q_heads", options.shape.num_q_heads},
          {"num_kv_heads", options.shape.num_kv_heads},
          {"head_dim", options.shape.head_dim},
          {"dtype", dtype_name(options.shape.dtype)},
          {"layers", options.num_layers},
          {"other_us", options.other_us},
          {"prefill_us", options.prefill_us},
          {"compare_every", options.compare_every},
          {"execute_every", options.execute_every},
          {"check_requests", options.check_requests},
          {"seed", options.seed},
          {"profile", report.profile.name},
          {"profile_source", report.profile.source}};
}

ordered_json clusters_json(const std::array<int64_t, kNumClusterSizes>& steps) {
  ordered_json object = ordered_json::object();
  for (size_t i = 0; i < steps.size(); ++i) object[std::to_string(1 << i)] = steps[i];
  return object;
}

ordered_json time_json(const TimeHistogram& time) {
  return {{"p50", time.percentile_us(0.5)},
          {"p99", time.percentile_us(0.99)},
          {"max", time.max_us()},
          {"total", time.total_us()}};
}

ordered_json point_json(const SeriesPoint& point) {
  const auto steps = static_cast<double>(point.steps);
  const auto compared = static_cast<double>(point.compared_steps);
  ordered_json object = {
      {"begin_ms", point.begin_ms},
      {"end_ms", point.end_ms},
      {"steps", point.steps},
      {"batch", ratio(static_cast<double>(point.requests), steps)},
      {"waiting", ratio(static_cast<double>(point.waiting), steps)},
      {"sharing", point.unique_tokens == 0 ? 1
                                           : ratio(static_cast<double>(point.flat_tokens),
                                                   static_cast<double>(point.unique_tokens))},
      {"auto_us", ratio(point.auto_us, steps)},
      {"plan_us", ratio(point.plan_us, steps)},
      {"cluster_steps", clusters_json(point.cluster_steps)}};
  if (point.compared_steps > 0) {
    object["compared"] = {{"steps", point.compared_steps},
                          {"auto_us", point.compared_auto_us / compared},
                          {"shared_l2_us", point.compared_shared_l2_us / compared},
                          {"flat_us", point.compared_flat_us / compared}};
  }
  return object;
}

ordered_json execution_json(const ReplayReport& report) {
  if (report.backend.empty()) return nullptr;
  const ExecutionResults& execution = report.execution;
  ordered_json object = {{"backend", report.backend},
                         {"steps", execution.executed_steps},
                         {"seconds", execution.seconds},
                         {"checked_rows", execution.checked_rows},
                         {"failures", execution.failures},
                         {"worst_error", execution.worst_error},
                         {"worst_of_bound", execution.worst_of_bound},
                         {"worst_lse_error", execution.worst_lse_error}};
  if (execution.failures > 0) object["first_failure"] = execution.first_failure;
  return object;
}

}  // namespace

std::string replay_json(const ReplayReport& report) {
  const BatchingCounters& batching = report.batching;
  const auto compared = static_cast<double>(report.compared_steps);
  const auto per_token = static_cast<double>(report.kv_bytes_per_token());
  ordered_json object = {{"schema_version", 1},
                         {"trace", report.trace_source},
                         {"interrupted", report.interrupted},
                         {"wall_seconds", report.wall_seconds},
                         {"simulated_ms", report.simulated_ms},
                         {"requests",
                          {{"in_trace", report.trace_requests},
                           {"bad_lines", report.bad_lines},
                           {"arrived", batching.arrived},
                           {"finished", batching.finished},
                           {"too_long", batching.too_long}}},
                         {"steps", report.steps},
                         {"mean_batch", report.mean_batch()},
                         {"largest_batch", batching.largest_batch},
                         {"longest_context", batching.longest_context},
                         {"generated_tokens", batching.generated_tokens},
                         {"preemptions", batching.preemptions},
                         {"cache",
                          {{"hit_rate", report.hit_rate()},
                           {"prompt_tokens", batching.prompt_tokens},
                           {"prompt_tokens_hit", batching.prompt_tokens_hit},
                           {"returned_tokens", batching.returned_tokens},
                           {"returned_tokens_hit", batching.returned_tokens_hit},
                           {"evictions", report.cache.evictions},
                           {"pages_evicted", report.cache.pages_evicted},
                           {"nodes", report.cache.nodes},
                           {"cached_pages", report.cache.cached_pages},
                           {"free_pages", report.cache.free_pages}}},
                         {"sharing", report.sharing()},
                         {"flat_bytes", static_cast<double>(report.flat_tokens) * per_token},
                         {"unique_bytes", static_cast<double>(report.unique_tokens) * per_token},
                         {"predicted_us_a_step",
                          {{"auto", ratio(report.auto_us, static_cast<double>(report.steps))},
                           {"compared_steps", report.compared_steps},
                           {"compared_auto", ratio(report.compared_auto_us, compared)},
                           {"compared_shared_l2", ratio(report.compared_shared_l2_us, compared)},
                           {"compared_flat", ratio(report.compared_flat_us, compared)},
                           {"slower_than_flat_steps", report.slower_than_flat_steps},
                           {"worst_over_flat", report.worst_over_flat}}},
                         {"cluster_steps", clusters_json(report.cluster_steps)},
                         {"plan_us", time_json(report.plan_time)},
                         {"forest_us", time_json(report.forest_time)},
                         {"restructured_steps", report.restructured_steps}};
  object["execution"] = execution_json(report);
  object["options"] = options_json(report);
  object["series"] = ordered_json::array();
  for (const SeriesPoint& point : report.series) object["series"].push_back(point_json(point));
  // File names may hold any bytes; they are shown, not trusted.
  return object.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace capillary
