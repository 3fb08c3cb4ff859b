// SPDX-License-Identifier: MIT
// The options that say which batch a verb works on and how it is to be planned; the same for plan, run and
// bench. resolve_* turns them into the batch, its forest and a planner, or throws.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "capillary/plan.h"
#include "capillary/prefix_forest.h"
#include "cli/common.h"
#include "workload/workload.h"

namespace CLI {
class App;
}

namespace capillary::cli {

struct BatchOptions {
  std::string file;         // workload file
  std::string workload;     // name in it; a pattern for bench
  std::string tree;         // shorthand
  std::string block_table;  // batch file
  std::string heads;        // empty: the workload's first (bench: all of them)
  int32_t head_dim = 0;     // 0: the workload's
  int32_t head_dim_v = 0;   // 0: as head_dim
  int32_t page_size = 0;    // 0: the workload's
  std::string dtype = "bfloat16";
  uint64_t seed = 1;
  bool shuffle_requests = false;
  std::string profile;
};
void add_batch_options(CLI::App& app, BatchOptions& options);

struct PlanningOptions {
  std::string mode = "auto";
  int32_t cluster_size = 0;
  int32_t num_pieces = 0;
};
void add_planning_options(CLI::App& app, PlanningOptions& options);
PlanOptions resolve_planning(std::string_view verb, const PlanningOptions& options);

// One batch of one attention layer.
struct Step {
  std::string name;
  Batch batch;
  ModelShape shape;
  PrefixForest forest;
};

// Exactly one step; a file with several workloads needs --workload.
Step resolve_step(std::string_view verb, const BatchOptions& options);

// Every (workload, heads) that the options choose, in file order. make_step builds one of them; they are not
// built at once, because their tables together may be large.
struct StepChoice {
  Workload workload;
  Heads heads;
};
std::vector<StepChoice> resolve_choices(std::string_view verb, const BatchOptions& options);
// `sample` of them drawn by the seed, in their order; 0 or as many as there are: all.
std::vector<StepChoice> sample_choices(std::vector<StepChoice> all, int32_t sample, uint64_t seed);
Step make_step(std::string_view verb, const BatchOptions& options, const StepChoice& choice);

}  // namespace capillary::cli
