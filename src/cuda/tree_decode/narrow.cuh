// SPDX-License-Identifier: MIT
// Compute role, narrow items: one warp, up to 16 rows, one tile of 16 tokens at a time.
//
// Keys and values are the left operands (16 wide), the rows the right one (8 wide), so that items of up to eight
// rows, leaves above all, cost half of what 16 rows do:
//   S^T = K Q^T    tokens x rows    (m16n8k16, head_dim / 16 of them for every eight rows)
//   O^T = V^T P^T  dims x rows      (likewise)
// A lane (g, t) = (lane / 4, lane % 4) then holds rows 2t and 2t + 1 alone: their references, sums and
// corrections are its own, and of each 64 dims it has the eight from 8g on.
//
// The tile lies in shared memory as it lay in the page, rows of head_dim elements, no swizzle, so that plain bulk
// copies (the fastest path from HBM; in pieces of 2 KB they lose 8 %) can bring it. Fragments are taken with 16-byte
// loads, and bank conflicts are what limits them:
//   K: lane (g, t) reads chunk 4i + t (8 dims) of tokens g and g + 8. Which dims stand for which k is free, if Q
//      does the same; a chunk feeds two products. Rows 2n and 2n + 1 are read together and lie in the same
//      banks, so odd rows read chunks 4(i + 1) + t first, and registers are swapped: no conflicts.
//   V: lane (g, t) reads chunks g and 8 + (g ^ 4) of tokens 2t, 2t + 1, 2t + 8, 2t + 9 and pairs tokens with byte
//      permutes: fragment row g of product j is dim 8g + j. Odd t read the second chunk first: two-way
//      conflicts where they would be four-way.
#pragma once

#include "cuda/sync.cuh"
#include "cuda/trace.cuh"
#include "cuda/tree_decode/rows.cuh"
#include "cuda/tree_decode/walk.cuh"
#include "shared/plan_layout.h"

