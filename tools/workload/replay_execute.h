// SPDX-License-Identifier: MIT
// Executing steps of a replay on a backend, and checking sampled requests.
//
// The KV cache lives on from step to step, as an engine's does: a page is written when a step first needs it
// and again only when it holds other tokens. What a row should give is computed apart, from the request's own
// tokens, never from the cache: a page that two requests fight over, or that was given away while in use,
// gives a wrong row.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "capillary/plan.h"
#include "check/backend.h"
#include "check/batch.h"
#include "workload/kv_content.h"
#include "workload/replay_batch.h"

namespace capillary {

struct ExecutionResults {
  int64_t executed_steps = 0;
  int64_t checked_rows = 0;  // (request, query head)
  int64_t failures = 0;
  std::string first_failure;
  double worst_error = 0;     // relative error of a row's output
  double worst_of_bound = 0;  // as a fraction of what it may be
  double worst_lse_error = 0;
  double seconds = 0;
};

class StepExecutor {
 public:
  struct Options {
    int32_t check_requests = 4;  // sampled a step
    uint64_t seed = 1;
  };

  StepExecutor(check::Backend& backend, const ModelShape& shape, int64_t num_pages,
               int32_t page_size, const Options& options);

  // The most bytes of KV that it will come to hold.
  static double most_bytes(const ModelShape& shape, int64_t num_pages, int32_t page_size);

  void execute(const Plan& plan, const PrefixForest& forest, const ContinuousBatch& batch);
  const ExecutionResults& results() const { return results_; }

 private:
  // What a slot of the cache was filled with.
  struct Slot {
    int32_t position = 0;  // of its first token
    int64_t step = -1;     // last step that read it, and for whom
    size_t request = 0;
    std::vector<int32_t> tokens;
  };

  void lay_out(const ContinuousBatch& batch);
  void add_slots(size_t count);
  int32_t fill_slot(int32_t page, const ContinuousBatch::Running& running, int64_t page_idx);
  void check_sample(const ContinuousBatch& batch);
  check::HostBatch ideal_batch(const ContinuousBatch& batch, int32_t row);
  void fail(const std::string& what);

  check::Backend& backend_;
  ModelShape shape_;
  int32_t page_size_;
  Options options_;
  KvContent content_;
  ExecutionResults results_;
  int64_t step_ = 0;

  check::HostBatch
      tensors_;  // caches of slots_.size() slots or more; the rest is made anew every step
  std::vector<int32_t> slot_of_page_;  // -1: none yet
  std::vector<Slot> slots_;
  size_t num_slots_ = 0;  // in use
};

}  // namespace capillary
