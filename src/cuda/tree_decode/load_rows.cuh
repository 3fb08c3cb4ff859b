// SPDX-License-Identifier: MIT
// Load role for pages of one token. A box or bulk copy of one row costs its warp 70 cycles however few bytes it brings, so
// the rows are gathered: four rows of 128 bytes an instruction (cp.async, 16 bytes a lane). What limits is how many
// instructions a tile takes, hence no shuffles of addresses (a lane looks its rows up itself, a tile ahead), and in narrow
// phases each of the two warps loads K and V of half of the streams.
//
// The hardware arrives for the copies (cp.async.mbarrier.arrive) and the warp goes on at once. Consumers of narrow tiles wait
// for that. WGMMA reads wide tiles through the async proxy, so somebody has to fence between the bytes and it; a
// fence by the warp that copies would wait for all that it has under way. So the query warp stands between: it
// waits for `rows_landed`, fences, and arrives at the consumers' barriers.
#pragma once

#include "cuda/sync.cuh"
#include "cuda/tree_decode/load_side.cuh"

namespace capillary::tree_decode {

inline constexpr int kRowsAtOnce = 4;  // an instruction's
inline constexpr int kLaneRows =
    kTileTokens / kRowsAtOnce;  // of a tile: those that a lane has a part of

// A lane's part of an instruction: 16 bytes of one of four rows.
struct RowLane {
  uint32_t row, chunk;
  __device__ __forceinline__ explicit RowLane(uint32_t lane) : row(lane / 8), chunk(lane % 8) {}
};

// Rows of one cache, in registers: from KernelArgs they would be read again behind every copy.
struct RowSource {
  uint64_t base;        // the lane's chunk of the KV head's row 0
  uint32_t row_stride;  // bytes; the host saw to 32 bits
  template <class Tr>
  __device__ __forceinline__ RowSource(const LoadSide<Tr>& side, uint32_t is_v, RowLane mine)
      : base(reinterpret_cast<uint64_t>(side.args.cache[is_v].base) +
             side.kv_head * side.args.cache[is_v].head_stride + mine.chunk * 16),
        row_stride(static_cast<uint32_t>(side.args.cache[is_v].page_stride)) {}
  __device__ __forceinline__ uint64_t row(uint32_t id) const {
    return base + static_cast<uint64_t>(id) * row_stride;
  }
};

// Copies the lane's chunks of one row, 64 dims and kHalfStride bytes apart. Padding is zeroed where the tile has room for it
// (kPadded): what WGMMA multiplies by a query's zeros must be finite.
template <class Tr, int kOffset, int kHalfStride, bool kPadded, int kHalf = 0>
__device__ __forceinline__ void copy_row(uint32_t s_row, uint64_t g_row, RowLane mine) {
  if constexpr (kHalf < Tr::kHalves) {
    if constexpr ((kHalf + 1) * 8 <= Tr::kChunks) {
      ptx::cp_async_16<kOffset + kHalf * kHalfStride, kHalf * 128>(s_row, g_row);
    } else {
      const bool real = kHalf * 8 + mine.chunk < Tr::kChunks;
      if (real)
        ptx::cp_async_16<kOffset + kHalf * kHalfStride, kHalf * 128>(s_row, g_row);
      else if (kPadded)
        ptx::cp_async_zero_16<kOffset + kHalf * kHalfStride>(s_row, g_row);
    }
    copy_row<Tr, kOffset, kHalfStride, kPadded, kHalf + 1>(s_row, g_row, mine);
  }
}

// The barrier's one arrival, once all lanes' copies have landed. A lane's own arrive first adds to what the phase waits for,
// so they all come before the one that it was made for, which also publishes the announcement.
__device__ __forceinline__ void arrive_with_copies(uint64_t* s_barrier) {
  ptx::cp_async_mbarrier_arrive(s_barrier);
  __syncwarp();
  if ((threadIdx.x & 31u) == 0) ptx::mbarrier_arrive_release_cta(s_barrier, 1);
}

// Where a tile's page ids are, from the lane's first row on, and how many of its tokens count.
struct TileIds {
  const int32_t* g_ids;
  int32_t valid;
  // Of the tile in hand of the lane `source`'s walker.
  __device__ __forceinline__ TileIds(const int32_t* page_ids, const TileWalker& walker,
                                     uint32_t source, RowLane mine) {
    const auto from = static_cast<int>(source);
    g_ids =
        page_ids + __shfl_sync(0xffffffffu, walker.page_entry() + walker.token(), from) + mine.row;
    valid = __shfl_sync(0xffffffffu, walker.valid(), from);
  }
};

// The ids of the lane's rows of a tile, row i * kRowsAtOnce + mine.row. Rows past its last token keep the id they had (any row
// of the cache will do: consumers look at none of them), so that no copy hangs on a condition.
struct TileRows {
  uint32_t id[kLaneRows] = {};
  __device__ __forceinline__ void ask(const TileIds& ids, RowLane mine) {
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i)
      ptx::ld_global_nc_if(i * kRowsAtOnce + static_cast<int>(mine.row) < ids.valid, id[i],
                           ids.g_ids + i * kRowsAtOnce);
  }
  __device__ __forceinline__ void ask_whole(const TileIds& ids) {
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i)
      id[i] = static_cast<uint32_t>(__ldg(ids.g_ids + i * kRowsAtOnce));
  }
};

