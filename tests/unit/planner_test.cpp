// SPDX-License-Identifier: MIT
// The planner over everything that a batch can look like: every plan passes the proof, is the same bytes every
// time, does not depend on how the forest was given, and is made without allocating once warm.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "support/allocation_count.h"
#include "support/plan_batches.h"
#include "support/plan_checks.h"

namespace capillary::testing {
namespace {

using ::testing::HasSubstr;

// Plans, proves, and plans again with a planner that has seen other batches in between.
Bytes proven_plan(const PrefixForest& forest, const Asked& asked) {
  Planner planner(asked.shape, builtin_h200(), asked.options);
  const Bytes bytes = bytes_of(planner.plan(forest));
  EXPECT_EQ(fault(bytes, forest), "") << asked;
  EXPECT_EQ(planner.plan(forest).size_bytes(), bytes.size() * 8) << asked;
  EXPECT_EQ(bytes_of(planner.plan(forest)), bytes) << asked << ": another plan the second time";
  return bytes;
}

class Fixtures : public ::testing::TestWithParam<Fixture> {};

TEST_P(Fixtures, PlansAreProvenForEveryShapeAndOption) {
  const Batch batch = make_batch(GetParam(), 7);
  const PrefixForest forest = table_forest(batch);
  std::mt19937_64 rng(std::hash<std::string>{}(GetParam().name));
  const int rounds = forest.flat_tokens() > 100000 ? 60 : 200;
  for (int i = 0; i < rounds; ++i) proven_plan(forest, random_asked(rng));
}

TEST_P(Fixtures, EveryFormOfTheBatchGivesTheSamePlan) {
  const Batch batch = make_batch(GetParam(), 8);
  std::mt19937 random(9);
  const ReferenceForest reference =
      ReferenceBuilder(batch.view(), batch.seq_lens, batch.page_size).build();
  const PrefixForest by_table = table_forest(batch);
  const PrefixForest forms[] = {make_csr(reference, batch.page_size, random).build(batch.page_size),
                                make_chains(batch).build(batch.page_size),
                                make_levels(reference).build(batch.page_size)};
  for (const Mode mode : kModes) {
    const Asked asked{{32, 8, 128}, {mode}};
    const Bytes expected = without_pages(proven_plan(by_table, asked));
    for (const PrefixForest& form : forms)
      EXPECT_EQ(without_pages(proven_plan(form, asked)), expected) << asked;
  }
}

INSTANTIATE_TEST_SUITE_P(Planner, Fixtures, ::testing::ValuesIn(all_fixtures()),
                         [](const auto& test) { return test.param.name; });

// A planner that lives long and sees everything must not carry anything over.
TEST(Planner, RandomBatchesAreProven) {
  std::vector<std::pair<Asked, Planner>> planners;
  std::mt19937_64 rng(11);
  for (int i = 0; i < 150; ++i) {
    const Asked asked = random_asked(rng);
    planners.emplace_back(asked, Planner(asked.shape, builtin_h200(), asked.options));
  }
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    const Batch batch = random_rows(seed, 300, 5000).batch();
    const PrefixForest forest = table_forest(batch);
    for (int i = 0; i < 2; ++i) {
      auto& [asked, planner] = planners[rng() % planners.size()];
      const Bytes bytes = bytes_of(planner.plan(forest));
      ASSERT_EQ(fault(bytes, forest), "") << "seed " << seed << ", " << asked;
      if (seed % 8 != 0) continue;
      Planner fresh(asked.shape, builtin_h200(), asked.options);
      ASSERT_EQ(bytes_of(fresh.plan(forest)), bytes) << "seed " << seed << ", " << asked;
    }
  }
}

TEST(Planner, RandomBatchesPlanAlikeFromCsr) {
  std::mt19937_64 rng(12);
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const Batch batch = random_rows(seed, 200, 2000).batch();
    const PrefixForest by_table = table_forest(batch);
    const PrefixForest by_csr = csr_of(batch, by_table).build(batch.page_size);
    const Asked asked = random_asked(rng);
    ASSERT_EQ(without_pages(proven_plan(by_table, asked)),
              without_pages(proven_plan(by_csr, asked)))
        << "seed " << seed << ", " << asked;
  }
}

