// SPDX-License-Identifier: MIT
// The ablation's plot (ablation_report.h). Times are drawn against auto's: left of the line an arm was faster than
// what the planner chose, right of it slower.
#include <algorithm>
#include <array>
#include <cmath>

#include "cli/ablation_report.h"
#include "cli/svg.h"
#include "fmt/format.h"
#include "workload/words.h"

namespace capillary::cli {
namespace {

constexpr double kLeft = 260;
constexpr double kRight = 30;
constexpr double kTop = 62;
constexpr double kRow = 12;
// Arms more than this much slower than auto are drawn at the edge; none is much faster.
constexpr double kLeast = 0.5;
constexpr double kMost = 16;

// In the order of ablation_arms without auto.
constexpr std::array kClasses = {"n4", "m", "h0 o", "h1 o", "h2", "h3", "h4"};

double x_of(double ratio) {
  const double at = std::log(std::clamp(ratio, kLeast, kMost) / kLeast) / std::log(kMost / kLeast);
  return kLeft + at * (Svg::kWidth - kLeft - kRight);
}

void draw_head(Svg& svg, const std::string& source, double bottom) {
  svg.text(10, 14, "l", source);
  double x = kLeft;
  for (size_t i = 0; i < kClasses.size(); ++i) {
    svg.circle(x, 29, 4, kClasses[i]);
    svg.text(x + 8, 33, "t", ablation_arms()[i].name);
    x += 90;
  }
  for (double ratio = kLeast; ratio <= kMost; ratio *= 2) {
    svg.line(x_of(ratio), kTop - 6, x_of(ratio), bottom, "ax");
    svg.text(x_of(ratio), kTop - 10, "t", fmt::format("{:g}x auto", ratio), Anchor::kMiddle);
  }
  for (const double bound : {1 / kRegretBound, 1.0}) {
    svg.line(x_of(bound), kTop - 6, x_of(bound), bottom, bound < 1 ? "mark" : "ph");
  }
}

}  // namespace

std::string ablation_svg(const std::vector<AblationRow>& rows, const std::string& source) {
  Svg svg;
  const double bottom = kTop + kRow * static_cast<double>(rows.size()) + 4;
  draw_head(svg, source, bottom);
  double y = kTop + kRow / 2;
  for (const AblationRow& row : rows) {
    const std::string name = row.workload + "  " + row.heads;
    const ArmResult& planner = row.planner();
    svg.text(kLeft - 10, y + 4, "t",
             planner.has_time() ? fmt::format("{}  {}", name, format_us(planner.time_us)) : name,
             Anchor::kEnd);
    for (size_t i = 0; i < kClasses.size() && i + 1 < row.arms.size(); ++i) {
      const ArmResult& arm = row.arms[i];
      if (!arm.has_time() || !planner.has_time()) continue;
      const double ratio = arm.time_us / planner.time_us;
      svg.circle(x_of(ratio), y, 4, kClasses[i],
                 fmt::format("{}: {} {}, {:.3f} of auto's {}", name, ablation_arms()[i].name,
                             format_us(arm.time_us), ratio, format_us(planner.time_us)));
    }
    y += kRow;
  }
  return svg.file(bottom + 10, "Time of every forced choice against the planner's own");
}

}  // namespace capillary::cli
