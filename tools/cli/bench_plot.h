// SPDX-License-Identifier: MIT
// bench's picture: one self-contained HTML page with a bar for every workload, head count and mode.
#pragma once

#include <string>
#include <vector>

namespace capillary::cli {

struct BenchBar {
  std::string workload;
  std::string heads;
  std::string mode;
  double time_us = 0;
  double floor_us = 0;
};

// device: what the times were measured on, as the page says it.
std::string bench_plot_html(const std::vector<BenchBar>& bars, const std::string& device);

}  // namespace capillary::cli
