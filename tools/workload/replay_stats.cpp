// SPDX-License-Identifier: MIT
// Histogram and series (replay_stats.h).
#include "workload/replay_stats.h"

#include <algorithm>
#include <cmath>

namespace capillary {
namespace {

// Bucket i holds times of [kSmallestUs * kGrowth^i, kSmallestUs * kGrowth^(i + 1)).
constexpr double kSmallestUs = 0.01;
constexpr double kGrowth = 1.01;
constexpr size_t kLastBucket = 2800;  // from 10 ns to some hours

size_t bucket_of(double us) {
  if (!(us > kSmallestUs)) return 0;
  const double bucket = std::log(us / kSmallestUs) / std::log(kGrowth);
  return bucket < static_cast<double>(kLastBucket) ? static_cast<size_t>(bucket) : kLastBucket;
}

}  // namespace

void TimeHistogram::add(double us) {
  if (buckets_.empty()) buckets_.assign(kLastBucket + 1, 0);
  ++buckets_[bucket_of(us)];
  ++count_;
  total_us_ += us;
  max_us_ = std::max(max_us_, us);
}

double TimeHistogram::percentile_us(double fraction) const {
  if (count_ == 0) return 0;
  const auto rank = static_cast<int64_t>(std::ceil(fraction * static_cast<double>(count_)));
  int64_t seen = 0;
  for (size_t i = 0; i < buckets_.size(); ++i) {
    seen += buckets_[i];
    if (seen >= std::max<int64_t>(rank, 1)) {
      const double middle = kSmallestUs * std::pow(kGrowth, static_cast<double>(i) + 0.5);
      return std::min(middle, max_us_);
    }
  }
  return max_us_;
}

void SeriesPoint::merge(const SeriesPoint& next) {
  if (steps == 0) begin_ms = next.begin_ms;
  end_ms = next.end_ms;
  steps += next.steps;
  requests += next.requests;
  waiting += next.waiting;
  flat_tokens += next.flat_tokens;
  unique_tokens += next.unique_tokens;
  auto_us += next.auto_us;
  plan_us += next.plan_us;
  compared_steps += next.compared_steps;
  compared_auto_us += next.compared_auto_us;
  compared_flat_us += next.compared_flat_us;
  compared_shared_l2_us += next.compared_shared_l2_us;
  for (size_t i = 0; i < cluster_steps.size(); ++i) cluster_steps[i] += next.cluster_steps[i];
}

void Series::add(const SeriesPoint& step) {
  if (!points_.empty() && points_.back().steps < steps_a_point_) {
    points_.back().merge(step);
    return;
  }
  if (points_.size() == kMaxPoints) {
    for (size_t i = 0; i < kMaxPoints / 2; ++i) {
      points_[i] = points_[2 * i];
      points_[i].merge(points_[2 * i + 1]);
    }
    points_.resize(kMaxPoints / 2);
    steps_a_point_ *= 2;
  }
  points_.push_back(step);
}

}  // namespace capillary
