// SPDX-License-Identifier: MIT
// Compute role, narrow items: one warp, up to 16 rows, one tile of 16 tokens at a time.
//
// The tile lies in shared memory as it lay in the page: rows of head_dim elements, no swizzle, so that plain
// bulk copies (the fastest path from HBM) can bring it. The m16n8k16 fragments are taken with 16-byte loads:
//   K: lane (g, t) of a quad row reads chunk 4i + t (8 dims) of token g: k-slots of one row are any fixed
//      permutation of the dims as long as Q uses the same one, so a chunk feeds two products.
//   V: lane (g, t) reads chunk g + 8u of tokens 2t, 2t+1, 2t+8, 2t+9 and pairs tokens with byte permutes;
//      output column n of product j is dim 8 * (n + 8u) + j, so a lane ends up with 16 contiguous dims.
// Bank conflicts are two-way for K, four-way for V: counted, not
// measured, about 190 of the 410 cycles a tile takes at full HBM rate.
#pragma once

#include "cuda/sync.cuh"
#include "cuda/trace.cuh"
#include "cuda/tree_decode/rows.cuh"
#include "cuda/tree_decode/walk.cuh"
#include "shared/plan_layout.h"

namespace capillary::tree_decode {

// Rows g and g + 8 of an item's query, chunk 4i + t.
template <class Tr>
struct NarrowQuery {
  // From head_dim 192 on they do not fit beside the output and are read again for each tile (from L1).
  static constexpr bool kKept = Tr::kHalves <= 2;
  uint4 kept[kKept ? Tr::kChunkSteps : 1][2];
  const uint4* g_row[2];  // null: no such row
  __device__ __forceinline__ uint4 load(int i, int r, uint32_t t) const {
    const uint32_t chunk = 4u * static_cast<uint32_t>(i) + t;
    if (g_row[r] == nullptr || chunk >= Tr::kChunks) return uint4{0, 0, 0, 0};
    return ptx::ld_global_nc(g_row[r] + chunk);
  }
  __device__ __forceinline__ uint4 get(int i, int r, uint32_t t) const {
    if constexpr (kKept) return kept[i][r];
    return load(i, r, t);
  }
  __device__ __forceinline__ void start(const WorkItem& item, const JobRows& rows) {
    const uint32_t lane = threadIdx.x & 31u, g = lane >> 2, t = lane & 3u;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint32_t row = g + static_cast<uint32_t>(r) * 8;
      g_row[r] = row < item.num_rows
                     ? reinterpret_cast<const uint4*>(rows.q<typename Tr::T>(item.row_begin + row))
                     : nullptr;
      if constexpr (kKept)
#pragma unroll
        for (int i = 0; i < Tr::kChunkSteps; ++i) kept[i][r] = load(i, r, t);
    }
  }
};

template <class Tr>
struct NarrowState {
  NarrowQuery<Tr> q;
  float o[Tr::kHalves][8]
         [4];    // [u][j]: rows g (0, 1) and g + 8 (2, 3), columns 2t (0, 2), 2t + 1 (1, 3)
  float max[2];  // base 2, of rows g and g + 8
  float sum[2];  // this lane's share
};

template <class Tr>
__device__ __forceinline__ void narrow_begin(const WorkItem& item, Storage<Tr>& storage,
                                             NarrowState<Tr>& state) {
  const uint32_t lane = threadIdx.x & 31u, g = lane >> 2, t = lane & 3u;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const uint32_t row = g + static_cast<uint32_t>(r) * 8;
    const bool real = row < item.num_rows;
    state.max[r] = -INFINITY;
    state.sum[r] = 0.0f;
    const bool resumed = item.init_slot != kNoSlot && real;
    if (resumed) {
      const float2 saved = storage.slot_state[item.init_slot + row];
      state.max[r] = saved.x;
      state.sum[r] = t == 0 ? saved.y : 0.0f;
    }
#pragma unroll
    for (int u = 0; u < Tr::kHalves; ++u)
#pragma unroll
      for (int column = 0; column < 2; ++column)
#pragma unroll
        for (int j = 0; j < 8; j += 4) {
          float4 value{0, 0, 0, 0};
          if (resumed)
            value = *reinterpret_cast<const float4*>(
                slot_at(storage, item.init_slot + static_cast<int>(row),
                        64 * u + 16 * static_cast<int>(t) + 8 * column + j));
          state.o[u][j + 0][2 * r + column] = value.x;
          state.o[u][j + 1][2 * r + column] = value.y;
          state.o[u][j + 2][2 * r + column] = value.z;
          state.o[u][j + 3][2 * r + column] = value.w;
        }
  }
}