TEST(Planner, EveryShapeMeetsEveryMode) {
  const PrefixForest forest = table_forest(random_rows(77, 60, 900).batch());
  for (const int32_t group_size : kGroupSizes)
    for (const int32_t head_dim : kHeadDims)
      for (const Mode mode : kModes)
        for (const int32_t cluster_size : kClusterSizes) {
          const Asked asked{{2 * group_size, 2, head_dim}, {mode, cluster_size}};
          if (group_size > 64 && head_dim > 128) continue;
          Planner planner(asked.shape, builtin_h200(), asked.options);
          ASSERT_EQ(fault(bytes_of(planner.plan(forest)), forest), "") << asked;
        }
}

TEST(Planner, EmptyBatches) {
  for (const Mode mode : kModes) {
    for (const int32_t cluster_size : kClusterSizes) {
      const Asked asked{{32, 8, 128}, {mode, cluster_size}};
      const Bytes nobody = proven_plan(PrefixForest{}, asked);
      EXPECT_EQ(PlanView(nobody.data()).header().num_jobs, 0u);
      const PrefixForest all_empty = table_forest(make_batch(level_tree("", {300}, {0}), 1));
      const Bytes plan = proven_plan(all_empty, asked);
      const PlanHeader& header = PlanView(plan.data()).header();
      EXPECT_EQ(header.num_items, 0u);
      EXPECT_GT(header.num_merges, 0u);  // somebody has to write the zeros
    }
  }
}

TEST(Planner, TenThousandRequests) {
  const PrefixForest tree = parents_forest(level_tree("", {3, 70, 10000}, {512, 64, 33}));
  const PrefixForest flat = parents_forest(level_tree("", {10000}, {40}));
  for (const Mode mode : kModes) {
    proven_plan(tree, {{32, 8, 128}, {mode}});
    proven_plan(flat, {{8, 1, 128}, {mode, 8}});
  }
  // Wild ratios: a job has room for two queries only.
  proven_plan(tree, {{64, 1, 64}, {}});
}

TEST(Planner, AMillionTokens) {
  const PrefixForest one = parents_forest(level_tree("", {1}, {1000000}));
  const PrefixForest forked = parents_forest(level_tree("", {1, 4}, {999984, 1000}));
  for (const int32_t cluster_size : kClusterSizes) {
    for (const Mode mode : kModes) {
      proven_plan(one, {{8, 1, 128}, {mode, cluster_size}});
      proven_plan(forked, {{32, 8, 128}, {mode, cluster_size}});
    }
  }
}

// Request i is a prefix of request i + 1: the last one's keys are 3000 nodes, more than an item may have.
TEST(Planner, AVeryDeepChain) {
  constexpr int32_t kDepth = 3000;
  std::vector<int32_t> parent(kDepth), ends(kDepth), indptr(kDepth + 1);
  std::iota(parent.begin(), parent.end(), -1);
  std::iota(ends.begin(), ends.end(), 0);
  std::iota(indptr.begin(), indptr.end(), 0);
  const std::vector<int32_t> pages = ends, num_tokens(kDepth, 1);
  const PrefixForest forest = PrefixForest::from_csr(parent, num_tokens, indptr, pages, ends, 1);
  ASSERT_EQ(forest.nodes().size(), static_cast<size_t>(kDepth));
  for (const Mode mode : kModes) {
    for (const int32_t cluster_size : {1, 8}) {
      const Bytes bytes = proven_plan(forest, {{20, 1, 64}, {mode, cluster_size}});
      const PlanView view(bytes.data());
      uint32_t most = 0;
      for (uint32_t i = 0; i < view.header().num_items; ++i)
        most = std::max<uint32_t>(most, view.items()[i].num_segments);
      EXPECT_LE(most, 1024u);
    }
  }
}

