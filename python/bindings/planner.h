// SPDX-License-Identifier: MIT
// One planner as Python holds it: forest tracker, plan, and on a CUDA device the plan's buffer and a workspace.
// May be used from several threads, one call at a time. Everything slow runs without the GIL, and the lock is
// only ever taken without it, so that neither can wait for the other.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "array_argument.h"
#include "capillary/plan.h"
#include "chosen_profile.h"
#include "device_memory.h"
#include "forest.h"
#if CAPILLARY_WITH_CUDA
#include "capillary/cuda.h"
#endif

namespace capillary::python {

struct PlannerSettings {
  ModelShape shape;
  PlanOptions options;
  std::optional<DeviceProfile> profile;
  std::string device = "cpu";
  int64_t max_requests = 0;         // 0: buffers grow as plans do
  int64_t plan_capacity_bytes = 0;  // 0: a default
};

struct RunArguments {
  nb::handle q, k_cache, v_cache, block_table, out, lse, workspace, stream;
  double softmax_scale = 0;  // 0: 1 / sqrt(head_dim)
  bool is_hnd = false;
  bool dependent_launch = false;
  int32_t num_threads = 0;
};

// What a planner says of its current plan, all of one moment.
struct PlannerState {
  PlanSummary summary;
  size_t plan_bytes = 0;
  int64_t workspace_bytes = 0;
  int64_t num_runs = 0;
};

class PyPlanner {
 public:
  explicit PyPlanner(const PlannerSettings& settings);

  void plan(const Forest& forest, nb::handle stream);
  void update(nb::handle block_table, nb::handle seq_lens, int32_t page_size,
              nb::handle previous_row, nb::handle stream);
  void run(const RunArguments& arguments);

  const ModelShape& shape() const { return planner_.shape(); }
  const DeviceProfile& profile() const { return planner_.profile(); }
  const std::string& profile_where() const { return profile_where_; }
  std::string device_text() const;
  // Copies: another thread may plan while they are looked at.
  PlannerState state(const char* function);
  std::vector<char> plan_copy();

 private:
  PyPlanner(const PlannerSettings& settings, ChosenProfile chosen);
  // What a fork leaves behind. Called with the GIL.
  void check_process(const char* function, bool needs_device = true);
  void check_batch(int64_t num_requests) const;
  const Plan& current() const;
  void* stream_for_plan(const char* function, nb::handle stream) const;
  // Without the GIL, under the lock.
  void plan_locked(const PrefixForest& forest, int64_t row_stride, void* stream);
  void upload_locked(void* stream);
  void check_table(const Plan& plan, const TensorView& table) const;

  bool on_cuda_;
  int32_t device_index_ = 0;
  Planner planner_;
  std::string profile_where_;
  const Plan* plan_ = nullptr;
  std::unique_ptr<ForestTracker> tracker_;
  int32_t tracker_page_size_ = 0;
  bool owns_page_ids_ = false;
  int64_t row_stride_ = 0;
  int64_t num_runs_ = 0;  // since the last plan
  int64_t max_requests_;
  size_t capacity_;
  int process_;             // that uses it; another one is a fork of it
  bool is_forked_ = false;  // a CUDA planner does not survive that
  std::mutex mutex_;
#if CAPILLARY_WITH_CUDA
  std::unique_ptr<cuda::PlanBuffer> buffer_;
#endif
  DeviceMemory workspace_;
};

// An upper bound of Plan::workspace_bytes over all batches of at most max_requests requests.
int64_t workspace_bound(const ModelShape& shape, const PlanOptions& options,
                        const DeviceProfile& profile, int64_t max_requests);

}  // namespace capillary::python
