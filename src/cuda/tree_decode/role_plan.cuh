// SPDX-License-Identifier: MIT
// Plan role: one lane walks this CTA's schedule entries one ahead of everybody else and brings each entry's
// program (phases, items, segments, merges, partials, queries) into shared memory with bulk copies. Without
// it every role would chase six dependent global loads before its first key.
//
//   barrier           arrives                           waits                         first phase
//   program_full[b]   this lane (expect_tx) + bytes     all roles, before they read   0
//   program_empty[b]  8 consumer and 2 load warps       this lane, before it reuses   passes at once
#pragma once

#include "cuda/sync.cuh"
#include "cuda/tree_decode/args.h"
#include "cuda/tree_decode/storage.cuh"

namespace capillary::tree_decode {

// The plan's array slices come 16-byte aligned at neither end; copies are widened to whole 16-byte units (the
// blob's arrays are padded to that) and the pointer moved in accordingly.
class ProgramCopy {
 public:
  __device__ __forceinline__ ProgramCopy(const unsigned char* g_plan, Program& program)
      : g_plan_(g_plan), program_(program) {}

  template <class T>
  __device__ __forceinline__ void add(uint32_t array_offset, uint32_t begin, uint32_t count) {
    const uint32_t from = array_offset + begin * static_cast<uint32_t>(sizeof(T));
    const uint32_t to = from + count * static_cast<uint32_t>(sizeof(T));
    from_[num_] = from & ~15u;
    bytes_[num_] = count == 0 ? 0 : ((to + 15u) & ~15u) - (from & ~15u);
    total_ += bytes_[num_];
    ++num_;
  }
  __device__ __forceinline__ bool fits() const { return total_ <= Program::kBytes; }
  __device__ __forceinline__ uint32_t total() const { return total_; }
  // Issues the copies; base(i) then stands for byte 0 of the plan in slice i's index space.
  __device__ __forceinline__ void issue(uint64_t* s_full) {
    uint32_t at = 0;
#pragma unroll
    for (int i = 0; i < kSlices; ++i) {
      if (bytes_[i] != 0)
        ptx::cp_async_bulk(program_.bytes + at, g_plan_ + from_[i], bytes_[i], s_full);
      base_[i] = program_.bytes + at - from_[i];
      at += bytes_[i];
    }
  }
  __device__ __forceinline__ const unsigned char* base(int i) const {
    return fits() ? base_[i] : g_plan_;
  }

 private:
  static constexpr int kSlices = 6;
  const unsigned char* g_plan_;
  Program& program_;
  uint32_t from_[kSlices];
  uint32_t bytes_[kSlices];
  const unsigned char* base_[kSlices];
  uint32_t total_ = 0;
  int num_ = 0;
};

template <class Tr>
__device__ void walk_schedule(const KernelArgs& args, Storage<Tr>& storage) {
  const PlanView plan(args.plan);
  const uint32_t cluster_size = ptx::cluster_nctarank();
  const uint32_t rank = ptx::cluster_ctarank();
  const RankStart start = plan.rank_starts()[ptx::clusterid_x() * cluster_size + rank];
  const PlanHeader& header = plan.header();
  const uint32_t offsets[6] = {header.phases_offset, header.items_offset,    header.segments_offset,
                               header.merges_offset, header.partials_offset, header.query_order_offset};
  uint32_t buffer = 0, parity = 0;
  Job job = start.job;
  RankWork work = start.work;
  uint32_t kv_head = start.entry.kv_head;
  for (uint32_t entry = start.schedule_begin;; ++entry) {
    Program& program = storage.programs[buffer];
    uint64_t* s_full = storage.program_full + buffer;
    wait_cta(storage.program_empty, buffer, parity ^ 1u, Wait::kProgramEmpty);
    if (entry == start.schedule_end) {
      program.num_phases = Program::kEnd;
      ptx::mbarrier_arrive_release_cta(s_full, 1);
      return;
    }
    if (entry != start.schedule_begin) {
      const ScheduleEntry scheduled = plan.schedule()[entry];
      job = plan.jobs()[scheduled.job];
      work = plan.rank_works()[scheduled.job * cluster_size + rank];
      kv_head = scheduled.kv_head;
    }
    ProgramCopy copy(args.plan, program);
    copy.add<Phase>(offsets[0], work.phase_begin, work.num_phases);
    copy.add<WorkItem>(offsets[1], work.item_begin, work.num_items);
    copy.add<Segment>(offsets[2], work.segment_begin, work.num_segments);
    copy.add<Merge>(offsets[3], work.merge_begin, work.num_merges);
    copy.add<Partial>(offsets[4], work.partial_begin, work.num_partials);
    copy.add<int32_t>(offsets[5], static_cast<uint32_t>(job.query_begin),
                      static_cast<uint32_t>(job.num_queries));
    const bool fits = copy.fits();
    // The bytes are expected with the arrive at the end; a copy that lands before that is only early.
    if (fits) copy.issue(s_full);
    program.phases = reinterpret_cast<const Phase*>(copy.base(0) + offsets[0]) + work.phase_begin;
    program.items = reinterpret_cast<const WorkItem*>(copy.base(1) + offsets[1]);
    program.segments = reinterpret_cast<const Segment*>(copy.base(2) + offsets[2]);
    program.merges = reinterpret_cast<const Merge*>(copy.base(3) + offsets[3]) + work.merge_begin;
    program.partials = reinterpret_cast<const Partial*>(copy.base(4) + offsets[4]);
    program.query_order =
        reinterpret_cast<const int32_t*>(copy.base(5) + offsets[5]) + job.query_begin;
    program.kv_head = kv_head;
    program.num_phases = work.num_phases;
    program.num_merges = work.num_merges;
    program.needs_exchange = job.needs_exchange;
    ptx::mbarrier_arrive_expect_tx(s_full, fits ? copy.total() : 0);
    buffer ^= 1u;
    if (buffer == 0) parity ^= 1u;
  }
}

template <class Tr>
__device__ void run_plan_role(const KernelArgs& args, Storage<Tr>& storage) {
  if ((threadIdx.x & 31u) == 0) walk_schedule(args, storage);
  __syncwarp();  // the kernel ends with barriers that want whole warps
}

// The other roles' side: the program in hand, in step with the plan role.
template <class Tr>
class ProgramReader {
 public:
  __device__ __forceinline__ explicit ProgramReader(Storage<Tr>& storage) : storage_(storage) {}
  // The current entry's program; null after the last.
  __device__ __forceinline__ const Program* wait() {
    wait_cta(storage_.program_full, buffer_, parity_, Wait::kProgramFull);
    const Program* program = storage_.programs + buffer_;
    return program->num_phases == Program::kEnd ? nullptr : program;
  }
  // A whole warp is done with it.
  __device__ __forceinline__ void release() {
    __syncwarp();
    if ((threadIdx.x & 31u) == 0)
      ptx::mbarrier_arrive_release_cta(storage_.program_empty + buffer_, 1);
    buffer_ ^= 1u;
    if (buffer_ == 0) parity_ ^= 1u;
  }

 private:
  Storage<Tr>& storage_;
  uint32_t buffer_ = 0;
  uint32_t parity_ = 0;
};

}  // namespace capillary::tree_decode