TEST(Planner, FixedGridIsTheSameForEveryBatch) {
  for (const int32_t cluster_size : {1, 2, 4, 8, 16}) {
    Planner planner({32, 8, 128}, builtin_h200(), {Mode::kAuto, cluster_size, 0, true});
    const int32_t expected =
        builtin_h200().max_clusters[static_cast<size_t>(cluster_size_index(cluster_size))];
    for (uint64_t seed = 0; seed < 30; ++seed) {
      const PrefixForest forest = table_forest(random_rows(seed, 100, 1000).batch());
      const Bytes bytes = bytes_of(planner.plan(forest));
      EXPECT_EQ(fault(bytes, forest), "");
      EXPECT_EQ(PlanView(bytes.data()).header().num_clusters, expected);
      EXPECT_EQ(PlanView(bytes.data()).header().cluster_size, cluster_size);
    }
  }
}

TEST(Planner, AWarmPlannerDoesNotAllocate) {
  const PrefixForest large = parents_forest(
      level_tree("", {1, 8, 16, 32, 64, 128, 1024}, {256, 128, 64, 32, 32, 32, 32}, 32));
  const PrefixForest small = parents_forest(level_tree("", {16, 256}, {1024, 200}));
  const PrefixForest flat = parents_forest(level_tree("", {200}, {900}));
  for (const Mode mode : kModes) {
    Planner planner({32, 8, 128}, builtin_h200(), {mode});
    for (const PrefixForest* forest : {&large, &small, &flat}) planner.plan(*forest);
    const int64_t before = allocation_count();
    for (int i = 0; i < 3; ++i)
      for (const PrefixForest* forest : {&large, &small, &flat}) planner.plan(*forest);
    EXPECT_EQ(allocation_count() - before, 0) << mode_name(mode);
  }
}

TEST(Planner, TheSummaryIsReadOffThePlan) {
  const PrefixForest forest = parents_forest(level_tree("", {4, 64}, {2048, 100}));
  Planner planner({32, 8, 128});
  const PlanView view(planner.plan(forest).data());
  const PlanSummary& summary = planner.summary();
  EXPECT_EQ(summary.num_jobs, static_cast<int32_t>(view.header().num_jobs));
  EXPECT_EQ(summary.cluster_size, view.header().cluster_size);
  EXPECT_EQ(summary.num_clusters, view.header().num_clusters);
  EXPECT_EQ(summary.num_requests, 64);
  EXPECT_EQ(summary.num_nodes, 68);
  int64_t tokens = 0;
  for (uint32_t i = 0; i < view.header().num_items; ++i)
    tokens += view.items()[i].num_tiles * int64_t{kTileTokens};
  constexpr int64_t kTokenBytes = 2 * 2 * 128;
  EXPECT_EQ(summary.planned_bytes, tokens * kTokenBytes * 8);
  EXPECT_EQ(summary.unique_bytes, (4 * 2048 + 64 * 100) * kTokenBytes * 8);
  EXPECT_EQ(summary.flat_bytes, 64 * 2148 * kTokenBytes * 8);
  ASSERT_FALSE(summary.candidates.empty());
  EXPECT_EQ(summary.candidates.front().predicted_us, summary.predicted_us);
  // The chosen one first: the fastest, or as fast for all the model knows. The others in order.
  for (size_t i = 1; i < summary.candidates.size(); ++i) {
    EXPECT_LT(summary.predicted_us, summary.candidates[i].predicted_us * 1.05);
    if (i == 1) continue;
    EXPECT_LE(summary.candidates[i - 1].predicted_us, summary.candidates[i].predicted_us);
  }
  EXPECT_GE(summary.predicted_us, summary.floor_us);
}

