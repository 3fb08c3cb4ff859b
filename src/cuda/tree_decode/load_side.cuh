// SPDX-License-Identifier: MIT
// What both ways of loading share (role_load.cuh, load_rows.cuh): the warp's half of the work, and a stream's tiles.
#pragma once

#include "cuda/trace.cuh"
#include "cuda/tree_decode/args.h"
#include "cuda/tree_decode/role_plan.cuh"
#include "cuda/tree_decode/storage.cuh"
#include "cuda/tree_decode/walk.cuh"

namespace capillary::tree_decode {

// The half of the work that this warp does: K or V (load_rows.cuh, narrow: half of the streams). Chosen at run time: the code is long, and both warps can share it
// in the instruction cache.
template <class Tr>
struct LoadSide {
  const KernelArgs& args;
  Storage<Tr>& storage;
  uint32_t kv_head;
  uint32_t is_v;

  __device__ __forceinline__ uint64_t* full() const {
    return is_v != 0 ? storage.v_full : storage.k_full;
  }
  __device__ __forceinline__ const CUtensorMap* wide_map() const { return args.wide_map + is_v; }
  __device__ __forceinline__ const CUtensorMap* narrow_map() const {
    return args.narrow_map + is_v;
  }
  __device__ __forceinline__ const unsigned char* row(int32_t page_id, uint32_t token) const {
    const CacheArgs& cache = args.cache[is_v];
    return cache.base + page_id * cache.page_stride +
           static_cast<int64_t>(token) * cache.token_stride +
           static_cast<int64_t>(kv_head) * cache.head_stride;
  }
  // Tells the consumers how much of the tile counts; the arrive on k_full that follows publishes it.
  __device__ __forceinline__ void announce(uint32_t stage, int32_t valid) const {
    if (is_v == 0) storage.stage_tokens[stage] = static_cast<uint32_t>(valid);
  }
  __device__ __forceinline__ unsigned char* narrow_stage(uint32_t stage) const {
    return storage.ring + stage * Tr::kStageBytes + is_v * Tr::kHalfTileBytes;
  }
  // Of tile `tile` (0..3) of the wide step whose first stage is `stage`: [eight tokens][half][token][64 dims].
  __device__ __forceinline__ unsigned char* wide_tile(uint32_t stage, uint32_t tile) const {
    return storage.ring + stage * Tr::kStageBytes + is_v * Tr::kWideKBytes +
           tile * Tr::kHalfTileBytes;
  }
};

// Token offset from a page entry -> page entry and token inside that page.
__device__ __forceinline__ uint32_t split_token(uint32_t token, const FastDiv& page_size,
                                                int64_t* entry) {
  const uint32_t pages = page_size.divide(token);
  *entry += pages;
  return page_size.remainder(token, pages);
}

// The tiles of this lane's stream: its items are contiguous and so are their segments. Lanes without a stream have none.
template <class Tr>
struct StreamTiles {
  TileWalker walker;
  uint32_t left;  // tiles
  __device__ __forceinline__ void start(const Program& program, const Phase& phase, uint32_t lane) {
    const uint32_t count = lane < Tr::kStreams ? phase.stream_items[lane % Tr::kStreams] : 0;
    left = lane < Tr::kStreams ? phase.stream_tiles[lane % Tr::kStreams] : 0;
    uint32_t end = count;  // of the streams up to this one
#pragma unroll
    for (uint32_t offset = 1; offset < Tr::kStreams; offset *= 2) {
      const uint32_t other = __shfl_up_sync(0xffffffffu, end, offset);
      if (lane >= offset) end += other;
    }
    walker.start(nullptr, 0);
    if (left == 0) return;
    const uint32_t item = phase.item_begin + end - count, last = item + count - 1;
    const WorkItem* items = program.items;
    const uint32_t begin = items[item].segment_begin;
    walker.start(program.segments + begin,
                 items[last].segment_begin + items[last].num_segments - begin);
  }
};

// A load warp's way through its CTA's programs. load_phase(side, program, phase, parities, lane) keeps the ring full and
// returns the phase's parity_changes: before or after, as its registers and its hurry have it.
template <class Tr, class LoadPhase>
__device__ __forceinline__ void walk_phases(const KernelArgs& args, Storage<Tr>& storage, bool is_v,
                                            const LoadPhase& load_phase) {
  const uint32_t lane = threadIdx.x & 31u;
  uint32_t parities = 0;  // of the empty barriers
  ProgramReader<Tr> reader(storage);
  Tracer tracer(args, TraceTrack::kLoad, !is_v && lane == 0);
  while (const Program* program = reader.wait()) {
    const LoadSide<Tr> side{args, storage, program->kv_head, is_v ? 1u : 0u};
    for (uint32_t i = 0; i < program->num_phases; ++i) {
      const Phase& phase = program->phases[i];
      tracer.mark(TraceEvent::kLoadPhase, phase.stream_tiles[0]);
      parities ^= load_phase(side, *program, phase, parities, lane);
    }
    tracer.mark(TraceEvent::kLoadsIssued, 0);
    reader.release();
  }
}

}  // namespace capillary::tree_decode