template <class Tr, int kOffset, int kRow = 0>
__device__ __forceinline__ void copy_narrow_rows(uint32_t s_tile, const RowSource& source,
                                                 const TileRows& rows, RowLane mine) {
  if constexpr (kRow < kLaneRows) {
    copy_row<Tr, kOffset + kRow * kRowsAtOnce * Tr::kRowBytes, 128, false>(
        s_tile, source.row(rows.id[kRow]), mine);
    copy_narrow_rows<Tr, kOffset, kRow + 1>(s_tile, source, rows, mine);
  }
}

template <class Tr>
__device__ __forceinline__ void load_narrow_rows(const LoadSide<Tr>& side, const Program& program,
                                                 const Phase& phase, uint32_t parities,
                                                 uint32_t lane) {
  constexpr uint32_t kOwn = Tr::kStreams / 2;  // streams of this warp
  const uint32_t first = side.is_v * kOwn;
  StreamTiles<Tr> tiles;
  tiles.start(program, phase, lane);
  if (lane < first || lane >= first + kOwn) tiles.left = 0;
  const RowLane mine(lane);
  const RowSource k(side, 0, mine), v(side, 1, mine);
  const int32_t* page_ids = side.args.page_ids;
  Storage<Tr>& storage = side.storage;
  const uint32_t s_ring =
      ptx::smem_address(storage.ring) + mine.row * Tr::kRowBytes + mine.chunk * 16;
  TileRows next[kOwn];
#pragma unroll
  for (uint32_t i = 0; i < kOwn; ++i)
    next[i].ask(TileIds(page_ids, tiles.walker, first + i, mine), mine);
  uint32_t turn = 0;     // of the lane's stream's stages
  uint32_t flipped = 0;  // parity relative to the phase's start
  while (__any_sync(0xffffffffu, tiles.left > 0)) {
    const uint32_t own_stage = lane + turn * Tr::kStreams;
    bool ready = tiles.left > 0;
    if (ready) {
      const uint32_t parity = ((parities >> own_stage) & 1u) ^ flipped;
      ready = ptx::mbarrier_test_wait_acquire_cta(storage.stage_empty + own_stage, parity ^ 1u);
    }
    const uint32_t streams = __ballot_sync(0xffffffffu, ready) >> first;
#pragma unroll
    for (uint32_t i = 0; i < kOwn; ++i) {
      if ((streams >> i & 1u) == 0) continue;
      const auto from = static_cast<int>(first + i);
      const uint32_t stage = __shfl_sync(0xffffffffu, own_stage, from);
      const int32_t valid = __shfl_sync(0xffffffffu, tiles.walker.valid(), from);
      const uint32_t s_tile = s_ring + stage * Tr::kStageBytes;
      // Not announce(), which leaves it to K's warp: each has streams of its own here.
      if (lane == 0) storage.stage_tokens[stage] = static_cast<uint32_t>(valid);
      copy_narrow_rows<Tr, 0>(s_tile, k, next[i], mine);
      copy_narrow_rows<Tr, Tr::kHalfTileBytes>(s_tile, v, next[i], mine);
      arrive_with_copies(storage.k_full + stage);
      arrive_with_copies(storage.v_full + stage);
    }
    if (ready) {
      tiles.walker.advance();
      --tiles.left;
      if (++turn == Tr::kStagesPerStream) {
        turn = 0;
        flipped ^= 1u;
      }
    }
    __syncwarp();
    // Together, behind all copies: all of a lane's loads count on one scoreboard, so that a tile's ids, asked for between
    // two streams' copies, would hold up the second stream.
#pragma unroll
    for (uint32_t i = 0; i < kOwn; ++i)
      if ((streams >> i & 1u) != 0)
        next[i].ask(TileIds(page_ids, tiles.walker, first + i, mine), mine);
  }
  // A wide phase waits for stages of all streams. Parities tell one use of a stage from the next, not from the one after
  // that: so neither warp goes there while the other has uses of this phase left.
  named_sync(NamedBarrier::kLoaders, 64);
}