namespace capillary::tree_decode {

// A quad row and a place in it, and 1.0f: all through a shuffle, so that ptxas neither reads the thread's number again
// for each tile nor knows what a product with `one` is. Such products stand between slots, read and written four dims
// at a time, and the output, whose registers go four rows and dims to a product: without them ptxas keeps the
// output in the slots' order and moves all of it before and after the products of every tile.
struct NarrowLane {
  uint32_t g, t;
  float one;
  __device__ __forceinline__ static NarrowLane mine() {
    const auto own = static_cast<int>(ptx::thread_index() & 31u);
    const uint32_t lane = __shfl_sync(0xffffffffu, static_cast<uint32_t>(own), own);
    return {lane / 4, lane % 4, __uint_as_float(0x3f800000u | lane >> 5)};
  }
};

// Rows that begin in the same bank.
template <class Tr>
inline constexpr bool kAlignedRows = Tr::kRowBytes % 128 == 0;

// The lane's chunk of 8 dims in a half (64 dims).
template <class Tr>
__device__ __forceinline__ uint32_t narrow_chunk(NarrowLane lane, int half) {
  const bool second = kAlignedRows<Tr> && half % 2 == 1;
  return 8u * static_cast<uint32_t>(half) + (second ? lane.g ^ 4u : lane.g);
}

__device__ __forceinline__ void swap_if(bool swaps, uint4& a, uint4& b) {
  const uint4 c = swaps ? b : a;
  b = swaps ? a : b;
  a = c;
}

// Chunk 4i + t of a query row; no row: zeros.
template <class Tr>
__device__ __forceinline__ uint4 query_chunk(NarrowLane lane, const uint4* g_row, int i) {
  const uint32_t chunk = 4u * static_cast<uint32_t>(i) + lane.t;
  const bool real = g_row != nullptr && (Tr::kChunks % 4 == 0 || chunk < Tr::kChunks);
  return real ? ptx::ld_global_nc(g_row + chunk) : uint4{0, 0, 0, 0};
}

// The query rows of an item, lane (g, t) those of rows g and 8 + g. The second eight are not kept beside the output of
// 16 rows: read again for each tile, from L1.
template <class Tr, int kBlocks>
struct NarrowQuery {
  uint4 first[Tr::kChunkSteps];
  const uint4* g_second;  // kBlocks == 2
  __device__ __forceinline__ void load(NarrowLane lane, const uint4* g_first) {
#pragma unroll
    for (int i = 0; i < Tr::kChunkSteps; ++i) first[i] = query_chunk<Tr>(lane, g_first, i);
  }
};

// The lane's row of a block, 8 * block + g. Rows that the item has not are its last.
__device__ __forceinline__ uint32_t narrow_row(NarrowLane lane, uint32_t block,
                                               const WorkItem& item) {
  return item.row_begin + min(8 * block + lane.g, item.num_rows - 1u);
}

template <class Tr>
__device__ __forceinline__ const uint4* query_row(const JobRows& rows,
                                                  const JobRows::Place& place) {
  return reinterpret_cast<const uint4*>(rows.q<typename Tr::T>(place));
}

// The query token of the lane's row of an item's first block, looked up one item ahead, and the query asked for into
// L1: a short item would otherwise wait for them. In registers the query would crowd out the item in hand.
template <class Tr>
__device__ __forceinline__ int32_t look_ahead(NarrowLane lane, const WorkItem& item,
                                              const JobRows& rows) {
  constexpr uint32_t kLines = (Tr::kRowBytes + 127) / 128;
  const JobRows::Place place = rows.place(narrow_row(lane, 0, item));
  if (lane.t < kLines) ptx::prefetch_l1(query_row<Tr>(rows, place) + lane.t * 8);
  return place.token;
}

// The partial of 8 * kBlocks rows. Lane (g, t) has rows 8 * block + 2t + column.
template <class Tr, int kBlocks>
struct NarrowState {
  static constexpr int kPairs = Tr::kHalves / 2;  // of 64-dim blocks, which share eight products
  static constexpr int kProducts = Tr::kDim / 16;
  float o[kBlocks][kProducts][4];
  float max[kBlocks][2];  // base 2
  float sum[kBlocks][2];  // this lane's share
  // Dim 8 * narrow_chunk(half) + j.
  __device__ __forceinline__ float& at(int block, int half, int j, int column) {
    return half < 2 * kPairs ? o[block][8 * (half / 2) + j][2 * (half & 1) + column]
                             : o[block][8 * kPairs + (j & 3)][2 * (j >> 2) + column];
  }
};

template <class Tr, int kBlocks>
__device__ __forceinline__ void narrow_begin(NarrowLane lane, const WorkItem& item,
                                             Storage<Tr>& storage,
                                             NarrowState<Tr, kBlocks>& state) {
#pragma unroll
  for (int block = 0; block < kBlocks; ++block)
#pragma unroll
    for (int column = 0; column < 2; ++column) {
      state.max[block][column] = -INFINITY;
      state.sum[block][column] = 0.0f;
#pragma unroll
      for (int half = 0; half < Tr::kHalves; ++half)
#pragma unroll
        for (int j = 0; j < 8; ++j) state.at(block, half, j, column) = 0.0f;
    }
  if (item.init_slot == kNoSlot) return;
#pragma unroll
  for (int block = 0; block < kBlocks; ++block)
#pragma unroll
    for (int column = 0; column < 2; ++column) {
      // Rows that the item has not repeat its last: nobody looks at them, and the warp stays together.
      const uint32_t row = min(8u * block + 2u * lane.t + column, item.num_rows - 1u);
      const int slot = item.init_slot + static_cast<int>(row);
      const float2 saved = storage.slot_state[slot];
      state.max[block][column] = saved.x;
      state.sum[block][column] = lane.g == 0 ? saved.y : 0.0f;
#pragma unroll
      for (int half = 0; half < Tr::kHalves; ++half)
#pragma unroll
        for (int j = 0; j < 8; j += 4) {
          const float4 value = *reinterpret_cast<const float4*>(
              slot_at(storage, slot, 8 * static_cast<int>(narrow_chunk<Tr>(lane, half)) + j));
          state.at(block, half, j + 0, column) = value.x * lane.one;
          state.at(block, half, j + 1, column) = value.y * lane.one;
          state.at(block, half, j + 2, column) = value.z * lane.one;
          state.at(block, half, j + 3, column) = value.w * lane.one;
        }
    }
}

// scores[block]: tokens of fragment rows g (0, 1) and g + 8 (2, 3) x rows 2t, 2t + 1.
template <class Tr, int kBlocks>
__device__ __forceinline__ void narrow_scores(NarrowLane lane, const unsigned char* s_k,
                                              const NarrowQuery<Tr, kBlocks>& query, uint4 second,
                                              float (&scores)[kBlocks][4]) {
  const unsigned char* s_row = s_k + lane.g * Tr::kRowBytes + lane.t * 16;
  // Two chains of products for one block of rows; two blocks are two chains already.
  float other[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
  for (int block = 0; block < kBlocks; ++block)
#pragma unroll
    for (int c = 0; c < 4; ++c) scores[block][c] = 0.0f;
  constexpr bool kSwaps = kAlignedRows<Tr> && Tr::kChunkSteps % 2 == 0;
  const bool odd = kSwaps && (lane.g & 1u) != 0;
  uint4 lows[2], highs[2];  // of two steps
#pragma unroll
  for (int i = 0; i < Tr::kChunkSteps; ++i) {
    if (!kSwaps || i % 2 == 0) {
#pragma unroll
      for (int step = 0; step < (kSwaps ? 2 : 1); ++step) {
        lows[step] = highs[step] = uint4{0, 0, 0, 0};
        if (Tr::kChunks % 4 != 0 && 4u * static_cast<uint32_t>(i) + lane.t >= Tr::kChunks) continue;
        const unsigned char* s_chunk = s_row + (i + (odd ? 1 - step : step)) * 64;
        lows[step] = *reinterpret_cast<const uint4*>(s_chunk);
        highs[step] = *reinterpret_cast<const uint4*>(s_chunk + 8 * Tr::kRowBytes);
      }
      swap_if(odd, lows[0], lows[1]);
      swap_if(odd, highs[0], highs[1]);
    }
    const uint4 low = lows[kSwaps ? i % 2 : 0], high = highs[kSwaps ? i % 2 : 0];
    const uint4 q = query.first[i];
    ptx::mma_m16n8k16<typename Tr::T>(scores[0], low.x, high.x, low.y, high.y, q.x, q.y);
    ptx::mma_m16n8k16<typename Tr::T>(kBlocks == 1 ? other : scores[0], low.z, high.z, low.w,
                                      high.w, q.z, q.w);
    if constexpr (kBlocks == 2) {
      const uint4 p = second;
      if (i + 1 < Tr::kChunkSteps) second = query_chunk<Tr>(lane, query.g_second, i + 1);
      ptx::mma_m16n8k16<typename Tr::T>(scores[1], low.x, high.x, low.y, high.y, p.x, p.y);
      ptx::mma_m16n8k16<typename Tr::T>(scores[1], low.z, high.z, low.w, high.w, p.z, p.w);
    }
  }
  if constexpr (kBlocks == 1)
#pragma unroll
    for (int c = 0; c < 4; ++c) scores[0][c] += other[c];
}

// Scores of a tile -> probabilities against the rows' references (kSumLimit), and this lane's sums of them. The score in
// base 2 is rounded before the reference is taken off, as it was when it became one: a row's best key then has
// probability 1 however large the scores are.
template <class Tr, int kBlocks>
__device__ __forceinline__ void narrow_probabilities(
    NarrowLane lane, const float (&scores)[kBlocks][4], uint32_t valid, float scale_log2,
    const NarrowState<Tr, kBlocks>& state, float (&values)[kBlocks][4], float (&sums)[kBlocks][2]) {
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const float value =
          ptx::ex2_approx(__fmul_rn(scores[block][c], scale_log2) - state.max[block][c & 1]);
      // A select, not a product: the key of a token past the end may be NaN.
      values[block][c] = lane.g + 8u * (c >> 1) < valid ? value : 0.0f;
    }
#pragma unroll
    for (int column = 0; column < 2; ++column)
      sums[block][column] = values[block][column] + values[block][2 + column];
  }
}

