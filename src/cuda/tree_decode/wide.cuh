// SPDX-License-Identifier: MIT
// Compute role, wide items: a warpgroup holds 64 rows; a step is four tiles (64 tokens) in the 128-byte swizzle.
//
// More than 64 rows: the two warpgroups take 64 rows each of every step. 64 or fewer: they take alternate steps
// of the same rows and warpgroup 0 folds warpgroup 1's partial in at the end, through the item's own slots.
// head_dim 192 and 256 (jobs of at most 64 rows there): both take every step of the same rows, work the same
// scores out, and each keeps half of the output's columns: all of them do not fit one thread's registers.
// S = Q K^T: Q in registers, K by descriptor, 64 x 64. O += P V: P is S's accumulator repacked, V by descriptor.
// The scores of a step are multiplied out while the output of the step before is still in the tensor cores, and
// the softmax runs beside that; the two warpgroups drift apart and fill each other's gaps.
#pragma once

#include "cuda/sync.cuh"
#include "cuda/trace.cuh"
#include "cuda/tree_decode/rows.cuh"
#include "cuda/tree_decode/walk.cuh"
#include "shared/plan_layout.h"

namespace capillary::tree_decode {

// Accumulator of 64 rows x 64 columns: lane (g, t) of warp w has rows 16w + g (elements 4j, 4j + 1) and
// 16w + g + 8 (4j + 2, 4j + 3), columns 8j + 2t and 8j + 2t + 1.
template <class Tr>
struct WideState {
  uint32_t q[Tr::kDim / 16][4];
  float o[Tr::kWideHalves][32];
  float max[2];
  float sum[2];  // this lane's share
};

// Shared-memory matrix descriptor (PTX ISA 9.7.15.5.1): 128-byte swizzle, 8-row groups 1024 bytes apart. Bytes are
// added to it as multiples of 16.
__device__ __forceinline__ uint64_t swizzled_descriptor(const void* s_tile) {
  const uint64_t address = ptx::smem_address(s_tile);
  return ((address & 0x3ffffu) >> 4) | (uint64_t{1024 >> 4} << 16) | (uint64_t{1024 >> 4} << 32) |
         (uint64_t{1} << 62);
}
constexpr uint64_t descriptor_offset(uint32_t bytes) {
  return bytes >> 4;
}

template <class Tr>
struct WideRows {
  uint32_t warpgroup, first_row;  // of the item, for this warpgroup
  bool alternate;                 // both warpgroups work on the same rows, a step each
  __device__ __forceinline__ explicit WideRows(const WorkItem& item)
      : warpgroup(threadIdx.x / 128), alternate(!Tr::kSplitColumns && item.num_rows <= 64) {
    first_row = alternate || Tr::kSplitColumns ? 0 : warpgroup * 64;
  }
  // Which 64 columns this warpgroup's accumulator h holds, and whether they exist (192 leaves one over, which
  // repeats the last).
  __device__ __forceinline__ uint32_t half(int h) const {
    return Tr::kSplitColumns
               ? min(warpgroup * Tr::kWideHalves + static_cast<uint32_t>(h), Tr::kHalves - 1u)
               : static_cast<uint32_t>(h);
  }
  __device__ __forceinline__ bool owns(int h) const {
    return !Tr::kSplitColumns ||
           warpgroup * Tr::kWideHalves + static_cast<uint32_t>(h) < Tr::kHalves;
  }
  // One warpgroup speaks for the rows' maximum and sum.
  __device__ __forceinline__ bool owns_state() const {
    return !Tr::kSplitColumns || warpgroup == 0;
  }
  __device__ __forceinline__ int column(int h, int j) const {
    return static_cast<int>(64 * half(h)) + 8 * j + 2 * static_cast<int>(threadIdx.x & 3u);
  }
  // Item row of this lane's row r (0: g, 1: g + 8).
  __device__ __forceinline__ uint32_t row(int r) const {
    return first_row + ((threadIdx.x >> 5) & 3u) * 16 + ((threadIdx.x & 31u) >> 2) +
           static_cast<uint32_t>(r) * 8;
  }
};

template <class Tr>
__device__ __forceinline__ void wide_begin(const WorkItem& item, const JobRows& rows,
                                           const WideRows<Tr>& mine, Storage<Tr>& storage,
                                           WideState<Tr>& state) {
  const uint32_t t = threadIdx.x & 3u;
  // Of two warpgroups on the same rows only the first resumes the saved state.
  const bool resumes = item.init_slot != kNoSlot && !(mine.alternate && mine.warpgroup == 1);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const uint32_t row = mine.row(r);
    const bool real = row < item.num_rows;
    const typename Tr::T* q = rows.q<typename Tr::T>(item.row_begin + (real ? row : 0));
#pragma unroll
    for (int s = 0; s < Tr::kDim / 16; ++s)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t dim =
            16u * static_cast<uint32_t>(s) + 8u * static_cast<uint32_t>(half) + 2 * t;
        state.q[s][2 * half + r] =
            real && dim < Tr::kHeadDim ? __ldg(reinterpret_cast<const uint32_t*>(q + dim)) : 0u;
      }
    state.max[r] = -INFINITY;
    state.sum[r] = 0.0f;
    const bool resumed = resumes && real;
    const int slot = item.init_slot + static_cast<int>(row);
    if (resumed) {
      const float2 saved = storage.slot_state[slot];
      state.max[r] = saved.x;
      state.sum[r] = t == 0 ? saved.y : 0.0f;
    }
#pragma unroll
    for (int h = 0; h < Tr::kWideHalves; ++h)
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        float2 value{0.0f, 0.0f};
        if (resumed)
          value = *reinterpret_cast<const float2*>(slot_at(storage, slot, mine.column(h, j)));
        state.o[h][4 * j + 2 * r] = value.x;
        state.o[h][4 * j + 2 * r + 1] = value.y;
      }
  }
}

