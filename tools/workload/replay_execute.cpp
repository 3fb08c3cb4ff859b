// SPDX-License-Identifier: MIT
// Executing and checking steps of a replay (replay_execute.h).
#include "workload/replay_execute.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <random>
#include <span>
#include <utility>

#include "capillary/error.h"
#include "check/cases.h"
#include "check/compare.h"
#include "fmt/format.h"

namespace capillary {
namespace {

using check::HostBatch;
using check::HostTensor;

constexpr uint16_t kPoisonHalf = 0x7fff;  // NaN in both 16-bit types, and twice in float32

void poison(std::span<std::byte> bytes) {
  for (size_t i = 0; i + 1 < bytes.size(); i += 2) std::memcpy(&bytes[i], &kPoisonHalf, 2);
}

// A dense tensor in a buffer of its own, full of NaN.
HostTensor add_dense(HostBatch& batch, const char* name, DType dtype,
                     std::initializer_list<int64_t> shape) {
  HostTensor tensor;
  tensor.buffer = batch.buffers.size();
  tensor.dtype = dtype;
  tensor.ndim = static_cast<int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), tensor.shape.begin());
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    tensor.strides[i] = stride;
    stride *= tensor.shape[i];
  }
  std::vector<std::byte> bytes(static_cast<size_t>(stride * dtype_bytes(dtype)));
  poison(bytes);
  batch.buffers.push_back({name, std::move(bytes)});
  return tensor;
}

void add_caches(HostBatch& batch, const ModelShape& shape, int64_t pages, int32_t page_size) {
  batch.k_cache = add_dense(batch, "k_cache", shape.dtype,
                            {pages, page_size, shape.num_kv_heads, shape.head_dim});
  batch.v_cache = add_dense(batch, "v_cache", shape.dtype,
                            {pages, page_size, shape.num_kv_heads, shape.v_dim()});
}

void add_queries(HostBatch& batch, const ModelShape& shape, int64_t count) {
  batch.q = add_dense(batch, "q", shape.dtype, {count, shape.num_q_heads, shape.head_dim});
  batch.out = add_dense(batch, "out", shape.dtype, {count, shape.num_q_heads, shape.v_dim()});
  batch.lse = add_dense(batch, "lse", DType::kFloat32, {count, shape.num_q_heads});
}

size_t page_bytes(const HostTensor& cache) {
  return static_cast<size_t>(cache.strides[0] * dtype_bytes(cache.dtype));
}

// Elements of one query of out or lse, which are dense.
std::span<std::byte> query_bytes(HostBatch& batch, const HostTensor& tensor, int64_t query) {
  const auto size = static_cast<size_t>(tensor.strides[0] * dtype_bytes(tensor.dtype));
  return {batch.buffers[tensor.buffer].bytes.data() + static_cast<size_t>(query) * size, size};
}

int32_t query_position(const ContinuousBatch::Running& running) {
  return static_cast<int32_t>(running.tokens.size()) - 1;
}

}  // namespace

StepExecutor::StepExecutor(check::Backend& backend, const ModelShape& shape, int64_t num_pages,
                           int32_t page_size, const Options& options)
    : backend_(backend),
      shape_(shape),
      page_size_(page_size),
      options_(options),
      content_(options.seed),
      slot_of_page_(static_cast<size_t>(num_pages), -1) {
  check::CheckCase like_this;
  like_this.shape = shape;
  like_this.page_size = page_size;
  const check::Backend::Support support = backend.supports(like_this);
  if (!support.ok) {
    throw UnsupportedConfig(five_parts(
        "replay", "--execute-every", "asks for steps on " + backend.name() + ": " + support.reason,
        "ask for what the backend supports", "choose other heads, dims or dtype, or --device cpu"));
  }
  add_caches(tensors_, shape_, 0, page_size_);
}

double StepExecutor::most_bytes(const ModelShape& shape, int64_t num_pages, int32_t page_size) {
  return static_cast<double>(num_pages) * page_size * shape.num_kv_heads *
         (shape.head_dim + shape.v_dim()) * dtype_bytes(shape.dtype);
}

void StepExecutor::fail(const std::string& what) {
  if (results_.failures++ == 0) results_.first_failure = what;
}

