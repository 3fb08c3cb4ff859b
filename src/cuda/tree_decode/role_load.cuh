// SPDX-License-Identifier: MIT
// Load role: one warp fetches K, another V. Both walk this CTA's phases and keep the ring full, running
// ahead of the consumers across items, phases and jobs. Pages of one token: load_rows.cuh.
//
//   barrier         arrives                         waits                    first phase
//   k_full/v_full   this warp, 1 (expect_tx)+bytes  consumers, before use    0
//   stage_empty     consumer warps, 8 in all        this warp, before reuse  passes at once (parity 1)
//
// Narrow phases: lane w feeds stream w, whose stages are w, w + kStreams, ..; a lane whose stage is still in
// use does not hold the others up (test_wait). Wide phases: lanes 0..3 feed the four stages of a step.
#pragma once

#include "cuda/sync.cuh"
#include "cuda/trace.cuh"
#include "cuda/tree_decode/args.h"
#include "cuda/tree_decode/load_rows.cuh"
#include "cuda/tree_decode/load_side.cuh"
#include "cuda/tree_decode/storage.cuh"
#include "cuda/tree_decode/walk.cuh"

namespace capillary::tree_decode {

// A tile whose page id has been asked for but not yet used: two of these hide the page table's latency.
struct PendingTile {
  int32_t page_id;
  uint32_t token;  // inside the page
  int32_t valid;
};

template <class Tr>
__device__ __forceinline__ void copy_narrow_tile(const LoadSide<Tr>& side, uint32_t stage,
                                                 const PendingTile& tile) {
  side.announce(stage, tile.valid);
  if (side.args.tile_copy == TileCopy::kTensor) {
    ptx::mbarrier_arrive_expect_tx(side.full() + stage, kTileTokens * Tr::kRowBytes);
    ptx::cp_async_bulk_tensor_4d(
        side.narrow_stage(stage), side.narrow_map(), 0, static_cast<int32_t>(tile.token),
        static_cast<int32_t>(side.kv_head), tile.page_id, side.full() + stage);
    return;
  }
  const auto bytes = static_cast<uint32_t>(tile.valid) * Tr::kRowBytes;
  ptx::mbarrier_arrive_expect_tx(side.full() + stage, bytes);
  ptx::cp_async_bulk(side.narrow_stage(stage), side.row(tile.page_id, tile.token), bytes,
                     side.full() + stage);
}

// A tile that must be gathered from runs of piece_tokens rows (small pages, rows that are not contiguous).
template <class Tr>
__device__ __forceinline__ void gather_narrow_tile(const LoadSide<Tr>& side, uint32_t stage,
                                                   int64_t page_entry, uint32_t token,
                                                   int32_t valid) {
  const uint32_t piece = side.args.narrow_piece_tokens;
  side.announce(stage, valid);
  ptx::mbarrier_arrive_expect_tx(side.full() + stage, static_cast<uint32_t>(valid) * Tr::kRowBytes);
  constexpr int kBatch = 4;  // page ids in flight together
  for (uint32_t first = 0; first < static_cast<uint32_t>(valid); first += kBatch * piece) {
    int32_t page_id[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const uint32_t offset = first + static_cast<uint32_t>(i) * piece;
      int64_t entry = page_entry;
      split_token(token + offset, side.args.page_size, &entry);
      page_id[i] = offset < static_cast<uint32_t>(valid) ? side.args.page_ids[entry] : 0;
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const uint32_t offset = first + static_cast<uint32_t>(i) * piece;
      if (offset >= static_cast<uint32_t>(valid)) continue;
      int64_t entry = 0;
      const uint32_t in_page = split_token(token + offset, side.args.page_size, &entry);
      const uint32_t rows = min(piece, static_cast<uint32_t>(valid) - offset);
      ptx::cp_async_bulk(side.narrow_stage(stage) + offset * Tr::kRowBytes,
                         side.row(page_id[i], in_page), rows * Tr::kRowBytes, side.full() + stage);
    }
  }
}

template <class Tr>
__device__ void load_narrow_phase(const LoadSide<Tr>& side, const Program& program,
                                  const Phase& phase, uint32_t parities, uint32_t lane) {
  StreamTiles<Tr> tiles;
  tiles.start(program, phase, lane);
  TileWalker& walker = tiles.walker;
  uint32_t left = tiles.left;
  const bool single =
      side.args.tile_copy == TileCopy::kTensor || side.args.narrow_piece_tokens == kTileTokens;
  const auto ask = [&]() -> PendingTile {
    if (walker.done()) return {0, 0, 0};
    int64_t entry = walker.page_entry();
    const uint32_t token = split_token(walker.token(), side.args.page_size, &entry);
    const PendingTile tile{side.args.page_ids[entry], token, walker.valid()};
    walker.advance();
    return tile;
  };
  PendingTile first{}, second{};
  if (single) {
    first = ask();
    second = ask();
  }
  uint32_t turn = 0;     // of this stream's stages
  uint32_t flipped = 0;  // parity relative to the phase's start
  while (__any_sync(0xffffffffu, left > 0)) {
    if (left > 0) {
      const uint32_t stage = lane + turn * Tr::kStreams;
      const uint32_t parity = ((parities >> stage) & 1u) ^ flipped;
      if (ptx::mbarrier_test_wait_acquire_cta(side.storage.stage_empty + stage, parity ^ 1u)) {
        if (single) {
          copy_narrow_tile(side, stage, first);
          first = second;
          second = ask();
        } else {
          gather_narrow_tile(side, stage, walker.page_entry(), walker.token(), walker.valid());
          walker.advance();
        }
        --left;
        if (++turn == Tr::kStagesPerStream) {
          turn = 0;
          flipped ^= 1u;
        }
      }
    }
    __syncwarp();
  }
}

// One wide step, a box a tile. The values are one a warp and the compiler knows it by the shuffles: with values of
// lanes' own it would issue box by box in a loop over lanes, 150 cycles each, and wide items would wait for that.
template <class Tr>
__device__ __forceinline__ void copy_wide_tiles(const LoadSide<Tr>& side, uint32_t stage,
                                                const PendingTile& mine, uint32_t first_lane) {
  uint64_t* full = side.full() + stage;  // of all four tiles: the consumers wait once a step
  int32_t page_row[kWideTiles], token[kWideTiles], valid[kWideTiles];
  uint32_t tiles = 0;
#pragma unroll
  for (uint32_t tile = 0; tile < kWideTiles; ++tile) {
    const auto source = static_cast<int>(first_lane + tile);
    valid[tile] = __shfl_sync(0xffffffffu, mine.valid, source);
    token[tile] = static_cast<int32_t>(__shfl_sync(0xffffffffu, mine.token, source) / 8);
    page_row[tile] = __shfl_sync(0xffffffffu, mine.page_id, source) *
                         static_cast<int32_t>(side.args.wide_page_rows[side.is_v]) +
                     static_cast<int32_t>(side.kv_head);
    tiles += valid[tile] > 0 ? 1 : 0;  // 0: past the item's last tile
  }
  if (ptx::elect_one()) {
#pragma unroll
    for (uint32_t tile = 0; tile < kWideTiles; ++tile) side.announce(stage + tile, valid[tile]);
    ptx::mbarrier_arrive_expect_tx(full, tiles * Tr::kHalfTileBytes);
#pragma unroll
    for (uint32_t tile = 0; tile < kWideTiles; ++tile)
      if (valid[tile] > 0)
        ptx::cp_async_bulk_tensor_5d(side.wide_tile(stage, tile), side.wide_map(), 0, 0, 0,
                                     token[tile], page_row[tile], full);
  }
}

// The same where a tile is no box: eight lanes a tile, a box (piece x half) a lane and turn.
template <class Tr>
__device__ __forceinline__ void copy_wide_pieces(const LoadSide<Tr>& side, uint32_t stage,
                                                 const PendingTile& mine, int64_t mine_entry,
                                                 uint32_t first_lane) {
  const uint32_t lane = threadIdx.x & 31u, tile = lane >> 3, sub = lane & 7u;
  const auto source = static_cast<int>(first_lane + tile);
  const PendingTile pending{__shfl_sync(0xffffffffu, mine.page_id, source),
                            __shfl_sync(0xffffffffu, mine.token, source),
                            __shfl_sync(0xffffffffu, mine.valid, source)};
  const int64_t entry = __shfl_sync(0xffffffffu, mine_entry, source);
  uint64_t* full = side.full() + stage;
  const auto valid = static_cast<uint32_t>(pending.valid);
  const uint32_t piece = side.args.wide_piece.divisor;
  const uint32_t pieces =
      side.args.wide_piece.divide(valid + piece - 1);  // 0: past the item's last tile
  if (sub == 0) side.announce(stage + tile, pending.valid);
  uint32_t rows = sub == 0 ? pieces * piece : 0;
  rows += __shfl_xor_sync(0xffffffffu, rows, 8);
  rows += __shfl_xor_sync(0xffffffffu, rows, 16);
  // The lanes' announcements come before the arrive that publishes them.
  __syncwarp();
  if (lane == 0) ptx::mbarrier_arrive_expect_tx(full, rows * 128 * Tr::kHalves);
  for (uint32_t box = sub; box < pieces * Tr::kHalves; box += 8) {
    const uint32_t half = box % Tr::kHalves, offset = box / Tr::kHalves * piece;
    uint32_t token = pending.token;
    int32_t page_id = pending.page_id;
    if (offset > 0) {
      int64_t piece_entry = entry;
      token = split_token(token + offset, side.args.page_size, &piece_entry);
      page_id = side.args.page_ids[piece_entry];
    }
    unsigned char* s_rows = side.wide_tile(stage, tile) +
                            (offset / 8 * Tr::kHalves + half) * kSwizzleBytes + offset % 8 * 128;
    ptx::cp_async_bulk_tensor_4d(s_rows, side.wide_map(), static_cast<int32_t>(half * 64),
                                 static_cast<int32_t>(token), static_cast<int32_t>(side.kv_head),
                                 page_id, full);
  }
}

// The lanes look 32 tiles (eight steps) ahead together, a page id each, and again before those are used up.
template <class Tr>
__device__ void load_wide_phase(const LoadSide<Tr>& side, const Program& program,
                                const Phase& phase, uint32_t parities, uint32_t lane) {
  constexpr uint32_t kBatchSteps = 32 / kWideTiles;
  const bool whole_tiles = side.args.wide_page_rows[side.is_v] != 0;
  uint32_t turn = 0, flipped = 0;  // shared by all items of the phase
  for (uint32_t i = 0; i < phase.num_items; ++i) {
    const WorkItem& item = program.items[phase.item_begin + i];
    const uint32_t steps =
        __shfl_sync(0xffffffffu, (item.num_tiles + kWideTiles - 1) / kWideTiles, 0);
    TileWalker walker;
    walker.start(program.segments + item.segment_begin, item.num_segments);
    walker.advance(static_cast<int32_t>(lane));
    int64_t next_entry = 0;
    const auto ask = [&]() -> PendingTile {
      if (walker.done()) return {0, 0, 0};
      next_entry = walker.page_entry();
      const uint32_t token = split_token(walker.token(), side.args.page_size, &next_entry);
      return {side.args.page_ids[next_entry], token, walker.valid()};
    };
    PendingTile next = ask();
    for (uint32_t first = 0; first < steps; first += kBatchSteps) {
      const PendingTile mine = next;
      const int64_t entry = next_entry;
      walker.advance(32);
      next = ask();
      const uint32_t count = min(kBatchSteps, steps - first);
      for (uint32_t step = 0; step < count; ++step) {
        const uint32_t stage = turn * kWideTiles;
        if (lane < kWideTiles) {
          const uint32_t parity = ((parities >> (stage + lane)) & 1u) ^ flipped;
          wait_cta(side.storage.stage_empty, stage + lane, parity ^ 1u, Wait::kStageEmpty);
        }
        // A wide tile's rows lie across the memory of all four stages: after a narrow phase each of them
        // may have been in another warp's hands, so nothing is copied before all four are free.
        __syncwarp();
        if (whole_tiles)
          copy_wide_tiles(side, stage, mine, step * kWideTiles);
        else
          copy_wide_pieces(side, stage, mine, entry, step * kWideTiles);
        __syncwarp();
        if (++turn == Tr::kWideStages) {
          turn = 0;
          flipped ^= 1u;
        }
      }
    }
  }
}

template <class Tr>
__device__ void run_load_role(const KernelArgs& args, Storage<Tr>& storage, bool is_v) {
  if (args.tile_copy == TileCopy::kRows) return run_load_rows_role<Tr>(args, is_v);
  walk_phases(args, storage, is_v,
              [](const LoadSide<Tr>& side, const Program& program, const Phase& phase,
                 uint32_t parities, uint32_t lane) {
                if (phase.kind == PhaseKind::kWide)
                  load_wide_phase(side, program, phase, parities, lane);
                else
                  load_narrow_phase(side, program, phase, parities, lane);
                return parity_changes<Tr>(phase, lane);
              });
}

}  // namespace capillary::tree_decode
