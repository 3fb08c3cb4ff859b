// SPDX-License-Identifier: MIT
// Compute role, wide items: a warpgroup holds 64 rows; a step is four tiles (64 tokens) in the 128-byte swizzle.
//
// More than 64 rows: the two warpgroups take 64 rows each of every step. 64 or fewer: they take alternate steps
// of the same rows and warpgroup 0 folds warpgroup 1's partial in at the end, through the item's own slots.
// head_dim 192 and 256 (jobs of at most 64 rows there): both take every step of the same rows, work the same
// scores out, and each keeps half of the output's columns: all of them do not fit one thread's registers.
// S = Q K^T: Q in registers, K by descriptor, 64 x 64. O += P V: P is S's accumulator repacked, V by descriptor. A
// warpgroup does one thing after the other, two steps at a time where it can; the two warpgroups drift apart and fill
// each other's gaps.
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

// Shared-memory matrix descriptor (PTX ISA 9.7.15.5.1): 128-byte swizzle, groups of eight tokens kWideGroupBytes apart.
// Bytes are added to it as multiples of 16. The address must be one value a warp and the compiler must know it (a shuffle tells
// it): descriptors then live in uniform registers, and the products of a step follow one another instead of waiting
// for eight instructions each.
template <class Tr>
__device__ __forceinline__ uint64_t uniform_descriptor(const void* s_tile) {
  return ((ptx::smem_address(s_tile) & 0x3ffffu) >> 4) |
         (uint64_t{Tr::kWideGroupBytes >> 4} << 32) | (uint64_t{1} << 62);
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
  // The same, known for one value a warp.
  __device__ __forceinline__ uint32_t uniform_half(int h) const {
    return Tr::kSplitColumns ? __shfl_sync(0xffffffffu, half(h), 0) : static_cast<uint32_t>(h);
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

// Word m of lane t of a quad becomes word t of its lane m.
__device__ __forceinline__ uint4 quad_transpose(uint4 words) {
  const bool odd = (threadIdx.x & 1u) != 0, high = (threadIdx.x & 2u) != 0;
  const auto exchange = [](bool second, uint32_t& a, uint32_t& b, int lane_mask) {
    const uint32_t other = __shfl_xor_sync(0xffffffffu, second ? a : b, lane_mask);
    a = second ? other : a;
    b = second ? b : other;
  };
  exchange(odd, words.x, words.y, 1);
  exchange(odd, words.z, words.w, 1);
  exchange(high, words.x, words.z, 2);
  exchange(high, words.y, words.w, 2);
  return words;
}

template <class Tr>
__device__ __forceinline__ void wide_begin(const WorkItem& item, const JobRows& rows,
                                           const WideRows<Tr>& mine, Storage<Tr>& storage,
                                           WideState<Tr>& state) {
  static_assert(Tr::kDim % 32 == 0);
  const uint32_t t = threadIdx.x & 3u;
  // 16 bytes a lane, then handed round the quad: a fragment has two elements of each chunk of eight. All of them are
  // asked for before the first is used.
  uint4 chunks[2][Tr::kDim / 32];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const uint32_t row = mine.row(r);
    const bool real = row < item.num_rows;
    const auto* q = reinterpret_cast<const uint4*>(
        rows.q<typename Tr::T>(rows.place(item.row_begin + (real ? row : 0))));
#pragma unroll
    for (int i = 0; i < Tr::kDim / 32; ++i) {
      const uint32_t chunk = 4u * static_cast<uint32_t>(i) + t;
      chunks[r][i] = real && chunk < Tr::kChunks ? ptx::ld_global_nc(q + chunk) : uint4{0, 0, 0, 0};
    }
  }
  // Of two warpgroups on the same rows only the first resumes the saved state.
  const bool resumes = item.init_slot != kNoSlot && !(mine.alternate && mine.warpgroup == 1);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const uint32_t row = mine.row(r);
    const bool real = row < item.num_rows;
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
#pragma unroll
  for (int r = 0; r < 2; ++r)
#pragma unroll
    for (int i = 0; i < Tr::kDim / 32; ++i) {
      const uint4 pairs = quad_transpose(chunks[r][i]);
      state.q[2 * i][r] = pairs.x;
      state.q[2 * i][2 + r] = pairs.y;
      state.q[2 * i + 1][r] = pairs.z;
      state.q[2 * i + 1][2 + r] = pairs.w;
    }
}

// Valid tokens of a step's four tiles, 0 to 16 each; only 16 has that bit.
__device__ __forceinline__ bool all_full(const uint4& tokens) {
  return (tokens.x & tokens.y & tokens.z & tokens.w) == kTileTokens;
}
__device__ __forceinline__ uint32_t tokens_of(const uint4& tokens, int tile) {
  return tile == 0 ? tokens.x : tile == 1 ? tokens.y : tile == 2 ? tokens.z : tokens.w;
}

// Scores of tokens past a tile's end.
__device__ __forceinline__ void wide_mask(float (&scores)[32], const uint4& tokens) {
  const int t = static_cast<int>(ptx::thread_index() & 3u);
#pragma unroll
  for (int j = 0; j < 8; ++j)
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int token = (8 * j + 2 * t + (c & 1)) & 15;
      if (token >= static_cast<int>(tokens_of(tokens, j / 2))) scores[4 * j + c] = -INFINITY;
    }
}

