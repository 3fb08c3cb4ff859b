// SPDX-License-Identifier: MIT
// Arms, rows and what follows from them (ablation.h).
#include "cli/ablation.h"

#include <algorithm>
#include <cmath>

#include "cli/device.h"
#include "fmt/format.h"

namespace capillary::cli {
namespace {

// Over rows where both times are there.
class RatioCollector {
 public:
  void add(const AblationRow& row, double numerator, double denominator) {
    if (!(numerator > 0) || !(denominator > 0)) return;
    const double ratio = numerator / denominator;
    const std::string name = row.workload + " " + row.heads;
    log_sum_ += std::log(ratio);
    if (sum_.rows == 0 || ratio < sum_.least) sum_.least = ratio, sum_.least_row = name;
    if (sum_.rows == 0 || ratio > sum_.most) sum_.most = ratio, sum_.most_row = name;
    ++sum_.rows;
  }
  RatioSummary result() const {
    RatioSummary sum = sum_;
    if (sum.rows > 0) sum.geomean = std::exp(log_sum_ / sum.rows);
    return sum;
  }

 private:
  RatioSummary sum_;
  double log_sum_ = 0;
};

template <class Accept>
int fastest(const AblationRow& row, const Accept& accept) {
  int best = -1;
  for (size_t i = 0; i + 1 < row.arms.size(); ++i) {
    if (!row.arms[i].has_time() || !accept(ablation_arms()[i])) continue;
    if (best < 0 || row.arms[i].time_us < row.arms[static_cast<size_t>(best)].time_us) {
      best = static_cast<int>(i);
    }
  }
  return best;
}

double time_at(const AblationRow& row, int arm) {
  return arm < 0 ? -1 : row.arms[static_cast<size_t>(arm)].time_us;
}

}  // namespace

const std::vector<Arm>& ablation_arms() {
  static const std::vector<Arm> arms = [] {
    std::vector<Arm> list = {{"flat", {.mode = Mode::kFlat}},
                             {"shared-l2", {.mode = Mode::kSharedL2}}};
    for (int index = 0; index < kNumClusterSizes; ++index) {
      list.push_back({fmt::format("dsm-{}", 1 << index), {.cluster_size = 1 << index}});
    }
    list.push_back({"auto", {}});
    return list;
  }();
  return arms;
}

int AblationRow::best_forced() const {
  return fastest(*this, [](const Arm&) { return true; });
}

int AblationRow::best_cluster() const {
  return fastest(*this, [](const Arm& arm) { return arm.options.cluster_size > 1; });
}

double AblationRow::time_of(const char* arm) const {
  for (size_t i = 0; i < arms.size(); ++i) {
    if (ablation_arms()[i].name == arm) return arms[i].time_us;
  }
  return -1;
}

double AblationRow::regret() const {
  const double best_us = time_at(*this, best_forced());
  return best_us > 0 && planner().has_time() ? planner().time_us / best_us : 1;
}

double partial_traffic_of(const PrefixForest& forest, const ModelShape& shape) {
  int64_t partials = 0;
  std::vector<int32_t> depth(forest.nodes().size(), 1);
  for (size_t n = 0; n < forest.nodes().size(); ++n) {
    const ForestNode& node = forest.nodes()[n];
    if (node.parent >= 0) depth[n] = depth[static_cast<size_t>(node.parent)] + 1;
  }
  for (const int32_t node : forest.request_node()) {
    if (node >= 0 && depth[static_cast<size_t>(node)] > 1) {
      partials += depth[static_cast<size_t>(node)];
    }
  }
  // fp32 output, max and sum.
  const int64_t partial_bytes = 4 * int64_t{shape.v_dim()} + 8;
  const int64_t token_bytes =
      int64_t{dtype_bytes(shape.dtype)} * (shape.head_dim + shape.v_dim()) * shape.num_kv_heads;
  const auto unique = static_cast<double>(forest.unique_tokens() * token_bytes);
  return unique > 0
             ? 2.0 * static_cast<double>(partials * shape.num_q_heads * partial_bytes) / unique
             : 0;
}

AblationSummary summarise(const std::vector<AblationRow>& rows) {
  AblationSummary summary;
  summary.rows = static_cast<int>(rows.size());
  RatioCollector regret, flat, flat_batches, cluster_partials, auto_partials, cluster_latency,
      auto_latency, cluster_all, auto_all;
  std::vector<double> errors;
  for (const AblationRow& row : rows) {
    const double auto_us = row.planner().time_us;
    const int best = row.best_forced();
    const double flat_us = row.time_of("flat");
    const double shared_us = row.time_of("shared-l2");
    const double cluster_us = time_at(row, row.best_cluster());
    regret.add(row, auto_us, time_at(row, best));
    if (best >= 0 && row.arms[static_cast<size_t>(best)].measured == row.planner().measured) {
      ++summary.same_plan;
    }
    if (row.regret() > kRegretBound) ++summary.regret_over_bound;
    flat.add(row, flat_us, auto_us);
    if (row.sharing < kLeastSharing) flat_batches.add(row, flat_us, auto_us);
    if (flat_us > 0 && auto_us > 0 && flat_us / auto_us < kNeverSlower) ++summary.slower_than_flat;
    if (row.partial_traffic > kMuchPartialTraffic) {
      cluster_partials.add(row, shared_us, cluster_us);
      auto_partials.add(row, shared_us, auto_us);
    }
    if (row.one_kv_head) {
      cluster_latency.add(row, shared_us, cluster_us);
      auto_latency.add(row, shared_us, auto_us);
    }
    cluster_all.add(row, shared_us, cluster_us);
    auto_all.add(row, shared_us, auto_us);
    for (const ArmResult& arm : row.arms) {
      if (!arm.has_time() || !(arm.predicted_us > 0)) continue;
      errors.push_back(std::expm1(std::abs(std::log(arm.predicted_us / arm.time_us))));
    }
  }
  summary.regret = regret.result();
  summary.flat = flat.result();
  summary.flat_batches = flat_batches.result();
  summary.cluster_partials = cluster_partials.result();
  summary.auto_partials = auto_partials.result();
  summary.cluster_latency = cluster_latency.result();
  summary.auto_latency = auto_latency.result();
  summary.cluster_all = cluster_all.result();
  summary.auto_all = auto_all.result();
  summary.median_error = quantile(errors, 0.5);
  summary.p95_error = quantile(errors, 0.95);
  return summary;
}

}  // namespace capillary::cli
