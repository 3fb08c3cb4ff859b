// SPDX-License-Identifier: MIT
// Plots of the replay report (report_chart.h).
#include "workload/report_chart.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "fmt/format.h"
#include "workload/words.h"

namespace capillary {
namespace {

// One unit is about a pixel.
constexpr double kWidth = 1040;
constexpr double kHeight = 210;
constexpr double kLeft = 62;
constexpr double kRight = 12;
constexpr double kTop = 10;
constexpr double kBottom = 30;

// The largest of 1, 2, 5 times a power of ten that cuts the span into at least `parts` steps.
double tick_step(double span, int parts) {
  const double raw = span / parts;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  for (const double factor : {5.0, 2.0}) {
    if (factor * power <= raw) return factor * power;
  }
  return power;
}

std::string number(double value) {
  const double magnitude = std::abs(value);
  if (magnitude >= 1e6) return fmt::format("{:g}M", std::round(value / 1e4) / 100);
  if (magnitude >= 1e4) return fmt::format("{:g}k", std::round(value / 10) / 100);
  return fmt::format("{:g}", std::round(value * 1e4) / 1e4);
}

std::string time_text(double seconds, double span) {
  if (span >= 3 * 3600) return fmt::format("{:g} h", std::round(seconds / 36) / 100);
  if (span >= 300) return fmt::format("{:g} min", std::round(seconds / 0.6) / 100);
  return fmt::format("{:g} s", std::round(seconds * 1000) / 1000);
}

double time_unit(double span) {
  return span >= 3 * 3600 ? 3600 : span >= 300 ? 60 : 1;
}

class Drawing {
 public:
  explicit Drawing(const Chart& chart) : chart_(chart) {
    x_begin_ = chart.begin.front();
    x_end_ = std::max(chart.end.back(), x_begin_ + 1e-6);
    double low = std::numeric_limits<double>::infinity();
    double high = -low;
    for (const ChartSeries& series : chart.series) {
      for (const double value : series.values) {
        if (std::isnan(value)) continue;
        low = std::min(low, value);
        high = std::max(high, value);
      }
    }
    if (chart.stacked || low > high) {
      low = 0;
      high = 1;
    }
    if (chart.from_zero) low = std::min(low, 0.0);
    if (high - low < 1e-9) high = low + std::max(1e-3, 0.02 * std::abs(low));
    y_step_ = tick_step(high - low, 4);
    y_low_ = std::floor(low / y_step_ + 1e-9) * y_step_;
    y_high_ = std::ceil(high / y_step_ - 1e-9) * y_step_;
  }

  std::string str() {
    axes();
    if (chart_.stacked) {
      areas();
    } else {
      for (const ChartSeries& series : chart_.series) line(series);
    }
    tooltips();
    return fmt::format("<svg viewBox=\"0 0 {:g} {:g}\" role=\"img\" aria-label=\"{}\">{}</svg>",
                       kWidth, kHeight, escape_html(chart_.title), body_);
  }

 private:
  double x(double seconds) const {
    return kLeft + (seconds - x_begin_) / (x_end_ - x_begin_) * (kWidth - kLeft - kRight);
  }
  double y(double value) const {
    return kHeight - kBottom - (value - y_low_) / (y_high_ - y_low_) * (kHeight - kTop - kBottom);
  }