// Probabilities of a step against the rows' references, packed as the left operand of the next product, and the lane's sums
// of them.
template <class Tr>
__device__ __forceinline__ void wide_probabilities(const float (&scores)[32], float scale_log2,
                                                   const WideState<Tr>& state, uint32_t (&p)[4][4],
                                                   float (&sums)[2]) {
  float chain[2][2];
#pragma unroll
  for (int ks = 0; ks < 4; ++ks)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = i & 1;
      const float low = ptx::ex2_approx(fmaf(scores[8 * ks + 2 * i], scale_log2, -state.max[r]));
      const float high =
          ptx::ex2_approx(fmaf(scores[8 * ks + 2 * i + 1], scale_log2, -state.max[r]));
      chain[r][0] = ks == 0 && i < 2 ? low : chain[r][0] + low;
      chain[r][1] = ks == 0 && i < 2 ? high : chain[r][1] + high;
      p[ks][i] = pack2<typename Tr::T>(low, high);
    }
#pragma unroll
  for (int r = 0; r < 2; ++r) sums[r] = chain[r][0] + chain[r][1];
}

// Moves the references up to the maxima of a step's rows, by whole powers of two; rows that have none yet take the maximum
// itself.
template <class Tr>
__device__ __forceinline__ void wide_move_reference(const float (&scores)[32], float scale_log2,
                                                    WideState<Tr>& state, float (&correction)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float top = -INFINITY;
#pragma unroll
    for (int j = 0; j < 8; ++j)
      top = fmaxf(top, fmaxf(scores[4 * j + 2 * r], scores[4 * j + 2 * r + 1]));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2)) * scale_log2;
    correction[r] = move_reference(state.max[r], top);
    state.sum[r] *= correction[r];
  }
#pragma unroll
  for (int h = 0; h < Tr::kWideHalves; ++h)
#pragma unroll
    for (int c = 0; c < 32; ++c) state.o[h][c] *= correction[c / 2 % 2];
}

// What is packed against the old references already.
template <class Tr>
__device__ __forceinline__ void wide_rescale_packed(const float (&correction)[2],
                                                    uint32_t (&p)[4][4]) {
#pragma unroll
  for (int ks = 0; ks < 4; ++ks)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = unpack2<typename Tr::T>(p[ks][i]);
      p[ks][i] = pack2<typename Tr::T>(pair.x * correction[i & 1], pair.y * correction[i & 1]);
    }
}

// Scores of kSteps steps to probabilities. Rows without a reference (-inf) have infinite ones, and get a reference for it.
template <class Tr, int kSteps>
__device__ __forceinline__ void wide_softmax(const float (&scores)[kSteps][32], float scale_log2,
                                             WideState<Tr>& state, uint32_t (&p)[kSteps][4][4]) {
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    float sums[2];
    wide_probabilities(scores[s], scale_log2, state, p[s], sums);
    if (!__all_sync(0xffffffffu, sums[0] <= kSumLimit && sums[1] <= kSumLimit)) [[unlikely]] {
      float correction[2];
      wide_move_reference(scores[s], scale_log2, state, correction);
      if (s > 0) wide_rescale_packed<Tr>(correction, p[0]);
      wide_probabilities(scores[s], scale_log2, state, p[s], sums);
    }
    state.sum[0] += sums[0];
    state.sum[1] += sums[1];
  }
}