// Moves the references up to the tile's maxima. Seldom: rows that have one already hardly ever need another.
template <class Tr, int kBlocks>
__device__ __forceinline__ void narrow_move_references(NarrowLane lane,
                                                       const float (&scores)[kBlocks][4],
                                                       uint32_t valid, float scale_log2,
                                                       NarrowState<Tr, kBlocks>& state) {
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    float correction[2];
#pragma unroll
    for (int column = 0; column < 2; ++column) {
      float top = fmaxf(lane.g < valid ? scores[block][column] : -INFINITY,
                        lane.g + 8u < valid ? scores[block][2 + column] : -INFINITY);
#pragma unroll
      for (int offset = 4; offset < 32; offset *= 2)
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, offset));
      correction[column] = move_reference(state.max[block][column], top * scale_log2);
      state.sum[block][column] *= correction[column];
    }
#pragma unroll
    for (int product = 0; product < NarrowState<Tr, kBlocks>::kProducts; ++product)
#pragma unroll
      for (int c = 0; c < 4; ++c) state.o[block][product][c] *= correction[c & 1];
  }
}

// The probabilities of a tile as the right operand of the next product: p[block][h] has k = 2t, 2t + 1 (+ 8h) of row g. Rows
// without a reference (-inf) have infinite ones, and get a reference for it.
template <class Tr, int kBlocks>
__device__ __forceinline__ void narrow_softmax(NarrowLane lane, const float (&scores)[kBlocks][4],
                                               uint32_t valid, float scale_log2,
                                               NarrowState<Tr, kBlocks>& state,
                                               uint32_t (&p)[kBlocks][2]) {
  float values[kBlocks][4], sums[kBlocks][2];
  narrow_probabilities(lane, scores, valid, scale_log2, state, values, sums);
  bool fits = true;
#pragma unroll
  for (int block = 0; block < kBlocks; ++block)
    fits = fits & (sums[block][0] <= kSumLimit) & (sums[block][1] <= kSumLimit);
  if (!__all_sync(0xffffffffu, fits)) {
    narrow_move_references(lane, scores, valid, scale_log2, state);
    narrow_probabilities(lane, scores, valid, scale_log2, state, values, sums);
  }
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
    for (int column = 0; column < 2; ++column) state.sum[block][column] += sums[block][column];
#pragma unroll
    for (int h = 0; h < 2; ++h)
      p[block][h] = ptx::movmatrix_trans(
          pack2<typename Tr::T>(values[block][2 * h], values[block][2 * h + 1]));
  }
}

