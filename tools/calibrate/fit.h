// SPDX-License-Identifier: MIT
// From timed runs to figures: medians, and straight lines through them.
#pragma once

#include <span>
#include <vector>

#include "profile/profile_json.h"

namespace capillary::calibrate {

// One thing timed several times.
struct Timing {
  double median = 0;
  double spread = 0;  // (third - first quartile) / median
  int samples = 0;
};
Timing summarise(std::vector<double> values);

using Point = CurvePoint;

// Least squares. Throws InvalidArgument for fewer than two different x, and for anything that is not finite.
struct Line {
  double slope = 0;
  double intercept = 0;
  double worst_residual = 0;  // |y - line|, as a share of the largest y
};
Line fit_line(std::span<const Point> points);

// y = a * u + b * v, least squares with neither a nor b below zero.
struct Sample {
  double u = 0, v = 0, y = 0;
};
struct TwoTerms {
  double a = 0, b = 0;
};
TwoTerms fit_two_terms(std::span<const Sample> samples);

}  // namespace capillary::calibrate