// Four tiles of 16 valid tokens.
inline constexpr uint32_t kFullStep = 16u | 16u << 5 | 16u << 10 | 16u << 15;

// Masks, running maximum, probabilities. The output must be multiplied by `correction` before the next product
// is added. `valid`: 5 bits a tile.
template <class Tr>
__device__ __forceinline__ void wide_softmax(float (&scores)[32], uint32_t valid, float scale_log2,
                                             WideState<Tr>& state, float (&correction)[2]) {
  const int t = static_cast<int>(threadIdx.x & 3u);
  if (valid != kFullStep) [[unlikely]] {
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int token = (8 * j + 2 * t + (c & 1)) & 15;
        const int tile_valid = static_cast<int>((valid >> (5 * (j / 2))) & 31u);
        if (token >= tile_valid) scores[4 * j + c] = -INFINITY;
      }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float top = -INFINITY;
#pragma unroll
    for (int j = 0; j < 8; ++j)
      top = fmaxf(top, fmaxf(scores[4 * j + 2 * r], scores[4 * j + 2 * r + 1]));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
    const float fresh = fmaxf(state.max[r], top * scale_log2);
    const float base = fresh == -INFINITY ? 0.0f : fresh;
    correction[r] = ptx::ex2_approx(state.max[r] - base);
    state.max[r] = fresh;
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float& score = scores[4 * j + 2 * r + c];
        score = ptx::ex2_approx(fmaf(score, scale_log2, -base));
        sum += score;
      }
    state.sum[r] = state.sum[r] * correction[r] + sum;
  }
}

// Most steps find no new maximum.
template <class Tr>
__device__ __forceinline__ void wide_rescale(const float (&correction)[2], WideState<Tr>& state) {
  if (!__any_sync(0xffffffffu, correction[0] != 1.0f || correction[1] != 1.0f)) return;
#pragma unroll
  for (int h = 0; h < Tr::kWideHalves; ++h)
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      state.o[h][4 * j + 0] *= correction[0];
      state.o[h][4 * j + 1] *= correction[0];
      state.o[h][4 * j + 2] *= correction[1];
      state.o[h][4 * j + 3] *= correction[1];
    }
}

// Rows past a tile's end hold stale bytes, possibly NaN; the product reads them with weight 0, so they must
// be numbers. Both warpgroups may do this to the same stage: they write the same zeros.
template <class Tr>
__device__ __forceinline__ void wide_clear_v(unsigned char* s_v, uint32_t valid,
                                             NamedBarrier barrier) {
  const uint32_t thread = threadIdx.x & 127u;
#pragma unroll 1  // rare: small before fast
  for (uint32_t tile = 0; tile < kWideTiles; ++tile) {
    const uint32_t first = (valid >> (5 * tile)) & 31u;
    const uint32_t pieces = (kTileTokens - first) * Tr::kHalves * 8;  // of 16 bytes
    for (uint32_t i = thread; i < pieces; i += 128) {
      const uint32_t token = first + i / (Tr::kHalves * 8), rest = i % (Tr::kHalves * 8);
      *reinterpret_cast<uint4*>(s_v + (rest / 8) * Tr::kWideHalfBytes +
                                (tile * kTileTokens + token) * 128 + (rest % 8) * 16) =
          uint4{0, 0, 0, 0};
    }
  }
  ptx::fence_proxy_async_shared_cta();
  named_sync(barrier, 128);
}

