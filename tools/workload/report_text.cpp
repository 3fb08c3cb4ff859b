// SPDX-License-Identifier: MIT
// The replay's summary in words (report.h).
#include <algorithm>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "workload/report.h"
#include "workload/words.h"

namespace capillary {
namespace {

// "1 step", "2 steps".
std::string counted(int64_t value, const char* noun) {
  return fmt::format("{} {}{}", format_count(value), noun, value == 1 ? "" : "s");
}

std::string percent(double part, double whole) {
  return whole == 0 ? "0 %" : fmt::format("{:.1f} %", 100 * part / whole);
}

// "1.24x" as much time as auto.
std::string times(double us, double auto_us) {
  return auto_us > 0 ? fmt::format("{:.2f}x", us / auto_us) : "-";
}

std::string requests_line(const ReplayReport& report) {
  const BatchingCounters& batching = report.batching;
  std::string text =
      fmt::format("{} of {} finished, {}", format_count(batching.finished),
                  format_count(report.trace_requests), counted(batching.preemptions, "preemption"));
  if (batching.too_long > 0) {
    text += fmt::format(", {} too long for the pool ({})", format_count(batching.too_long),
                        report.first_too_long);
  }
  if (report.bad_lines > 0) {
    text += fmt::format("; {} skipped, the first: {}", counted(report.bad_lines, "bad line"),
                        report.first_bad_line);
  }
  return text;
}

std::string predicted_line(const ReplayReport& report) {
  if (report.steps == 0) return "nothing was decoded";
  if (report.compared_steps == 0) {
    return fmt::format("auto {:.1f} us a step (other modes were not planned)",
                       report.auto_us / static_cast<double>(report.steps));
  }
  const auto steps = static_cast<double>(report.compared_steps);
  std::string text = fmt::format(
      "auto {:.1f} us a step, shared-l2 {:.1f} ({}), flat {:.1f} ({}); on every {}step",
      report.compared_auto_us / steps, report.compared_shared_l2_us / steps,
      times(report.compared_shared_l2_us, report.compared_auto_us), report.compared_flat_us / steps,
      times(report.compared_flat_us, report.compared_auto_us),
      report.options.compare_every == 1 ? "" : fmt::format("{}th ", report.options.compare_every));
  if (report.slower_than_flat_steps > 0) {
    text += fmt::format("; flat was predicted faster on {} of them, by at most {:.1f} %",
                        format_count(report.slower_than_flat_steps),
                        100 * (report.worst_over_flat - 1));
  }
  return text;
}

std::string clusters_line(const ReplayReport& report) {
  std::string text;
  for (size_t i = 0; i < report.cluster_steps.size(); ++i) {
    if (report.cluster_steps[i] == 0) continue;
    text += fmt::format(
        "{}{} on {}", text.empty() ? "" : ", ", 1 << i,
        percent(static_cast<double>(report.cluster_steps[i]), static_cast<double>(report.steps)));
  }
  return text.empty() ? "none" : text + " of the steps";
}

std::string check_line(const ReplayReport& report) {
  const ExecutionResults& execution = report.execution;
  if (report.backend.empty()) return "nothing was executed (--execute-every)";
  const std::string what =
      fmt::format("{} executed on {} in {:.1f} s, {} compared with fp64 attention",
                  counted(execution.executed_steps, "step"), report.backend, execution.seconds,
                  counted(execution.checked_rows, "row"));
  if (execution.failures > 0) {
    return fmt::format("FAILED: {}; {}, the first: {}", what,
                       counted(execution.failures, "failure"), execution.first_failure);
  }
  if (execution.checked_rows == 0) return what;
  return fmt::format("passed: {}; worst error {:.2g}, {:.2f} of its bound; LSE within {:.1g}", what,
                     execution.worst_error, execution.worst_of_bound, execution.worst_lse_error);
}

std::string model_line(const ReplayReport& report) {
  const ReplayOptions& options = report.options;
  return fmt::format(
      "{} x (attention + {:g} us), and {:g} us a prefill token; {}/{} heads, head_dim {}, {}; "
      "profile {} ({})",
      counted(options.num_layers, "layer"), options.other_us, options.prefill_us,
      options.shape.num_q_heads, options.shape.num_kv_heads, options.shape.head_dim,
      dtype_name(options.shape.dtype), report.profile.name, report.profile.source);
}

}  // namespace

std::vector<ReportLine> replay_lines(const ReplayReport& report) {
  const BatchingCounters& batching = report.batching;
  const BatchingOptions& pool = report.options.batching;
  std::vector<ReportLine> lines;
  lines.push_back({"trace", report.trace_source});
  if (report.interrupted) lines.push_back({"interrupted", "what follows is what was done so far"});
  lines.push_back({"requests", requests_line(report)});
  lines.push_back({"steps", fmt::format("{} in {:.1f} s; {:.1f} s of simulated time",
                                        format_count(report.steps), report.wall_seconds,
                                        report.simulated_ms / 1e3)});
  lines.push_back(
      {"batch", fmt::format("{:.1f} requests a step, at most {} of {}; contexts up to {} tokens",
                            report.mean_batch(), batching.largest_batch, pool.max_batch,
                            format_count(batching.longest_context))});
  lines.push_back(
      {"cache",
       fmt::format(
           "hit rate {} ({} of {} prompt tokens), {} evicted of a pool of {} pages of {} tokens",
           percent(static_cast<double>(batching.prompt_tokens_hit),
                   static_cast<double>(batching.prompt_tokens)),
           format_count(batching.prompt_tokens_hit), format_count(batching.prompt_tokens),
           counted(report.cache.pages_evicted, "page"), format_count(pool.num_pages),
           pool.page_size)});
  const auto per_token = static_cast<double>(report.kv_bytes_per_token());
  lines.push_back(
      {"sharing",
       fmt::format("{:.2f}: {} of KV a layer, read once instead of {} (flat)", report.sharing(),
                   format_bytes(static_cast<double>(report.unique_tokens) * per_token),
                   format_bytes(static_cast<double>(report.flat_tokens) * per_token))});
  lines.push_back({"predicted", predicted_line(report)});
  lines.push_back({"cluster size", clusters_line(report)});
  lines.push_back(
      {"plan time", fmt::format("p50 {:.1f} us, p99 {:.1f} us", report.plan_time.percentile_us(0.5),
                                report.plan_time.percentile_us(0.99))});
  lines.push_back(
      {"forest update",
       fmt::format("p50 {:.1f} us, p99 {:.1f} us; nothing but lengths changed on {} of "
                   "the steps",
                   report.forest_time.percentile_us(0.5), report.forest_time.percentile_us(0.99),
                   percent(static_cast<double>(report.steps - report.restructured_steps),
                           static_cast<double>(report.steps)))});
  lines.push_back({"check", check_line(report)});
  lines.push_back({"step time", model_line(report)});
  return lines;
}

std::string replay_text(const ReplayReport& report) {
  const std::vector<ReportLine> lines = replay_lines(report);
  size_t width = 0;
  for (const ReportLine& line : lines) width = std::max(width, line.name.size());
  std::string text;
  for (const ReportLine& line : lines) {
    text += fmt::format("{:<{}}  {}\n", line.name, width, line.text);
  }
  return text;
}

}  // namespace capillary