// Tokens of k = 2t, 2t + 1, 2t + 8, 2t + 9.
__device__ __forceinline__ uint32_t narrow_token(NarrowLane lane, int i) {
  return 2 * lane.t + (static_cast<uint32_t>(i) & 1u) + (i >= 2 ? 8u : 0u);
}

// Values past a tile's end are whatever was there before, possibly NaN, and 0 * NaN is NaN: zeros instead. In place and
// behind a branch: a second copy of the products for such tiles would have the warp move the output from one copy's
// registers to the other's, every time.
__device__ __forceinline__ void narrow_clear(NarrowLane lane, uint32_t valid, uint4 (&v)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (narrow_token(lane, i) >= valid) v[i] = uint4{0, 0, 0, 0};
}

// The lane's chunk of one of the halves of token i.
template <class Tr>
__device__ __forceinline__ uint4 narrow_value(NarrowLane lane, const unsigned char* s_v, int i,
                                              uint32_t chunk) {
  const uint32_t token = narrow_token(lane, i);
  if (Tr::kChunks % 8 != 0 && chunk >= Tr::kChunks) return uint4{0, 0, 0, 0};
  return *reinterpret_cast<const uint4*>(s_v + token * Tr::kRowBytes + chunk * 16);
}

template <class Tr, int kBlocks>
__device__ __forceinline__ void narrow_output(NarrowLane lane, const unsigned char* s_v,
                                              uint32_t valid, const uint32_t (&p)[kBlocks][2],
                                              NarrowState<Tr, kBlocks>& state) {
  constexpr int kPairs = NarrowState<Tr, kBlocks>::kPairs;
  // Dim j of a chunk: the low or high halves of two tokens' words.
  const auto pair = [](const uint4& a, const uint4& b, int j) {
    const uint32_t from_a = j / 2 == 0 ? a.x : j / 2 == 1 ? a.y : j / 2 == 2 ? a.z : a.w;
    const uint32_t from_b = j / 2 == 0 ? b.x : j / 2 == 1 ? b.y : j / 2 == 2 ? b.z : b.w;
    return __byte_perm(from_a, from_b, (j & 1) ? 0x7632u : 0x5410u);
  };
  const auto add = [&](int product, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3) {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block)
      ptx::mma_m16n8k16<typename Tr::T>(state.o[block][product], a0, a1, a2, a3, p[block][0],
                                        p[block][1]);
  };
  const bool odd = kAlignedRows<Tr> && (lane.t & 1u) != 0;
