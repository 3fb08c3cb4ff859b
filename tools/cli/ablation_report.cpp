// SPDX-License-Identifier: MIT
// Table and sentences of the ablation (ablation_report.h); its plot is in ablation_plot.cpp.
#include "cli/ablation_report.h"

#include <set>

#include "cli/common.h"
#include "fmt/format.h"

namespace capillary::cli {
namespace {

std::string time_cell(double us) {
  return us > 0 ? fmt::format("{:.1f}", us) : "-";
}

// In the words of the arms: "dsm-4" is sharing with clusters of 4, "flat-4" nothing shared with such clusters.
std::string choice_of(const ArmResult& arm) {
  return fmt::format("{}-{}{}", arm.path == Mode::kAuto ? "dsm" : mode_name(arm.path),
                     arm.cluster_size, arm.passed ? "" : " WRONG");
}

TextTable table_of(const std::vector<AblationRow>& rows) {
  std::vector<std::string> header = {"workload", "heads",      "sharing", "partials", "floor us",
                                     "auto us",  "auto chose", "best",    "best us",  "regret"};
  for (size_t i = 0; i + 1 < ablation_arms().size(); ++i) {
    header.push_back(ablation_arms()[i].name + " us");
  }
  TextTable table(header);
  for (const AblationRow& row : rows) {
    const int best = row.best_forced();
    std::vector<std::string> cells = {
        row.workload,
        row.heads,
        fmt::format("{:.2f}", row.sharing),
        fmt::format("{:.0f} %", 100 * row.partial_traffic),
        fmt::format("{:.1f}", row.floor_us),
        time_cell(row.planner().time_us),
        choice_of(row.planner()),
        best < 0 ? "-" : ablation_arms()[static_cast<size_t>(best)].name,
        time_cell(best < 0 ? -1 : row.arms[static_cast<size_t>(best)].time_us),
        fmt::format("{:.3f}", row.regret())};
    for (size_t i = 0; i + 1 < row.arms.size(); ++i)
      cells.push_back(time_cell(row.arms[i].time_us));
    table.add_row(cells);
  }
  return table;
}

std::string ratio_sentence(const RatioSummary& ratio) {
  if (ratio.rows == 0) return "no such row";
  return fmt::format("geomean {:.3f} over {} row{}, {:.3f} ({}) to {:.3f} ({})", ratio.geomean,
                     ratio.rows, ratio.rows == 1 ? "" : "s", ratio.least, ratio.least_row,
                     ratio.most, ratio.most_row);
}

std::vector<std::string> sentences(const std::vector<AblationRow>& rows) {
  const AblationSummary summary = summarise(rows);
  std::vector<std::string> lines = {
      fmt::format(
          "regret, auto / the best forced: {}; over {:.2f} in {} rows; the same plan as the "
          "best in {}",
          ratio_sentence(summary.regret), kRegretBound, summary.regret_over_bound,
          summary.same_plan),
      fmt::format("flat / auto: {}; below {:.2f} in {} rows", ratio_sentence(summary.flat),
                  kNeverSlower, summary.slower_than_flat),
      fmt::format("flat / auto where nothing is shared: {}", ratio_sentence(summary.flat_batches)),
      fmt::format("shared-l2 / the best of clusters 2 to 16, partial traffic over {:.0f} % of the "
                  "unique bytes: {}",
                  100 * kMuchPartialTraffic, ratio_sentence(summary.cluster_partials)),
      fmt::format("shared-l2 / the best of clusters 2 to 16, one KV head: {}",
                  ratio_sentence(summary.cluster_latency)),
      fmt::format("shared-l2 / the best of clusters 2 to 16, all: {}",
                  ratio_sentence(summary.cluster_all)),
      fmt::format("shared-l2 / auto, partial traffic over {:.0f} % of the unique bytes: {}",
                  100 * kMuchPartialTraffic, ratio_sentence(summary.auto_partials)),
      fmt::format("shared-l2 / auto, one KV head: {}", ratio_sentence(summary.auto_latency)),
      fmt::format("shared-l2 / auto, all: {}", ratio_sentence(summary.auto_all)),
      fmt::format("predictions of all arms: median error {:.0f} %, 95th percentile {:.0f} %",
                  100 * summary.median_error, 100 * summary.p95_error)};
  std::set<std::string> skipped;
  for (const AblationRow& row : rows) {
    for (size_t i = 0; i < row.arms.size(); ++i) {
      if (!row.arms[i].skipped.empty()) {
        skipped.insert(fmt::format("{}: {}", ablation_arms()[i].name, row.arms[i].skipped));
      }
    }
  }
  for (const std::string& line : skipped) lines.push_back("not measured: " + line);
  return lines;
}

}  // namespace

std::string ablation_text(const std::vector<AblationRow>& rows) {
  if (rows.empty()) return "";
  std::string text = table_of(rows).str() + "\n";
  for (const std::string& line : sentences(rows)) text += line + "\n";
  return text;
}

std::string ablation_markdown(const std::vector<AblationRow>& rows, const std::string& source) {
  std::string text = fmt::format(
      "# Ablation\n\nWritten by `capillary bench --ablate --report`, by `--from` out of its "
      "record; nothing is left out. How it "
      "is "
      "measured and what the columns say: "
      "[benchmarking.md](benchmarking.md).\n\n{}.\n\n",
      source);
  if (rows.empty()) return text + "Nothing was measured.\n";
  for (const std::string& line : sentences(rows)) text += "- " + line + "\n";
  return text + "\n" + table_of(rows).markdown();
}

}  // namespace capillary::cli
