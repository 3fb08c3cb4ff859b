// SPDX-License-Identifier: MIT
// Continuous batching through RadixCache, simulated: what an engine's scheduler would do with a trace, without
// the model. docs/replay.md tells the rules; the invariants kept here:
//   - row i of the table and of rows() is the same request; entries past a row's pages are wild ids;
//   - a running request locks the cached part of its pages and owns the rest;
//   - a request makes one token a step, the first one with its prefill.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "capillary/prefix_forest.h"
#include "capillary/radix_cache.h"
#include "workload/trace.h"

namespace capillary {

struct BatchingOptions {
  int32_t max_batch = 256;
  int64_t num_pages = 49152;
  int32_t page_size = 16;
  int64_t max_prefill_tokens = 16384;  // admitted in one step; a longer prompt is admitted alone
  double time_scale = 1;               // arrival times are multiplied by this
};

struct BatchingCounters {
  int64_t arrived = 0;
  int64_t finished = 0;
  int64_t too_long = 0;  // refused: more pages than the pool has
  int64_t preemptions = 0;
  int64_t prompt_tokens = 0;      // of requests admitted for the first time
  int64_t prompt_tokens_hit = 0;  // of those, found in the cache
  int64_t returned_tokens = 0;    // of preempted requests admitted again
  int64_t returned_tokens_hit = 0;
  int64_t generated_tokens = 0;
  int32_t largest_batch = 0;
  int64_t longest_context = 0;
};

class ContinuousBatch {
 public:
  static constexpr int32_t kWildPage = std::numeric_limits<int32_t>::max();

  struct Running {
    size_t request = 0;     // index in the trace
    int64_t admission = 0;  // order of admission; the youngest is preempted first
    int32_t generated = 0;  // tokens so far
    int64_t num_pages = 0;  // in its table row
    RadixCache::NodeId locked = 0;
    std::vector<int32_t> tokens;  // whose KV is in the pages, the one of this step included
  };

  // The trace must outlive the batch. Throws InvalidArgument on options that cannot be.
  ContinuousBatch(const Trace& trace, const TokenIds& token_ids, const BatchingOptions& options);

  // Arrivals, admissions, one more token for everybody, preemption where pages run out. Time without work is
  // skipped. False: nothing is left to do.
  bool begin_step();
  // Between begin_step and end_step: what to attend to.
  int32_t size() const { return static_cast<int32_t>(rows_.size()); }
  std::span<const Running> rows() const { return rows_; }
  BlockTableView table() const;
  std::span<const int32_t> seq_lens() const { return seq_lens_; }
  // Rows of the step before (ForestTracker::update); -1: new.
  std::span<const int32_t> previous_row() const { return previous_row_; }
  // Tokens whose KV the step's prefill computes.
  int64_t prefill_tokens() const { return prefill_tokens_; }
  void end_step(double duration_ms);

  double now_ms() const { return now_ms_; }
  const BatchingCounters& counters() const { return counters_; }
  const RadixCache& cache() const { return cache_; }
  size_t num_waiting() const { return waiting_.size(); }
  // What was wrong with the first request that is too long.
  const std::string& first_too_long() const { return first_too_long_; }

 private:
  struct Waiting {
    size_t request = 0;
    int32_t generated = 0;
    std::vector<int32_t> tokens;  // of a preempted request; empty: the prompt
  };

  void take_arrivals();
  void admit();
  bool admit_one(Waiting& waiting);
  void give_pages();
  void preempt_youngest();
  void leave(size_t row);
  void remove_row(size_t row);
  int32_t* table_row(size_t row) { return table_.data() + row * num_columns_; }
  int64_t pages_for(int64_t num_tokens) const {
    return (num_tokens + options_.page_size - 1) / options_.page_size;
  }
  double arrival_ms(size_t request) const {
    return trace_.requests[request].arrival_ms * options_.time_scale;
  }

  const Trace& trace_;
  const TokenIds& token_ids_;
  BatchingOptions options_;
  RadixCache cache_;
  size_t num_columns_ = 1;

  double now_ms_ = 0;
  size_t next_arrival_ = 0;
  std::deque<Waiting> waiting_;
  // Set when the first of the queue found too few pages, or somebody was preempted; only a request that
  // finishes makes another try worth its while.
  bool admission_blocked_ = false;
  int64_t num_admissions_ = 0;
  int64_t prefill_tokens_ = 0;

  std::vector<Running> rows_;
  std::vector<int32_t> table_;  // [max_batch, num_columns]
  std::vector<int32_t> seq_lens_;
  std::vector<int32_t> previous_row_;
  BatchingCounters counters_;
  std::string first_too_long_;
};

}  // namespace capillary
