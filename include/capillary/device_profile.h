// SPDX-License-Identifier: MIT
// DeviceProfile: everything the cost model knows about a card.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace capillary {

// Entries by cluster size 1, 2, 4, 8, 16.
inline constexpr int kNumClusterSizes = 5;
using ByClusterSize = std::array<double, kNumClusterSizes>;

// log2 of a cluster size; -1 when it is none of 1, 2, 4, 8, 16.
constexpr int cluster_size_index(int cluster_size) {
  for (int i = 0; i < kNumClusterSizes; ++i)
    if (cluster_size == (1 << i)) return i;
  return -1;
}

// What a card is recognised by. Cards that agree in all three share a profile.
struct CardIdentity {
  std::string name;       // as the driver has it; empty: no card in particular
  int32_t num_sms = 0;    // of a MIG slice: the slice's
  int32_t clock_mhz = 0;  // the most the SMs are clocked at
};

struct DeviceProfile {
  std::string name = "h200";
  std::string source =
      "built in";     // where the figures come from: "built in", or a calibration's date
  CardIdentity card;  // that the figures were measured on; the built-in ones go with any
  int32_t num_sms = 132;
  int64_t l2_bytes = 60ll << 20;
  int64_t smem_bytes_per_cta = 227 << 10;

  // Clusters co-resident with one CTA an SM; 0: this cluster size cannot be launched.
  std::array<int32_t, kNumClusterSizes> max_clusters = {132, 66, 30, 15, 7};

  // Rates in GB/s (1e9), times in us. The clusters above, hbm_gbps, dsm_load_gbps_per_cta and
  // matrix_ceiling_tflops were measured by themselves on H200s. Every other figure is fitted or set by hand: it
  // makes the model's estimates agree with whole steps, so it absorbs what the model leaves out and is no
  // measurement of what its name says (docs/planner.md, "Where the built-in figures come from").
  double hbm_gbps = 4620;         // streaming read, all SMs
  double hbm_gbps_per_cta = 55;   // the most one CTA draws while the others leave HBM idle
  double l2_gbps_per_cta = 78;    // L2-resident read into one SM
  double wide_gbps_per_cta = 57;  // what the wide path takes in at most on one SM, from anywhere
  ByClusterSize dsm_load_gbps_per_cta = {128, 30, 28, 28, 28};
  double dsm_latency_us = 0.22;      // one peer load
  double cluster_barrier_us = 0.76;  // arrive to wake-up
  double l2_merge_latency_us = 2.2;  // write a part, fence, see the others' tags, read them back
  double matrix_tflops = 600;        // what the wide path reaches: for estimates, never for floors
  // A large matrix product on random data (694 to 790 seen on an H200, by power and clocks): for floors.
  double matrix_ceiling_tflops = 750;
  double narrow_tile_us = 0.99;  // one 16-token tile of one narrow stream (latency of its chain)
  double stream_item_us = 0.86;  // one item of a narrow stream, besides its tiles
  double launch_us = 3.1;        // launch to first byte requested, and drain
  double job_start_us = 1.5;     // between jobs of one CTA, with loads running ahead
  double item_start_us = 3.1;    // one wide phase of a CTA: query fetch, state set-up, barrier
  double stream_start_us = 2.2;  // its narrow phase: the same for the streams

  // FNV-1a of every figure above; plans carry it.
  uint64_t hash() const;
};

// What the planner uses where nothing was calibrated: an H200, partly measured, partly fitted (see above).
const DeviceProfile& builtin_h200();

// Throws InvalidArgument naming the field when a figure is NaN, not positive, or absurd.
void validate_profile(const DeviceProfile& profile);

// Throws InvalidArgument naming both cards when the profile was measured on one that differs from `here` in name or
// SMs, or in clock by more than 5 %. Nothing to say about profiles of no card in particular.
void require_profile_fits(const DeviceProfile& profile, const CardIdentity& here);

}  // namespace capillary
