// SPDX-License-Identifier: MIT
// The replay's report as one page (report.h): figures, plots over simulated time, and every line of the text.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "capillary/version.h"
#include "fmt/format.h"
#include "workload/report.h"
#include "workload/report_chart.h"
#include "workload/words.h"

namespace capillary {
namespace {

constexpr double kNothing = std::numeric_limits<double>::quiet_NaN();
constexpr size_t kPlottedPoints = 260;

constexpr const char* kStyle = R"(
:root { color-scheme: light dark; --page: #fff; --ink: #1c2430; --soft: #5b6675; --rule: #dfe4ea;
  --panel: #f6f8fa; --s0: #1f6feb; --s1: #c2610c; --s2: #7a8594; --c1: #9fc5e8; --c2: #5b9bd5;
  --c4: #2a6fb0; --c8: #c2610c; --c16: #8a3ffc; --bad: #c62828; --good: #1a7f37; }
@media (prefers-color-scheme: dark) { :root { --page: #11161d; --ink: #e4e9f0; --soft: #98a4b3;
  --rule: #2b3440; --panel: #1a212b; --s0: #6cb0ff; --s1: #f0a04b; --s2: #8d99a8; --c1: #2b4d6e;
  --c2: #3f78ad; --c4: #78b4ec; --c8: #f0a04b; --c16: #c3a0ff; --bad: #ff7b72; --good: #56d364; } }
body { margin: 0 auto; max-width: 1080px; padding: 24px 20px 48px; background: var(--page);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 22px; margin: 0 0 4px; } h2 { font-size: 16px; margin: 32px 0 2px; }
p { margin: 2px 0 10px; color: var(--soft); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(155px, 1fr)); gap: 10px;
  margin: 18px 0 6px; }
.tile { background: var(--panel); border: 1px solid var(--rule); border-radius: 8px;
  padding: 10px 14px; } .tile b { display: block; font-size: 23px; font-weight: 600; }
.tile span { color: var(--soft); font-size: 13px; } .good { color: var(--good); }
.bad { color: var(--bad); }
svg { display: block; width: 100%; height: auto; font-size: 12px; } svg text { fill: var(--soft); }
.grid { stroke: var(--rule); stroke-width: 1; } .axis { stroke: var(--soft); stroke-width: 1; }
.line { fill: none; stroke-width: 1.6; stroke-linejoin: round; } .area { stroke: none; }
.tip { fill: transparent; } .tip:hover { fill: var(--ink); fill-opacity: .09; }
.s0 { stroke: var(--s0); } .s1 { stroke: var(--s1); } .s2 { stroke: var(--s2); }
.c1 { fill: var(--c1); } .c2 { fill: var(--c2); } .c4 { fill: var(--c4); } .c8 { fill: var(--c8); }
.c16 { fill: var(--c16); }
.legend { color: var(--soft); font-size: 13px; margin: 0 0 4px; }
.legend i { display: inline-block; width: 14px; height: 4px; border-radius: 2px; margin: 0 6px 3px 0; }
.legend span { margin-right: 18px; } .legend i.box { height: 11px; margin-bottom: -1px; }
table { border-collapse: collapse; width: 100%; margin-top: 8px; }
td { border-top: 1px solid var(--rule); padding: 5px 12px 5px 0; vertical-align: top;
  overflow-wrap: anywhere; } td:first-child { color: var(--soft); white-space: nowrap; }
)";

std::string tile(const std::string& figure, const std::string& meaning,
                 const char* css_class = "") {
  return fmt::format("<div class=\"tile\"><b class=\"{}\">{}</b><span>{}</span></div>\n", css_class,
                     escape_html(figure), escape_html(meaning));
}

std::string tiles(const ReplayReport& report) {
  std::string html = "<div class=\"tiles\">\n";
  html += tile(fmt::format("{:.2f}", report.sharing()), "sharing: flat bytes / unique bytes");
  html +=
      tile(fmt::format("{:.1f} %", 100 * report.hit_rate()), "of prompt tokens found in the cache");
  if (report.compared_auto_us > 0) {
    html += tile(fmt::format("{:.2f}x", report.compared_flat_us / report.compared_auto_us),
                 "time of flat over auto, predicted");
  }
  html += tile(fmt::format("{:.1f}", report.mean_batch()), "requests a step");
  html +=
      tile(fmt::format("{:.0f} us", report.plan_time.percentile_us(0.5)),
           fmt::format("plan time, median (p99 {:.0f} us)", report.plan_time.percentile_us(0.99)));
  const ExecutionResults& execution = report.execution;
  if (execution.failures > 0) {
    html += tile(fmt::format("{}", execution.failures), "checks FAILED", "bad");
  } else if (execution.checked_rows > 0) {
    html += tile("ok", fmt::format("{} rows checked on {}", execution.checked_rows, report.backend),
                 "good");
  }
  return html + "</div>\n";
}

// Neighbours summed until there are few enough to plot.
std::vector<SeriesPoint> plotted_points(const ReplayReport& report) {
  const size_t together = (report.series.size() + kPlottedPoints - 1) / kPlottedPoints;
  std::vector<SeriesPoint> points;
  for (size_t i = 0; i < report.series.size(); ++i) {
    if (i % std::max<size_t>(together, 1) == 0) {
      points.push_back(report.series[i]);
    } else {
      points.back().merge(report.series[i]);
    }
  }
  return points;
}

// Neighbours summed until every point has a step on which all modes were planned, or curves would be dots.
std::vector<SeriesPoint> compared_points(const std::vector<SeriesPoint>& points) {
  std::vector<SeriesPoint> compared;
  for (const SeriesPoint& point : points) {
    if (point.compared_steps > 0 || compared.empty()) {
      compared.push_back(point);
    } else {
      compared.back().merge(point);
    }
  }
  return compared;
}

class Page {
 public:
  explicit Page(const ReplayReport& report)
      : points_(plotted_points(report)), compared_(compared_points(points_)) {}

  using Figure = std::function<double(const SeriesPoint&)>;
  enum class Points { kAll, kCompared };
  struct Curve {
    const char* name;
    const char* css_class;
    Figure figure;
  };

  void plot(const char* title, const std::string& caption, const char* unit, bool from_zero,
            const std::vector<Curve>& curves, Points which = Points::kAll, bool stacked = false) {
    const std::vector<SeriesPoint>& points = which == Points::kAll ? points_ : compared_;
    Chart chart;
    chart.title = title;
    chart.unit = unit;
    chart.from_zero = from_zero;
    chart.stacked = stacked;
    for (const SeriesPoint& point : points) {
      chart.begin.push_back(point.begin_ms / 1e3);
      chart.end.push_back(point.end_ms / 1e3);
    }
    html_ += fmt::format("<h2>{}</h2>\n<p>{}</p>\n<div class=\"legend\">", title, caption);
    for (const Curve& curve : curves) {
      ChartSeries series{curve.name, curve.css_class, {}};
      for (const SeriesPoint& point : points) series.values.push_back(curve.figure(point));
      chart.series.push_back(std::move(series));
      html_ += fmt::format("<span><i class=\"{}\" style=\"background: var(--{})\"></i>{}</span>",
                           stacked ? "box" : "", curve.css_class, curve.name);
    }
    html_ += "</div>\n" + chart_svg(chart) + "\n";
  }

  const std::string& html() const { return html_; }

 private:
  std::vector<SeriesPoint> points_;
  std::vector<SeriesPoint> compared_;
  std::string html_;
};

double a_step(double sum, int64_t steps) {
  return steps == 0 ? kNothing : sum / static_cast<double>(steps);
}

void add_comparison(const ReplayReport& report, Page& page) {
  const std::string every =
      report.options.compare_every > 1
          ? fmt::format(" All three are planned on every {}th step.", report.options.compare_every)
          : "";
  const Page::Figure flat = [](const SeriesPoint& p) {
    return a_step(p.compared_flat_us, p.compared_steps);
  };
  const Page::Figure shared_l2 = [](const SeriesPoint& p) {
    return a_step(p.compared_shared_l2_us, p.compared_steps);
  };
  page.plot("Predicted attention time of a step",
            fmt::format("One layer, on profile {}.{}", escape_html(report.profile.name), every),
            " us", true,
            {{"flat", "s2", flat},
             {"shared-l2", "s1", shared_l2},
             {"auto", "s0",
              [](const SeriesPoint& p) { return a_step(p.compared_auto_us, p.compared_steps); }}},
            Page::Points::kCompared);
  page.plot("Time relative to auto", "Above 1: slower than the plan that was chosen.", "x", false,
            {{"flat", "s2",
              [](const SeriesPoint& p) {
                return p.compared_auto_us > 0 ? p.compared_flat_us / p.compared_auto_us : kNothing;
              }},
             {"shared-l2", "s1",
              [](const SeriesPoint& p) {
                return p.compared_auto_us > 0 ? p.compared_shared_l2_us / p.compared_auto_us
                                              : kNothing;
              }}},
            Page::Points::kCompared);
}

void add_plots(const ReplayReport& report, Page& page) {
  page.plot(
      "Batch size", "Requests a step over simulated time; waiting: arrived, not admitted yet.", "",
      true,
      {{"running", "s0",
        [](const SeriesPoint& p) { return a_step(static_cast<double>(p.requests), p.steps); }},
       {"waiting", "s1",
        [](const SeriesPoint& p) { return a_step(static_cast<double>(p.waiting), p.steps); }}});
  page.plot("Sharing",
            "KV bytes counted once per request (flat) over KV bytes counted once (unique).", "",
            false, {{"flat / unique", "s0", [](const SeriesPoint& p) {
                       return a_step(static_cast<double>(p.flat_tokens), p.unique_tokens);
                     }}});
  if (report.compared_steps > 0) add_comparison(report, page);
  std::vector<Page::Curve> clusters;
  constexpr const char* kClasses[] = {"c1", "c2", "c4", "c8", "c16"};
  constexpr const char* kNames[] = {"1", "2", "4", "8", "16"};
  for (size_t i = 0; i < report.cluster_steps.size(); ++i) {
    clusters.push_back({kNames[i], kClasses[i], [i](const SeriesPoint& p) {
                          return a_step(static_cast<double>(p.cluster_steps[i]), p.steps);
                        }});
  }
  page.plot("Cluster sizes chosen", "Share of the steps planned with each cluster size.", "", true,
            clusters, Page::Points::kAll, true);
  page.plot(
      "Plan time",
      fmt::format("Measured here, mean of neighbouring steps; over all steps p50 {:.1f} us, p99 "
                  "{:.1f} us, and the forest's update p50 {:.1f} us, p99 {:.1f} us.",
                  report.plan_time.percentile_us(0.5), report.plan_time.percentile_us(0.99),
                  report.forest_time.percentile_us(0.5), report.forest_time.percentile_us(0.99)),
      " us", true,
      {{"plan", "s0", [](const SeriesPoint& p) { return a_step(p.plan_us, p.steps); }}});
}

}  // namespace

std::string replay_html(const ReplayReport& report) {
  Page page(report);
  if (!report.series.empty()) add_plots(report, page);
  std::string html = fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<title>Capillary replay: {0}</title>\n<style>{1}</style>\n</head>\n<body>\n"
      "<h1>Replay of {0}</h1>\n<p>{2}{3} requests, {4} steps, {5:.1f} s of simulated time; "
      "Capillary {6}</p>\n",
      escape_html(report.trace_source), kStyle,
      report.interrupted ? "<b class=\"bad\">Interrupted; this is what was done so far.</b> " : "",
      report.trace_requests, report.steps, report.simulated_ms / 1e3, CAPILLARY_VERSION_STRING);
  html += tiles(report) + page.html() + "<h2>In words</h2>\n<table>\n";
  for (const ReportLine& line : replay_lines(report)) {
    html += fmt::format("<tr><td>{}</td><td>{}</td></tr>\n", escape_html(line.name),
                        escape_html(line.text));
  }
  return html + "</table>\n</body>\n</html>\n";
}

}  // namespace capillary