  void axes() {
    const auto steps = static_cast<int>(std::lround((y_high_ - y_low_) / y_step_));
    for (int i = 0; i <= steps; ++i) {
      const double value = y_low_ + i * y_step_;
      body_ += fmt::format(
          "<line class=\"{}\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>"
          "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>",
          i == 0 ? "axis" : "grid", kLeft, kWidth - kRight, y(value), y(value), kLeft - 8,
          y(value) + 4, number(value));
    }
    const double span = x_end_ - x_begin_;
    const double unit = time_unit(span);
    const double step = tick_step(span / unit, 5) * unit;
    for (double t = std::ceil(x_begin_ / step) * step; t <= x_end_ + step * 1e-6; t += step) {
      // The last label would be cut off at the right edge were it centred.
      const bool near_end = x(t) > kWidth - kRight - 20;
      body_ += fmt::format(
          "<line class=\"axis\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\"/>"
          "<text x=\"{3:.1f}\" y=\"{4:.1f}\" text-anchor=\"{5}\">{6}</text>",
          x(t), kHeight - kBottom, kHeight - kBottom + 4, near_end ? kWidth : x(t),
          kHeight - kBottom + 18, near_end ? "end" : "middle", time_text(t, span));
    }
  }

  // A step line; broken where nothing was measured or nothing ran.
  void line(const ChartSeries& series) {
    std::string path;
    bool drawing = false;
    for (size_t i = 0; i < series.values.size(); ++i) {
      const double value = series.values[i];
      if (std::isnan(value)) {
        drawing = false;
        continue;
      }
      const bool gap = i > 0 && chart_.begin[i] - chart_.end[i - 1] > idle();
      path += fmt::format("{}{:.1f} {:.1f}H{:.1f}", drawing && !gap ? "L" : "M", x(chart_.begin[i]),
                          y(value), x(chart_.end[i]));
      drawing = true;
    }
    if (!path.empty()) {
      body_ += fmt::format("<path class=\"line {}\" d=\"{}\"/>", series.css_class, path);
    }
  }

  void areas() {
    std::vector<double> below(chart_.begin.size(), 0);
    for (const ChartSeries& series : chart_.series) {
      std::string path;
      for (size_t i = 0; i < series.values.size(); ++i) {
        const double value = series.values[i];
        if (std::isnan(value) || value <= 0) continue;
        const double top = below[i] + value;
        // A hair wider than its interval, or seams would show between neighbours.
        const bool joins =
            i + 1 < chart_.begin.size() && chart_.begin[i + 1] - chart_.end[i] < idle();
        const double right = x(chart_.end[i]) + (joins ? 0.4 : 0);
        path += fmt::format("M{:.1f} {:.1f}H{:.1f}V{:.1f}H{:.1f}Z", x(chart_.begin[i]), y(below[i]),
                            right, y(top), x(chart_.begin[i]));
        below[i] = top;
      }
      if (!path.empty()) {
        body_ += fmt::format("<path class=\"area {}\" d=\"{}\"/>", series.css_class, path);
      }
    }
  }

  void tooltips() {
    const double span = x_end_ - x_begin_;
    for (size_t i = 0; i < chart_.begin.size(); ++i) {
      std::string text = time_text(chart_.begin[i], span);
      for (const ChartSeries& series : chart_.series) {
        if (std::isnan(series.values[i])) continue;
        if (chart_.stacked && series.values[i] <= 0) continue;
        text += chart_.stacked ? fmt::format("&#10;{}: {:.1f} %", escape_html(series.name),
                                             100 * series.values[i])
                               : fmt::format("&#10;{}: {:.4g}{}", escape_html(series.name),
                                             series.values[i], chart_.unit);
      }
      body_ += fmt::format(
          "<rect class=\"tip\" x=\"{:.1f}\" y=\"{:g}\" width=\"{:.1f}\" height=\"{:g}\">"
          "<title>{}</title></rect>",
          x(chart_.begin[i]), kTop, std::max(0.5, x(chart_.end[i]) - x(chart_.begin[i])),
          kHeight - kTop - kBottom, text);
    }
  }

  double idle() const { return (x_end_ - x_begin_) / 200; }

  const Chart& chart_;
  double x_begin_, x_end_;
  double y_low_, y_high_, y_step_;
  std::string body_;
};

}  // namespace

std::string chart_svg(const Chart& chart) {
  return chart.begin.empty() ? "" : Drawing(chart).str();
}

}  // namespace capillary