// Rows of a wide tile are eight and eight in the 128-byte swizzle, a half (64 dims) after the other. `s_first` is the place of
// the lane's chunk of its first row; four rows further chunks lie four places off.
template <class Tr, int kTile, int kRow = 0>
__device__ __forceinline__ void copy_wide_rows(uint32_t s_first, const RowSource& source,
                                               const TileRows& rows, RowLane mine) {
  if constexpr (kRow < kLaneRows) {
    copy_row<Tr, (2 * kTile + kRow / 2) * Tr::kWideGroupBytes + kRow % 2 * kRowsAtOnce * 128,
             kSwizzleBytes, true>(kRow % 2 == 0 ? s_first : s_first ^ kRowsAtOnce * 16,
                                  source.row(rows.id[kRow]), mine);
    copy_wide_rows<Tr, kTile, kRow + 1>(s_first, source, rows, mine);
  }
}
template <class Tr, int kTile = 0>
__device__ __forceinline__ void copy_step_rows(uint32_t s_first, const RowSource& source,
                                               const TileRows (&rows)[kWideTiles],
                                               const TileIds (&ids)[kWideTiles], RowLane mine) {
  if constexpr (kTile < kWideTiles) {
    if (ids[kTile].valid > 0) copy_wide_rows<Tr, kTile>(s_first, source, rows[kTile], mine);
    copy_step_rows<Tr, kTile + 1>(s_first, source, rows, ids, mine);
  }
}