// scores[b][..]: rows g (0, 1), g + 8 (2, 3) x tokens 8b + 2t, 8b + 2t + 1.
template <class Tr>
__device__ __forceinline__ void narrow_scores(const unsigned char* s_k,
                                              const NarrowState<Tr>& state, float (&scores)[2][4]) {
  const uint32_t lane = threadIdx.x & 31u, g = lane >> 2, t = lane & 3u;
#pragma unroll
  for (int b = 0; b < 2; ++b)
#pragma unroll
    for (int c = 0; c < 4; ++c) scores[b][c] = 0.0f;
#pragma unroll
  for (int i = 0; i < Tr::kChunkSteps; ++i) {
    const uint32_t chunk = 4u * static_cast<uint32_t>(i) + t;
    const uint4 top = state.q.get(i, 0, t), bottom = state.q.get(i, 1, t);
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      uint4 k{0, 0, 0, 0};
      if (Tr::kChunks % 4 == 0 || chunk < Tr::kChunks)
        k = *reinterpret_cast<const uint4*>(
            s_k + (8u * static_cast<uint32_t>(b) + g) * Tr::kRowBytes + chunk * 16);
      ptx::mma_m16n8k16<typename Tr::T>(scores[b], top.x, bottom.x, top.y, bottom.y, k.x, k.y);
      ptx::mma_m16n8k16<typename Tr::T>(scores[b], top.z, bottom.z, top.w, bottom.w, k.z, k.w);
    }
  }
}

// Scores -> probabilities against the running maximum; rescales what was there. Returns them packed as the
// left operand of the next product.
template <class Tr>
__device__ __forceinline__ void narrow_softmax(float (&scores)[2][4], int32_t valid,
                                               float scale_log2, NarrowState<Tr>& state,
                                               uint32_t (&p)[4]) {
  const uint32_t t = threadIdx.x & 3u;
#pragma unroll
  for (int b = 0; b < 2; ++b)
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int32_t token = 8 * b + 2 * static_cast<int32_t>(t) + (c & 1);
      // A select, not an addition: the key of a token past the end may be NaN.
      scores[b][c] = token < valid ? scores[b][c] * scale_log2 : -INFINITY;
    }
  float correction[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float top = fmaxf(fmaxf(scores[0][2 * r], scores[0][2 * r + 1]),
                      fmaxf(scores[1][2 * r], scores[1][2 * r + 1]));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
    const float fresh = fmaxf(state.max[r], top);
    const float base = fresh == -INFINITY ? 0.0f : fresh;  // all scores -inf: no (-inf) - (-inf)
    correction[r] = ptx::ex2_approx(state.max[r] - base);
    state.max[r] = fresh;
    float sum = 0.0f;
#pragma unroll
    for (int b = 0; b < 2; ++b)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        scores[b][2 * r + c] = ptx::ex2_approx(scores[b][2 * r + c] - base);
        sum += scores[b][2 * r + c];
      }
    state.sum[r] = state.sum[r] * correction[r] + sum;
  }
  if (__any_sync(0xffffffffu, correction[0] != 1.0f || correction[1] != 1.0f)) {
#pragma unroll
    for (int u = 0; u < Tr::kHalves; ++u)
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        state.o[u][j][0] *= correction[0];
        state.o[u][j][1] *= correction[0];
        state.o[u][j][2] *= correction[1];
        state.o[u][j][3] *= correction[1];
      }
  }
  p[0] = pack2<typename Tr::T>(scores[0][0], scores[0][1]);
  p[1] = pack2<typename Tr::T>(scores[0][2], scores[0][3]);
  p[2] = pack2<typename Tr::T>(scores[1][0], scores[1][1]);
  p[3] = pack2<typename Tr::T>(scores[1][2], scores[1][3]);
}

template <class Tr, bool kPartial>
__device__ __forceinline__ void narrow_output(const unsigned char* s_v, int32_t valid,
                                              const uint32_t (&p)[4], NarrowState<Tr>& state) {
  const uint32_t lane = threadIdx.x & 31u, g = lane >> 2, t = lane & 3u;
#pragma unroll
  for (int u = 0; u < Tr::kHalves; ++u) {
    const uint32_t chunk = g + 8u * static_cast<uint32_t>(u);
    uint32_t v[4][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t token = 2 * t + (static_cast<uint32_t>(i) & 1u) + (i >= 2 ? 8u : 0u);
      uint4 value{0, 0, 0, 0};
      // Rows past the end are whatever was there before, possibly NaN, and 0 * NaN is NaN.
      const bool real = (!kPartial || static_cast<int32_t>(token) < valid) &&
                        (Tr::kChunks % 8 == 0 || chunk < Tr::kChunks);
      if (real) value = *reinterpret_cast<const uint4*>(s_v + token * Tr::kRowBytes + chunk * 16);
      v[i][0] = value.x, v[i][1] = value.y, v[i][2] = value.z, v[i][3] = value.w;
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const uint32_t select = (j & 1) ? 0x7632u : 0x5410u;  // high or low halves of the two tokens
      ptx::mma_m16n8k16<typename Tr::T>(state.o[u][j], p[0], p[1], p[2], p[3],
                                        __byte_perm(v[0][j / 2], v[1][j / 2], select),
                                        __byte_perm(v[2][j / 2], v[3][j / 2], select));
    }
  }
}

