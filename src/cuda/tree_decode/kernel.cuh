// SPDX-License-Identifier: MIT
// The kernel: one launch runs a whole plan. Persistent clusters walk their part of the schedule; in each CTA
// eight consumer warps compute and exchange while two warps keep the ring full, one fetches what to do next and one
// brings the queries for that into L2; for pages of one token it also hands wide steps on (load_rows.cuh).
#pragma once

#include "cuda/trace.cuh"
#include "cuda/tree_decode/narrow.cuh"
#include "cuda/tree_decode/role_exchange.cuh"
#include "cuda/tree_decode/role_load.cuh"
#include "cuda/tree_decode/wide.cuh"

namespace capillary::tree_decode {

enum class Role : uint32_t { kCompute, kLoadK, kLoadV, kPlan, kQuery };

template <class Tr>
__device__ __forceinline__ Role role_of_warp(uint32_t warp) {
  if (warp < Tr::kConsumerWarps) return Role::kCompute;
  if (warp == Tr::kConsumerWarps) return Role::kLoadK;
  if (warp == Tr::kConsumerWarps + 1) return Role::kLoadV;
  if (warp == Tr::kConsumerWarps + 2) return Role::kPlan;
  return Role::kQuery;
}

template <class Tr>
__device__ __forceinline__ void init_barriers(const KernelArgs& args, Storage<Tr>& storage,
                                              uint32_t cluster_size) {
  for (int stage = 0; stage < Tr::kStages; ++stage) {
    ptx::mbarrier_init(storage.k_full + stage, 1);
    ptx::mbarrier_init(storage.v_full + stage, 1);
    ptx::mbarrier_init(storage.stage_empty + stage, Tr::kConsumerWarps);
  }
  ptx::mbarrier_init(&storage.slots_ready, cluster_size);
  ptx::mbarrier_init(&storage.slots_free, cluster_size);
  if (args.tile_copy == TileCopy::kRows)
    for (int stage = 0; stage < Tr::kWideStages; ++stage)
      for (const int side : {0, 1}) ptx::mbarrier_init(storage.rows_landed[side] + stage, 1);
  ptx::fence_mbarrier_init();
}

// Tells every rank (this one too) that one more rank has got this far.
__device__ __forceinline__ void arrive_at_all_ranks(uint64_t* s_barrier, uint32_t cluster_size) {
  if (threadIdx.x < cluster_size) ptx::mbarrier_arrive_release_cluster(s_barrier, threadIdx.x);
}

// Query role: a job's rows are asked for into L2 when its program arrives, a job ahead of their use. From HBM,
// which is busy with keys, they would take a consumer microseconds. With hand_on_wide_rows()
// behind it, it is later, but still ahead.
template <class Tr>
__device__ void run_query_role(const KernelArgs& args, Storage<Tr>& storage) {
  constexpr uint32_t kLineBytes = 128, kRowBytes = Tr::kHeadDim * 2;
  ProgramReader<Tr> reader(storage);
  uint32_t landed_parities = 0;
  while (const Program* program = reader.wait()) {
    const JobRows rows{args, program->query_order, program->kv_head};
    for (uint32_t row = threadIdx.x & 31u; row < program->num_rows; row += 32) {
      const auto* g_row =
          reinterpret_cast<const unsigned char*>(rows.q<typename Tr::T>(rows.place(row)));
#pragma unroll
      for (uint32_t offset = 0; offset < kRowBytes; offset += kLineBytes)
        ptx::prefetch_l2(g_row + offset);
    }
    if (args.tile_copy == TileCopy::kRows)
      landed_parities = hand_on_wide_rows<Tr>(*program, landed_parities);
    reader.release();
  }
}

template <class Tr>
__device__ void run_compute_role(const KernelArgs& args, Storage<Tr>& storage) {
  const uint32_t lane = threadIdx.x & 31u;
  const uint32_t cluster_size = ptx::cluster_nctarank();
  uint32_t parities = 0;  // of the full barriers
  SlotGate gate(&storage.slots_free, storage.gate_exchanges + threadIdx.x / 32);
  ProgramReader<Tr> reader(storage);
  Tracer tracer(args, TraceTrack::kCompute, threadIdx.x == 0);
  tracer.mark_global();
  while (const Program* program = reader.wait()) {
    const JobRows rows{args, program->query_order, program->kv_head};
    tracer.mark(TraceEvent::kJob, program->kv_head);
    for (uint32_t i = 0; i < program->num_phases; ++i) {
      const Phase& phase = program->phases[i];
      tracer.mark(phase.kind == PhaseKind::kWide ? TraceEvent::kWide : TraceEvent::kNarrow,
                  phase.stream_tiles[0]);
      if (phase.kind == PhaseKind::kWide)
        compute_wide_phase(args, storage, *program, phase, rows, parities, gate, tracer);
      else
        compute_narrow_stream(args, storage, *program, phase, rows, parities, gate, tracer);
      tracer.mark_waited();
      parities ^= parity_changes<Tr>(phase, lane) &
                  (phase.kind == PhaseKind::kWide ? kWideFirstStages : 0xffffffffu);
      // The next phase, the merges and the next job all touch slots this phase may still be using.
      named_sync(NamedBarrier::kConsumers, Tr::kConsumerThreads);
      tracer.mark(TraceEvent::kPhaseEnd, 0);
    }
    uint32_t own_merges = 0;
    if (program->needs_exchange != 0) {
      // A rank may have touched no slot since the last exchange; its peers still count on its arrival.
      gate.pass();
      own_merges = merge_own_slots(storage, *program);
      named_sync(NamedBarrier::kConsumers, Tr::kConsumerThreads);
      arrive_at_all_ranks(&storage.slots_ready, cluster_size);
      wait_cluster(&storage.slots_ready, gate.parity(), Wait::kSlotsReady);
    }
    tracer.mark(TraceEvent::kPeersReady, 0);
    run_merges(args, storage, *program, rows, own_merges);
    named_sync(NamedBarrier::kConsumers, Tr::kConsumerThreads);
    if (program->needs_exchange != 0) {
      arrive_at_all_ranks(&storage.slots_free, cluster_size);
      gate.close();
    }
    tracer.mark(TraceEvent::kMerged, 0);
    reader.release();
  }
  tracer.mark_global();
}

template <class Tr>
__global__ void __launch_bounds__(Tr::kThreads, 1)
    tree_decode_kernel(const __grid_constant__ KernelArgs args) {
  Storage<Tr>& storage = own_storage<Tr>();
  const uint32_t warp = threadIdx.x / 32;
  const uint32_t cluster_size = ptx::cluster_nctarank();
  const Role role = role_of_warp<Tr>(warp);
  ScheduleRest rest{0, 0};
  if (role == Role::kPlan && (threadIdx.x & 31u) == 0) rest = start_schedule(args, storage);
  if (threadIdx.x == 0) init_barriers(args, storage, cluster_size);
  __syncwarp();  // the barriers below want whole warps
  if (threadIdx.x == Tr::kConsumerThreads) {
    ptx::prefetch_tensormap(&args.wide_map[0]);
    ptx::prefetch_tensormap(&args.wide_map[1]);
  }
  if (cluster_size > 1) {
    ptx::barrier_cluster_arrive_release();
    ptx::barrier_cluster_wait_acquire();
  } else {
    __syncthreads();
  }
  // Everything above overlaps the tail of the kernel before us; nothing but the plan may be read before it ends.
  ptx::griddepcontrol_wait();

  if (role == Role::kCompute) {
    ptx::setmaxnreg_inc<Tr::kConsumerRegisters>();
    run_compute_role(args, storage);
  } else {
    ptx::setmaxnreg_dec<Tr::kProducerRegisters>();
    if (role == Role::kLoadK || role == Role::kLoadV)
      run_load_role(args, storage, role == Role::kLoadV);
    else if (role == Role::kPlan)
      run_plan_role(args, storage, rest);
    else
      run_query_role(args, storage);
    ptx::griddepcontrol_launch_dependents();
  }
  // A peer may still be reading our slots or arriving on our barriers: nobody leaves before everybody is done.
  if (cluster_size > 1) {
    ptx::barrier_cluster_arrive_release();
    ptx::barrier_cluster_wait_acquire();
  }
}

}  // namespace capillary::tree_decode
