// SPDX-License-Identifier: MIT
// The page around the drawings (plan_html.h): figures, bars of bytes and time, what was weighed.
#include "cli/plan_html.h"

#include <algorithm>
#include <vector>

#include "capillary/version.h"
#include "cli/html_page.h"
#include "cli/plan_svg.h"
#include "cli/svg.h"
#include "fmt/format.h"
#include "workload/words.h"

namespace capillary::cli {
namespace {

std::string bytes(int64_t count) {
  return format_bytes(static_cast<double>(count));
}

std::string card(const std::string& value, const std::string& label) {
  return fmt::format("<div class=\"card\"><b>{}</b><span>{}</span></div>\n", escape_html(value),
                     escape_html(label));
}

struct Bar {
  const char* label;
  double value;
  std::string text;
  const char* css_class;
};

std::string bars_svg(const std::vector<Bar>& bars, const char* aria_label) {
  constexpr double kLeft = 190;
  constexpr double kRow = 24;
  double largest = 1e-12;
  for (const Bar& bar : bars) largest = std::max(largest, bar.value);
  Svg svg;
  double y = 4;
  for (const Bar& bar : bars) {
    const double width = bar.value / largest * (Svg::kWidth - kLeft - 110);
    svg.text(kLeft - 10, y + 14, "t", bar.label, Anchor::kEnd);
    svg.rect(kLeft, y, std::max(width, 0.5), kRow - 6, bar.css_class,
             fmt::format("{}: {}", bar.label, bar.text));
    svg.text(kLeft + width + 6, y + 14, "l", bar.text);
    y += kRow;
  }
  return svg.str(y + 4, aria_label);
}

std::string bytes_section(const PlanReport& report) {
  const PlanSummary& summary = report.summary;
  const auto bar = [](const char* label, int64_t count, const char* css_class) {
    return Bar{label, static_cast<double>(count), bytes(count), css_class};
  };
  return html_section(
      "Bytes",
      "KV counted once (unique), as the plan reads it (parts of a shared node read by several jobs "
      "count "
      "again, mostly from L2), and as plain decode would read it (flat); then the partials.",
      bars_svg({bar("unique KV", summary.unique_bytes, "n2"),
                bar("planned KV reads", summary.planned_bytes, "n3"),
                bar("flat KV", summary.flat_bytes, "n0"),
                bar("partials, between CTAs", summary.exchange_bytes, "m"),
                bar("partials, through L2", summary.split_bytes, "m")},
               "Bytes by kind"));
}

std::string time_section(const PlanReport& report) {
  const PlanSummary& summary = report.summary;
  const auto bar = [](const char* label, double us, const char* css_class) {
    return Bar{label, us, format_us(us), css_class};
  };
  std::vector<Bar> bars = {
      bar("HBM", summary.hbm_us, "n2"),           bar("L2 re-reads", summary.l2_us, "n1"),
      bar("arithmetic", summary.compute_us, "n"), bar("exchange", summary.exchange_us, "m"),
      bar("launch", summary.launch_us, "n0"),     bar("starts of jobs", summary.job_start_us, "n0"),
      bar("floor", summary.floor_us, "h1"),       bar("predicted", summary.predicted_us, "h3")};
  if (report.flat) {
    bars.push_back(bar("predicted, flat", report.flat->summary.predicted_us, "h2"));
  }
  return html_section(
      "Predicted time",
      "Each term as if it were alone; the step is as long as its busiest cluster, and no "
      "shorter than the floor.",
      bars_svg(bars, "Predicted time by term"));
}

std::string weighed_section(const PlanReport& report) {
  std::string text = "<h2>What was weighed</h2>\n";
  const auto sentence = [&](const char* what, const Loser& loser) {
    text += fmt::format(
        "<p>{}: {}, clusters of {}, {} jobs a KV head, {} predicted; {}.</p>\n", what,
        mode_name(loser.candidate.mode), loser.candidate.cluster_size, loser.summary.num_jobs,
        escape_html(format_us(loser.candidate.predicted_us)), escape_html(loser.why));
  };
  if (!report.summary.reason.empty()) {
    text += fmt::format("<p>{}</p>\n", escape_html(report.summary.reason));
  }
  if (report.runner_up) sentence("Runner-up", *report.runner_up);
  if (report.flat) sentence("Nothing shared", *report.flat);
  if (report.summary.candidates.empty()) return text;
  text +=
      "<table><tr><th>mode</th><th class=\"r\">cluster size</th><th class=\"r\">pieces</th>"
      "<th class=\"r\">predicted</th><th class=\"r\">against chosen</th></tr>\n";
  constexpr size_t kMostRows = 12;
  const std::vector<PlanCandidate>& candidates = report.summary.candidates;
  for (size_t i = 0; i < std::min(candidates.size(), kMostRows); ++i) {
    const PlanCandidate& candidate = candidates[i];
    text += fmt::format(
        "<tr><td>{}</td><td class=\"r\">{}</td><td class=\"r\">{}</td><td class=\"r\">{}</td>"
        "<td class=\"r\">{:.2f}x</td></tr>\n",
        mode_name(candidate.mode), candidate.cluster_size, candidate.num_pieces,
        format_us(candidate.predicted_us),
        candidate.predicted_us / std::max(report.summary.predicted_us, 1e-9));
  }
  text += "</table>\n";
  if (candidates.size() > kMostRows) {
    text +=
        fmt::format("<p class=\"soft\">{} more were slower.</p>\n", candidates.size() - kMostRows);
  }
  return text;
}

std::string cards(const PlanReport& report) {
  const PlanSummary& summary = report.summary;
  std::string text = "<div class=\"cards\">\n";
  text += card(format_count(summary.num_requests), "requests");
  text += card(fmt::format("{:.2f}x", sharing_of(summary)), "sharing (flat / unique bytes)");
  text += card(mode_name(summary.mode), "mode chosen");
  text += card(fmt::format("{} x {}", summary.num_clusters, summary.cluster_size),
               fmt::format("clusters x CTAs ({} clusters co-resident)", summary.resident_clusters));
  text += card(format_count(summary.num_jobs), "jobs a KV head");
  text += card(format_us(summary.predicted_us), "predicted");
  text += card(fmt::format("{:.2f}", efficiency_of(summary)),
               fmt::format("efficiency (floor {})", format_us(summary.floor_us)));
  if (report.flat) {
    text += card(fmt::format("{:.2f}x", report.flat->summary.predicted_us /
                                            std::max(summary.predicted_us, 1e-9)),
                 "predicted against flat");
  }
  return text + "</div>\n";
}

}  // namespace

std::string plan_html(const PlanReport& report) {
  const PlanSummary& summary = report.summary;
  std::string page = html_page_begin("Plan of " + report.name);
  page += fmt::format(
      "<p class=\"soft\">heads {}/{}, head_dim {}, {}, pages of {}; profile {} ({}); capillary "
      "{}</p>\n",
      report.shape.num_q_heads, report.shape.num_kv_heads, report.shape.head_dim,
      dtype_name(report.shape.dtype), report.forest.page_size(), escape_html(report.profile.name),
      escape_html(report.profile.source), CAPILLARY_VERSION_STRING);
  page += cards(report);
  if (summary.fallback != Fallback::kNone) {
    page += fmt::format("<p>Fallback: {}.</p>\n", fallback_reason(summary.fallback));
  }
  page += fmt::format("<p>{}</p>\n", escape_html(explain_line(report)));
  if (summary.num_requests == 0) {
    return page + "<p>The batch is empty: nothing to draw.</p>\n" + html_page_end();
  }
  page += html_section("Forest and query groups",
                       "From left to right the requests in leaf order, from top to bottom their "
                       "tokens; a node is as wide as "
                       "the requests that share it, and a little taller for more tokens. Below, "
                       "the query groups that a "
                       "cluster handles together, and the KV bytes they read. Hatched: several "
                       "things drawn as one." +
                           html_key("n0", "one request") + html_key("n1", "2 to 3") +
                           html_key("n2", "4 to 15") + html_key("n3", "16 to 63") +
                           html_key("n4", "64 and more requests"),
                       forest_svg(report));
  if (!report.digest.jobs.empty()) {
    page += html_section(
        "Jobs and ranks",
        "KV bytes that every rank (CTA) of every job reads, for one KV head; the stronger "
        "the colour, the more. Even colour means even work.",
        ranks_svg(report));
    page += html_section("Predicted timeline",
                         "Every cluster's jobs one after another, all KV heads, by the cost "
                         "model's rates; at the left "
                         "the launch." +
                             html_key("n1", "start of a job") + html_key("g0", "its keys") +
                             html_key("g1", "those of jobs with odd numbers") +
                             html_key("m", "exchange"),
                         clusters_svg(report));
    page += html_section(
        "The busiest job",
        "Its ranks phase by phase, by the cost model's rates; each phase begins with fetching "
        "queries, drawn as a gap; black lines are barriers between phases." +
            html_key("w", "wide item: all warps on it") +
            html_key("n", "narrow items: a stream a warp") +
            html_key("m", "merges after the exchange"),
        busiest_job_svg(report));
  }
  page += bytes_section(report);
  page += time_section(report);
  page += weighed_section(report);
  return page + html_page_end();
}

}  // namespace capillary::cli