// Rows past a tile's end hold stale bytes, possibly NaN; the product reads them with weight 0, so they must
// be numbers. Both warpgroups may do this to the same stage: they write the same zeros.
template <class Tr>
__device__ __forceinline__ void wide_clear_v(unsigned char* s_v, const uint32_t* s_tokens,
                                             NamedBarrier barrier) {
  constexpr uint32_t kRowPieces = Tr::kHalves * 8;  // of 16 bytes
#pragma unroll 1
  for (uint32_t i = threadIdx.x & 127u; i < kWideTiles * kTileTokens * kRowPieces; i += 128) {
    const uint32_t row = i / kRowPieces, piece = i % kRowPieces;
    if (row % kTileTokens < s_tokens[row / kTileTokens]) continue;
    *reinterpret_cast<uint4*>(s_v + (row / 8 * Tr::kHalves + piece / 8) * kSwizzleBytes +
                              row % 8 * 128 + piece % 8 * 16) = uint4{0, 0, 0, 0};
  }
  ptx::fence_proxy_async_shared_cta();
  named_sync(barrier, 128);
}

// Asks for the scores of a step; they are there after the wait for this group.
template <class Tr>
__device__ __forceinline__ void wide_issue_scores(uint64_t keys, const WideState<Tr>& state,
                                                  float (&scores)[32]) {
  ptx::wgmma_fence();
#pragma unroll
  for (int s = 0; s < Tr::kDim / 16; ++s)
    ptx::wgmma_m64n64k16<typename Tr::T, 0>(
        scores, state.q[s][0], state.q[s][1], state.q[s][2], state.q[s][3],
        keys + descriptor_offset((s / 4) * kSwizzleBytes + (s % 4) * 32), s > 0);
}

template <class Tr>
__device__ __forceinline__ void wide_issue_output(uint64_t values, const uint32_t (&p)[4][4],
                                                  const WideRows<Tr>& mine, WideState<Tr>& state) {
  uint64_t columns[Tr::kWideHalves];
#pragma unroll
  for (int h = 0; h < Tr::kWideHalves; ++h)
    columns[h] = values + descriptor_offset(mine.uniform_half(h) * kSwizzleBytes);
  ptx::wgmma_fence();
#pragma unroll
  for (int ks = 0; ks < 4; ++ks)
#pragma unroll
    for (int h = 0; h < Tr::kWideHalves; ++h)
      ptx::wgmma_m64n64k16<typename Tr::T, 1>(
          state.o[h], p[ks][0], p[ks][1], p[ks][2], p[ks][3],
          columns[h] + descriptor_offset(static_cast<uint32_t>(ks) * 2 * Tr::kWideGroupBytes), 1);
}

template <int kCount>
__device__ __forceinline__ void pin(float (&accumulators)[kCount]) {
#pragma unroll
  for (float& value : accumulators) ptx::wgmma_pin(value);
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
  const uint32_t t = threadIdx.x & 3u;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const uint32_t row = mine.row(r);
    const bool real = row < item.num_rows;
    const float inverse = normaliser(sum[r]);
    const JobRows::Place place = rows.place(item.row_begin + (real ? row : 0));
    typename Tr::T* out = rows.out<typename Tr::T>(place);
#pragma unroll
    for (int h = 0; h < Tr::kWideHalves; ++h)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const auto pack = [&](int j) {
          const float* pair = state.o[h] + 4 * (4 * i + j) + 2 * r;
          return pack2<typename Tr::T>(pair[0] * inverse, pair[1] * inverse);
        };
        // Handed round the quad, so that a lane has eight dims side by side.
        const uint4 chunk = quad_transpose({pack(0), pack(1), pack(2), pack(3)});
        const uint32_t dim = 64 * mine.half(h) + 8 * (4u * static_cast<uint32_t>(i) + t);
        if (!mine.owns(h) || (Tr::kHeadDim % 64 != 0 && dim >= Tr::kHeadDim)) continue;
        if (real) *reinterpret_cast<uint4*>(out + dim) = chunk;
      }
    if (real && t == 0 && mine.owns_state()) rows.write_lse(place, state.max[r], sum[r]);
  }
}

// Where a step's four stages are, and which use of them it is.
template <class Tr>
struct WideStep {
  uint32_t stage, flipped;
  WideStep() = default;
  __device__ __forceinline__ explicit WideStep(uint32_t turn)  // steps of the phase before it
      : stage(turn % Tr::kWideStages * kWideTiles), flipped(turn / Tr::kWideStages & 1u) {}
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
  __device__ __forceinline__ bool poll(uint64_t* s_full, uint32_t parities) const {
    return ptx::mbarrier_try_wait_acquire_cta(s_full + stage, ((parities >> stage) & 1u) ^ flipped);
  }
  __device__ __forceinline__ uint4 tokens(const Storage<Tr>& storage) const {
    return *reinterpret_cast<const uint4*>(storage.stage_tokens + stage);
  }
  // Four warps of one warpgroup arrive twice each, or eight of two once: always 8.
  __device__ __forceinline__ void release(Storage<Tr>& storage, bool alternate) const {
    const uint32_t lane = threadIdx.x & 31u;
    if (lane < kWideTiles)
      ptx::mbarrier_arrive_release_cta(storage.stage_empty + stage + lane, alternate ? 2 : 1);
  }
};

