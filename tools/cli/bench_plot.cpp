// SPDX-License-Identifier: MIT
// bench's picture (bench_plot.h).
#include "cli/bench_plot.h"

#include <algorithm>
#include <cmath>

#include "cli/common.h"
#include "cli/html_page.h"
#include "cli/svg.h"
#include "fmt/format.h"
#include "workload/words.h"

namespace capillary::cli {
namespace {

const char* mode_class(const std::string& mode) {
  return mode == "flat" ? "n0" : mode == "shared-l2" ? "m" : "n3";
}

std::string row_name(const BenchBar& bar) {
  return bar.workload + "  " + bar.heads;
}

std::string decade_name(double decade) {
  if (decade < 3) return fmt::format("{:g} us", std::pow(10.0, decade));
  if (decade < 6) return fmt::format("{:g} ms", std::pow(10.0, decade - 3));
  return fmt::format("{:g} s", std::pow(10.0, decade - 6));
}

// Rows of one (workload, heads), a bar a mode. Times are drawn on a logarithmic axis: they span decades.
std::string times_svg(const std::vector<BenchBar>& bars) {
  constexpr double kLeft = 260;
  constexpr double kRow = 16;
  constexpr double kGap = 8;  // between workloads
  const double width = Svg::kWidth - kLeft - 190;
  double least = 1e30;
  double most = 1e-30;
  for (const BenchBar& bar : bars) {
    least = std::min({least, bar.time_us, std::max(bar.floor_us, bar.time_us / 100)});
    most = std::max(most, bar.time_us);
  }
  const double low = std::floor(std::log10(std::max(least, 1e-3)));
  const double high = std::max(std::ceil(std::log10(std::max(most, 1e-3))), low + 1);
  const auto x_of = [&](double us) {
    const double at = (std::log10(std::max(us, 1e-3)) - low) / (high - low);
    return kLeft + width * std::clamp(at, 0.0, 1.0);
  };
  Svg svg;
  double bottom = 20 + kRow * static_cast<double>(bars.size());
  for (size_t i = 0; i < bars.size(); ++i) {
    if (i == 0 || row_name(bars[i]) != row_name(bars[i - 1])) bottom += kGap;
  }
  for (double decade = low; decade <= high; ++decade) {
    const double x = x_of(std::pow(10.0, decade));
    svg.line(x, 16, x, bottom, "ax");
    svg.text(x, 11, "t", decade_name(decade), Anchor::kMiddle);
  }
  double y = 20;
  for (size_t i = 0; i < bars.size(); ++i) {
    const BenchBar& bar = bars[i];
    const std::string name = row_name(bar);
    if (i == 0 || name != row_name(bars[i - 1])) {
      y += kGap;
      svg.text(kLeft - 10, y + 12, "t", name, Anchor::kEnd);
    }
    const std::string text =
        fmt::format("{} {}, efficiency {:.2f}", bar.mode, format_us(bar.time_us),
                    bar.time_us > 0 ? bar.floor_us / bar.time_us : 0.0);
    svg.rect(kLeft, y, std::max(x_of(bar.time_us) - kLeft, 0.5), kRow - 3, mode_class(bar.mode),
             name + ": " + text);
    svg.line(x_of(bar.floor_us), y - 1, x_of(bar.floor_us), y + kRow - 2, "mark");
    svg.text(x_of(bar.time_us) + 6, y + 11, "l", text);
    y += kRow;
  }
  return svg.str(y + 8, "Time of every workload, head count and mode");
}

}  // namespace

std::string bench_plot_html(const std::vector<BenchBar>& bars, const std::string& device) {
  std::string page = html_page_begin("Decode step times");
  page += fmt::format("<p class=\"soft\">Measured on {}.</p>\n", escape_html(device));
  if (bars.empty()) return page + "<p>Nothing was measured.</p>\n" + html_page_end();
  page += html_section(
      "Times",
      "Median time of a step, on a logarithmic axis; the dashed line is the floor, and "
      "efficiency is floor / time." +
          html_key("n3", "auto") + html_key("n0", "flat") + html_key("m", "shared-l2"),
      times_svg(bars));
  return page + html_page_end();
}

}  // namespace capillary::cli