#pragma unroll
  for (int w = 0; w < kPairs; ++w) {
    const uint32_t low = narrow_chunk<Tr>(lane, 2 * w), high = narrow_chunk<Tr>(lane, 2 * w + 1);
    // Selected, not indexed: an array indexed by the lane would go through local memory.
    const uint32_t first = odd ? high : low, second = odd ? low : high;
    uint4 v[2][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v[0][i] = narrow_value<Tr>(lane, s_v, i, first);
      v[1][i] = narrow_value<Tr>(lane, s_v, i, second);
    }
    if (valid < kTileTokens) {
      narrow_clear(lane, valid, v[0]);
      narrow_clear(lane, valid, v[1]);
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const uint32_t a[2] = {pair(v[0][0], v[0][1], j), pair(v[0][2], v[0][3], j)};
      const uint32_t b[2] = {pair(v[1][0], v[1][1], j), pair(v[1][2], v[1][3], j)};
      add(8 * w + j, odd ? b[0] : a[0], odd ? a[0] : b[0], odd ? b[1] : a[1], odd ? a[1] : b[1]);
    }
  }
  if constexpr (Tr::kHalves % 2 != 0) {
    uint4 v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      v[i] = narrow_value<Tr>(lane, s_v, i, narrow_chunk<Tr>(lane, 2 * kPairs));
    if (valid < kTileTokens) narrow_clear(lane, valid, v);
#pragma unroll
    for (int j = 0; j < 4; ++j)
      add(8 * kPairs + j, pair(v[0], v[1], j), pair(v[0], v[1], j + 4), pair(v[2], v[3], j),
          pair(v[2], v[3], j + 4));
  }
}

