// SPDX-License-Identifier: MIT
// Planner: prefix forest in, plan out. A plan is built once a decoding step and run by every layer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "capillary/device_profile.h"
#include "capillary/prefix_forest.h"
#include "capillary/tensor_view.h"

namespace capillary {

enum class Mode { kAuto, kFlat, kSharedL2 };
const char* mode_name(Mode mode);  // "auto", "flat", "shared-l2"

// Heads and dims of one attention layer (per GPU).
struct ModelShape {
  int32_t num_q_heads = 32;
  int32_t num_kv_heads = 8;
  int32_t head_dim = 128;
  int32_t head_dim_v = 0;  // 0: the same as head_dim
  DType dtype = DType::kBFloat16;

  int32_t group_size() const { return num_q_heads / num_kv_heads; }
  int32_t v_dim() const { return head_dim_v == 0 ? head_dim : head_dim_v; }
};

struct PlanOptions {
  Mode mode = Mode::kAuto;
  // 0: the planner chooses. Otherwise 1, 2, 4, 8 or 16; must be launchable on the profile's card.
  int32_t cluster_size = 0;
  // 0: the planner chooses. Otherwise the number of jobs a KV head is cut into, as near as rows allow.
  int32_t num_pieces = 0;
  // CUDA graphs: always launch as many clusters as are co-resident, so that every plan of one cluster_size
  // has the same grid. Needs cluster_size != 0; groups, cuts and mode stay free.
  bool fixed_grid = false;
};

// One line of what was weighed.
struct PlanCandidate {
  Mode mode = Mode::kAuto;
  int32_t cluster_size = 1;
  int32_t num_pieces = 1;
  double predicted_us = 0;  // of those that clearly lose, a lower bound
};

// Why a step is planned with less sharing than mode auto can do.
enum class Fallback {
  kNone,
  kAsked,          // another mode than auto was asked for
  kNothingShared,  // no two requests have a page in common
  kNotWorthIt,     // plain decode is predicted to be faster
};
const char* fallback_reason(Fallback fallback);  // a sentence; "" for kNone

// What `explain` prints; every number is read off the plan or the model, none is a guess.
struct PlanSummary {
  Mode mode = Mode::kAuto;
  Fallback fallback = Fallback::kNone;
  int32_t num_requests = 0;
  int32_t num_nodes = 0;
  int32_t num_groups = 0;  // query groups, per KV head
  int32_t num_jobs = 0;    // per KV head
  int32_t cluster_size = 1;
  int32_t num_clusters = 0;       // launched
  int32_t resident_clusters = 0;  // of this size that the card holds at a time
  int64_t unique_bytes = 0;
  int64_t flat_bytes = 0;
  int64_t planned_bytes = 0;   // KV bytes the items read, re-reads of ancestors counted
  int64_t exchange_bytes = 0;  // partials read from peers through DSM
  int64_t split_bytes = 0;     // partials written to the workspace
  double floor_us = 0;
  double predicted_us = 0;
  // The terms of the prediction, each as if it were alone.
  double hbm_us = 0;
  double l2_us = 0;
  double compute_us = 0;
  double exchange_us = 0;
  double launch_us = 0;
  double job_start_us = 0;                // of all jobs of the fullest cluster
  std::vector<PlanCandidate> candidates;  // best first, the chosen one at the front
  std::string reason;                     // why this one, in a sentence
};

// The summary in words, some ten lines of "label  text": path taken and why not another, what is shared and saved,
// groups, clusters and co-resident CTAs, predicted time by term, the best rival. For people and logs; allocates.
std::string explain(const PlanSummary& summary);

// An owning plan blob (src/shared/plan_layout.h).
class Plan {
 public:
  Plan() = default;
  explicit Plan(std::vector<uint64_t> words) : words_(std::move(words)) {}

  const void* data() const { return words_.data(); }
  size_t size_bytes() const;  // 0 when empty
  bool empty() const { return words_.empty(); }

  int32_t num_requests() const;
  int32_t cluster_size() const;
  int64_t workspace_bytes() const;
  double predicted_us() const;
  uint64_t profile_hash() const;  // of the DeviceProfile it was made for; 0 when empty

 private:
  friend class Planner;
  std::vector<uint64_t> words_;
};

// Proves a plan right, without any oracle: every (query row, key) of the forest covered exactly once,
// every partial merged exactly once, slots written before they are read, indices and workspace in range.
// Throws InternalError naming the first thing that is wrong.
void validate_plan(const void* blob, size_t size_bytes, const PrefixForest& forest);

// Throws InvalidArgument, naming both hashes, unless the plan was made for this profile. A plan for another card
// runs, and is right, but what was predicted and chosen was for that one.
void check_profile(const Plan& plan, const DeviceProfile& profile);

class Planner {
 public:
  // Throws InvalidArgument/UnsupportedConfig when the shape or the options cannot be.
  Planner(const ModelShape& shape, const DeviceProfile& profile = builtin_h200(),
          const PlanOptions& options = {});
  ~Planner();
  Planner(Planner&&) noexcept;
  Planner& operator=(Planner&&) noexcept;

  // Deterministic: same forest, shape, profile and options give the same bytes. The reference stays valid
  // until the next call. No allocation once the largest batch has been seen.
  const Plan& plan(const PrefixForest& forest);
  // The plan of the next step. Where nothing but lengths of requests' own keys has changed since the last call
  // (ForestTracker::restructured() says so), the last plan is made longer, in microseconds, and is as right as
  // one made anew; predicted_us grows by what the added keys take from HBM. Where anything else has changed, or where the growth since
  // the last full plan has put it out of balance (docs/planner.md, "From step to step"), this is plan().
  const Plan& update(const PrefixForest& forest);
  // Whether the last call of plan() or update() planned anew.
  bool planned_anew() const;

  // Of the last plan; worked out when first asked for, so not from several threads at once.
  const PlanSummary& summary() const;

  const ModelShape& shape() const;
  const DeviceProfile& profile() const;
  const PlanOptions& options() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace capillary
