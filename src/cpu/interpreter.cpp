// SPDX-License-Identifier: MIT
// decode_cpu: executes a plan blob the way the kernel does and so specifies it. A scheduled job has
// cluster_size ranks; a rank runs its phases item by item and leaves partials in its slots; once all ranks
// of the job are done its merges read those slots in partial order; rows split over jobs meet in the
// workspace and are merged in part order at the end. Nothing depends on which thread does what, so the
// same plan and tensors give the same bits with any number of threads.
#include "cpu/interpreter.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <vector>

#include "capillary/error.h"
#include "core/check_tensors.h"
#include "cpu/aligned.h"
#include "cpu/parallel.h"
#include "cpu/tensor_access.h"
#include "shared/lse.h"
#include "shared/plan_layout.h"

namespace capillary {
namespace {

using cpu::element;

// Jobs of so many KV heads are in flight together; each has the slots of a cluster.
constexpr size_t kMostHeadsTogether = 16;
constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();

// Partials of some rows: one (max, sum) pair and one output run a row.
struct PartialBank {
  PartialBank(int64_t num_rows, int64_t stride)
      : out_stride(stride),
        max(static_cast<size_t>(num_rows)),
        sum(static_cast<size_t>(num_rows)),
        out(num_rows * stride) {}

  // A slot that is read before it was written shows as NaN in the output.
  void poison() {
    std::fill(max.begin(), max.end(), kPoison);
    std::fill(sum.begin(), sum.end(), kPoison);
  }
  float* out_row(int64_t row) { return out.data() + row * out_stride; }

  int64_t out_stride;
  std::vector<float> max, sum;
  cpu::AlignedFloats out;
};

// One scheduled job in flight: the slots of all its ranks.
struct JobRun {
  std::atomic<uint32_t> ranks_left{0};
  std::once_flag slots_ready;
  std::unique_ptr<PartialBank> slots;
};

// Tokens of one item; item is null past a rank's last.
struct ItemBlock {
  const WorkItem* item = nullptr;
  bool ends_item = true;
  cpu::TokenBlock tokens;
};

// What one thread needs for the item in hand.
struct Worker {
  Worker(const PlanHeader& header, int64_t out_stride, const cpu::AttendKernel& kernel)
      : q(static_cast<size_t>(kMaxJobRows) * static_cast<size_t>(header.head_dim)),
        packed_q(kernel.packed_floats(kMaxJobRows, header.head_dim)),
        scratch(kernel.scratch_floats(kMaxJobRows, header.head_dim, header.head_dim_v)),
        rows(kMaxJobRows, out_stride) {}

  std::vector<float> q;
  cpu::AlignedFloats packed_q, scratch;
  PartialBank rows;
  ItemBlock blocks[2];  // blocks[turn] is in hand, the other comes after it
  int turn = 0;
};

// The tokens of a rank's items, block by block and in the order of its work, so that the block after the one
// in hand is known across items. Page ids are looked at only for tokens that the segments name.
class TokenCursor {
 public:
  TokenCursor(const PlanView& plan, const RankWork& work, const DecodeTensors& tensors,
              uint32_t kv_head)
      : plan_(plan), work_(work), tensors_(tensors), kv_head_(kv_head) {
    page_ids_ = static_cast<const int32_t*>(tensors.page_ids.data);
    enter_item();
  }

  // An item has at least one block, empty where it has no tokens.
  void fill(ItemBlock& item_block) {
    cpu::TokenBlock& block = item_block.tokens;
    block.num_tokens = 0;
    item_block.item = item_;
    if (item_ == nullptr) return;
    while (segment_ != segments_end_ && block.num_tokens < cpu::kBlockTokens) {
      const int32_t page_size = plan_.header().page_size;
      const int32_t count =
          std::min({page_size - slot_, left_, cpu::kBlockTokens - block.num_tokens});
      append(block, count);
      left_ -= count;
      slot_ += count;
      if (slot_ == page_size) {
        slot_ = 0;
        ++entry_;
      }
      if (left_ == 0) {
        ++segment_;
        enter_segment();
      }
    }
    item_block.ends_item = segment_ == segments_end_;
    if (item_block.ends_item) {
      ++item_in_phase_;
      enter_item();
    }
  }