// Leaves the rows in their slots.
template <class Tr, int kBlocks>
__device__ __forceinline__ void narrow_keep(NarrowLane lane, const WorkItem& item,
                                            Storage<Tr>& storage, NarrowState<Tr, kBlocks>& state) {
#pragma unroll
  for (int block = 0; block < kBlocks; ++block)
#pragma unroll
    for (int column = 0; column < 2; ++column) {
      const uint32_t row = 8u * block + 2u * lane.t + column;
      const bool real = row < item.num_rows;
      const int slot = item.dest_slot + static_cast<int>(row);
      if (real && lane.g == 0)
        storage.slot_state[slot] = {state.max[block][column], state.sum[block][column]};
#pragma unroll
      for (int half = 0; half < Tr::kHalves; ++half)
#pragma unroll
        for (int j = 0; j < 8; j += 4)
          if (real)
            *reinterpret_cast<float4*>(
                slot_at(storage, slot, 8 * static_cast<int>(narrow_chunk<Tr>(lane, half)) + j)) = {
                state.at(block, half, j, column) * lane.one,
                state.at(block, half, j + 1, column) * lane.one,
                state.at(block, half, j + 2, column) * lane.one,
                state.at(block, half, j + 3, column) * lane.one};
    }
}

// Normalises and writes the rows. `token` is that of row g; the lane has rows 2t and 2t + 1.
template <class Tr, int kBlocks>
__device__ __forceinline__ void narrow_write(NarrowLane lane, const WorkItem& item,
                                             const JobRows& rows, int32_t token,
                                             NarrowState<Tr, kBlocks>& state) {
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    if (block == 1) token = rows.token(narrow_row(lane, 1, item));
#pragma unroll
    for (int column = 0; column < 2; ++column) {
      const auto source = static_cast<int>(8 * lane.t + 4u * column);
      const uint32_t row = 8u * block + 2u * lane.t + column;
      const JobRows::Place at{__shfl_sync(0xffffffffu, token, source),
                              rows.head(item.row_begin + row)};
      const bool real = row < item.num_rows;
      const float inverse = normaliser(state.sum[block][column]);
      typename Tr::T* out = rows.out<typename Tr::T>(at);
#pragma unroll
      for (int half = 0; half < Tr::kHalves; ++half) {
        const int dim = 8 * static_cast<int>(narrow_chunk<Tr>(lane, half));
        if (Tr::kHeadDim % 64 != 0 && dim >= Tr::kHeadDim) continue;
        uint32_t packed[4];
#pragma unroll
        for (int j = 0; j < 8; j += 2)
          packed[j / 2] = pack2<typename Tr::T>(state.at(block, half, j, column) * inverse,
                                                state.at(block, half, j + 1, column) * inverse);
        if (real)
          *reinterpret_cast<uint4*>(out + dim) = {packed[0], packed[1], packed[2], packed[3]};
      }
      if (real && lane.g == 0)
        rows.write_lse(at, state.max[block][column], state.sum[block][column]);
    }
  }
}

template <class Tr, int kBlocks>
__device__ __forceinline__ void narrow_end(NarrowLane lane, const WorkItem& item,
                                           const JobRows& rows, int32_t token, Storage<Tr>& storage,
                                           SlotGate& gate, NarrowState<Tr, kBlocks>& state) {
#pragma unroll
  for (int offset = 4; offset < 32; offset *= 2)
#pragma unroll
    for (int block = 0; block < kBlocks; ++block)
#pragma unroll
      for (int column = 0; column < 2; ++column)
        state.sum[block][column] += __shfl_xor_sync(0xffffffffu, state.sum[block][column], offset);
  if (item.destination == Destination::kSlot) {
    gate.pass();
    narrow_keep(lane, item, storage, state);
  } else {
    narrow_write(lane, item, rows, token, state);
  }
}

// Which of a stream's stages is next, and which use of it that is.
template <class Tr>
struct StreamTurn {
  uint32_t stream, parities;
  uint32_t turn = 0, flipped = 0;
  __device__ __forceinline__ uint32_t stage() const { return stream + turn * Tr::kStreams; }
  __device__ __forceinline__ uint32_t parity() const {
    return ((parities >> stage()) & 1u) ^ flipped;
  }
  __device__ __forceinline__ void advance() {
    if (++turn == Tr::kStagesPerStream) {
      turn = 0;
      flipped ^= 1u;
    }
  }
};