// Asks for the scores of a step; they are there after the wait for this group.
template <class Tr>
__device__ __forceinline__ void wide_issue_scores(const unsigned char* s_k,
                                                  const WideState<Tr>& state, float (&scores)[32]) {
  const uint64_t keys = swizzled_descriptor(s_k);
  ptx::wgmma_fence();
#pragma unroll
  for (int s = 0; s < Tr::kDim / 16; ++s)
    ptx::wgmma_m64n64k16<typename Tr::T, 0>(
        scores, state.q[s][0], state.q[s][1], state.q[s][2], state.q[s][3],
        keys + descriptor_offset((s / 4) * Tr::kWideHalfBytes + (s % 4) * 32), s > 0);
  ptx::wgmma_commit();
}

template <class Tr>
__device__ __forceinline__ void wide_pack(const float (&scores)[32], uint32_t (&p)[4][4]) {
#pragma unroll
  for (int ks = 0; ks < 4; ++ks)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      p[ks][i] = pack2<typename Tr::T>(scores[8 * ks + 2 * i], scores[8 * ks + 2 * i + 1]);
}

template <class Tr>
__device__ __forceinline__ void wide_issue_output(const unsigned char* s_v,
                                                  const uint32_t (&p)[4][4],
                                                  const WideRows<Tr>& mine, WideState<Tr>& state) {
  uint64_t values[Tr::kWideHalves];
#pragma unroll
  for (int h = 0; h < Tr::kWideHalves; ++h)
    values[h] =
        Tr::kSplitColumns
            ? swizzled_descriptor(s_v + mine.half(h) * Tr::kWideHalfBytes)
            : (h == 0
                   ? swizzled_descriptor(s_v)
                   : values[0] + descriptor_offset(static_cast<uint32_t>(h) * Tr::kWideHalfBytes));
  ptx::wgmma_fence();
#pragma unroll
  for (int ks = 0; ks < 4; ++ks)
#pragma unroll
    for (int h = 0; h < Tr::kWideHalves; ++h)
      ptx::wgmma_m64n64k16<typename Tr::T, 1>(
          state.o[h], p[ks][0], p[ks][1], p[ks][2], p[ks][3],
          values[h] + descriptor_offset(static_cast<uint32_t>(ks) * kTileTokens * 128), 1);
  ptx::wgmma_commit();
}

template <int kCount>
__device__ __forceinline__ void pin(float (&accumulators)[kCount]) {
#pragma unroll
  for (float& value : accumulators) ptx::wgmma_pin(value);
}

template <class Tr>
__device__ __forceinline__ void pin_output(WideState<Tr>& state) {
#pragma unroll
  for (int h = 0; h < Tr::kWideHalves; ++h) pin(state.o[h]);
}

template <class Tr>
__device__ __forceinline__ void wide_store_slots(int first_slot, const WorkItem& item,
                                                 const WideRows<Tr>& mine, Storage<Tr>& storage,
                                                 const WideState<Tr>& state,
                                                 const float (&sum)[2]) {
  const int t = static_cast<int>(threadIdx.x & 3u);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const uint32_t row = mine.row(r);
    if (row >= item.num_rows) continue;
    const int slot = first_slot + static_cast<int>(row);
    if (t == 0 && mine.owns_state()) storage.slot_state[slot] = {state.max[r], sum[r]};
#pragma unroll
    for (int h = 0; h < Tr::kWideHalves; ++h) {
      if (!mine.owns(h)) continue;
#pragma unroll
      for (int j = 0; j < 8; ++j)
        *reinterpret_cast<float2*>(slot_at(storage, slot, mine.column(h, j))) = {
            state.o[h][4 * j + 2 * r], state.o[h][4 * j + 2 * r + 1]};
    }
  }
}

