// SPDX-License-Identifier: MIT
// A plan explained in words (plan_text.h): what the library says of any plan (explain), and what the losers' plans
// and the digest add. Nothing is computed here beyond ratios.
#include "cli/plan_text.h"

#include <algorithm>
#include <map>
#include <utility>

#include "fmt/format.h"

namespace capillary::cli {
namespace {

std::string row(std::string_view label, const std::string& text) {
  return fmt::format("{:<11}{}\n", label, text);
}

std::string plural(int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", format_count(count), noun, count == 1 ? "" : "s");
}

std::string bytes(int64_t count) {
  return format_bytes(static_cast<double>(count));
}

std::string forest_sentence(const PlanReport& report) {
  const PlanDigest& digest = report.digest;
  std::string text =
      fmt::format("{}, {} ({} shared) on {}, longest request {}",
                  plural(report.summary.num_requests, "request"),
                  plural(report.summary.num_nodes, "node"), digest.num_shared_nodes,
                  plural(digest.num_levels, "level"), plural(digest.longest_request, "token"));
  if (digest.num_empty_requests > 0) text += fmt::format(", {} empty", digest.num_empty_requests);
  return text;
}

std::string candidate_name(const PlanCandidate& candidate) {
  return fmt::format("{}, clusters of {}, {} asked for", mode_name(candidate.mode),
                     candidate.cluster_size, plural(candidate.num_pieces, "piece"));
}

// The best candidate of every (mode, cluster size): the whole list has near copies.
std::string weighed_table(const PlanSummary& summary) {
  std::map<std::pair<int, int32_t>, PlanCandidate> best;
  for (const PlanCandidate& candidate : summary.candidates) {
    best.try_emplace({static_cast<int>(candidate.mode), candidate.cluster_size}, candidate);
  }
  std::vector<PlanCandidate> rows;
  for (const auto& [key, candidate] : best) rows.push_back(candidate);
  std::stable_sort(rows.begin(), rows.end(), [](const PlanCandidate& a, const PlanCandidate& b) {
    return a.predicted_us < b.predicted_us;
  });
  TextTable table({"mode", "cluster", "pieces", "predicted", "against chosen"});
  for (const PlanCandidate& candidate : rows) {
    const double ratio =
        summary.predicted_us > 0 ? candidate.predicted_us / summary.predicted_us : 1.0;
    table.add_row({mode_name(candidate.mode), fmt::format("{}", candidate.cluster_size),
                   fmt::format("{}", candidate.num_pieces), format_us(candidate.predicted_us),
                   fmt::format("{:.2f}x", ratio)});
  }
  return table.str("           ");
}

}  // namespace

std::string plan_text(const PlanReport& report) {
  const PlanSummary& summary = report.summary;
  const PlanDigest& digest = report.digest;
  std::string text;
  text += row("workload", fmt::format("{}; heads {}/{}, head_dim {}{}, {}, pages of {}",
                                      report.name, report.shape.num_q_heads,
                                      report.shape.num_kv_heads, report.shape.head_dim,
                                      report.shape.v_dim() == report.shape.head_dim
                                          ? ""
                                          : fmt::format(" (V {})", report.shape.v_dim()),
                                      dtype_name(report.shape.dtype), report.forest.page_size()));
  text += row("profile", fmt::format("{} ({})", report.profile.name, report.profile.source));
  text += row("forest", forest_sentence(report));
  text += explain(summary);
  text +=
      row("items", fmt::format("{} ({} wide, {} narrow)",
                               format_count(digest.wide_items + digest.narrow_items),
                               format_count(digest.wide_items), format_count(digest.narrow_items)));
  if (report.flat) {
    const PlanSummary& flat = report.flat->summary;
    text +=
        row("flat",
            fmt::format("{} predicted, {:.2f}x; {}", format_us(flat.predicted_us),
                        summary.predicted_us > 0 ? flat.predicted_us / summary.predicted_us : 1.0,
                        report.flat->why));
  }
  if (report.runner_up) {
    const Loser& loser = *report.runner_up;
    text +=
        row("runner-up",
            fmt::format(
                "{}: {} ({:+.1f}%); {}", candidate_name(loser.candidate),
                format_us(loser.candidate.predicted_us),
                100.0 * (loser.candidate.predicted_us / std::max(summary.predicted_us, 1e-9) - 1.0),
                loser.why));
  }
  text += row("plan", fmt::format("{} blob, workspace {}, planned in {} ({} the first time)",
                                  bytes(static_cast<int64_t>(report.plan.size_bytes())),
                                  bytes(report.plan.workspace_bytes()),
                                  format_us(report.warm_plan_us), format_us(report.first_plan_us)));
  if (!summary.candidates.empty()) {
    text += row("weighed", "the best of every mode and cluster size");
    text += weighed_table(summary);
  }
  return text;
}

}  // namespace capillary::cli