 private:
  void enter_item() {
    item_ = nullptr;
    for (; phase_ < work_.num_phases; ++phase_, item_in_phase_ = 0) {
      const Phase& phase = plan_.phases()[work_.phase_begin + phase_];
      if (item_in_phase_ == phase.num_items) continue;
      item_ = plan_.items() + phase.item_begin + item_in_phase_;
      segment_ = plan_.segments() + item_->segment_begin;
      segments_end_ = segment_ + item_->num_segments;
      enter_segment();
      return;
    }
  }

  void enter_segment() {
    if (segment_ == segments_end_) return;
    entry_ = segment_->page_offset;
    slot_ = segment_->token_begin;
    left_ = segment_->num_tokens;
  }

  void append(cpu::TokenBlock& block, int32_t count) const {
    const TensorView& k_cache = tensors_.k_cache;
    const TensorView& v_cache = tensors_.v_cache;
    const int64_t page = page_ids_[entry_];
    if (page < 0 || page >= k_cache.shape[0]) {
      throw InvalidArgument(five_parts(
          "decode", "page_ids",
          "names page " + std::to_string(page) + " in entry " + std::to_string(entry_),
          "name pages below " + std::to_string(k_cache.shape[0]) + " (num_pages of the caches)",
          "pass the caches and the block table of one pool"));
    }
    const int64_t k_token_bytes = k_cache.strides[1] * dtype_bytes(k_cache.dtype);
    const int64_t v_token_bytes = v_cache.strides[1] * dtype_bytes(v_cache.dtype);
    const std::byte* k_token = element(k_cache, page, slot_, kv_head_);
    const std::byte* v_token = element(v_cache, page, slot_, kv_head_);
    for (int32_t i = 0; i < count; ++i) {
      block.k[block.num_tokens] = k_token + i * k_token_bytes;
      block.v[block.num_tokens] = v_token + i * v_token_bytes;
      ++block.num_tokens;
    }
  }

  const PlanView& plan_;
  const RankWork& work_;
  const DecodeTensors& tensors_;
  const int32_t* page_ids_;
  uint32_t kv_head_;
  uint32_t phase_ = 0;
  uint32_t item_in_phase_ = 0;
  const WorkItem* item_ = nullptr;
  const Segment* segment_ = nullptr;
  const Segment* segments_end_ = nullptr;
  int64_t entry_ = 0;
  int32_t slot_ = 0;
  int32_t left_ = 0;
};

constexpr cpu::CacheType cache_type(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return cpu::CacheType::kFloat16;
    case DType::kBFloat16:
      return cpu::CacheType::kBFloat16;
    default:
      return cpu::CacheType::kFloat32;
  }
}

class Interpreter {
 public:
  Interpreter(const Plan& plan, const DecodeTensors& tensors, const DecodeOptions& options,
              const cpu::AttendKernel& kernel)
      : plan_(plan.data()),
        header_(plan_.header()),
        tensors_(tensors),
        kernel_(kernel),
        group_size_(header_.num_q_heads / std::max(1, header_.num_kv_heads)),
        out_stride_(cpu::padded_floats(header_.head_dim_v)),
        num_threads_(options.num_threads) {
    const float scale = options.softmax_scale != 0.0f
                            ? options.softmax_scale
                            : 1.0f / std::sqrt(static_cast<float>(header_.head_dim));
    score_scale_ = scale * kLog2E;
  }

  void run();

 private:
  struct RankTask {
    uint32_t scheduled, rank;
  };
  std::vector<RankTask> order_tasks() const;
  void run_rank(uint32_t scheduled, uint32_t rank, Worker& worker);
  void run_item(const Job& job, const WorkItem& item, uint32_t kv_head, PartialBank& slots,
                int64_t first_slot, TokenCursor& cursor, Worker& worker);
  void load_queries(const Job& job, const WorkItem& item, uint32_t kv_head, Worker& worker) const;
  void merge_own_slots(const RankWork& work, PartialBank& slots, int64_t first_slot,
                       PartialBank& scratch);
  void gather_row(const Merge& merge, int32_t row, PartialBank& slots, PartialBank& scratch) const;
  void run_merges(uint32_t scheduled, PartialBank& slots, PartialBank& scratch);
  void finish_split(const Split& split, uint32_t kv_head, PartialBank& scratch);
  static void merge_row(PartialBank& into, int64_t into_row, PartialBank& from, int64_t from_row,
                        int64_t head_dim_v);
  void write_output(int64_t target, const float* out, float max, float sum) const;
  void give_slots_back(std::unique_ptr<PartialBank> slots);
  std::unique_ptr<PartialBank> take_slots();