// This warpgroup's steps of one item, kSteps consecutive ones at a time, the next ones `stride` on: scores, softmax,
// output, one after the other. Nothing overlaps inside a warpgroup; the other one's products fill the tensor cores
// meanwhile. With two steps, what a step costs besides its products (waits, descriptors, rare cases) is
// paid once for both.
template <class Tr, int kSteps>
__device__ __forceinline__ void wide_steps(const KernelArgs& args, Storage<Tr>& storage,
                                           const WideRows<Tr>& mine, uint32_t parities,
                                           uint32_t first_turn, uint32_t end_turn, uint32_t stride,
                                           WideState<Tr>& state, Tracer& tracer) {
  const NamedBarrier barrier =
      mine.warpgroup == 0 ? NamedBarrier::kWarpgroup0 : NamedBarrier::kWarpgroup1;
  for (uint32_t from = first_turn; from < end_turn; from += stride) {
    // One value a warp, and the compiler knows it by the shuffle: what follows from it is in uniform registers.
    const uint32_t turn = __shfl_sync(0xffffffffu, from, 0);
    WideStep<Tr> steps[kSteps];
#pragma unroll
    for (int s = 0; s < kSteps; ++s) steps[s] = WideStep<Tr>(turn + static_cast<uint32_t>(s));
    const auto wait = [&](uint64_t* s_full, Wait what) {
      tracer.begin_wait();
      bool here = steps[0].poll(s_full, parities);
      if constexpr (kSteps == 2) here = here & steps[1].poll(s_full, parities);
      if (!here) {
#pragma unroll
        for (int s = 0; s < kSteps; ++s) steps[s].wait(s_full, parities, what);
      }
      tracer.end_wait();
    };
    float scores[kSteps][32];
    uint32_t p[kSteps][4][4];
    wait(storage.k_full, Wait::kKFull);
#pragma unroll
    for (int s = 0; s < kSteps; ++s)
      wide_issue_scores<Tr>(uniform_descriptor<Tr>(steps[s].keys(storage)), state, scores[s]);
    ptx::wgmma_commit();
    bool full = all_full(steps[0].tokens(storage));
    if constexpr (kSteps == 2) full = full & all_full(steps[1].tokens(storage));
    ptx::wgmma_wait<0>();
#pragma unroll
    for (int s = 0; s < kSteps; ++s) pin(scores[s]);
    if (!full) [[unlikely]] {
#pragma unroll
      for (int s = 0; s < kSteps; ++s) wide_mask(scores[s], steps[s].tokens(storage));
    }
    wide_softmax<Tr, kSteps>(scores, args.scale_log2, state, p);
    wait(storage.v_full, Wait::kVFull);
    if (!full) [[unlikely]] {
#pragma unroll
      for (int s = 0; s < kSteps; ++s)
        wide_clear_v<Tr>(steps[s].values(storage), storage.stage_tokens + steps[s].stage, barrier);
    }
#pragma unroll
    for (int s = 0; s < kSteps; ++s)
      wide_issue_output<Tr>(uniform_descriptor<Tr>(steps[s].values(storage)), p[s], mine, state);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
#pragma unroll
    for (int h = 0; h < Tr::kWideHalves; ++h) pin(state.o[h]);
#pragma unroll
    for (int s = 0; s < kSteps; ++s) steps[s].release(storage, mine.alternate);
  }
}

// Items of so many steps take them two at a time (docs/kernel.md).
inline constexpr uint32_t kPairedSteps = 18;

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
    uint32_t paired = 0;
    // Two at once hold half the ring at head_dim 128, so only where both warpgroups work on the same two. And they wait for both: an item
    // of a few steps, whose first keys are all it waits for, begins sooner with one.
    if constexpr (!Tr::kSplitColumns) {
      if (!mine.alternate && steps >= kPairedSteps) {
        paired = steps & ~1u;
        wide_steps<Tr, 2>(args, storage, mine, parities, turn, turn + paired, 2, state, tracer);
      }
    }
    wide_steps<Tr, 1>(args, storage, mine, parities,
                      turn + paired + (mine.alternate ? mine.warpgroup : 0), turn + steps,
                      mine.alternate ? 2 : 1, state, tracer);
    wide_end(item, rows, mine, mine.alternate && steps > 1, storage, gate, state);
    turn += steps;
  }
}

}  // namespace capillary::tree_decode
