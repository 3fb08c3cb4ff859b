// SPDX-License-Identifier: MIT
// What a replay of any length remembers in constant memory: percentiles of times, and the course of a run as a
// bounded number of points.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "capillary/device_profile.h"

namespace capillary {

// Times in us by buckets 1 % wide, so that a percentile is off by at most that.
class TimeHistogram {
 public:
  void add(double us);
  int64_t count() const { return count_; }
  double total_us() const { return total_us_; }
  double max_us() const { return max_us_; }
  // fraction 0.5: median. 0 when nothing was added.
  double percentile_us(double fraction) const;

 private:
  std::vector<int64_t> buckets_;
  int64_t count_ = 0;
  double total_us_ = 0;
  double max_us_ = 0;
};

// One step, or the sum of a run of neighbouring ones.
struct SeriesPoint {
  double begin_ms = 0;  // simulated time
  double end_ms = 0;
  int64_t steps = 0;
  int64_t requests = 0;  // summed over the steps
  int64_t waiting = 0;
  int64_t flat_tokens = 0;
  int64_t unique_tokens = 0;
  double auto_us = 0;  // predicted, summed over all steps
  double plan_us = 0;  // measured
  // Only of the steps on which the other modes were planned too.
  int64_t compared_steps = 0;
  double compared_auto_us = 0;
  double compared_flat_us = 0;
  double compared_shared_l2_us = 0;
  std::array<int64_t, kNumClusterSizes> cluster_steps{};

  void merge(const SeriesPoint& next);
};

// At most kMaxPoints points; when they are full, neighbours are summed in pairs and every further point takes
// twice as many steps.
class Series {
 public:
  static constexpr size_t kMaxPoints = 512;

  void add(const SeriesPoint& step);
  const std::vector<SeriesPoint>& points() const { return points_; }

 private:
  std::vector<SeriesPoint> points_;
  int64_t steps_a_point_ = 1;
};

}  // namespace capillary
