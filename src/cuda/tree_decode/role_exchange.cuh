// SPDX-License-Identifier: MIT
// Exchange: the consumer warps merge the job's partials, a row a warp, always in list order, in fp32.
//
//   barrier       arrives                                     waits                              first phase
//   slots_ready   one thread of every rank, remotely, after   all consumers, before they read    0
//                 that rank's last slot write                 a peer's slots
//   slots_free    one thread of every rank, remotely, after   a warp before its first slot       0
//                 its last read of the job                    write of a later job; CTA exit
//
// Peers' slots are read SM to SM (ld.shared::cluster). Rows whose keys are spread over several jobs leave
// their part in the workspace; whichever part arrives last merges all parts, in part order, and clears the tags.
#pragma once

#include "cuda/sync.cuh"
#include "cuda/tree_decode/rows.cuh"
#include "shared/plan_layout.h"

namespace capillary::tree_decode {

// No caller's leftovers equal this: 64 random bits, and every completed run has cleared its tags.
inline constexpr uint64_t kPartHere = 0x9d3f5ac17be8620bull;

// A lane's share of one row's output: float4 (or float2) pieces, piece u at dim kWidth * lane + 32 kWidth u.
template <class Tr>
struct RowPiece {
  static constexpr int kWidth = Tr::kDim % 128 == 0 ? 4 : 2;
  static constexpr int kCount = Tr::kDim / (32 * kWidth);
  float value[kCount][kWidth];
  __device__ __forceinline__ static int dim(int u) {
    return kWidth * static_cast<int>(threadIdx.x & 31u) + 32 * kWidth * u;
  }
};

template <class Tr>
__device__ __forceinline__ void clear_piece(RowPiece<Tr>& piece) {
#pragma unroll
  for (int u = 0; u < RowPiece<Tr>::kCount; ++u)
#pragma unroll
    for (int c = 0; c < RowPiece<Tr>::kWidth; ++c) piece.value[u][c] = 0.0f;
}

struct RowState {
  float max = -INFINITY;
  float sum = 0.0f;
};

// Partials that are folded together: their loads go out at once, so that a row waits for its peers once every so many.
inline constexpr int kFoldPartials = 8;

// Folds partials [0, count), in this order: load(i, state, piece) fetches one's (max, sum) and this lane's share of its
// output. Every lane works the weights out for itself; to do that once and hand it round takes longer.
template <class Tr, class Load>
__device__ __forceinline__ void fold_partials(uint32_t count, const Load& load, RowState& row,
                                              RowPiece<Tr>& out) {
  for (uint32_t first = 0; first < count; first += kFoldPartials) {
    float2 state[kFoldPartials];
    RowPiece<Tr> piece[kFoldPartials];
#pragma unroll
    for (uint32_t i = 0; i < kFoldPartials; ++i) {
      // Past the end: nothing, not another's values with weight 0, which make NaN of infinities.
      state[i] = {-INFINITY, 0.0f};
      clear_piece(piece[i]);
      if (first + i < count) load(first + i, state[i], piece[i]);
    }
    float fresh = row.max;
#pragma unroll
    for (int i = 0; i < kFoldPartials; ++i) fresh = fmaxf(fresh, state[i].x);
    const float base = fresh == -INFINITY ? 0.0f : fresh;
    const float kept = ptx::ex2_approx(row.max - base);
    row.max = fresh;
    row.sum *= kept;
#pragma unroll
    for (int u = 0; u < RowPiece<Tr>::kCount; ++u)
#pragma unroll
      for (int c = 0; c < RowPiece<Tr>::kWidth; ++c) out.value[u][c] *= kept;
#pragma unroll
    for (int i = 0; i < kFoldPartials; ++i) {
      const float weight = ptx::ex2_approx(state[i].x - base);
      row.sum += state[i].y * weight;
#pragma unroll
      for (int u = 0; u < RowPiece<Tr>::kCount; ++u)
#pragma unroll
        for (int c = 0; c < RowPiece<Tr>::kWidth; ++c)
          out.value[u][c] += piece[i].value[u][c] * weight;
    }
  }
}

template <class Tr>
__device__ __forceinline__ void write_row(const JobRows& rows, uint32_t row, const RowState& state,
                                          const RowPiece<Tr>& piece) {
  const float inverse = normaliser(state.sum);
  const JobRows::Place place = rows.place(row);
  typename Tr::T* out = rows.out<typename Tr::T>(place);
#pragma unroll
  for (int u = 0; u < RowPiece<Tr>::kCount; ++u) {
    const int dim = RowPiece<Tr>::dim(u);
    if (Tr::kHeadDim % 64 != 0 && dim >= Tr::kHeadDim) continue;
    uint32_t packed[RowPiece<Tr>::kWidth / 2];
#pragma unroll
    for (int c = 0; c < RowPiece<Tr>::kWidth; c += 2)
      packed[c / 2] =
          pack2<typename Tr::T>(piece.value[u][c] * inverse, piece.value[u][c + 1] * inverse);
    if constexpr (RowPiece<Tr>::kWidth == 4)
      *reinterpret_cast<uint2*>(out + dim) = {packed[0], packed[1]};
    else
      *reinterpret_cast<uint32_t*>(out + dim) = packed[0];
  }
  if ((threadIdx.x & 31u) == 0) rows.write_lse(place, state.max, state.sum);
}

// Leaves a merged row in a slot. Every lane has read its share of the row, and only this warp writes it.
template <class Tr>
__device__ __forceinline__ void keep_row(Storage<Tr>& storage, int slot, const RowState& state,
                                         const RowPiece<Tr>& piece) {
#pragma unroll
  for (int u = 0; u < RowPiece<Tr>::kCount; ++u)
#pragma unroll
    for (int c = 0; c < RowPiece<Tr>::kWidth; c += 2)
      *reinterpret_cast<float2*>(slot_at(storage, slot, RowPiece<Tr>::dim(u) + c)) = {
          piece.value[u][c], piece.value[u][c + 1]};
  __syncwarp();
  if ((threadIdx.x & 31u) == 0) storage.slot_state[slot] = {state.max, state.sum};
}

// Row `row_offset` of a merge: all its partials, from this CTA's slots and its peers'.
template <class Tr>
__device__ __forceinline__ void gather_row(const Merge& merge, uint32_t row_offset,
                                           const Partial* partials, Storage<Tr>& storage,
                                           RowState& state, RowPiece<Tr>& out) {
  const uint32_t s_state = ptx::smem_address(storage.slot_state);
  const uint32_t s_output = ptx::smem_address(storage.slot_output);
  clear_piece(out);
  const auto load = [&](uint32_t i, float2& partial_state, RowPiece<Tr>& piece) {
    const Partial partial = partials[i];
    const uint32_t slot = partial.slot + row_offset;
    partial_state = ptx::ld_shared_cluster_f2(  // ordered by slots_ready
        ptx::mapa(s_state + slot * sizeof(float2), partial.rank));
    const uint32_t d_slot = ptx::mapa(s_output + slot * (Tr::kDim * 4), partial.rank);
#pragma unroll
    for (int u = 0; u < RowPiece<Tr>::kCount; ++u) {
      const int dim = RowPiece<Tr>::dim(u);
      const uint32_t address =
          d_slot +
          static_cast<uint32_t>(slot_block(static_cast<int>(slot), dim >> 3) * 8 + (dim & 7)) * 4;
      if constexpr (RowPiece<Tr>::kWidth == 4) {
        const float4 value = ptx::ld_shared_cluster_f4(address);
        piece.value[u][0] = value.x, piece.value[u][1] = value.y;
        piece.value[u][2] = value.z, piece.value[u][3] = value.w;
      } else {
        const float2 value = ptx::ld_shared_cluster_f2(address);
        piece.value[u][0] = value.x, piece.value[u][1] = value.y;
      }
    }
  };
  fold_partials<Tr>(merge.num_partials, load, state, out);
}

// Leaves one row's part in the workspace; if all parts of the row are there, merges them.
template <class Tr>
__device__ void deliver_part(const KernelArgs& args, const PlanHeader& header, const Split& split,
                             const Merge& merge, uint32_t row_offset, const JobRows& rows,
                             const RowState& state, const RowPiece<Tr>& piece) {
  const uint32_t lane = threadIdx.x & 31u;
  const WorkspaceLayout layout =
      workspace_layout(header.num_kv_heads, header.split_rows, Tr::kHeadDim);
  auto* base = static_cast<unsigned char*>(args.workspace);
  const size_t head_rows = static_cast<size_t>(rows.kv_head) * header.split_rows;
  auto* g_tags = reinterpret_cast<uint64_t*>(base + layout.tags_offset) + head_rows;
  auto* g_state = reinterpret_cast<float2*>(base + layout.max_sum_offset) + head_rows;
  auto* g_output = reinterpret_cast<float*>(base + layout.output_offset) + head_rows * Tr::kDim;
  const uint32_t split_row = merge.split_row + row_offset;
  const auto place = [&](uint32_t part) {
    return split.split_row_begin + part * split.num_rows + split_row;
  };

  const uint32_t own = place(merge.split_part);
#pragma unroll
  for (int u = 0; u < RowPiece<Tr>::kCount; ++u)
#pragma unroll
    for (int c = 0; c < RowPiece<Tr>::kWidth; c += 2)
      __stcg(reinterpret_cast<float2*>(g_output + static_cast<size_t>(own) * Tr::kDim +
                                       RowPiece<Tr>::dim(u) + c),
             float2{piece.value[u][c], piece.value[u][c + 1]});
  if (lane == 0) __stcg(g_state + own, float2{state.max, state.sum});
  // Own tag out, then everybody's tags in, with a full fence between: of two parts that arrive together at
  // least one sees both. If both do, both merge and write the same bits.
  __syncwarp();
  if (lane == 0) {
    ptx::st_release_gpu(g_tags + own,
                        kPartHere);  // cumulative: the other lanes' stores come before it
    ptx::fence_sc_gpu();
  }
  __syncwarp();
  bool all_here = true;
  for (uint32_t first = 0; first < split.num_parts; first += 32) {
    const uint32_t part = first + lane;
    const bool here =
        part >= split.num_parts || ptx::ld_acquire_gpu(g_tags + place(part)) == kPartHere;
    all_here = all_here && __all_sync(0xffffffffu, here);
  }
  __syncwarp();  // what a lane has acquired, all may read
  if (!all_here) return;
  RowState merged;
  RowPiece<Tr> out;
  clear_piece(out);
  const auto load = [&](uint32_t i, float2& part_state, RowPiece<Tr>& part) {
    part_state = __ldcg(g_state + place(i));
    const float* g_part = g_output + static_cast<size_t>(place(i)) * Tr::kDim;
#pragma unroll
    for (int u = 0; u < RowPiece<Tr>::kCount; ++u)
#pragma unroll
      for (int c = 0; c < RowPiece<Tr>::kWidth; c += 2) {
        const float2 value =
            __ldcg(reinterpret_cast<const float2*>(g_part + RowPiece<Tr>::dim(u) + c));
        part.value[u][c] = value.x;
        part.value[u][c + 1] = value.y;
      }
  };
  fold_partials<Tr>(split.num_parts, load, merged, out);
  write_row<Tr>(rows, merge.row_begin + row_offset, merged, out);
  __syncwarp();
  for (uint32_t part = lane; part < split.num_parts; part += 32)
    ptx::st_relaxed_gpu(g_tags + place(part), 0);
}

// First row of a merge for this warp when the merges before it have `before` rows: rows are dealt to the consumer
// warps in turn.
template <class Tr>
__device__ __forceinline__ uint32_t first_row_of_warp(uint32_t before) {
  const uint32_t warp = threadIdx.x / 32;
  return (warp + Tr::kConsumerWarps - before % Tr::kConsumerWarps) % Tr::kConsumerWarps;
}

// Before the ranks meet: the merges of this rank's own slots, which come first. Returns how many there are. Not
// inlined: its registers would be taken from the loops of the role, which lost 3 % that way.
template <class Tr>
__device__ __noinline__ uint32_t merge_own_slots(Storage<Tr>& storage, const Program& program) {
  uint32_t before = 0, i = 0;
  for (; i < program.num_merges && program.merges[i].destination == Destination::kSlot; ++i) {
    const Merge merge = program.merges[i];
    const Partial* partials = program.partials + merge.partial_begin;
    for (uint32_t row = first_row_of_warp<Tr>(before); row < merge.num_rows;
         row += Tr::kConsumerWarps) {
      RowState state;
      RowPiece<Tr> piece;
      gather_row<Tr>(merge, row, partials, storage, state, piece);
      keep_row<Tr>(storage, static_cast<int>(partials[0].slot + row), state, piece);
    }
    before += merge.num_rows;
  }
  return i;
}

// This rank's other merges.
template <class Tr>
__device__ __forceinline__ void run_merges(const KernelArgs& args, Storage<Tr>& storage,
                                           const Program& program, const JobRows& rows,
                                           uint32_t first) {
  const PlanView plan(args.plan);
  uint32_t before = 0;
  for (uint32_t i = first; i < program.num_merges; ++i) {
    const Merge merge = program.merges[i];
    const Partial* partials = program.partials + merge.partial_begin;
    for (uint32_t row = first_row_of_warp<Tr>(before); row < merge.num_rows;
         row += Tr::kConsumerWarps) {
      RowState state;
      RowPiece<Tr> piece;
      gather_row<Tr>(merge, row, partials, storage, state, piece);
      if (merge.destination == Destination::kWorkspace)
        deliver_part<Tr>(args, plan.header(), plan.splits()[merge.split], merge, row, rows, state,
                         piece);
      else
        write_row<Tr>(rows, merge.row_begin + row, state, piece);
    }
    before += merge.num_rows;
  }
}

}  // namespace capillary::tree_decode
