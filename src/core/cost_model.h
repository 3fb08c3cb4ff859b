// SPDX-License-Identifier: MIT
// The cost model: times of the plan's building blocks on a DeviceProfile, in microseconds of one CTA.
// docs/planner.md derives each term.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

#include "capillary/plan.h"
#include "shared/tile_table.h"

namespace capillary {

// Tiles cost by how many rows they serve: narrow (up to 16), one 64-row block, two.
inline constexpr int kNumTileClasses = 3;
using TileCounts = std::array<double, kNumTileClasses>;  // whole numbers, to be multiplied by times
using TileTimes = std::array<double, kNumTileClasses>;

// Consumer warps that merge rows, one each at a time.
inline constexpr int kMergeWarps = 8;

// Reading one more part of a split row back from L2. From two steps alone (flat-1x32768 at 8/1: 33 us with 132
// parts, 19 us with 30), which differed in cluster size too: an order of magnitude, not a measurement.
inline constexpr double kPartUs = 0.13;

// Gathering one row from up to eight slots of the CTA's own, a warp: a guess (some 300 cycles).
inline constexpr double kOwnMergeUs = 0.2;

// What an exchange takes longer among 16 CTAs, the largest cluster, beyond what barriers and bytes explain. Fitted
// (docs/planner.md, "Where the built-in figures come from").
constexpr double largest_cluster_us(int cluster_size) {
  return cluster_size == 16 ? 2.0 : 0.0;
}

constexpr int tile_class(int32_t num_rows) {
  return num_rows <= kMaxNarrowRows ? 0 : num_rows <= 64 ? 1 : 2;
}

class CostModel {
 public:
  CostModel(const ModelShape& shape, const DeviceProfile& profile)
      : shape_(shape), profile_(profile) {
    tile_bytes_ = kTileTokens * dtype_bytes(shape.dtype) * (shape.head_dim + shape.v_dim());
    const TileTable table = tile_table(std::max(shape.head_dim, shape.v_dim()));
    num_streams_ = table.num_streams;
    num_stages_ = table.num_stages;
    const double block_us = 2.0 * kTileTokens * 64 *
                            (padded_dim(shape.head_dim) + padded_dim(shape.v_dim())) /
                            (profile.matrix_tflops * 1e6 / profile.num_sms);
    compute_us_ = {profile.narrow_tile_us / num_streams_, block_us, 2 * block_us};
    stream_item_us_ = profile.stream_item_us / num_streams_;
    reload_us_ = 0.5 * static_cast<double>(tile_bytes_) / (profile.l2_gbps_per_cta * 1e3);
    wide_load_us_ = static_cast<double>(tile_bytes_) / (profile.wide_gbps_per_cta * 1e3);
    partial_bytes_ = padded_dim(shape.v_dim()) * 4 + 8;
  }

  // KV bytes of one tile of one KV head.
  int64_t tile_bytes() const { return tile_bytes_; }

  // Loading a tile, on average, while `active_ctas` CTAs stream keys, `reread` times as many as there are: the
  // first to ask for a key waits for its share of HBM, the others for L2. A CTA's loads come one after the
  // other, so the two add up: with rereading free, the model chose groups across trees that then ran slower.
  double load_us(int active_ctas, double reread) const {
    const double from_hbm = 1 / std::max(reread, 1.0);
    const double share =
        std::min(profile_.hbm_gbps / std::max(active_ctas, 1), profile_.hbm_gbps_per_cta);
    const double gbps_us = from_hbm / share + (1 - from_hbm) / profile_.l2_gbps_per_cta;
    return static_cast<double>(tile_bytes_) * gbps_us / 1e3;
  }
  // The arithmetic of a tile, by class.
  const TileTimes& compute_us() const { return compute_us_; }
  // What a tile takes where loads and arithmetic overlap.
  TileTimes tile_times(double load) const {
    TileTimes times;
    const double wide_load = std::max(load, wide_load_us_);
    for (size_t i = 0; i < times.size(); ++i)
      times[i] = std::max(i == 0 ? load : wide_load, compute_us_[i]);
    return times;
  }
  // What an item takes a stream besides its tiles: of the CTA's time, and in tiles.
  double stream_item_us() const { return stream_item_us_; }
  double stream_item_tiles() const { return profile_.stream_item_us / profile_.narrow_tile_us; }