// Warpgroup 0 takes in the partial that warpgroup 1 left in the item's slots.
template <class Tr>
__device__ __forceinline__ void wide_fold(const WorkItem& item, const WideRows<Tr>& mine,
                                          Storage<Tr>& storage, WideState<Tr>& state,
                                          float (&sum)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const uint32_t row = mine.row(r);
    if (row >= item.num_rows) continue;
    const int slot = item.dest_slot + static_cast<int>(row);
    const float2 other = storage.slot_state[slot];
    const float fresh = fmaxf(state.max[r], other.x);
    const float base = fresh == -INFINITY ? 0.0f : fresh;
    const float mine_scale = ptx::ex2_approx(state.max[r] - base);
    const float other_scale = ptx::ex2_approx(other.x - base);
    state.max[r] = fresh;
    sum[r] = sum[r] * mine_scale + other.y * other_scale;
#pragma unroll
    for (int h = 0; h < Tr::kWideHalves; ++h)
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float2 value =
            *reinterpret_cast<const float2*>(slot_at(storage, slot, mine.column(h, j)));
        float& low = state.o[h][4 * j + 2 * r];
        float& high = state.o[h][4 * j + 2 * r + 1];
        low = low * mine_scale + value.x * other_scale;
        high = high * mine_scale + value.y * other_scale;
      }
  }
}

template <class Tr>
__device__ __forceinline__ void wide_end(const WorkItem& item, const JobRows& rows,
                                         const WideRows<Tr>& mine, bool fold, Storage<Tr>& storage,
                                         SlotGate& gate, WideState<Tr>& state) {
  float sum[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    sum[r] = state.sum[r];
    sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 1);
    sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 2);
  }
  if (item.destination == Destination::kSlot || fold) gate.pass();
  if (fold) {
    // Warpgroup 0 has read init_slot long ago (it may be dest_slot), but only this barrier says so.
    named_sync(NamedBarrier::kConsumers, Tr::kConsumerThreads);
    if (mine.warpgroup == 1) wide_store_slots(item.dest_slot, item, mine, storage, state, sum);
    named_sync(NamedBarrier::kConsumers, Tr::kConsumerThreads);
    if (mine.warpgroup == 0) wide_fold(item, mine, storage, state, sum);
  }
  if (mine.alternate && mine.warpgroup == 1) return;
  if (Tr::kSplitColumns) {
    // Either warpgroup may be about to read init_slot's (max, sum), which the other is about to replace.
    named_sync(NamedBarrier::kConsumers, Tr::kConsumerThreads);
  }
  if (item.destination == Destination::kSlot) {
    wide_store_slots(item.dest_slot, item, mine, storage, state, sum);
    return;
  }
  const int t = static_cast<int>(threadIdx.x & 3u);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const uint32_t row = mine.row(r);
    if (row >= item.num_rows) continue;
    const float inverse = normaliser(sum[r]);
    typename Tr::T* out = rows.out<typename Tr::T>(item.row_begin + row);
#pragma unroll
    for (int h = 0; h < Tr::kWideHalves; ++h)
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const int dim = mine.column(h, j);
        if (!mine.owns(h) || (Tr::kHeadDim % 64 != 0 && dim >= Tr::kHeadDim)) continue;
        *reinterpret_cast<uint32_t*>(out + dim) = pack2<typename Tr::T>(
            state.o[h][4 * j + 2 * r] * inverse, state.o[h][4 * j + 2 * r + 1] * inverse);
      }
    if (t == 0 && mine.owns_state()) rows.write_lse(item.row_begin + row, state.max[r], sum[r]);
  }
}

// Where a step's four stages are, and which use of them it is.
template <class Tr>
struct WideStep {
  uint32_t stage, flipped;
  // turn: steps of the phase before it. Through a shuffle, so that the compiler knows the stage, and what is worked
  // out from it, for one value a warp: matrix descriptors then live in uniform registers, and the products of a
  // step follow one another instead of waiting for eight instructions each.
  __device__ __forceinline__ explicit WideStep(uint32_t turn)
      : stage(__shfl_sync(0xffffffffu, turn % Tr::kWideStages * kWideTiles, 0)),
        flipped(turn / Tr::kWideStages & 1u) {}
  __device__ __forceinline__ unsigned char* keys(Storage<Tr>& storage) const {
    return storage.ring + stage * Tr::kStageBytes;
  }
  __device__ __forceinline__ unsigned char* values(Storage<Tr>& storage) const {
    return keys(storage) + Tr::kWideKBytes;
  }
  // The first stage's barrier has the bytes of all four tiles.
  __device__ __forceinline__ void wait(uint64_t* s_full, uint32_t parities, Wait what) const {
    wait_cta(s_full, stage, ((parities >> stage) & 1u) ^ flipped, what);
  }
  __device__ __forceinline__ uint32_t valid(const Storage<Tr>& storage) const {
    uint32_t bits = 0;
#pragma unroll
    for (uint32_t tile = 0; tile < kWideTiles; ++tile)
      bits |= storage.stage_tokens[stage + tile] << (5 * tile);
    return bits;
  }
  // Four warps of one warpgroup arrive twice each, or eight of two once: always 8.
  __device__ __forceinline__ void release(Storage<Tr>& storage, bool alternate) const {
    const uint32_t lane = threadIdx.x & 31u;
    if (lane < kWideTiles)
      ptx::mbarrier_arrive_release_cta(storage.stage_empty + stage + lane, alternate ? 2 : 1);
  }
};

