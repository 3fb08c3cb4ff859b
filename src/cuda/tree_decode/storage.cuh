// SPDX-License-Identifier: MIT
// The shared memory of one CTA. Every rank of a cluster has the same layout, so an offset taken here is
// valid in a peer: the exchange reads `slot_output` and `slot_state` of other ranks.
#pragma once

#include <cstdint>

#include "cuda/tree_decode/traits.cuh"

namespace capillary::tree_decode {

template <class Tr>
struct Storage {
  // Ring. Narrow: stage s = [K rows | V rows], rows kRowBytes apart. Wide: four stages together hold
  // [K half 0 | K half 1 | .. | V half 0 | ..], each half 64 tokens x 128 bytes in the 128-byte swizzle.
  alignas(1024) unsigned char ring[Tr::kStages * Tr::kStageBytes];
  // Slots: un-normalised output of a row, its 8-float blocks permuted by slot_block(), and (max, sum) base 2.
  alignas(16) float slot_output[Tr::kSlots * Tr::kDim];
  alignas(8) float2 slot_state[Tr::kSlots];
  // Barriers last. k_full/v_full: the producer's expect_tx arrive and the bytes; stage_empty: 8 arrivals
  // (one by each consumer warp that shares the stage, weighted so that they always sum to 8).
  uint64_t k_full[Tr::kStages];
  uint64_t v_full[Tr::kStages];
  uint64_t stage_empty[Tr::kStages];
  uint64_t slots_ready;  // one arrival a rank: its partials are in place
  uint64_t slots_free;   // one arrival a rank: it has read what it needed
};

// Eight floats of a row live in block `block ^ (slot & 7)`: rows of a matrix fragment fall into different
// banks, and within a block the order is kept, so 16-byte accesses stay whole.
__device__ __forceinline__ int slot_block(int slot, int block) { return block ^ (slot & 7); }

template <class Tr>
__device__ __forceinline__ float* slot_at(Storage<Tr>& storage, int slot, int dim) {
  return storage.slot_output + slot * Tr::kDim + slot_block(slot, dim >> 3) * 8 + (dim & 7);
}

}  // namespace capillary::tree_decode
