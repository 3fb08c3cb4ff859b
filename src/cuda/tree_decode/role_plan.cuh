// SPDX-License-Identifier: MIT
// Plan role: one lane walks this CTA's schedule entries one ahead of everybody else and brings each entry's
// program (phases, items, segments, merges, partials, queries) into shared memory with bulk copies. Without
// it every role would chase six dependent global loads before its first key.
//
//   barrier           arrives                           waits                         first phase
//   program_full[b]   this lane (expect_tx) + bytes     all roles, before they read   0
//   program_empty[b]  8 consumer, 2 load, 1 query warp  this lane, before it reuses   passes at once
#pragma once

#include "cuda/sync.cuh"
#include "cuda/tree_decode/args.h"
#include "cuda/tree_decode/storage.cuh"

namespace capillary::tree_decode {

// A slice of one of the plan's arrays. It begins and ends anywhere; copies are widened to whole 16-byte units
// (the blob's arrays are padded to that) and the pointer moved in accordingly.
template <class T>
struct Slice {
  uint32_t from, bytes;  // of the copy, from the start of the plan
  uint32_t lead;         // bytes before the first element

  __device__ __forceinline__ Slice(uint32_t array_offset, uint32_t begin, uint32_t count) {
    const uint32_t first = array_offset + begin * static_cast<uint32_t>(sizeof(T));
    const uint32_t end = first + count * static_cast<uint32_t>(sizeof(T));
    from = first & ~15u;
    lead = first - from;
    bytes = count == 0 ? 0 : ((end + 15u) & ~15u) - from;
  }
  // Fetches the slice to `*at` of the program and moves `*at` on; or, when nothing is to be fetched, points
  // into the plan.
  __device__ __forceinline__ const T* place(const KernelArgs& args, Program& program, bool fetch,
                                            uint32_t* at, uint64_t* s_full) const {
    if (!fetch) return reinterpret_cast<const T*>(args.plan + from + lead);
    unsigned char* s_slice = program.bytes + *at;
    if (bytes != 0) ptx::cp_async_bulk(s_slice, args.plan + from, bytes, s_full);
    *at += bytes;
    return reinterpret_cast<const T*>(s_slice + lead);
  }
};

__device__ __forceinline__ void fetch_program(const KernelArgs& args, const Job& job,
                                              const RankWork& work, uint32_t kv_head,
                                              Program& program, uint64_t* s_full) {
  const PlanHeader& header = PlanView(args.plan).header();
  const Slice<Phase> phases(header.phases_offset, work.phase_begin, work.num_phases);
  const Slice<WorkItem> items(header.items_offset, work.item_begin, work.num_items);
  const Slice<Segment> segments(header.segments_offset, work.segment_begin, work.num_segments);
  const Slice<Merge> merges(header.merges_offset, work.merge_begin, work.num_merges);
  const Slice<Partial> partials(header.partials_offset, work.partial_begin, work.num_partials);
  const Slice<int32_t> queries(header.query_order_offset, static_cast<uint32_t>(job.query_begin),
                               static_cast<uint32_t>(job.num_queries));
  const uint32_t total =
      phases.bytes + items.bytes + segments.bytes + merges.bytes + partials.bytes + queries.bytes;
  const bool fetch = total <= Program::kBytes;
  uint32_t at = 0;
  program.phases = phases.place(args, program, fetch, &at, s_full);
  // Items, segments and partials are addressed by their index in the whole plan.
  program.items = items.place(args, program, fetch, &at, s_full) - work.item_begin;
  program.segments = segments.place(args, program, fetch, &at, s_full) - work.segment_begin;
  program.merges = merges.place(args, program, fetch, &at, s_full);
  program.partials = partials.place(args, program, fetch, &at, s_full) - work.partial_begin;
  program.query_order = queries.place(args, program, fetch, &at, s_full);
  program.kv_head = kv_head;
  program.num_rows = static_cast<uint32_t>(job.num_queries) * args.group_size.divisor;
  program.num_phases = work.num_phases;
  program.num_merges = work.num_merges;
  program.needs_exchange = job.needs_exchange;
  // The bytes are expected only now; a copy that has landed before this is merely early.
  ptx::mbarrier_arrive_expect_tx(s_full, at);
}

// This CTA's entries that are still to be fetched.
struct ScheduleRest {
  uint32_t entry, end;
};

template <class Tr>
__device__ __forceinline__ void end_of_schedule(Storage<Tr>& storage, uint32_t buffer) {
  storage.programs[buffer].num_phases = Program::kEnd;
  ptx::mbarrier_arrive_release_cta(storage.program_full + buffer, 1);
}

// By one lane, before anything else: its barriers, and the first program, which is on its way while the CTAs of the cluster find
// each other. Only the plan is read here, which no kernel writes, so it need not wait for the kernel before us.
template <class Tr>
__device__ __forceinline__ ScheduleRest start_schedule(const KernelArgs& args,
                                                       Storage<Tr>& storage) {
  const uint32_t cta = ptx::clusterid_x() * ptx::cluster_nctarank() + ptx::cluster_ctarank();
  const RankStart& start = PlanView(args.plan).rank_starts()[cta];
  const ScheduleRest rest{start.schedule_begin, start.schedule_end};
  for (int buffer = 0; buffer < 2; ++buffer) {
    ptx::mbarrier_init(storage.program_full + buffer, 1);
    ptx::mbarrier_init(storage.program_empty + buffer, Tr::kConsumerWarps + 3);
  }
  ptx::fence_mbarrier_init();
  ptx::fence_proxy_async_shared_cta();  // no CTA barrier stands between this and the copies
  if (rest.entry >= rest.end) {
    end_of_schedule(storage, 0);
    return rest;
  }
  fetch_program(args, start.job, start.work, start.entry.kv_head, storage.programs[0],
                storage.program_full);
  return {rest.entry + 1, rest.end};
}

template <class Tr>
__device__ __noinline__ void walk_schedule(const KernelArgs& args, Storage<Tr>& storage,
                                           ScheduleRest rest) {
  const PlanView plan(args.plan);
  const uint32_t cluster_size = ptx::cluster_nctarank();
  const uint32_t rank = ptx::cluster_ctarank();
  for (uint32_t count = 1;; ++count) {
    const uint32_t buffer = count & 1u;
    wait_cta(storage.program_empty, buffer, ((count >> 1) & 1u) ^ 1u, Wait::kProgramEmpty);
    if (rest.entry >= rest.end) return end_of_schedule(storage, buffer);
    const ScheduleEntry scheduled = plan.schedule()[rest.entry++];
    fetch_program(args, plan.jobs()[scheduled.job],
                  plan.rank_works()[scheduled.job * cluster_size + rank], scheduled.kv_head,
                  storage.programs[buffer], storage.program_full + buffer);
  }
}

template <class Tr>
__device__ void run_plan_role(const KernelArgs& args, Storage<Tr>& storage, ScheduleRest rest) {
  if ((threadIdx.x & 31u) == 0) walk_schedule(args, storage, rest);
  __syncwarp();  // the kernel ends with barriers that want whole warps
}

// The other roles' side: the program in hand, in step with the plan role.
template <class Tr>
class ProgramReader {
 public:
  __device__ __forceinline__ explicit ProgramReader(Storage<Tr>& storage) : storage_(storage) {}
  // The current entry's program; null after the last.
  __device__ __forceinline__ const Program* wait() {
    wait_cta(storage_.program_full, buffer(), count_ >> 1 & 1u, Wait::kProgramFull);
    const Program* program = storage_.programs + buffer();
    return program->num_phases == Program::kEnd ? nullptr : program;
  }
  // A whole warp is done with it.
  __device__ __forceinline__ void release() {
    __syncwarp();
    if ((threadIdx.x & 31u) == 0)
      ptx::mbarrier_arrive_release_cta(storage_.program_empty + buffer(), 1);
    ++count_;
  }

 private:
  __device__ __forceinline__ uint32_t buffer() const { return count_ & 1u; }

  Storage<Tr>& storage_;
  uint32_t count_ = 0;  // of the programs released
};

}  // namespace capillary::tree_decode