// What the model cannot tell apart is decided by traffic: on clusters of one size a hundredth less is enough. On a card
// with less bandwidth this tree's 33 groups are predicted to be a little faster than 32, which read less.
TEST(Planner, OfPlansThatTakeAsLongTheOneThatReadsLessWins) {
  const PrefixForest forest =
      parents_forest(level_tree("", {1, 4, 16, 64, 256, 1024}, {256, 32, 256, 64, 32, 256}));
  DeviceProfile profile = builtin_h200();
  profile.hbm_gbps *= 0.7;
  Planner planner({32, 8, 128}, profile);
  planner.plan(forest);
  const PlanSummary chosen = planner.summary();
  const PlanCandidate* fastest = nullptr;
  for (const PlanCandidate& candidate : chosen.candidates)
    if (candidate.cluster_size == chosen.cluster_size && candidate.mode == chosen.mode &&
        (fastest == nullptr || candidate.predicted_us < fastest->predicted_us))
      fastest = &candidate;
  ASSERT_NE(fastest, nullptr);
  ASSERT_LT(fastest->predicted_us, chosen.predicted_us) << "nothing to choose between";
  EXPECT_LT(chosen.predicted_us, fastest->predicted_us * 1.02);
  Planner faster({32, 8, 128}, profile, {Mode::kAuto, fastest->cluster_size, fastest->num_pieces});
  faster.plan(forest);
  EXPECT_LE(faster.summary().predicted_us, fastest->predicted_us);
  EXPECT_GT(faster.summary().planned_bytes * 99, chosen.planned_bytes * 100);
}

// With one KV head a group that reaches into one more subtree is a good deal longer than the others. What these took on
// an H200, with groups on the tree's boundaries and with as many as fill the card (sweep of b2a5904): 16.4 and 30.3 us,
// 15.8 and 24.2, 33.8 and 45.9, 11.2 and 12.8.
TEST(Planner, OneHeadGetsGroupsOnTheBoundariesOfATree) {
  struct Row {
    std::vector<int32_t> nodes, tokens;
    int32_t cluster_size, num_groups;
  };
  const Row rows[] = {
      {{1, 2, 4, 8, 16, 32, 64, 128, 1024}, {256, 128, 64, 16, 16, 16, 16, 16, 16}, 1, 128},
      {{1, 8, 16, 32, 64, 128, 1024}, {256, 128, 64, 16, 16, 16, 16}, 1, 128},
      {{1, 8, 512}, {32, 2048, 256}, 2, 64},
      {{1, 8}, {4000, 1}, 8, 8},
  };
  for (const Row& row : rows) {
    const PrefixForest forest = parents_forest(level_tree("", row.nodes, row.tokens, 32));
    Planner planner({8, 1, 128});
    planner.plan(forest);
    EXPECT_EQ(planner.summary().cluster_size, row.cluster_size) << row.nodes.back() << " requests";
    EXPECT_EQ(planner.summary().num_groups, row.num_groups) << row.nodes.back() << " requests";
  }
}

// Requests by threes: 81 groups of one or 27 of three, not the 64 and 16 that suit trees of powers of two.
TEST(Planner, OneHeadSharesRequestsOutEvenly) {
  Planner planner({8, 1, 128});
  planner.plan(parents_forest(level_tree("", {3, 9, 27, 81}, {64, 64, 64, 64})));
  const auto tried = [&](int32_t num_pieces) {
    const std::vector<PlanCandidate>& candidates = planner.summary().candidates;
    return std::any_of(candidates.begin(), candidates.end(), [&](const PlanCandidate& candidate) {
      return candidate.num_pieces == num_pieces;
    });
  };
  EXPECT_TRUE(tried(81));
  EXPECT_TRUE(tried(27));
  EXPECT_FALSE(tried(64));
  EXPECT_FALSE(tried(16));
}

