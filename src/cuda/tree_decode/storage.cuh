// SPDX-License-Identifier: MIT
// The shared memory of one CTA. Every rank of a cluster has the same layout, so an offset taken here is
// valid in a peer: the exchange reads `slot_output` and `slot_state` of other ranks.
#pragma once

#include <cstdint>

#include "cuda/tree_decode/traits.cuh"
#include "shared/plan_layout.h"

namespace capillary::tree_decode {

// What this CTA does for one schedule entry. The pointers lead into `bytes`, or into the plan itself when the
// program does not fit there.
struct Program {
  static constexpr uint32_t kBytes = 8 * 1024;
  alignas(16) unsigned char bytes[kBytes];
  const Phase* phases;
  const WorkItem* items;       // of the whole plan's index space: items[phase.item_begin] is right
  const Segment* segments;     // likewise
  const Merge* merges;         // of this rank: merges[0] is the first
  const Partial* partials;     // of the whole plan's index space
  const int32_t* query_order;  // of this job: query_order[0] is its first query
  uint32_t kv_head;
  uint32_t num_rows;    // of the job
  uint32_t num_phases;  // kEnd: there is no such entry, the CTA is done
  uint32_t num_merges;
  uint32_t needs_exchange;
  static constexpr uint32_t kEnd = 0xffffffffu;
};

template <class Tr>
struct Storage {
  // Ring. Narrow: stage s = [K rows | V rows], rows kRowBytes apart. Wide: four stages together hold
  // [K | V], each [8 groups of eight tokens][half: 64 dims][token][128 bytes], in the 128-byte swizzle.
  alignas(1024) unsigned char ring[Tr::kStages * Tr::kStageBytes];
  // Slots: un-normalised output of a row, its 8-float blocks permuted by slot_block(), and (max, sum) base 2.
  alignas(16) float slot_output[Tr::kSlots * Tr::kDim];
  alignas(8) float2 slot_state[Tr::kSlots];
  // Valid tokens of the tile in a stage; whoever loads K there writes it before k_full. Wide steps read four at once.
  alignas(16) uint32_t stage_tokens[Tr::kStages];
  uint32_t gate_exchanges[Tr::kConsumerWarps];  // SlotGate's, a word a consumer warp
  Program programs[2];                          // one runs while the next is fetched
  // Barriers last. k_full/v_full: one arrival and the bytes (TileCopy::kRows: load_rows.cuh); stage_empty: 8 arrivals
  // (one by each consumer warp that shares the stage, weighted so that they always sum to 8).
  uint64_t k_full[Tr::kStages];
  uint64_t v_full[Tr::kStages];
  uint64_t stage_empty[Tr::kStages];
  uint64_t program_full[2];   // the plan role's arrive and the bytes
  uint64_t program_empty[2];  // 8 consumer warps, 2 load warps and the query role
  uint64_t slots_ready;       // one arrival a rank: its partials are in place
  uint64_t slots_free;        // one arrival a rank: it has read what it needed
  // K's and V's, TileCopy::kRows only: the load warp's arrival, with its lanes' copies of a wide step.
  uint64_t rows_landed[2][Tr::kWideStages];
};

// This CTA's. Where a routine out of line asks for it instead of taking a reference, the compiler knows that it is shared memory.
template <class Tr>
__device__ __forceinline__ Storage<Tr>& own_storage() {
  extern __shared__ __align__(1024) unsigned char s_bytes[];
  return *reinterpret_cast<Storage<Tr>*>(s_bytes);
}

// Eight floats of a row live in block `block ^ (slot & 7)`: rows of a matrix fragment fall into different
// banks, and within a block the order is kept, so 16-byte accesses stay whole.
__device__ __forceinline__ int slot_block(int slot, int block) {
  return block ^ (slot & 7);
}

template <class Tr>
__device__ __forceinline__ float* slot_at(Storage<Tr>& storage, int slot, int dim) {
  return storage.slot_output + slot * Tr::kDim + slot_block(slot, dim >> 3) * 8 + (dim & 7);
}

}  // namespace capillary::tree_decode