  // How many streams, a block of rows each, had better load these keys; 0: the whole CTA works on them.
  int32_t stream_reads(int32_t num_rows, int64_t num_tiles) const {
    if (num_rows <= kMaxNarrowRows) return 1;
    if (shape_.group_size() > kMaxNarrowRows) return 0;
    const int32_t reads = (num_rows + kMaxNarrowRows - 1) / kMaxNarrowRows;
    const auto tiles = static_cast<double>(num_tiles);
    // The keys come from HBM once either way; what the other blocks load comes from L2, as the arithmetic goes
    // on. Half of it counts.
    const double streams_us =
        reads * (tiles * compute_us_[0] + stream_item_us_) + (reads - 1) * tiles * reload_us_;
    const double wide_us =
        profile_.item_start_us + tiles * compute_us_[static_cast<size_t>(tile_class(num_rows))];
    return streams_us < wide_us ? reads : 0;
  }
  // Tiles that a CTA loads ahead of its arithmetic.
  int num_stages() const { return num_stages_; }
  int num_streams() const { return num_streams_; }

  // All of the forest's keys once, or all of the arithmetic: no step is faster.
  double floor_us(int64_t unique_tokens, int64_t flat_tokens) const {
    const double bytes = static_cast<double>(unique_tokens) * static_cast<double>(tile_bytes_) /
                         kTileTokens * shape_.num_kv_heads;
    const double flops = 2.0 * static_cast<double>(flat_tokens) * shape_.num_q_heads *
                         (shape_.head_dim + shape_.v_dim());
    return std::max(bytes / (profile_.hbm_gbps * 1e3),
                    flops / (profile_.matrix_ceiling_tflops * 1e6));
  }

  // Merging rows whose partials lie in the CTAs of a cluster: ranks share the rows, a warp takes one at a
  // time, and all of them read through the same DSM path.
  double exchange_us(int64_t num_rows, int64_t partial_rows, int cluster_size) const {
    if (partial_rows == 0 || cluster_size == 1) return 0;
    const auto index = static_cast<size_t>(std::max(cluster_size_index(cluster_size), 0));
    const double bytes = static_cast<double>(partial_rows * partial_bytes_) / cluster_size;
    return 2 * profile_.cluster_barrier_us + largest_cluster_us(cluster_size) +
           static_cast<double>(rounds(num_rows, cluster_size)) * 2 * profile_.dsm_latency_us +
           bytes / (profile_.dsm_load_gbps_per_cta[index] * 1e3);
  }

  // Merging partials that streams of one CTA left of the same rows, before the exchange.
  double own_merge_us(int64_t num_rows) const {
    return static_cast<double>(rounds(num_rows, 1)) * kOwnMergeUs;
  }

  // A job's rows that meet those of other jobs in the workspace: each is a round trip through L2 for the
  // warp that has it (write, fence, see the other parts' tags, read them).
  // The warp that comes last reads all parts, one after the other.
  double split_us(int64_t num_rows, int num_parts, int cluster_size) const {
    return static_cast<double>(rounds(num_rows, cluster_size)) *
           (profile_.l2_merge_latency_us + num_parts * kPartUs);
  }

  int64_t partial_bytes() const { return partial_bytes_; }  // of one row
  const ModelShape& shape() const { return shape_; }
  const DeviceProfile& profile() const { return profile_; }

 private:
  // Rows that the busiest of the merging warps handles; their number is a power of two.
  static int64_t rounds(int64_t num_rows, int cluster_size) {
    const auto warps = static_cast<uint32_t>(kMergeWarps * cluster_size);
    return (num_rows + warps - 1) >> std::countr_zero(warps);
  }

  ModelShape shape_;
  DeviceProfile profile_;
  int64_t tile_bytes_;
  int64_t partial_bytes_;
  int num_streams_;
  int num_stages_;
  TileTimes compute_us_;
  double stream_item_us_;
  double reload_us_;  // half of a tile from L2
  double wide_load_us_;
};

}  // namespace capillary