void StepExecutor::add_slots(size_t count) {
  if (count <= slots_.size()) return;
  const size_t room = std::min(std::max(count, slots_.size() + slots_.size() / 2),
                               std::max(count, slot_of_page_.size()));
  for (HostTensor* cache : {&tensors_.k_cache, &tensors_.v_cache}) {
    std::vector<std::byte>& bytes = tensors_.buffers[cache->buffer].bytes;
    const size_t before = bytes.size();
    bytes.resize(room * page_bytes(*cache));
    poison(std::span(bytes).subspan(before));
    cache->shape[0] = static_cast<int64_t>(room);
  }
  slots_.resize(room);
}

// Makes sure that the page's slot holds these tokens of the request, writing no more than is missing.
int32_t StepExecutor::fill_slot(int32_t page, const ContinuousBatch::Running& running,
                                int64_t page_idx) {
  int32_t& slot_idx = slot_of_page_[static_cast<size_t>(page)];
  if (slot_idx < 0) {
    add_slots(num_slots_ + 1);
    slot_idx = static_cast<int32_t>(num_slots_++);
  }
  Slot& slot = slots_[static_cast<size_t>(slot_idx)];
  const auto position = static_cast<int32_t>(page_idx * page_size_);
  const auto first = static_cast<size_t>(position);
  const std::span<const int32_t> wanted =
      std::span(running.tokens)
          .subspan(first, std::min(static_cast<size_t>(page_size_), running.tokens.size() - first));
  const bool goes_on = slot.position == position && slot.tokens.size() <= wanted.size() &&
                       std::equal(slot.tokens.begin(), slot.tokens.end(), wanted.begin());
  if (!goes_on) {
    if (slot.step == step_) {
      fail(
          fmt::format("executed step {}: page {} belongs to request {} and, with other tokens, to "
                      "request {}",
                      step_, page, slot.request, running.request));
    }
    slot.tokens.clear();
    slot.position = position;
    for (const HostTensor& cache : {tensors_.k_cache, tensors_.v_cache}) {
      const size_t size = page_bytes(cache);
      poison({tensors_.buffers[cache.buffer].bytes.data() + static_cast<size_t>(slot_idx) * size,
              size});
    }
  }
  const size_t held = slot.tokens.size();
  if (held < wanted.size()) {
    const DecodeTensors views = tensors_.tensors();
    const auto begin = static_cast<int32_t>(held);
    content_.fill_k(views.k_cache, slot_idx, begin, wanted.subspan(held), position + begin);
    content_.fill_v(views.v_cache, slot_idx, begin, wanted.subspan(held), position + begin);
    slot.tokens.assign(wanted.begin(), wanted.end());
  }
  slot.step = step_;
  slot.request = running.request;
  return slot_idx;
}

// Queries, outputs and table of this step. The table has the strides of the batch's own, so that the plan's
// page offsets mean the same entry; page ids are slots.
void StepExecutor::lay_out(const ContinuousBatch& batch) {
  const BlockTableView table = batch.table();
  std::vector<int32_t> slots(static_cast<size_t>(table.num_requests * table.row_stride),
                             ContinuousBatch::kWildPage);
  for (size_t row = 0; row < batch.rows().size(); ++row) {
    const ContinuousBatch::Running& running = batch.rows()[row];
    const size_t begin = row * static_cast<size_t>(table.row_stride);
    for (int64_t i = 0; i < running.num_pages; ++i) {
      const size_t entry = begin + static_cast<size_t>(i);
      slots[entry] = fill_slot(table.data[entry], running, i);
    }
  }
  // Only now: filling a slot takes views of all tensors, those of the step before included.
  tensors_.buffers.resize(2);  // the caches stay
  tensors_.page_ids.buffer = tensors_.buffers.size();
  tensors_.page_ids.dtype = DType::kInt32;
  tensors_.page_ids.ndim = 2;
  tensors_.page_ids.shape = {table.num_requests, table.num_columns};
  tensors_.page_ids.strides = {table.row_stride, 1};
  tensors_.block_table = tensors_.page_ids;
  std::vector<std::byte> bytes(slots.size() * sizeof(int32_t));
  std::memcpy(bytes.data(), slots.data(), bytes.size());
  tensors_.buffers.push_back({"page_ids", std::move(bytes)});
  tensors_.seq_lens.assign(batch.seq_lens().begin(), batch.seq_lens().end());

  add_queries(tensors_, shape_, batch.size());
  const TensorView q = tensors_.tensors().q;
  for (size_t row = 0; row < batch.rows().size(); ++row) {
    const ContinuousBatch::Running& running = batch.rows()[row];
    content_.fill_q(q, static_cast<int64_t>(row), static_cast<int64_t>(running.request),
                    query_position(running));
  }
}