template <class Tr, int kBlocks>
__device__ __forceinline__ void compute_narrow_item(const KernelArgs& args, Storage<Tr>& storage,
                                                    NarrowLane lane, const WorkItem& item,
                                                    int32_t token, const JobRows& rows,
                                                    StreamTurn<Tr>& turn, SlotGate& gate,
                                                    Tracer& tracer) {
  NarrowQuery<Tr, kBlocks> query;
  const JobRows::Place place{token, rows.head(narrow_row(lane, 0, item))};
  query.load(lane, lane.g < item.num_rows ? query_row<Tr>(rows, place) : nullptr);
  query.g_second = nullptr;
  if (kBlocks == 2 && 8 + lane.g < item.num_rows)
    query.g_second = query_row<Tr>(rows, rows.place(narrow_row(lane, 1, item)));
  NarrowState<Tr, kBlocks> state;
  narrow_begin(lane, item, storage, state);
  for (uint32_t left = item.num_tiles; left > 0; --left) {
    const uint32_t stage = turn.stage(), parity = turn.parity();
    const unsigned char* s_k = storage.ring + stage * Tr::kStageBytes;
    float scores[kBlocks][4];
    uint32_t p[kBlocks][2];
    uint4 second{};  // the query rows' first chunk
    if constexpr (kBlocks == 2) second = query_chunk<Tr>(lane, query.g_second, 0);
    tracer.begin_wait();
    wait_cta(storage.k_full, stage, parity, Wait::kKFull);
    tracer.end_wait();
    const uint32_t valid = storage.stage_tokens[stage];
    narrow_scores<Tr, kBlocks>(lane, s_k, query, second, scores);
    narrow_softmax<Tr, kBlocks>(lane, scores, valid, args.scale_log2, state, p);
    tracer.begin_wait();
    wait_cta(storage.v_full, stage, parity, Wait::kVFull);
    tracer.end_wait();
    narrow_output<Tr, kBlocks>(lane, s_k + Tr::kHalfTileBytes, valid, p, state);
    __syncwarp();
    // This warp alone used the stage: all eight arrivals.
    if (lane.g == 0 && lane.t == 0)
      ptx::mbarrier_arrive_release_cta(storage.stage_empty + stage, Tr::kConsumerWarps);
    turn.advance();
  }
  narrow_end(lane, item, rows, token, storage, gate, state);
}

// One warp's stream of a narrow phase.
template <class Tr>
__device__ void compute_narrow_stream(const KernelArgs& args, Storage<Tr>& storage,
                                      const Program& program, const Phase& phase,
                                      const JobRows& rows, uint32_t parities, SlotGate& gate,
                                      Tracer& tracer) {
  const uint32_t thread = ptx::thread_index();
  const uint32_t stream = thread / 32;
  if (stream >= Tr::kStreams) return;
  const NarrowLane lane = NarrowLane::mine();
  uint32_t index = phase.item_begin + items_before(phase, stream, thread % 32);
  const uint32_t end = index + phase.stream_items[stream];
  if (index == end) return;
  StreamTurn<Tr> turn{stream, parities};
  int32_t next = look_ahead<Tr>(lane, program.items[index], rows);
  for (; index < end; ++index) {
    const WorkItem item = program.items[index];
    const int32_t token = next;
    tracer.mark(TraceEvent::kItem, item.num_tiles);
    if (index + 1 < end) next = look_ahead<Tr>(lane, program.items[index + 1], rows);
    if (item.num_rows <= 8)
      compute_narrow_item<Tr, 1>(args, storage, lane, item, token, rows, turn, gate, tracer);
    else
      compute_narrow_item<Tr, 2>(args, storage, lane, item, token, rows, turn, gate, tracer);
    // The stream's next item may start from the slots that this one has left, with other lanes a row.
    __syncwarp();
    ptx::forget(index);  // the outcome of its comparison would be kept in a register all the while
  }
}

}  // namespace capillary::tree_decode
