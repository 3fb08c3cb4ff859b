// SPDX-License-Identifier: MIT
// The cost model: times of the plan's building blocks on a DeviceProfile, in microseconds of one CTA.
// docs/cost-model.md derives each term.
#pragma once

#include <algorithm>
#include <cstdint>

#include "capillary/plan.h"
#include "shared/tile_table.h"

namespace capillary {

class CostModel {
 public:
  CostModel(const ModelShape& shape, const DeviceProfile& profile)
      : shape_(shape), profile_(profile) {
    tile_bytes_ = kTileTokens * dtype_bytes(shape.dtype) * (shape.head_dim + shape.v_dim());
  }

  // KV bytes of one tile of one KV head.
  int64_t tile_bytes() const { return tile_bytes_; }

  // One tile streamed from HBM while `active_ctas` CTAs do the same.
  double hbm_tile_us(int active_ctas) const {
    const double rate =
        std::min(profile_.hbm_gbps / std::max(active_ctas, 1), profile_.hbm_gbps_per_cta);
    return static_cast<double>(tile_bytes_) / (rate * 1e3);
  }
  // One tile that another CTA has just read, from L2.
  double l2_tile_us() const {
    return static_cast<double>(tile_bytes_) / (profile_.l2_gbps_per_cta * 1e3);
  }
  // Arithmetic of one tile for `rows` rows: whole 64-row blocks when wide; when narrow the chain of one
  // stream, num_streams of which run side by side.
  double compute_tile_us(int rows, bool wide) const {
    const int streams = tile_table(shape_.head_dim).num_streams;
    if (!wide) return profile_.narrow_tile_us / streams;
    const double padded_rows = (rows + 63) / 64 * 64;
    const double flops = 2.0 * kTileTokens * padded_rows *
                         (padded_dim(shape_.head_dim) + padded_dim(shape_.v_dim()));
    return flops / (profile_.matrix_tflops * 1e6 / profile_.num_sms);
  }

  // Merging `rows` rows of `parts` partials each, spread over the ranks of a cluster.
  double exchange_us(int64_t partial_rows, int cluster_size) const {
    if (partial_rows == 0) return 0;
    const int index = cluster_size_index(cluster_size);
    const double rate = profile_.dsm_load_gbps_per_cta[static_cast<size_t>(std::max(index, 0))];
    const double bytes = static_cast<double>(partial_rows) * (padded_dim(shape_.v_dim()) * 4 + 8);
    const double barriers = cluster_size > 1 ? 2 * profile_.cluster_barrier_us : 0.1;
    return barriers + profile_.dsm_latency_us + bytes / cluster_size / (rate * 1e3);
  }

  const ModelShape& shape() const { return shape_; }
  const DeviceProfile& profile() const { return profile_; }

 private:
  ModelShape shape_;
  DeviceProfile profile_;
  int64_t tile_bytes_;
};

}  // namespace capillary