template <class Tr>
__device__ __forceinline__ void load_wide_rows(const LoadSide<Tr>& side, const Program& program,
                                               const Phase& phase, uint32_t parities,
                                               uint32_t lane) {
  constexpr uint32_t kBatchSteps = 32 / kWideTiles;  // a tile a lane
  const RowLane mine(lane);
  const RowSource source(side, side.is_v, mine);
  const int32_t* page_ids = side.args.page_ids;
  Storage<Tr>& storage = side.storage;
  const uint32_t s_first =
      ptx::smem_address(side.wide_tile(0, 0)) + mine.row * 128 + (mine.chunk ^ mine.row) * 16;
  // Twice round the ring: parities flip half way. Shared by all items of the phase.
  uint32_t round = 0;
  const uint32_t end = phase.item_begin + phase.num_items;
  for (uint32_t i = phase.item_begin; i < end; ++i) {
    const WorkItem& item = program.items[i];
    const uint32_t steps =
        __shfl_sync(0xffffffffu, (item.num_tiles + kWideTiles - 1) / kWideTiles, 0);
    TileWalker walker;
    walker.start(program.segments + item.segment_begin, item.num_segments);
    walker.advance(static_cast<int32_t>(lane));
    TileRows rows[kWideTiles];
    for (uint32_t step = 0; step < steps; ++step) {
      if (step % kBatchSteps == 0 && step != 0) walker.advance(32);
      const uint32_t source_lane = step % kBatchSteps * kWideTiles;
      const TileIds ids[kWideTiles] = {{page_ids, walker, source_lane, mine},
                                       {page_ids, walker, source_lane + 1, mine},
                                       {page_ids, walker, source_lane + 2, mine},
                                       {page_ids, walker, source_lane + 3, mine}};
      // One branch for all loads of the step: ptxas waits for loads behind each.
      if (ids[0].valid + ids[1].valid + ids[2].valid + ids[3].valid == kWideTiles * kTileTokens) {
#pragma unroll
        for (uint32_t tile = 0; tile < kWideTiles; ++tile) rows[tile].ask_whole(ids[tile]);
      } else {
#pragma unroll
        for (uint32_t tile = 0; tile < kWideTiles; ++tile) rows[tile].ask(ids[tile], mine);
      }
      const bool flipped = round >= Tr::kWideStages;
      const uint32_t turn = flipped ? round - Tr::kWideStages : round;
      const uint32_t stage = turn * kWideTiles, own_stage = stage + lane % kWideTiles;
      wait_cta(storage.stage_empty, own_stage, ((parities >> own_stage) & 1u) ^ (flipped ? 0u : 1u),
               Wait::kStageEmpty);
      __syncwarp();
#pragma unroll
      for (uint32_t tile = 0; tile < kWideTiles; ++tile)
        if (lane == 0) side.announce(stage + tile, ids[tile].valid);
      copy_step_rows<Tr>(s_first + stage * Tr::kStageBytes, source, rows, ids, mine);
      arrive_with_copies(storage.rows_landed[side.is_v] + turn);
      if (++round == 2 * Tr::kWideStages) round = 0;
    }
  }
}

// The query warp's part, once it has asked for a program's queries: tells the consumers of the program's wide steps.
// `parities`: of rows_landed, a bit a place in the ring; returned as they are for the next program.
template <class Tr>
__device__ __noinline__ uint32_t hand_on_wide_rows(const Program& program, uint32_t parities) {
  Storage<Tr>& storage = own_storage<Tr>();
  for (uint32_t i = 0; i < program.num_phases; ++i) {
    const Phase& phase = program.phases[i];
    if (phase.kind != PhaseKind::kWide) continue;
    uint32_t turn = 0;
    for (uint32_t steps = phase.stream_tiles[0] / kWideTiles; steps > 0; --steps) {
      for (const bool is_v : {false, true}) {
        wait_cta(storage.rows_landed[is_v], turn, parities >> turn & 1u, Wait::kRowsLanded);
        ptx::fence_proxy_async_shared_cta();
        uint64_t* s_full = (is_v ? storage.v_full : storage.k_full) + turn * kWideTiles;
        if ((threadIdx.x & 31u) == 0) ptx::mbarrier_arrive_release_cta(s_full, 1);
      }
      parities ^= 1u << turn;
      if (++turn == Tr::kWideStages) turn = 0;
    }
  }
  return parities;
}

// The role itself. Out of line, whole: the other way of loading keeps its registers, and nothing is alive across the call.
template <class Tr>
__device__ __noinline__ void run_load_rows_role(const KernelArgs& args, bool is_v) {
  walk_phases(args, own_storage<Tr>(), is_v,
              [](const LoadSide<Tr>& side, const Program& program, const Phase& phase,
                 uint32_t parities, uint32_t lane) {
                const uint32_t changes = parity_changes<Tr>(phase, lane);
                if (phase.kind == PhaseKind::kWide)
                  load_wide_rows(side, program, phase, parities, lane);
                else
                  load_narrow_rows(side, program, phase, parities, lane);
                return changes;
              });
}

}  // namespace capillary::tree_decode
