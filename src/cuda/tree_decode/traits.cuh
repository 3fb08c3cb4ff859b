// SPDX-License-Identifier: MIT
// Compile-time facts of one kernel instance, derived from the tile table.
#pragma once

#include "shared/tile_table.h"

namespace capillary::tree_decode {

// Eight rows of 64 elements: the 128-byte swizzle's unit, 1024-byte aligned.
inline constexpr int kSwizzleBytes = 1024;

template <class T_, int kHeadDim_>
struct Traits {
  using T = T_;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kDim = padded_dim(kHeadDim);  // of shared memory rows and accumulators
  static constexpr int kHalves = kDim / 64;          // 128-byte column blocks of a swizzled tile
  // Wide path: whether the warpgroups share the output's columns out (storage and registers allow 64 rows then).
  static constexpr bool kSplitColumns = kHalves > 2;
  static constexpr int kWideHalves = kSplitColumns ? 2 : kHalves;  // a warpgroup
  static constexpr int kChunks = kHeadDim / 8;                     // 16-byte chunks of a K or V row
  static constexpr int kChunkSteps = (kChunks + 3) / 4;  // a quad of lanes takes four chunks a step
  static constexpr TileTable kTable = tile_table(kHeadDim);
  static constexpr int kStages = kTable.num_stages;
  static constexpr int kStreams = kTable.num_streams;
  static constexpr int kStagesPerStream = kStages / kStreams;
  static constexpr int kSlots = kTable.num_slots;
  static constexpr int kWideStages = kStages / kWideTiles;

  static constexpr int kRowBytes = kHeadDim * 2;                           // one K row, unswizzled
  static constexpr int kWideKBytes = kWideTiles * kTileTokens * kDim * 2;  // K room of a wide step
  static constexpr int kHalfTileBytes = kTileTokens * kDim * 2;  // K (or V) room of one narrow tile
  static constexpr int kStageBytes = 2 * kHalfTileBytes;
  static constexpr int kWideGroupBytes = kHalves * kSwizzleBytes;  // eight tokens of a wide tile

  static constexpr int kConsumerThreads = 256;
  static constexpr int kProducerThreads = 128;
  static constexpr int kThreads = kConsumerThreads + kProducerThreads;
  static constexpr int kConsumerWarps = kConsumerThreads / 32;
  // A CTA gets 384 * 168 registers at its launch, and setmaxnreg only moves them from warp to warp: with a sum above
  // that, consumers would wait for ever.
  static constexpr int kLaunchRegisters = 168;
  static constexpr int kConsumerRegisters = 208;
  static constexpr int kProducerRegisters = 88;

  static_assert(kHeadDim % 8 == 0 && kHeadDim >= 64 && kHeadDim <= 256);
  static_assert(kStages <= 32, "stage parities are kept in one 32-bit mask, a lane a stage");
  static_assert(!kSplitColumns || kTable.max_job_rows <= 64);
  static_assert(kStages % kWideTiles == 0 && kStages % kStreams == 0);
  static_assert(kConsumerThreads * kConsumerRegisters + kProducerThreads * kProducerRegisters <=
                kThreads * kLaunchRegisters);
};

}  // namespace capillary::tree_decode
