// SPDX-License-Identifier: MIT
#include "calibrate/fit.h"

#include <algorithm>
#include <cmath>

#include "capillary/error.h"

namespace capillary::calibrate {

namespace {

double quantile(const std::vector<double>& sorted, double at) {
  const double position = at * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(position);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (sorted[above] - sorted[below]) * (position - static_cast<double>(below));
}

[[noreturn]] void fail(const char* function, const char* argument, const std::string& came,
                       const char* expected) {
  throw InvalidArgument(five_parts(function, argument, came, expected, "measure again"));
}

}  // namespace

Timing summarise(std::vector<double> values) {
  if (values.empty()) fail("summarise", "values", "are none", "be one at least");
  for (const double value : values)
    if (!std::isfinite(value))
      fail("summarise", "values", "hold " + std::to_string(value), "be finite numbers");
  std::sort(values.begin(), values.end());
  Timing timing;
  timing.median = quantile(values, 0.5);
  timing.samples = static_cast<int>(values.size());
  if (timing.median > 0)
    timing.spread = (quantile(values, 0.75) - quantile(values, 0.25)) / timing.median;
  return timing;
}

Line fit_line(std::span<const Point> points) {
  double mean_x = 0, mean_y = 0, largest = 0;
  const auto count = static_cast<double>(points.size());
  for (const Point& point : points) {
    if (!std::isfinite(point.x) || !std::isfinite(point.y))
      fail("fit_line", "points", "are not all finite", "be finite numbers");
    mean_x += point.x / count;
    mean_y += point.y / count;
    largest = std::max(largest, std::abs(point.y));
  }
  double xx = 0, xy = 0;
  for (const Point& point : points) {
    xx += (point.x - mean_x) * (point.x - mean_x);
    xy += (point.x - mean_x) * (point.y - mean_y);
  }
  if (!(xx > 0)) fail("fit_line", "points", "have one x alone", "have two different x at least");
  Line line;
  line.slope = xy / xx;
  line.intercept = mean_y - line.slope * mean_x;
  for (const Point& point : points) {
    const double residual = std::abs(point.y - line.intercept - line.slope * point.x);
    if (largest > 0) line.worst_residual = std::max(line.worst_residual, residual / largest);
  }
  return line;
}

TwoTerms fit_two_terms(std::span<const Sample> samples) {
  double uu = 0, uv = 0, vv = 0, uy = 0, vy = 0;
  for (const Sample& sample : samples) {
    if (!std::isfinite(sample.u) || !std::isfinite(sample.v) || !std::isfinite(sample.y))
      fail("fit_two_terms", "samples", "are not all finite", "be finite numbers");
    uu += sample.u * sample.u, uv += sample.u * sample.v, vv += sample.v * sample.v;
    uy += sample.u * sample.y, vy += sample.v * sample.y;
  }
  if (!(uu > 0) || !(vv > 0))
    fail("fit_two_terms", "samples", "lack one of the two terms", "vary both");
  const double determinant = uu * vv - uv * uv;
  if (determinant > 1e-12 * uu * vv) {
    const double a = (uy * vv - vy * uv) / determinant, b = (vy * uu - uy * uv) / determinant;
    if (a >= 0 && b >= 0) return {a, b};
  }
  // On the edge of what is allowed one of them is zero; the better of the two edges.
  const double a = std::max(uy / uu, 0.0), b = std::max(vy / vv, 0.0);
  return a * uy >= b * vy ? TwoTerms{a, 0} : TwoTerms{0, b};
}

}  // namespace capillary::calibrate