template <class Tr>
__device__ __forceinline__ void narrow_end(const WorkItem& item, const JobRows& rows,
                                           Storage<Tr>& storage, SlotGate& gate,
                                           NarrowState<Tr>& state) {
  const uint32_t lane = threadIdx.x & 31u, g = lane >> 2, t = lane & 3u;
  if (item.destination == Destination::kSlot) gate.pass();
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sum = state.sum[r];
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    const uint32_t row = g + static_cast<uint32_t>(r) * 8;
    if (row >= item.num_rows) continue;
    if (item.destination == Destination::kSlot) {
      const int slot = item.dest_slot + static_cast<int>(row);
      if (t == 0) storage.slot_state[slot] = {state.max[r], sum};
#pragma unroll
      for (int u = 0; u < Tr::kHalves; ++u)
#pragma unroll
        for (int column = 0; column < 2; ++column)
#pragma unroll
          for (int j = 0; j < 8; j += 4)
            *reinterpret_cast<float4*>(
                slot_at(storage, slot, 64 * u + 16 * static_cast<int>(t) + 8 * column + j)) = {
                state.o[u][j][2 * r + column], state.o[u][j + 1][2 * r + column],
                state.o[u][j + 2][2 * r + column], state.o[u][j + 3][2 * r + column]};
    } else {
      const float inverse = sum > 0.0f ? 1.0f / sum : 0.0f;
      typename Tr::T* out = rows.out<typename Tr::T>(item.row_begin + row);
#pragma unroll
      for (int u = 0; u < Tr::kHalves; ++u)
#pragma unroll
        for (int column = 0; column < 2; ++column) {
          const int dim = 64 * u + 16 * static_cast<int>(t) + 8 * column;
          if (Tr::kHeadDim % 64 != 0 && dim >= Tr::kHeadDim) continue;
          uint4 packed;
          const int c = 2 * r + column;
          packed.x = pack2<typename Tr::T>(state.o[u][0][c] * inverse, state.o[u][1][c] * inverse);
          packed.y = pack2<typename Tr::T>(state.o[u][2][c] * inverse, state.o[u][3][c] * inverse);
          packed.z = pack2<typename Tr::T>(state.o[u][4][c] * inverse, state.o[u][5][c] * inverse);
          packed.w = pack2<typename Tr::T>(state.o[u][6][c] * inverse, state.o[u][7][c] * inverse);
          *reinterpret_cast<uint4*>(out + dim) = packed;
        }
      if (t == 0) rows.write_lse(item.row_begin + row, state.max[r], sum);
    }
  }
}

// One warp's stream of a narrow phase.
template <class Tr>
__device__ void compute_narrow_stream(const KernelArgs& args, Storage<Tr>& storage,
                                      const Program& program, const Phase& phase,
                                      const JobRows& rows, uint32_t parities, SlotGate& gate,
                                      Tracer& tracer) {
  const uint32_t stream = threadIdx.x / 32;
  if (stream >= Tr::kStreams) return;
  uint32_t index = phase.item_begin;
  for (uint32_t other = 0; other < stream; ++other) index += phase.stream_items[other];
  const uint32_t end = index + phase.stream_items[stream];
  uint32_t turn = 0, flipped = 0;
  // The query of the item after the one in hand: short items would otherwise wait for theirs each time.
  NarrowQuery<Tr> next;
  if (index < end) next.start(program.items[index], rows);
  for (; index < end; ++index) {
    const WorkItem& item = program.items[index];
    tracer.mark(TraceEvent::kItem, item.num_tiles);
    NarrowState<Tr> state;
    state.q = next;
    if (index + 1 < end) next.start(program.items[index + 1], rows);
    narrow_begin(item, storage, state);
    for (uint32_t tile = 0; tile < item.num_tiles; ++tile) {
      const uint32_t stage = stream + turn * Tr::kStreams;
      const uint32_t parity = ((parities >> stage) & 1u) ^ flipped;
      const unsigned char* s_k = storage.ring + stage * Tr::kStageBytes;
      float scores[2][4];
      uint32_t p[4];
      tracer.begin_wait();
      wait_cta(storage.k_full, stage, parity, Wait::kKFull);
      tracer.end_wait();
      const auto valid = static_cast<int32_t>(storage.stage_tokens[stage]);
      narrow_scores<Tr>(s_k, state, scores);
      narrow_softmax<Tr>(scores, valid, args.scale_log2, state, p);
      tracer.begin_wait();
      wait_cta(storage.v_full, stage, parity, Wait::kVFull);
      tracer.end_wait();
      if (valid == kTileTokens)
        narrow_output<Tr, false>(s_k + Tr::kHalfTileBytes, valid, p, state);
      else
        narrow_output<Tr, true>(s_k + Tr::kHalfTileBytes, valid, p, state);
      __syncwarp();
      // This warp alone used the stage: all eight arrivals.
      if ((threadIdx.x & 31u) == 0)
        ptx::mbarrier_arrive_release_cta(storage.stage_empty + stage, Tr::kConsumerWarps);
      if (++turn == Tr::kStagesPerStream) {
        turn = 0;
        flipped ^= 1u;
      }
    }
    narrow_end(item, rows, storage, gate, state);
    // The stream's next item may start from the slots that this one has left, with other lanes a row.
    __syncwarp();
  }
}

}  // namespace capillary::tree_decode
