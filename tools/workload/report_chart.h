// SPDX-License-Identifier: MIT
// One plot over time as inline SVG. Colours are classes (s0, s1, ...), so that the page's style sheet gives
// them for light and dark; a strip over every x interval carries a tooltip with its values.
#pragma once

#include <string>
#include <vector>

namespace capillary {

struct ChartSeries {
  std::string name;
  std::string css_class;
  std::vector<double> values;  // by interval; NaN: nothing there
};

struct Chart {
  std::string title;
  std::string unit;           // behind the numbers of the tooltips
  bool stacked = false;       // areas on top of each other, their sum 1 at most
  bool from_zero = true;      // else the axis spans the values
  std::vector<double> begin;  // intervals, ascending, in seconds; gaps between them are idle time
  std::vector<double> end;
  std::vector<ChartSeries> series;
};

// The <svg> element; empty when there are no intervals.
std::string chart_svg(const Chart& chart);

}  // namespace capillary
