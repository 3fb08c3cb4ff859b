// SPDX-License-Identifier: MIT
// From command line options to a batch and its forest (batch_options.h).
#include "cli/batch_options.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "CLI/CLI.hpp"
#include "check/rng.h"
#include "fmt/format.h"

namespace capillary::cli {
namespace {

std::string names_of(const std::vector<Workload>& workloads) {
  constexpr size_t kMostNames = 12;
  std::string names;
  for (size_t i = 0; i < std::min(workloads.size(), kMostNames); ++i) {
    names += (i == 0 ? "" : ", ") + workloads[i].name;
  }
  if (workloads.size() > kMostNames) {
    names += fmt::format(" and {} more", workloads.size() - kMostNames);
  }
  return names;
}

// Workloads of --tree or --file whose name matches --workload.
std::vector<Workload> matching_workloads(std::string_view verb, const BatchOptions& options) {
  if (!options.tree.empty()) {
    try {
      return {workload_from_shorthand(options.tree)};
    } catch (const InvalidArgument& error) {
      throw UsageError(fmt::format("{}: --tree: {}", verb, error.what()));
    }
  }
  std::vector<Workload> all =
      workloads_from_json(read_text_file(verb, "--file", options.file), options.file);
  if (options.workload.empty()) return all;
  std::vector<Workload> matching;
  for (const Workload& workload : all) {
    if (glob_match(options.workload, workload.name)) matching.push_back(workload);
  }
  if (matching.empty()) {
    throw UsageError(five_parts(
        verb, "--workload", fmt::format("'{}' matches none of {}", options.workload, options.file),
        fmt::format("name one of {}", names_of(all)), "correct the name"));
  }
  return matching;
}

void require_one_source(std::string_view verb, const BatchOptions& options) {
  const int given = static_cast<int>(!options.file.empty()) +
                    static_cast<int>(!options.tree.empty()) +
                    static_cast<int>(!options.block_table.empty());
  if (given != 1) {
    throw UsageError(five_parts(verb, "the batch", fmt::format("is given {} times", given),
                                "be given once, by --tree, --file or --block-table",
                                "give for example --tree 1x4096,10x416"));
  }
  if (options.file.empty() && !options.workload.empty()) {
    throw UsageError(five_parts(verb, "--workload", "is given without --file",
                                "name a workload of a file", "add --file or drop --workload"));
  }
}

ModelShape shape_of(std::string_view verb, const BatchOptions& options, Heads heads,
                    int32_t head_dim) {
  ModelShape shape;
  shape.num_q_heads = heads.num_q_heads;
  shape.num_kv_heads = heads.num_kv_heads;
  shape.head_dim = options.head_dim != 0 ? options.head_dim : head_dim;
  shape.head_dim_v = options.head_dim_v;
  shape.dtype = parse_dtype(verb, options.dtype);
  return shape;
}

Step step_of_batch_file(std::string_view verb, const BatchOptions& options) {
  Step step;
  step.name = options.block_table;
  step.batch = batch_from_json(read_text_file(verb, "--block-table", options.block_table),
                               options.block_table, &step.name);
  if (options.page_size != 0 && options.page_size != step.batch.page_size) {
    throw UsageError(five_parts(verb, "--page-size",
                                fmt::format("is {} where {} has page_size {}", options.page_size,
                                            options.block_table, step.batch.page_size),
                                "agree with the file", "drop --page-size"));
  }
  const Heads heads = options.heads.empty() ? Heads{} : parse_heads_option(verb, options.heads);
  step.shape = shape_of(verb, options, heads, 128);
  step.forest =
      PrefixForest::from_block_table(step.batch.view(), step.batch.seq_lens, step.batch.page_size);
  return step;
}

}  // namespace

void add_batch_options(CLI::App& app, BatchOptions& options) {
  const char* const group = "Batch";
  app.add_option("--tree", options.tree,
                 "Workload in short: NODESxTOKENS level by level, as 1x4096,10x416")
      ->group(group);
  app.add_option("--file", options.file, "Workload file (see docs/cli.md; - for standard input)")
      ->group(group);
  app.add_option("--workload", options.workload, "Name in the workload file; * and ? match")
      ->group(group);
  app.add_option("--block-table", options.block_table,
                 "Batch of your own: JSON with page_size, seq_lens and block_table")
      ->group(group);
  app.add_option("--heads", options.heads, "Query/KV heads, as 32/8 [the workload's]")
      ->group(group);
  app.add_option("--head-dim", options.head_dim, "Head dim of Q and K [the workload's]")
      ->check(CLI::Range(1, 1 << 16))
      ->group(group);
  app.add_option("--head-dim-v", options.head_dim_v, "Head dim of V [as --head-dim]")
      ->check(CLI::Range(1, 1 << 16))
      ->group(group);
  app.add_option("--page-size", options.page_size, "Tokens a page [the workload's]")
      ->check(CLI::Range(1, 1 << 20))
      ->group(group);
  app.add_option("--dtype", options.dtype, "bfloat16, float16 or float32 (CPU only)")
      ->capture_default_str()
      ->group(group);
  app.add_option("--seed", options.seed, "Seed of page ids and data")
      ->capture_default_str()
      ->group(group);
  app.add_flag("--shuffle", options.shuffle_requests, "Put the requests in random order")
      ->group(group);
  app.add_option("--profile", options.profile,
                 "Device profile to plan for [CAPILLARY_PROFILE, this card's own, built in]")
      ->group(group);
}

void add_planning_options(CLI::App& app, PlanningOptions& options) {
  const char* const group = "Planning";
  app.add_option("--mode", options.mode, "auto, flat or shared-l2")
      ->capture_default_str()
      ->group(group);
  app.add_option("--cluster-size", options.cluster_size, "1, 2, 4, 8 or 16 [chosen by the planner]")
      ->check(CLI::IsMember({1, 2, 4, 8, 16}))
      ->group(group);
  app.add_option("--pieces", options.num_pieces, "Jobs a KV head [chosen by the planner]")
      ->check(CLI::Range(1, 1 << 20))
      ->group(group);
}

PlanOptions resolve_planning(std::string_view verb, const PlanningOptions& options) {
  PlanOptions plan;
  plan.mode = parse_mode(verb, options.mode);
  plan.cluster_size = options.cluster_size;
  plan.num_pieces = options.num_pieces;
  return plan;
}

std::vector<StepChoice> resolve_choices(std::string_view verb, const BatchOptions& options) {
  require_one_source(verb, options);
  std::vector<StepChoice> choices;
  for (const Workload& workload : matching_workloads(verb, options)) {
    if (!options.heads.empty()) {
      choices.push_back({workload, parse_heads_option(verb, options.heads)});
      continue;
    }
    for (const Heads& heads : workload.heads) choices.push_back({workload, heads});
  }
  return choices;
}

std::vector<StepChoice> sample_choices(std::vector<StepChoice> all, int32_t sample, uint64_t seed) {
  if (sample == 0 || static_cast<size_t>(sample) >= all.size()) return all;
  std::vector<size_t> order(all.size());
  std::iota(order.begin(), order.end(), size_t{0});
  check::Rng(seed).shuffle(order);
  order.resize(static_cast<size_t>(sample));
  std::sort(order.begin(), order.end());
  std::vector<StepChoice> chosen;
  for (const size_t index : order) chosen.push_back(std::move(all[index]));
  return chosen;
}

Step make_step(std::string_view verb, const BatchOptions& options, const StepChoice& choice) {
  Step step;
  step.name = choice.workload.name;
  step.shape = shape_of(verb, options, choice.heads, choice.workload.head_dim);
  const int32_t page_size = options.page_size != 0 ? options.page_size : choice.workload.page_size;
  step.batch = make_batch(choice.workload, page_size,
                          {.seed = options.seed, .permute_requests = options.shuffle_requests});
  step.forest = PrefixForest::from_block_table(step.batch.view(), step.batch.seq_lens, page_size);
  return step;
}

Step resolve_step(std::string_view verb, const BatchOptions& options) {
  require_one_source(verb, options);
  if (!options.block_table.empty()) return step_of_batch_file(verb, options);
  const std::vector<Workload> workloads = matching_workloads(verb, options);
  if (workloads.size() != 1) {
    throw UsageError(five_parts(
        verb, "--workload",
        options.workload.empty()
            ? fmt::format("is not given and {} has {} workloads", options.file, workloads.size())
            : fmt::format("'{}' matches {} workloads", options.workload, workloads.size()),
        fmt::format("name one of {}", names_of(workloads)), "give one name"));
  }
  const Heads heads = options.heads.empty() ? workloads.front().heads.front()
                                            : parse_heads_option(verb, options.heads);
  return make_step(verb, options, {workloads.front(), heads});
}

}  // namespace capillary::cli
