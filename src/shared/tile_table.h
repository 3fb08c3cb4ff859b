// SPDX-License-Identifier: MIT
// What one CTA of the kernel can hold, by head_dim. The planner and the kernel both read this table, so a plan
// can never ask for more than the kernel has; the kernel's storage static_asserts that its shared memory fits.
#pragma once

#include "shared/plan_layout.h"

namespace capillary {

struct TileTable {
  int max_job_rows;  // rows of a job: 64 a consumer warpgroup
  int num_streams;   // consumer warps that take narrow items
  int num_stages;    // ring stages, each K and V of one tile
  int num_slots;     // fp32 partial rows
};

// Instances of the kernel end at 256. Wider heads, up to those of latent attention, are the CPU backend's; their
// plans obey the same limits, so that a kernel for them would find what it needs.
inline constexpr int kMaxHeadDim = 576;

// head_dim padded to what shared memory rows and WGMMA tiles use.
constexpr int padded_dim(int head_dim) {
  return (head_dim + 63) / 64 * 64;
}

// Shared memory (227 KiB): num_stages * 16 tokens * 2 * padded_dim * 2 B + num_slots * (padded_dim * 4 + 8) B.
//   64: 32 *  4 KiB + 256 * 264 =  198,656      128: 16 *  8 KiB + 160 *  520 = 214,272
//  192: 12 * 12 KiB +  80 * 776 =  209,536      256:  8 * 16 KiB +  80 * 1032 = 213,632
//  576:  2 * 36 KiB +  64 * 2312 = 221,696
constexpr TileTable tile_table(int head_dim) {
  switch (padded_dim(head_dim)) {
    case 64:
      return {128, 8, 32, 256};
    case 128:
      return {128, 8, 16, 160};
    case 192:
      return {64, 4, 12, 80};
    case 256:
      return {64, 4, 8, 80};
    default:
      return {64, 4, 2, 64};
  }
}

}  // namespace capillary