// This warpgroup's steps of one item: first_turn, first_turn + stride, .. (count of them).
template <class Tr>
__device__ __forceinline__ void wide_steps(const KernelArgs& args, Storage<Tr>& storage,
                                           const WideRows<Tr>& mine, uint32_t parities,
                                           uint32_t first_turn, uint32_t count,
                                           WideState<Tr>& state, Tracer& tracer) {
  if (count == 0) return;
  const NamedBarrier barrier =
      mine.warpgroup == 0 ? NamedBarrier::kWarpgroup0 : NamedBarrier::kWarpgroup1;
  const uint32_t stride = mine.alternate ? 2 : 1;
  float scores[32];
  float correction[2];
  uint32_t p[4][4];
  WideStep<Tr> step(first_turn);
  tracer.begin_wait();
  step.wait(storage.k_full, parities, Wait::kKFull);
  tracer.end_wait();
  uint32_t valid = step.valid(storage);
  wide_issue_scores<Tr>(step.keys(storage), state, scores);
  ptx::wgmma_wait<0>();
  pin(scores);
  wide_softmax<Tr>(scores, valid, args.scale_log2, state, correction);
  wide_rescale(correction, state);
  wide_pack<Tr>(scores, p);
  WideStep<Tr> next(first_turn + stride);
  for (uint32_t i = 1; i < count; ++i) {
    tracer.begin_wait();
    next.wait(storage.k_full, parities, Wait::kKFull);
    tracer.end_wait();
    wide_issue_scores<Tr>(next.keys(storage), state, scores);
    const uint32_t next_valid = next.valid(storage);
    tracer.begin_wait();
    step.wait(storage.v_full, parities, Wait::kVFull);
    tracer.end_wait();
    if (valid != kFullStep) [[unlikely]]
      wide_clear_v<Tr>(step.values(storage), valid, barrier);
    wide_issue_output<Tr>(step.values(storage), p, mine, state);
    const WideStep<Tr> following(first_turn + (i + 1) * stride);
    ptx::wgmma_wait<1>();
    pin(scores);
    valid = next_valid;
    wide_softmax<Tr>(scores, valid, args.scale_log2, state, correction);
    // ptxas moves this wait above the exponentials. Held below them (by a branch on their sum) it made no
    // difference with 128 rows and cost 4 % with 64 or fewer, whose loads then wait for the stage.
    ptx::wgmma_wait<0>();
    pin_output(state);
    step.release(storage, mine.alternate);
    wide_rescale(correction, state);
    wide_pack<Tr>(scores, p);
    step = next;
    next = following;
  }
  tracer.begin_wait();
  step.wait(storage.v_full, parities, Wait::kVFull);
  tracer.end_wait();
  if (valid != kFullStep) [[unlikely]]
    wide_clear_v<Tr>(step.values(storage), valid, barrier);
  wide_issue_output<Tr>(step.values(storage), p, mine, state);
  ptx::wgmma_wait<0>();
  pin_output(state);
  step.release(storage, mine.alternate);
}

template <class Tr>
__device__ void compute_wide_phase(const KernelArgs& args, Storage<Tr>& storage,
                                   const Program& program, const Phase& phase, const JobRows& rows,
                                   uint32_t parities, SlotGate& gate, Tracer& tracer) {
  uint32_t turn = 0;
  for (uint32_t index = 0; index < phase.num_items; ++index) {
    const WorkItem& item = program.items[phase.item_begin + index];
    tracer.mark(TraceEvent::kItem, item.num_tiles);
    const WideRows<Tr> mine(item);
    const uint32_t steps = (item.num_tiles + kWideTiles - 1) / kWideTiles;
    WideState<Tr> state;
    wide_begin(item, rows, mine, storage, state);
    const uint32_t skip = mine.alternate ? mine.warpgroup : 0;
    wide_steps(args, storage, mine, parities, turn + skip,
               mine.alternate ? (steps + 1 - skip) / 2 : steps, state, tracer);
    wide_end(item, rows, mine, mine.alternate && steps > 1, storage, gate, state);
    turn += steps;
  }
}

}  // namespace capillary::tree_decode