// One request alone, in pages of its own, from its tokens; with the output that the step gave it.
HostBatch StepExecutor::ideal_batch(const ContinuousBatch& batch, int32_t row) {
  const ContinuousBatch::Running& running = batch.rows()[static_cast<size_t>(row)];
  const auto num_tokens = static_cast<int64_t>(running.tokens.size());
  const int64_t num_pages = (num_tokens + page_size_ - 1) / page_size_;
  HostBatch ideal;
  add_caches(ideal, shape_, num_pages, page_size_);
  add_queries(ideal, shape_, 1);
  ideal.block_table = add_dense(ideal, "block_table", DType::kInt32, {1, num_pages});
  ideal.page_ids = ideal.block_table;
  std::vector<int32_t> ids(static_cast<size_t>(num_pages));
  std::iota(ids.begin(), ids.end(), 0);
  std::memcpy(ideal.buffers[ideal.block_table.buffer].bytes.data(), ids.data(),
              ids.size() * sizeof(int32_t));
  ideal.seq_lens = {static_cast<int32_t>(num_tokens)};

  const DecodeTensors views = ideal.tensors();
  const std::span<const int32_t> tokens = running.tokens;
  for (int64_t page = 0; page < num_pages; ++page) {
    const auto first = static_cast<size_t>(page * page_size_);
    const auto part =
        tokens.subspan(first, std::min(static_cast<size_t>(page_size_), tokens.size() - first));
    content_.fill_k(views.k_cache, page, 0, part, static_cast<int32_t>(first));
    content_.fill_v(views.v_cache, page, 0, part, static_cast<int32_t>(first));
  }
  content_.fill_q(views.q, 0, static_cast<int64_t>(running.request), query_position(running));
  for (const auto& [from, to] :
       {std::pair(tensors_.out, ideal.out), std::pair(tensors_.lse, ideal.lse)}) {
    const std::span<std::byte> got = query_bytes(tensors_, from, row);
    std::copy(got.begin(), got.end(), query_bytes(ideal, to, 0).begin());
  }
  return ideal;
}

void StepExecutor::check_sample(const ContinuousBatch& batch) {
  std::vector<int32_t> rows(static_cast<size_t>(batch.size()));
  std::iota(rows.begin(), rows.end(), 0);
  std::mt19937_64 random(options_.seed * 0x9e3779b97f4a7c15ull + static_cast<uint64_t>(step_));
  const size_t count = std::min(rows.size(), static_cast<size_t>(options_.check_requests));
  for (size_t i = 0; i < count; ++i) {
    std::swap(rows[i], rows[i + random() % (rows.size() - i)]);
    HostBatch ideal = ideal_batch(batch, rows[i]);
    const check::Comparison comparison =
        check::compare_with_oracle(ideal, backend_.rounds_weights());
    results_.checked_rows += shape_.num_q_heads;
    results_.worst_error = std::max(results_.worst_error, comparison.worst_error);
    results_.worst_of_bound = std::max(results_.worst_of_bound, comparison.worst_of_bound);
    results_.worst_lse_error = std::max(results_.worst_lse_error, comparison.worst_lse_error);
    if (comparison.passed) continue;
    const size_t request = batch.rows()[static_cast<size_t>(rows[i])].request;
    fail(fmt::format("executed step {}, request {} of the trace: {} ({} rows of it differ)", step_,
                     request, comparison.first_failure, comparison.num_failures));
  }
}

void StepExecutor::execute(const Plan& plan, const PrefixForest& forest,
                           const ContinuousBatch& batch) {
  const auto start = std::chrono::steady_clock::now();
  try {
    validate_plan(plan.data(), plan.size_bytes(), forest);
  } catch (const InternalError& error) {
    fail(fmt::format("executed step {}: {}", step_, error.what()));
  }
  lay_out(batch);
  backend_.decode(plan, forest, tensors_);
  check_sample(batch);
  ++results_.executed_steps;
  ++step_;
  results_.seconds +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace capillary
