// SPDX-License-Identifier: MIT
// The interpreter on plans made by hand: one mechanism of the plan at a time, each proven by validate_plan and
// compared with the oracle; then plans that are wrong on purpose, and every attend kernel of this processor.
#include "cpu/interpreter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "capillary/error.h"
#include "check/compare.h"
#include "check/runner.h"
#include "support/hand_plan.h"

namespace capillary {
namespace {

using check::Comparison;
using check::HostBatch;
using check::TreeSpec;
using testing::HandItem;
using testing::HandJob;
using testing::HandMerge;
using testing::HandPhase;
using testing::HandPlan;
using testing::HandRank;
using testing::path_segments;

constexpr Destination kOutput = Destination::kOutput;
constexpr ModelShape kShape = {.num_q_heads = 4, .num_kv_heads = 2, .head_dim = 64};

// A batch, its forest, and the queries' places in leaf order.
struct Step {
  explicit Step(const TreeSpec& tree, int page_size = 16, const ModelShape& model = kShape)
      : shape(model),
        batch(check::make_batch({.shape = model, .table = check::make_table(tree, page_size, 3)})),
        forest(
            PrefixForest::from_block_table(batch.block_table_view(), batch.seq_lens, page_size)) {}

  int length(int position) const { return forest.seq_lens()[static_cast<size_t>(position)]; }
  std::vector<Segment> tokens(int position, int begin, int end) const {
    return path_segments(forest, position, begin, end);
  }