  // Row of q, out and lse (query * num_q_heads + head) of a job's row.
  int64_t target_of(const Job& job, int32_t row, uint32_t kv_head) const {
    const int64_t query = plan_.query_order()[job.query_begin + row / group_size_];
    return query * header_.num_q_heads + kv_head * group_size_ + row % group_size_;
  }
  int64_t workspace_row(const Split& split, uint32_t kv_head, int32_t part, int32_t row) const {
    return static_cast<int64_t>(kv_head) * header_.split_rows + split.split_row_begin +
           static_cast<int64_t>(part) * split.num_rows + row;
  }

  PlanView plan_;
  const PlanHeader& header_;
  const DecodeTensors& tensors_;
  const cpu::AttendKernel& kernel_;
  int32_t group_size_;
  int64_t out_stride_;
  int32_t num_threads_;
  float score_scale_;

  std::vector<std::unique_ptr<Worker>> workers_;
  std::unique_ptr<JobRun[]> runs_;
  std::mutex idle_slots_mutex_;
  std::vector<std::unique_ptr<PartialBank>> idle_slots_;
  std::unique_ptr<PartialBank> workspace_;  // rows split over jobs, [num_kv_heads][split_rows]
  std::vector<int64_t> workspace_target_;   // where a workspace row ends up
};

void Interpreter::run() {
  const int64_t cluster_size = header_.cluster_size;
  const int64_t num_tasks = header_.num_scheduled * cluster_size;
  const int64_t workspace_rows = static_cast<int64_t>(header_.num_kv_heads) * header_.split_rows;
  workspace_ = std::make_unique<PartialBank>(workspace_rows, out_stride_);
  workspace_->poison();
  workspace_target_.assign(static_cast<size_t>(workspace_rows), -1);
  runs_ = std::make_unique<JobRun[]>(header_.num_scheduled);
  for (uint32_t i = 0; i < header_.num_scheduled; ++i)
    runs_[i].ranks_left = static_cast<uint32_t>(cluster_size);

  const int32_t num_threads = cpu::resolve_threads(num_threads_, num_tasks);
  for (int32_t i = 0; i < num_threads; ++i)
    workers_.push_back(std::make_unique<Worker>(header_, out_stride_, kernel_));
  const std::vector<RankTask> tasks = order_tasks();
  cpu::parallel_for(num_tasks, num_threads, [&](int64_t task, int32_t worker) {
    const RankTask& t = tasks[static_cast<size_t>(task)];
    run_rank(t.scheduled, t.rank, *workers_[static_cast<size_t>(worker)]);
  });
  const int64_t num_splits = static_cast<int64_t>(header_.num_splits) * header_.num_kv_heads;
  cpu::parallel_for(num_splits, std::min<int32_t>(num_threads, static_cast<int32_t>(num_splits)),
                    [&](int64_t task, int32_t worker) {
                      finish_split(plan_.splits()[task / header_.num_kv_heads],
                                   static_cast<uint32_t>(task % header_.num_kv_heads),
                                   workers_[static_cast<size_t>(worker)]->rows);
                    });
}

// KV heads of a job that have the same rank read the same tokens, whose heads lie side by side in most caches: one
// after the other they find the TLB and the memory's rows as the one before left them.
std::vector<Interpreter::RankTask> Interpreter::order_tasks() const {
  std::vector<uint32_t> entries(header_.num_scheduled);
  std::iota(entries.begin(), entries.end(), 0u);
  const auto job_of = [&](uint32_t entry) { return plan_.schedule()[entry].job; };
  std::stable_sort(entries.begin(), entries.end(),
                   [&](uint32_t a, uint32_t b) { return job_of(a) < job_of(b); });
  std::vector<RankTask> tasks;
  tasks.reserve(entries.size() * static_cast<size_t>(header_.cluster_size));
  for (size_t begin = 0, end = 0; begin < entries.size(); begin = end) {
    while (end < entries.size() && end - begin < kMostHeadsTogether &&
           job_of(entries[end]) == job_of(entries[begin]))
      ++end;
    for (uint32_t rank = 0; rank < static_cast<uint32_t>(header_.cluster_size); ++rank)
      for (size_t i = begin; i < end; ++i) tasks.push_back({entries[i], rank});
  }
  return tasks;
}

std::unique_ptr<PartialBank> Interpreter::take_slots() {
  std::unique_ptr<PartialBank> slots;
  {
    const std::lock_guard lock(idle_slots_mutex_);
    if (!idle_slots_.empty()) {
      slots = std::move(idle_slots_.back());
      idle_slots_.pop_back();
    }
  }
  if (!slots) {
    slots = std::make_unique<PartialBank>(
        static_cast<int64_t>(header_.max_slots) * header_.cluster_size, out_stride_);
  }
  slots->poison();
  return slots;
}

void Interpreter::give_slots_back(std::unique_ptr<PartialBank> slots) {
  const std::lock_guard lock(idle_slots_mutex_);
  idle_slots_.push_back(std::move(slots));
}

void Interpreter::run_rank(uint32_t scheduled, uint32_t rank, Worker& worker) {
  const ScheduleEntry entry = plan_.schedule()[scheduled];
  const Job& job = plan_.jobs()[entry.job];
  JobRun& run = runs_[scheduled];
  std::call_once(run.slots_ready, [&] { run.slots = take_slots(); });

  const RankWork& work =
      plan_.rank_works()[entry.job * static_cast<uint32_t>(header_.cluster_size) + rank];
  const int64_t first_slot = static_cast<int64_t>(rank) * header_.max_slots;
  // Items lie phase by phase, the streams of a narrow phase one after the other, and no item reads a slot
  // that another stream of its phase writes; so a plain walk does what the CTA's warps do side by side.
  TokenCursor cursor(plan_, work, tensors_, entry.kv_head);
  worker.turn = 0;
  cursor.fill(worker.blocks[0]);
  while (const WorkItem* item = worker.blocks[worker.turn].item)
    run_item(job, *item, entry.kv_head, *run.slots, first_slot, cursor, worker);
  merge_own_slots(work, *run.slots, first_slot, worker.rows);
  if (run.ranks_left.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    run_merges(scheduled, *run.slots, worker.rows);
    give_slots_back(std::move(run.slots));
  }
}

void Interpreter::run_item(const Job& job, const WorkItem& item, uint32_t kv_head,
                           PartialBank& slots, int64_t first_slot, TokenCursor& cursor,
                           Worker& worker) {
  // Items that leave a partial work in its slots; finished rows work in the thread's own.
  const bool to_slot = item.destination == Destination::kSlot;
  PartialBank& bank = to_slot ? slots : worker.rows;
  const int64_t first_row = to_slot ? first_slot + item.dest_slot : 0;
  const int64_t num_rows = item.num_rows;
  if (item.init_slot == kNoSlot) {
    std::fill_n(bank.max.begin() + first_row, num_rows, kEmptyMax);
    std::fill_n(bank.sum.begin() + first_row, num_rows, 0.0f);
    std::fill_n(bank.out_row(first_row), num_rows * out_stride_, 0.0f);
  } else if (!to_slot || item.init_slot != item.dest_slot) {
    const int64_t init_row = first_slot + item.init_slot;
    std::copy_n(slots.max.begin() + init_row, num_rows, bank.max.begin() + first_row);
    std::copy_n(slots.sum.begin() + init_row, num_rows, bank.sum.begin() + first_row);
    std::copy_n(slots.out_row(init_row), num_rows * out_stride_, bank.out_row(first_row));
  }

  load_queries(job, item, kv_head, worker);
  const cpu::AttendRows rows{.num_rows = item.num_rows,
                             .head_dim = header_.head_dim,
                             .head_dim_v = header_.head_dim_v,
                             .type = cache_type(tensors_.k_cache.dtype),
                             .score_scale = score_scale_,
                             .packed_q = worker.packed_q.data(),
                             .max = bank.max.data() + first_row,
                             .sum = bank.sum.data() + first_row,
                             .out = bank.out_row(first_row),
                             .scratch = worker.scratch.data()};
  bool ends_item = false;
  while (!ends_item) {
    const ItemBlock& block = worker.blocks[worker.turn];
    ItemBlock& next = worker.blocks[worker.turn ^ 1];
    cursor.fill(next);
    if (block.tokens.num_tokens > 0) kernel_.attend(rows, block.tokens, next.tokens);
    ends_item = block.ends_item;
    worker.turn ^= 1;
  }
  if (to_slot) return;
  for (int32_t i = 0; i < item.num_rows; ++i) {
    write_output(target_of(job, item.row_begin + i, kv_head), rows.out + i * out_stride_,
                 rows.max[i], rows.sum[i]);
  }
}

void Interpreter::load_queries(const Job& job, const WorkItem& item, uint32_t kv_head,
                               Worker& worker) const {
  const TensorView& q = tensors_.q;
  for (int32_t i = 0; i < item.num_rows; ++i) {
    const int64_t target = target_of(job, item.row_begin + i, kv_head);
    float* row = worker.q.data() + static_cast<int64_t>(i) * header_.head_dim;
    cpu::load_floats(element(q, target / header_.num_q_heads, target % header_.num_q_heads),
                     q.dtype, header_.head_dim, row);
  }
  kernel_.pack_queries(item.num_rows, header_.head_dim, cache_type(q.dtype), worker.q.data(),
                       worker.packed_q.data());
}

void Interpreter::merge_row(PartialBank& into, int64_t into_row, PartialBank& from,
                            int64_t from_row, int64_t head_dim_v) {
  const auto a = static_cast<size_t>(into_row);
  const auto b = static_cast<size_t>(from_row);
  const MergeScales scales = merge_scales_base2(into.max[a], from.max[b]);
  const float sum = weighted(into.sum[a], scales.scale_a) + weighted(from.sum[b], scales.scale_b);
  into.sum[a] = sum;
  into.max[a] = scales.max + (sum - sum);  // a NaN stays, whatever comes after it
  float* out_a = into.out_row(into_row);
  const float* out_b = from.out_row(from_row);
  if (scales.scale_b == 0.0f) {
    for (int64_t d = 0; d < head_dim_v; ++d) out_a[d] = weighted(out_a[d], scales.scale_a);
  } else if (scales.scale_a == 0.0f) {
    for (int64_t d = 0; d < head_dim_v; ++d) out_a[d] = out_b[d] * scales.scale_b;
  } else {
    for (int64_t d = 0; d < head_dim_v; ++d)
      out_a[d] = out_a[d] * scales.scale_a + out_b[d] * scales.scale_b;
  }
}

// Row `row` of the merge into the first row of scratch.
void Interpreter::gather_row(const Merge& merge, int32_t row, PartialBank& slots,
                             PartialBank& scratch) const {
  scratch.max[0] = kEmptyMax;
  scratch.sum[0] = 0.0f;
  std::fill_n(scratch.out_row(0), out_stride_, 0.0f);
  for (uint32_t p = 0; p < merge.num_partials; ++p) {
    const Partial& partial = plan_.partials()[merge.partial_begin + p];
    merge_row(scratch, 0, slots,
              static_cast<int64_t>(partial.rank) * header_.max_slots + partial.slot + row,
              header_.head_dim_v);
  }
}

// A rank's merges of its own slots, before its peers look at them.
void Interpreter::merge_own_slots(const RankWork& work, PartialBank& slots, int64_t first_slot,
                                  PartialBank& scratch) {
  for (uint32_t m = 0; m < work.num_merges; ++m) {
    const Merge& merge = plan_.merges()[work.merge_begin + m];
    if (merge.destination != Destination::kSlot) return;
    for (int32_t i = 0; i < merge.num_rows; ++i) {
      gather_row(merge, i, slots, scratch);
      const int64_t row = first_slot + plan_.partials()[merge.partial_begin].slot + i;
      slots.max[static_cast<size_t>(row)] = scratch.max[0];
      slots.sum[static_cast<size_t>(row)] = scratch.sum[0];
      std::copy_n(scratch.out_row(0), out_stride_, slots.out_row(row));
    }
  }
}

void Interpreter::run_merges(uint32_t scheduled, PartialBank& slots, PartialBank& scratch) {
  const ScheduleEntry entry = plan_.schedule()[scheduled];
  const Job& job = plan_.jobs()[entry.job];
  for (uint32_t rank = 0; rank < static_cast<uint32_t>(header_.cluster_size); ++rank) {
    const RankWork& work =
        plan_.rank_works()[entry.job * static_cast<uint32_t>(header_.cluster_size) + rank];
    for (uint32_t m = 0; m < work.num_merges; ++m) {
      const Merge& merge = plan_.merges()[work.merge_begin + m];
      if (merge.destination == Destination::kSlot) continue;
      for (int32_t i = 0; i < merge.num_rows; ++i) {
        gather_row(merge, i, slots, scratch);
        const int64_t target = target_of(job, merge.row_begin + i, entry.kv_head);
        if (merge.destination == Destination::kOutput) {
          write_output(target, scratch.out_row(0), scratch.max[0], scratch.sum[0]);
          continue;
        }
        const int64_t row = workspace_row(plan_.splits()[merge.split], entry.kv_head,
                                          merge.split_part, merge.split_row + i);
        workspace_->max[static_cast<size_t>(row)] = scratch.max[0];
        workspace_->sum[static_cast<size_t>(row)] = scratch.sum[0];
        std::copy_n(scratch.out_row(0), out_stride_, workspace_->out_row(row));
        workspace_target_[static_cast<size_t>(row)] = target;
      }
    }
  }
}

void Interpreter::finish_split(const Split& split, uint32_t kv_head, PartialBank& scratch) {
  for (int32_t i = 0; i < split.num_rows; ++i) {
    scratch.max[0] = kEmptyMax;
    scratch.sum[0] = 0.0f;
    std::fill_n(scratch.out_row(0), out_stride_, 0.0f);
    const int64_t first = workspace_row(split, kv_head, 0, i);
    const int64_t target = workspace_target_[static_cast<size_t>(first)];
    for (int32_t part = 0; part < split.num_parts; ++part) {
      const int64_t row = workspace_row(split, kv_head, part, i);
      if (target < 0 || workspace_target_[static_cast<size_t>(row)] != target) {
        throw InternalError(five_parts(
            "decode", "plan", "leaves part " + std::to_string(part) + " of a split row unwritten",
            "write every part of a split once, for the same query row",
            "report this plan; validate_plan tells more"));
      }
      merge_row(scratch, 0, *workspace_, row, header_.head_dim_v);
    }
    write_output(target, scratch.out_row(0), scratch.max[0], scratch.sum[0]);
  }
}

void Interpreter::write_output(int64_t target, const float* out, float max, float sum) const {
  const int64_t query = target / header_.num_q_heads;
  const int64_t head = target % header_.num_q_heads;
  const float scale = normaliser(sum);
  std::byte* run = element(tensors_.out, query, head);
  for (int32_t d = 0; d < header_.head_dim_v; ++d)
    cpu::store_float(run, tensors_.out.dtype, d, out[d] * scale);
  if (tensors_.lse.present())
    cpu::store_float(element(tensors_.lse, query, head), DType::kFloat32, 0, natural_lse(max, sum));
}

}  // namespace

namespace cpu {

void interpret_plan(const Plan& plan, const DecodeTensors& tensors, const DecodeOptions& options,
                    const AttendKernel& kernel) {
  check_tensors(plan, tensors, DeviceType::kCpu);
  check_options(options);
  Interpreter(plan, tensors, options, kernel).run();
}

}  // namespace cpu

void decode_cpu(const Plan& plan, const DecodeTensors& tensors, const DecodeOptions& options) {
  cpu::interpret_plan(plan, tensors, options, cpu::best_attend_kernel());
}

}  // namespace capillary