// Requests that share a prefix walk it side by side, in flat plans too: what they read again comes from L2.
TEST(Planner, FlatPlansReadSharedKeysAgainFromL2) {
  const PrefixForest shared = parents_forest(level_tree("", {1, 64}, {8192, 112}));
  const PrefixForest alone = parents_forest(level_tree("", {64}, {8192 + 112}));
  ASSERT_EQ(shared.flat_tokens(), alone.flat_tokens());
  const auto predicted_us = [](const PrefixForest& forest, double l2_share) {
    DeviceProfile profile = builtin_h200();
    profile.l2_gbps_per_cta *= l2_share;
    Planner planner({32, 8, 128}, profile, {Mode::kFlat});
    return planner.plan(forest).predicted_us();
  };
  EXPECT_LT(predicted_us(shared, 1), 0.8 * predicted_us(alone, 1));
  EXPECT_GT(predicted_us(shared, 0.5), 1.5 * predicted_us(shared, 1));
  EXPECT_EQ(predicted_us(alone, 0.5), predicted_us(alone, 1));
}

// A card where few CTAs of many SMs can be resident: piece counts that fill the clusters leave too many SMs idle to be
// tried, and that none of them may win must not end the search before one is.
TEST(Planner, FindsAPlanWhereFewClustersFillTheCard) {
  DeviceProfile profile = builtin_h200();
  profile.num_sms = 123;
  profile.max_clusters = {13, 57, 18, 3, 2};
  for (const int32_t requests : {12, 16, 24, 40, 64, 200}) {
    const PrefixForest forest = parents_forest(level_tree("", {1, requests}, {8192, 2048}));
    for (const Mode mode : kModes) {
      Planner planner({128, 8, 112}, profile, {mode});
      EXPECT_EQ(fault(bytes_of(planner.plan(forest)), forest), "") << requests << " requests";
    }
  }
}

template <class E>
std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const E& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing thrown";
  return "";
}

TEST(Planner, RefusesShapesThatCannotBe) {
  const auto refused = [](ModelShape shape) {
    return message_of<InvalidArgument>([&] { Planner planner(shape); });
  };
  EXPECT_THAT(refused({32, 0, 128}), HasSubstr("num_kv_heads is 0; must be at least 1"));
  EXPECT_THAT(refused({30, 8, 128}), HasSubstr("num_q_heads is 30; must be a positive multiple"));
  EXPECT_THAT(refused({0, 8, 128}), HasSubstr("num_q_heads is 0"));
  EXPECT_THAT(refused({32, 8, 0}), HasSubstr("head_dim is 0; must be 1 to 576"));
  EXPECT_THAT(refused({32, 8, 577}), HasSubstr("head_dim is 577"));
  EXPECT_THAT(refused({32, 8, 128, -1}), HasSubstr("head_dim_v is -1"));
  EXPECT_THAT(message_of<UnsupportedConfig>([] {
                Planner planner({129, 1, 128});
              }),
              HasSubstr("is 129; must be at most 128"));
  EXPECT_THAT(message_of<UnsupportedConfig>([] {
                Planner planner({65, 1, 256});
              }),
              HasSubstr("is 65; must be at most 64"));
  EXPECT_THAT(message_of<UnsupportedConfig>([] {
                Planner planner({32, 8, 128, 0, DType::kInt32});
              }),
              HasSubstr("dtype is int32"));
}

TEST(Planner, RefusesOptionsThatCannotBe) {
  const auto refused = [](PlanOptions options, DeviceProfile profile = builtin_h200()) {
    return message_of<InvalidArgument>([&] { Planner planner({32, 8, 128}, profile, options); });
  };
  EXPECT_THAT(refused({Mode::kAuto, 3}),
              HasSubstr("cluster_size is 3; must be 0, 1, 2, 4, 8 or 16"));
  EXPECT_THAT(refused({Mode::kAuto, -1}), HasSubstr("cluster_size is -1"));
  EXPECT_THAT(refused({Mode::kAuto, 0, -2}), HasSubstr("num_pieces is -2"));
  EXPECT_THAT(refused({Mode::kAuto, 0, 0, true}), HasSubstr("fixed_grid"));
  DeviceProfile no_16 = builtin_h200();
  no_16.max_clusters[4] = 0;
  EXPECT_THAT(refused({Mode::kAuto, 16}, no_16), HasSubstr("cluster_size is 16"));
}

}  // namespace
}  // namespace capillary::testing