  ModelShape shape;
  HostBatch batch;
  PrefixForest forest;
};

void expect_right(Step& step, const Plan& plan) {
  ASSERT_NO_THROW(validate_plan(plan.data(), plan.size_bytes(), step.forest));
  step.batch.poison_outputs();
  const uint64_t fences = step.batch.fence_hash();
  decode_cpu(plan, step.batch.tensors());
  EXPECT_EQ(step.batch.fence_hash(), fences);
  const Comparison comparison = check::compare_with_oracle(step.batch, false);
  EXPECT_TRUE(comparison.passed) << comparison.first_failure;
}

HandPhase wide(std::vector<HandItem> items) {
  return {PhaseKind::kWide, {std::move(items)}};
}
HandPhase narrow(std::vector<std::vector<HandItem>> streams) {
  return {PhaseKind::kNarrow, std::move(streams)};
}

// 64 shared tokens, three requests below.
Step star() {
  return Step(check::star_tree(64, {5, 40, 17}));
}

TEST(Interpreter, OneItemToTheOutput) {
  Step step(check::flat_tree({37}));
  HandPlan plan(step.forest, step.shape, 1);
  plan.add_job({0, 1, {{{narrow({{{0, 2, kNoSlot, 0, kOutput, step.tokens(0, 0, 37)}}})}, {}}}});
  expect_right(step, plan.build());
}

TEST(Interpreter, LeavesStartFromTheirAncestorsPartial) {
  Step step = star();
  HandPlan plan(step.forest, step.shape, 1);
  HandRank rank;
  rank.phases.push_back(wide({{0, 6, kNoSlot, 0, Destination::kSlot, step.tokens(0, 0, 64)}}));
  std::vector<std::vector<HandItem>> streams;
  for (int i = 0; i < 3; ++i)
    streams.push_back({{2 * i, 2, 2 * i, 2 * i, kOutput, step.tokens(i, 64, step.length(i))}});
  rank.phases.push_back(narrow(streams));
  plan.add_job({0, 3, {rank}});
  expect_right(step, plan.build());
}

TEST(Interpreter, PartialsMoveToOtherSlotsAndOn) {
  Step step(check::flat_tree({100}));
  HandPlan plan(step.forest, step.shape, 1);
  HandRank rank;
  // In place, elsewhere, back again; segments begin in the middle of a page.
  rank.phases.push_back(wide({{0, 2, kNoSlot, 0, Destination::kSlot, step.tokens(0, 0, 21)}}));
  rank.phases.push_back(wide({{0, 2, 0, 0, Destination::kSlot, step.tokens(0, 21, 40)}}));
  rank.phases.push_back(wide({{0, 2, 0, 5, Destination::kSlot, step.tokens(0, 40, 41)}}));
  rank.phases.push_back(narrow({{{0, 2, 5, 0, kOutput, step.tokens(0, 41, 100)}}}));
  plan.add_job({0, 1, {rank}});
  expect_right(step, plan.build());
}

TEST(Interpreter, StreamsOfOneRequestAreMerged) {
  Step step(check::flat_tree({200}));
  HandPlan plan(step.forest, step.shape, 1);
  HandRank rank;
  std::vector<std::vector<HandItem>> streams;
  HandMerge merge{0, 2, {}};
  for (int i = 0; i < 5; ++i) {
    streams.push_back(
        {{0, 2, kNoSlot, 2 * i, Destination::kSlot, step.tokens(0, 40 * i, 40 * (i + 1))}});
    merge.partials.push_back({0, static_cast<uint16_t>(2 * i)});
  }
  rank.phases.push_back(narrow(streams));
  rank.merges.push_back(merge);
  plan.add_job({0, 1, {rank}});
  expect_right(step, plan.build());
}

TEST(Interpreter, RanksExchangePartials) {
  Step step = star();
  HandPlan plan(step.forest, step.shape, 4);
  HandJob job{0, 3, {}};
  for (int rank = 0; rank < 4; ++rank) {
    HandRank work;
    work.phases.push_back(
        wide({{0, 6, kNoSlot, 0, Destination::kSlot, step.tokens(0, 16 * rank, 16 * (rank + 1))}}));
    // Rank i > 0 has request i - 1's own tokens too, and merges its rows.
    if (rank > 0) {
      const int i = rank - 1;
      work.phases.push_back(narrow(
          {{{2 * i, 2, kNoSlot, 6, Destination::kSlot, step.tokens(i, 64, step.length(i))}}}));
      HandMerge merge{2 * i, 2, {}};
      for (int peer = 0; peer < 4; ++peer)
        merge.partials.push_back({static_cast<uint16_t>(peer), static_cast<uint16_t>(2 * i)});
      merge.partials.push_back({static_cast<uint16_t>(rank), 6});
      work.merges.push_back(merge);
    }
    job.ranks.push_back(work);
  }
  plan.add_job(job);
  expect_right(step, plan.build());
}

TEST(Interpreter, JobsShareRowsThroughTheWorkspace) {
  Step step = star();
  HandPlan plan(step.forest, step.shape, 1);
  // Both jobs serve all rows; the split covers rows 2 to 5, rows 0 and 1 are the first job's alone.
  const int split = plan.add_split(4, 2);
  HandRank first, second;
  first.phases.push_back(wide({{0, 6, kNoSlot, 0, Destination::kSlot, step.tokens(0, 0, 32)}}));
  first.phases.push_back(wide({{0, 2, 0, 0, kOutput, step.tokens(0, 32, step.length(0))}}));
  first.merges.push_back({2, 4, {{0, 2}}, split, 0, 0});
  second.phases.push_back(wide({{2, 4, kNoSlot, 0, Destination::kSlot, step.tokens(1, 32, 64)}}));
  second.phases.push_back(
      narrow({{{2, 2, 0, 0, Destination::kSlot, step.tokens(1, 64, step.length(1))}},
              {{4, 2, 2, 2, Destination::kSlot, step.tokens(2, 64, step.length(2))}}}));
  // In two merges, the second of which begins inside the split.
  second.merges.push_back({2, 1, {{0, 0}}, split, 1, 0});
  second.merges.push_back({3, 3, {{0, 1}}, split, 1, 1});
  plan.add_job({0, 3, {first}});
  plan.add_job({0, 3, {second}});
  expect_right(step, plan.build());
}

TEST(Interpreter, MergeOfNothingIsAnEmptyRow) {
  Step step(check::flat_tree({0, 9, 0}));
  ASSERT_EQ(step.length(0), 0);
  HandPlan plan(step.forest, step.shape, 1);
  HandRank rank;
  const int full = step.length(1) > 0 ? 1 : 2;
  rank.phases.push_back(narrow({{{2 * full, 2, kNoSlot, 0, kOutput, step.tokens(full, 0, 9)}}}));
  for (int i = 0; i < 3; ++i)
    if (i != full) rank.merges.push_back({2 * i, 2, {}});
  plan.add_job({0, 3, {rank}});
  expect_right(step, plan.build());
}

TEST(Interpreter, SeveralSegmentsAnItem) {
  TreeSpec tree;
  const int32_t root = tree.add_node(-1, 32);
  const int32_t inner = tree.add_node(root, 48);
  tree.add_leaf(inner, 9);
  tree.add_leaf(inner, 20);
  tree.add_leaf(root, 3);
  Step step(tree);
  HandPlan plan(step.forest, step.shape, 1);
  HandRank rank;
  // Every request alone, from its first token: an item walks three nodes.
  std::vector<HandItem> items;
  for (int i = 0; i < 3; ++i)
    items.push_back({2 * i, 2, kNoSlot, 2 * i, kOutput, step.tokens(i, 0, step.length(i))});
  rank.phases.push_back(wide(items));
  plan.add_job({0, 3, {rank}});
  expect_right(step, plan.build());
}

TEST(Interpreter, MoreRowsThanAPanelHolds) {
  for (const int requests : {7, 8, 16, 24, 25, 31, 32}) {
    Step step(check::star_tree(48, std::vector<int32_t>(static_cast<size_t>(requests), 0)), 16,
              {.num_q_heads = 4, .num_kv_heads = 1, .head_dim = 64});
    HandPlan plan(step.forest, step.shape, 1);
    plan.add_job({0,
                  requests,
                  {{{wide({{0, 4 * requests, kNoSlot, 0, kOutput, step.tokens(0, 0, 48)}})}, {}}}});
    expect_right(step, plan.build());
  }
}

TEST(Interpreter, SlotReadBeforeItIsWrittenShowsAsNaN) {
  Step step(check::flat_tree({37}));
  HandPlan plan(step.forest, step.shape, 1);
  plan.add_job({0, 1, {{{narrow({{{0, 2, 0, 0, kOutput, step.tokens(0, 0, 37)}}})}, {}}}});
  const Plan wrong = plan.build();
  EXPECT_THROW(validate_plan(wrong.data(), wrong.size_bytes(), step.forest), InternalError);
  decode_cpu(wrong, step.batch.tensors());
  EXPECT_FALSE(check::compare_with_oracle(step.batch, false).passed);
}

TEST(Interpreter, MissingSplitPartIsRefused) {
  Step step(check::flat_tree({40}));
  HandPlan plan(step.forest, step.shape, 1);
  const int split = plan.add_split(2, 2);
  HandRank rank;
  rank.phases.push_back(wide({{0, 2, kNoSlot, 0, Destination::kSlot, step.tokens(0, 0, 40)}}));
  rank.merges.push_back({0, 2, {{0, 0}}, split, 0, 0});
  plan.add_job({0, 1, {rank}});
  const Plan wrong = plan.build();
  EXPECT_THROW(decode_cpu(wrong, step.batch.tensors()), InternalError);
}

TEST(Interpreter, WildPageIdOfALiveTokenIsRefused) {
  Step step(check::flat_tree({40, 5}));
  Planner planner(step.shape);
  const Plan plan = planner.plan(step.forest);
  auto* ids = const_cast<int32_t*>(step.batch.block_table_view().data);
  for (const int32_t wild : {-1, INT32_MAX, static_cast<int32_t>(step.batch.k_cache.shape[0])}) {
    ids[1] = wild;
    try {
      decode_cpu(plan, step.batch.tensors());
      FAIL() << "page " << wild << " was accepted";
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), ::testing::AllOf(::testing::HasSubstr("decode: page_ids"),
                                                 ::testing::HasSubstr(std::to_string(wild)),
                                                 ::testing::HasSubstr("; must "),
                                                 ::testing::HasSubstr("num_pages")));
    }
  }
}

