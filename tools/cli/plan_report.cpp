// SPDX-License-Identifier: MIT
// Builds the report of a planned step (plan_report.h).
#include "cli/plan_report.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "fmt/format.h"

namespace capillary::cli {
namespace {

double microseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
      .count();
}

double busiest_cluster_us(const PlanDigest& digest) {
  double busiest = 0;
  for (const ClusterDigest& cluster : digest.clusters) busiest = std::max(busiest, cluster.us);
  return busiest;
}

std::string why_it_lost(const PlanSummary& chosen, double chosen_busiest_us,
                        const PlanSummary& loser, double loser_busiest_us) {
  // The first of these that is clearly worse is what told against it.
  const auto ratio = [](double a, double b) { return b > 0 ? a / b : a > 0 ? 1e9 : 1.0; };
  const double bytes =
      ratio(static_cast<double>(loser.planned_bytes), static_cast<double>(chosen.planned_bytes));
  if (bytes > 1.05) {
    return fmt::format("reads {:.2f}x the KV bytes ({} against {})", bytes,
                       format_bytes(static_cast<double>(loser.planned_bytes)),
                       format_bytes(static_cast<double>(chosen.planned_bytes)));
  }
  const double gap_us = loser.predicted_us - chosen.predicted_us;
  const double split_bytes =
      static_cast<double>(loser.split_bytes) - static_cast<double>(chosen.split_bytes);
  if (loser.exchange_us - chosen.exchange_us > 0.5 * gap_us && gap_us > 0) {
    return fmt::format("its exchange takes {} against {}", format_us(loser.exchange_us),
                       format_us(chosen.exchange_us));
  }
  if (loser_busiest_us > 1.02 * chosen_busiest_us) {
    return fmt::format("its busiest cluster works {} against {}", format_us(loser_busiest_us),
                       format_us(chosen_busiest_us));
  }
  if (split_bytes > 0) {
    return fmt::format("sends {} more of partials through L2", format_bytes(split_bytes));
  }
  if (loser.num_jobs > chosen.num_jobs) {
    return fmt::format("starts {} jobs a KV head against {}", loser.num_jobs, chosen.num_jobs);
  }
  if (gap_us <= 0) return "ties; the smaller cluster with fewer jobs is kept";
  const int32_t loser_ctas = loser.num_clusters * loser.cluster_size;
  const int32_t chosen_ctas = chosen.num_clusters * chosen.cluster_size;
  if (loser_ctas < chosen_ctas) {
    return fmt::format("keeps {} CTAs at work against {}", loser_ctas, chosen_ctas);
  }
  return "no one term stands out; starts, barriers and uneven work add up";
}

// The best candidate that is really another choice: one that only asks for other pieces often gives the same
// plan again.
const PlanCandidate* runner_up_of(const std::vector<PlanCandidate>& candidates) {
  for (const PlanCandidate& candidate : candidates) {
    if (candidate.mode != candidates.front().mode ||
        candidate.cluster_size != candidates.front().cluster_size) {
      return &candidate;
    }
  }
  return candidates.size() > 1 ? &candidates[1] : nullptr;
}

Loser plan_loser(const PlanReport& report, const PlanCandidate& candidate) {
  PlanOptions options;
  options.mode = candidate.mode;
  options.cluster_size = candidate.cluster_size;
  options.num_pieces = candidate.num_pieces;
  Planner planner(report.shape, report.profile, options);
  const Plan& plan = planner.plan(report.forest);
  Loser loser;
  loser.candidate = candidate;
  loser.summary = planner.summary();
  loser.busiest_us =
      busiest_cluster_us(digest_plan(plan, report.forest, report.shape, report.profile));
  loser.why = why_it_lost(report.summary, report.busiest_us, loser.summary, loser.busiest_us);
  return loser;
}

// What plain decode would take: the planner's own best flat plan.
Loser plan_flat(const PlanReport& report) {
  PlanOptions options;
  options.mode = Mode::kFlat;
  Planner planner(report.shape, report.profile, options);
  planner.plan(report.forest);
  const PlanSummary& summary = planner.summary();
  return plan_loser(report, summary.candidates.empty() ? PlanCandidate{.mode = Mode::kFlat}
                                                       : summary.candidates.front());
}

}  // namespace

PlanReport make_plan(const Step& step, const PlanOptions& options, const DeviceProfile& profile) {
  PlanReport report;
  report.name = step.name;
  report.shape = step.shape;
  report.profile = profile;
  report.options = options;
  report.forest = step.forest;
  Planner planner(step.shape, profile, options);
  auto start = std::chrono::steady_clock::now();
  planner.plan(step.forest);
  report.first_plan_us = microseconds_since(start);
  // The best of a few: what a step costs once the planner has its memory.
  report.warm_plan_us = report.first_plan_us;
  for (int repeat = 0; repeat < 5; ++repeat) {
    start = std::chrono::steady_clock::now();
    planner.plan(step.forest);
    report.warm_plan_us = std::min(report.warm_plan_us, microseconds_since(start));
  }
  report.plan = planner.plan(step.forest);
  report.summary = planner.summary();
  report.digest = digest_plan(report.plan, step.forest, step.shape, profile);
  report.busiest_us = busiest_cluster_us(report.digest);
  return report;
}

PlanReport make_plan_report(const Step& step, const PlanOptions& options,
                            const DeviceProfile& profile) {
  PlanReport report = make_plan(step, options, profile);
  if (const PlanCandidate* runner_up = runner_up_of(report.summary.candidates)) {
    report.runner_up = plan_loser(report, *runner_up);
  }
  // Where nothing is shared the chosen plan is what flat would be.
  if (report.summary.mode != Mode::kFlat &&
      report.summary.flat_bytes > report.summary.unique_bytes) {
    report.flat = plan_flat(report);
  }
  return report;
}

double sharing_of(const PlanSummary& summary) {
  if (summary.unique_bytes == 0) return 1.0;
  return static_cast<double>(summary.flat_bytes) / static_cast<double>(summary.unique_bytes);
}

double efficiency_of(const PlanSummary& summary) {
  return summary.predicted_us > 0 ? summary.floor_us / summary.predicted_us : 0.0;
}

std::string explain_line(const PlanReport& report) {
  const PlanSummary& summary = report.summary;
  std::string line = fmt::format(
      "{}: {} {} of {}, {} {} in {} query {} a KV head, reads {}", mode_name(summary.mode),
      summary.num_clusters, summary.num_clusters == 1 ? "cluster" : "clusters",
      summary.cluster_size, summary.num_jobs, summary.num_jobs == 1 ? "job" : "jobs",
      report.digest.num_groups, report.digest.num_groups == 1 ? "group" : "groups",
      format_bytes(static_cast<double>(summary.planned_bytes)));
  line +=
      fmt::format(", unique {}, flat {}", format_bytes(static_cast<double>(summary.unique_bytes)),
                  format_bytes(static_cast<double>(summary.flat_bytes)));
  return line;
}

}  // namespace capillary::cli
