// SPDX-License-Identifier: MIT
#include "planner.h"

#include <unistd.h>

#include <algorithm>
#include <iterator>

#include "capillary/decode.h"
#include "capillary/error.h"
#include "names.h"
#include "shared/plan_layout.h"
#include "shared/tile_table.h"

namespace capillary::python {
namespace {

constexpr size_t kDefaultPlanCapacity = size_t{1} << 20;

[[noreturn]] void fail(const char* function, const char* argument, const std::string& came,
                       const char* expected, const char* remedy) {
  throw InvalidArgument(five_parts(function, argument, came, expected, remedy));
}

ChosenProfile profile_of(const PlannerSettings& settings) {
  const int32_t device = parse_device("Planner", settings.device);
  if (device >= 0 && settings.shape.dtype == DType::kFloat32)
    throw UnsupportedConfig(five_parts("Planner", "dtype", "is float32 on a CUDA device",
                                       "be float16 or bfloat16 there",
                                       "convert q and both caches, or plan for device='cpu'"));
  return choose_profile("Planner", settings.profile, device, settings.shape.dtype,
                        settings.shape.head_dim);
}

}  // namespace

PyPlanner::PyPlanner(const PlannerSettings& settings) : PyPlanner(settings, profile_of(settings)) {}

PyPlanner::PyPlanner(const PlannerSettings& settings, ChosenProfile chosen)
    : on_cuda_(parse_device("Planner", settings.device) >= 0),
      device_index_(std::max(parse_device("Planner", settings.device), 0)),
      planner_(settings.shape, chosen.profile, settings.options),
      profile_where_(std::move(chosen.where)),
      max_requests_(settings.max_requests),
      capacity_(settings.plan_capacity_bytes > 0 ? static_cast<size_t>(settings.plan_capacity_bytes)
                                                 : kDefaultPlanCapacity),
      process_(getpid()) {
#if CAPILLARY_WITH_CUDA
  if (!on_cuda_) return;
  buffer_ = std::make_unique<cuda::PlanBuffer>(capacity_, device_index_);
  if (max_requests_ > 0) {
    const int64_t bound = workspace_bound(shape(), settings.options, profile(), max_requests_);
    workspace_ = DeviceMemory(static_cast<size_t>(bound), device_index_);
  }
#endif
}

std::string PyPlanner::device_text() const {
  return on_cuda_ ? "cuda:" + std::to_string(device_index_) : "cpu";
}

void PyPlanner::check_process(const char* function, bool needs_device) {
  if (process_ != getpid()) {
    // No thread of this process has come past here. If the lock is held, its holder stayed behind in the parent: to
    // wait would be for ever, and what it was changing is half changed.
    if (!mutex_.try_lock())
      fail(function, "planner", "was in use by another thread when this process was forked",
           "be idle then, or be made in the process that uses it", "make a Planner after the fork");
    mutex_.unlock();
    process_ = getpid();
    is_forked_ = true;
  }
  if (on_cuda_ && is_forked_ && needs_device)
    fail(function, "planner", "was made before this process was forked",
         "be made in the process that uses it", "make a Planner after the fork, or use spawn");
}

void PyPlanner::check_batch(int64_t num_requests) const {
  if (max_requests_ > 0 && num_requests > max_requests_)
    fail("Planner", "batch", "has " + std::to_string(num_requests) + " requests",
         "have at most max_requests", "make the Planner with a larger max_requests");
}

PlannerState PyPlanner::state(const char* function) {
  check_process(function, false);
  const nb::gil_scoped_release unlocked;
  const std::lock_guard lock(mutex_);
  const Plan& plan = current();
  return {planner_.summary(), plan.size_bytes(), plan.workspace_bytes(), num_runs_};
}

std::vector<char> PyPlanner::plan_copy() {
  check_process("Planner.plan_bytes", false);
  const nb::gil_scoped_release unlocked;
  const std::lock_guard lock(mutex_);
  const auto* bytes = static_cast<const char*>(current().data());
  return {bytes, bytes + current().size_bytes()};
}

const Plan& PyPlanner::current() const {
  if (plan_ == nullptr)
    fail("Planner", "plan", "is missing", "be made first", "call plan() or update() first");
  return *plan_;
}

void* PyPlanner::stream_for_plan(const char* function, nb::handle stream) const {
  if (!on_cuda_) return nullptr;
  void* address = resolve_stream(function, stream, nb::handle(), device_index_);
  if (is_capturing(address, device_index_))
    fail(function, "stream", "is being captured", "be open for a copy from the host",
         "plan before the capture, run inside it");
  return address;
}

void PyPlanner::plan(const Forest& forest, nb::handle stream) {
  check_process("Planner.plan");
  void* address = stream_for_plan("Planner.plan", stream);
  const nb::gil_scoped_release unlocked;
  const std::lock_guard lock(mutex_);
  plan_locked(forest.forest, forest.row_stride, address);
}

void PyPlanner::update(nb::handle block_table, nb::handle seq_lens, int32_t page_size,
                       nb::handle previous_row, nb::handle stream) {
  const char* function = "Planner.update";
  check_process(function);
  void* address = stream_for_plan(function, stream);
  const HostBatch batch(function, block_table, seq_lens, stream);
  std::optional<ArrayArgument> previous_argument;
  std::span<const int32_t> previous;
  if (!previous_row.is_none()) {
    previous_argument.emplace(function, "previous_row", previous_row, Access::kRead);
    previous = previous_argument->int32s();
    // Below, an empty list would mean that all rows were kept.
    if (std::ssize(previous) != batch.table().num_requests)
      fail(function, "previous_row", "has " + std::to_string(previous.size()) + " entries",
           "have one a request of the table", "pass -1 for requests that are new");
  }
  const bool is_afresh = previous_row.is_none();
  const nb::gil_scoped_release unlocked;
  const std::lock_guard lock(mutex_);
  check_batch(batch.table().num_requests);
  if (tracker_ == nullptr || tracker_page_size_ != page_size || is_afresh) {
    // Whoever names no previous rows has not said that anything stayed. A bad batch leaves the old rows.
    auto tracker = std::make_unique<ForestTracker>(page_size);
    (void)tracker->update(batch.table(), batch.seq_lens());
    tracker_ = std::move(tracker);
    tracker_page_size_ = page_size;
  } else {
    (void)tracker_->update(batch.table(), batch.seq_lens(), previous);
  }
  plan_locked(tracker_->forest(), batch.table().row_stride, address);
}

void PyPlanner::plan_locked(const PrefixForest& forest, int64_t row_stride, void* stream) {
  check_batch(forest.num_requests());
  // Until all has gone well there is no plan: a run must not meet half of a new one.
  plan_ = nullptr;
  const Plan& plan = planner_.plan(forest);
  row_stride_ = row_stride;
  owns_page_ids_ = forest.owns_page_ids();
  if (on_cuda_) {
    plan_ = &plan;
    try {
      upload_locked(stream);
    } catch (...) {
      plan_ = nullptr;
      throw;
    }
  }
  plan_ = &plan;
  num_runs_ = 0;
}

void PyPlanner::upload_locked(void* stream) {
#if CAPILLARY_WITH_CUDA
  const bool captured = buffer_->captured(), fixed = captured || max_requests_ > 0;
  if (plan_->size_bytes() > capacity_) {
    if (fixed)
      fail("Planner", "plan", "has " + std::to_string(plan_->size_bytes()) + " bytes",
           ("fit the " + std::to_string(capacity_) + " bytes that graphs may hold").c_str(),
           "make the Planner with a larger plan_capacity_bytes");
    capacity_ = plan_->size_bytes() * 2;
    buffer_ = std::make_unique<cuda::PlanBuffer>(capacity_, device_index_);
  }
  const int64_t needed = plan_->workspace_bytes();
  if (needed > workspace_.size_bytes() && !captured)
    workspace_ = DeviceMemory(static_cast<size_t>(needed + needed / 2), device_index_);
  buffer_->upload(*plan_, stream);
#else
  (void)stream;
#endif
}

// What check_tensors would say of page_ids, under the name that the argument has here.
void PyPlanner::check_table(const Plan& plan, const TensorView& table) const {
  const char* function = "Planner.run";
  const auto refuse = [&](const std::string& came, const std::string& expected,
                          const char* remedy) {
    fail(function, "block_table", came, expected.c_str(), remedy);
  };
  const auto dimensions = [&] { return "has " + std::to_string(table.ndim) + " dimensions"; };
  if (owns_page_ids_ && table.ndim != 1)
    refuse(dimensions(), "be the planned forest's page_ids, one row",
           "pass forest.page_ids on this device");
  if (!owns_page_ids_ && table.ndim != 2)
    refuse(dimensions(), "be [num_requests, max_pages]",
           "pass the block table that was planned, on this device");
  const bool is_there = (table.device == DeviceType::kCuda) == on_cuda_ &&
                        (!on_cuda_ || table.device_index == device_index_);
  if (!is_there)
    refuse(table.device == DeviceType::kCuda ? "is on cuda:" + std::to_string(table.device_index)
                                             : "is on cpu",
           "be on " + device_text(), "copy it to where q is");
  if (table.ndim == 2) {
    const auto& header = *static_cast<const PlanHeader*>(plan.data());
    if (table.shape[0] != header.num_requests)
      refuse("has " + std::to_string(table.shape[0]) + " rows",
             "have " + std::to_string(header.num_requests) + ", one a request of the plan",
             "plan again for this batch");
    // Page offsets of the plan count elements of the table planned.
    if (table.shape[0] > 1 && table.strides[0] != row_stride_)
      refuse("has row stride " + std::to_string(table.strides[0]),
             "have that of the table planned, " + std::to_string(row_stride_),
             "give the host and the device copy of the table the same number of columns");
  }
}

void PyPlanner::run(const RunArguments& arguments) {
  const char* function = "Planner.run";
  check_process(function);
  const nb::handle stream = arguments.stream;
  const ArrayArgument q(function, "q", arguments.q, Access::kRead, stream);
  const ArrayArgument k(function, "k_cache", arguments.k_cache, Access::kRead, stream);
  const ArrayArgument v(function, "v_cache", arguments.v_cache, Access::kRead, stream);
  const ArrayArgument table(function, "block_table", arguments.block_table, Access::kRead, stream);
  const ArrayArgument out(function, "out", arguments.out, Access::kWrite, stream);
  q.require(shape().dtype, "plan for the dtype of q, or convert q and both caches");
  k.require(shape().dtype, "use one dtype for q and both caches");
  v.require(shape().dtype, "use one dtype for q and both caches");
  table.require(DType::kInt32, "convert the block table to int32");
  out.require(shape().dtype, "allocate the output with the dtype of q");
  std::optional<ArrayArgument> lse, workspace;
  if (!arguments.lse.is_none()) {
    lse.emplace(function, "lse", arguments.lse, Access::kWrite, stream);
    lse->require(DType::kFloat32, "allocate the LSE as float32");
  }
  if (!arguments.workspace.is_none())
    workspace.emplace(function, "workspace", arguments.workspace, Access::kWrite, stream);

  DecodeTensors tensors{q.view(), k.view(), v.view(), table.view(), out.view(), {}};
  if (lse) tensors.lse = lse->view();
  if (arguments.is_hnd) {
    tensors.k_cache = hnd_as_nhd(tensors.k_cache);
    tensors.v_cache = hnd_as_nhd(tensors.v_cache);
  }
  DecodeOptions options;
  options.softmax_scale = static_cast<float>(arguments.softmax_scale);
  options.num_threads = arguments.num_threads;
  options.dependent_launch = arguments.dependent_launch;
  [[maybe_unused]] void* address =
      on_cuda_ && q.on_cuda() ? resolve_stream(function, stream, arguments.q, device_index_)
                              : nullptr;

  const nb::gil_scoped_release unlocked;
  const std::lock_guard lock(mutex_);
  const Plan& plan = current();
  check_table(plan, tensors.page_ids);
  if (!on_cuda_) {
    decode_cpu(plan, tensors, options);
    ++num_runs_;
    return;
  }
#if CAPILLARY_WITH_CUDA
  void* memory = workspace_.data();
  int64_t bytes = workspace_.size_bytes();
  if (workspace) {
    const TensorView& view = workspace->view();
    if (view.device != DeviceType::kCuda || view.device_index != device_index_)
      fail(function, "workspace", "is on another device", "be on that of q",
           "allocate it where the caches are");
    memory = view.data;
    bytes = view.numel() * dtype_bytes(view.dtype);
  }
  cuda::decode(*buffer_, tensors, memory, bytes, options, address);
  ++num_runs_;
#endif
}

int64_t workspace_bound(const ModelShape& shape, const PlanOptions& options,
                        const DeviceProfile& profile, int64_t max_requests) {
  // Only rows of a query group that is cut into two jobs or more lie in the workspace, a row a job. The planner
  // asks for at most `pieces` jobs: as many as fill the clusters four times, as the rows force, or as the
  // options say. A group's share of them is rounded, so that one cut in two has at least 1.5 pieces: no more
  // than 4/3 of the pieces in all. In shared-l2 every rank of a cluster is a part of its own.
  const int64_t max_rows = tile_table(std::max(shape.head_dim, shape.v_dim())).max_job_rows;
  const int64_t queries_a_job = std::max<int64_t>(max_rows / shape.group_size(), 1);
  const int64_t groups = (max_requests + queries_a_job - 1) / queries_a_job;
  const int64_t clusters =
      *std::max_element(profile.max_clusters.begin(), profile.max_clusters.end());
  const int64_t pieces =
      std::max<int64_t>({4 * clusters / shape.num_kv_heads, 4, 2 * groups, options.num_pieces});
  const int64_t rows = std::min(max_rows, std::max<int64_t>(max_requests, 1) * shape.group_size());
  const int64_t parts = options.mode == Mode::kSharedL2 ? std::max(options.cluster_size, 1) : 1;
  const int64_t split_rows = (pieces * 4 / 3 + 1) * rows * parts;
  return workspace_layout(shape.num_kv_heads, split_rows, shape.v_dim()).total_bytes;
}

}  // namespace capillary::python