TEST(Interpreter, ThreadsDoNotChangeBits) {
  const check::CheckCase check_case = check::find_case("option/tree-auto-c4", 1);
  HostBatch batch = check::case_batch(check_case, 1);
  const PrefixForest forest = check::case_forest(check_case, batch);
  Planner planner(check_case.shape, builtin_h200(), check_case.options);
  const Plan& plan = planner.plan(forest);
  decode_cpu(plan, batch.tensors(), {.num_threads = 1});
  const auto expected = batch.buffers[batch.out.buffer].bytes;
  for (const int threads : {2, 3, 7, 16}) {
    batch.poison_outputs();
    decode_cpu(plan, batch.tensors(), {.num_threads = threads});
    EXPECT_EQ(batch.buffers[batch.out.buffer].bytes, expected) << threads << " threads";
  }
}

class NamedKernelBackend final : public check::Backend {
 public:
  explicit NamedKernelBackend(const cpu::AttendKernel& kernel) : kernel_(kernel) {}
  std::string name() const override { return std::string("cpu, kernel ") + kernel_.name; }
  Support supports(const check::CheckCase&) const override { return {}; }
  bool rounds_weights() const override { return false; }
  void decode(const Plan& plan, const PrefixForest&, HostBatch& batch) override {
    cpu::interpret_plan(plan, batch.tensors(), {}, kernel_);
  }

 private:
  const cpu::AttendKernel& kernel_;
};

// Every kernel that runs here: what decode_cpu takes on other machines is tested on this one.
class AttendKernels : public ::testing::TestWithParam<const cpu::AttendKernel*> {};

TEST_P(AttendKernels, MatchOracle) {
  if (GetParam() == nullptr) GTEST_SKIP() << "this processor has no such instructions";
  NamedKernelBackend backend(*GetParam());
  const auto expect_passes = [&](const check::CheckCase& check_case, uint64_t seed) {
    const check::CheckResult result = check::run_case(check_case, seed, backend);
    EXPECT_EQ(result.outcome, check::CheckResult::Outcome::kPassed)
        << backend.name() << ": " << check_case.name << " seed " << seed << ": " << result.message;
  };
  for (const check::CheckCase& check_case : check::case_table()) {
    const std::string& name = check_case.name;
    if (name.starts_with("shape/") || name.starts_with("edge/") || name.starts_with("value/"))
      expect_passes(check_case, 2);
  }
  for (uint64_t seed = 5000; seed < 5040; ++seed) expect_passes(check::random_case(seed), seed);
}

INSTANTIATE_TEST_SUITE_P(Cpu, AttendKernels,
                         ::testing::Values(cpu::attend_kernel_generic(), cpu::attend_kernel_avx2(),
                                           cpu::attend_kernel_avx512(),
                                           cpu::attend_kernel_avx512_bf16()),
                         [](const auto& test) {
                           return test.param == nullptr ? "absent" + std::to_string(test.index)
                                                        : std::string(test.param->name);
                         });

}  // namespace
}  // namespace capillary
