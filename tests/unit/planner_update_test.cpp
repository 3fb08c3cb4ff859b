// SPDX-License-Identifier: MIT
// Planner::update over batches that live: whatever a step changed, the plan passes the proof and computes what the
// oracle does; where only lengths changed, few steps plan anew, and none allocates.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "check/compare.h"
#include "support/allocation_count.h"
#include "support/forest_steps.h"
#include "support/plan_batches.h"
#include "support/plan_checks.h"

namespace capillary::testing {
namespace {

// Requests of random lengths under a few prompts, one page of their own at least.
StepBatch sampled_batch(int32_t num_requests, int32_t page_size, uint32_t seed) {
  StepBatch batch(page_size, seed, 1 << 28);
  for (int32_t r = 0; r < num_requests; ++r) {
    if (r < 4)
      batch.join(60 * page_size);
    else
      batch.fork(r % 4, 50 * page_size);
  }
  for (int32_t r = 0; r < num_requests; ++r) batch.grow(r, page_size + batch.below(400));
  return batch;
}

const PrefixForest& track(ForestTracker& tracker, StepBatch& batch) {
  batch.lay_out();
  return tracker.update(batch.batch().view(), batch.batch().seq_lens, batch.previous_row());
}

TEST(PlannerUpdate, RandomStepsAreProven) {
  std::mt19937_64 rng(21);
  int updated = 0, anew = 0;
  for (uint32_t seed = 0; seed < 60; ++seed) {
    const Asked asked = random_asked(rng);
    constexpr int32_t kPageSizes[] = {1, 3, 16, 16, 32};
    const int32_t page_size = kPageSizes[seed % 5];
    StepBatch batch(page_size, seed, seed % 2 == 0 ? 1 << 28 : 40);
    ForestTracker tracker(page_size);
    Planner planner(asked.shape, builtin_h200(), asked.options);
    Planner fresh(asked.shape, builtin_h200(), asked.options);
    for (int step = 0; step < 120; ++step) {
      batch.random_step(20, 600);
      // Most steps of a server only append.
      for (int i = 0; i < 4; ++i) {
        if (i > 0) batch.grow_all(batch.chance(10) ? 20 : 1);
        const PrefixForest& forest = track(tracker, batch);
        const Bytes bytes = bytes_of(planner.update(forest));
        ASSERT_EQ(fault(bytes, forest), "") << asked << ", seed " << seed << ", step " << step;
        (planner.planned_anew() ? anew : updated) += 1;
        if (planner.planned_anew()) {
          ASSERT_EQ(bytes_of(fresh.plan(forest)), bytes) << asked;
        }
      }
    }
  }
  EXPECT_GT(updated, 5000);
  EXPECT_GT(anew, 5000);
}

TEST(PlannerUpdate, MostAppendingStepsOnlyLengthen) {
  for (const Mode mode : kModes) {
    StepBatch batch = sampled_batch(256, 16, 3);
    ForestTracker tracker(16);
    Planner planner({32, 8, 128}, builtin_h200(), {mode});
    planner.update(track(tracker, batch));
    EXPECT_TRUE(planner.planned_anew());
    int anew = 0;
    for (int step = 0; step < 200; ++step) {
      batch.grow_all(1);
      const PrefixForest& forest = track(tracker, batch);
      const Bytes bytes = bytes_of(planner.update(forest));
      ASSERT_EQ(fault(bytes, forest), "") << step;
      // The table's stride may have changed, and with it every page's place.
      anew += planner.planned_anew() ? 1 : 0;
    }
    EXPECT_GE(anew, 4) << "nothing was ever planned anew";
    EXPECT_LE(anew, 30) << mode_name(mode);
  }
}

// What the threshold promises: no stream and no wide phase grows by more than an eighth, or two tiles (one wide
// step), before the batch is planned anew.
TEST(PlannerUpdate, NoStreamOutgrowsTheThreshold) {
  StepBatch batch = sampled_batch(48, 16, 4);
  ForestTracker tracker(16);
  Planner planner({32, 8, 128});
  std::vector<int64_t> planned;
  bool grew = false;
  for (int step = 0; step < 300; ++step) {
    batch.grow(batch.below(batch.size()), 7);
    const PlanView view(planner.update(track(tracker, batch)).data());
    std::vector<int64_t> tiles;
    for (uint32_t p = 0; p < view.header().num_phases; ++p)
      for (const uint32_t stream : view.phases()[p].stream_tiles) tiles.push_back(stream);
    if (planner.planned_anew()) planned = tiles;
    ASSERT_EQ(tiles.size(), planned.size());
    for (size_t i = 0; i < tiles.size(); ++i) {
      ASSERT_LE(tiles[i], planned[i] + std::max<int64_t>(kWideTiles, planned[i] / 8)) << step;
      grew |= tiles[i] > planned[i];
    }
  }
  EXPECT_TRUE(grew);
}

TEST(PlannerUpdate, RolledBackTokensShortenThePlan) {
  StepBatch batch = sampled_batch(32, 16, 5);
  ForestTracker tracker(16);
  Planner planner({8, 1, 128});
  planner.update(track(tracker, batch));
  int updated = 0;
  for (int step = 0; step < 100; ++step) {
    batch.grow_all(1 + step % 5);
    if (step % 2 == 1)
      for (int32_t r = 0; r < 32; ++r) batch.roll_back(r, 1 + (step + r) % 6);
    const PrefixForest& forest = track(tracker, batch);
    ASSERT_EQ(fault(bytes_of(planner.update(forest)), forest), "") << step;
    updated += planner.planned_anew() ? 0 : 1;
  }
  EXPECT_GT(updated, 50);
}

// What is left after a large roll-back would be badly balanced: one request keeps all of its keys. Up to an eighth of
// all keys the plan is only shortened.
TEST(PlannerUpdate, ALargeRollBackIsPlannedAnew) {
  constexpr int32_t kTokens = 1600;
  const auto forest_of = [](int32_t others) {
    PageRows rows;
    for (int32_t r = 0; r < 33; ++r) rows.add(r == 0 ? kTokens : others);
    return table_forest(rows.batch());
  };
  const PrefixForest before = forest_of(kTokens);
  Planner planner({32, 8, 128}), fresh({32, 8, 128});
  for (const int32_t left : {1590, 1450, 1390, 800, 16}) {
    const int64_t all = 33 * kTokens;
    const PrefixForest after = forest_of(left);
    const bool is_large = all - after.unique_tokens() > all / 8;
    planner.plan(before);
    const Bytes bytes = bytes_of(planner.update(after));
    EXPECT_EQ(fault(bytes, after), "") << left;
    EXPECT_EQ(planner.planned_anew(), is_large) << left;
    if (is_large) {
      EXPECT_EQ(bytes_of(fresh.plan(after)), bytes) << left;
    }
    // Nearly: a plan keeps its prediction as a float.
    EXPECT_LE(planner.summary().predicted_us, fresh.plan(before).predicted_us() * 1.0001) << left;
  }
}

// A forest of the same lengths and another shape, page size or place of its pages is not taken for the last one.
TEST(PlannerUpdate, AnotherForestIsPlannedAnew) {
  const auto planned_anew = [](const PrefixForest& first, const PrefixForest& second) {
    Planner planner({32, 8, 128});
    planner.plan(first);
    const Bytes bytes = bytes_of(planner.update(second));
    EXPECT_EQ(fault(bytes, second), "");
    return planner.planned_anew();
  };
  PageRows rows;
  for (int32_t r = 0; r < 6; ++r) rows.add(200, r == 0 ? -1 : 0, 96);
  const PrefixForest first = table_forest(rows.batch());
  EXPECT_FALSE(planned_anew(first, first));
  Batch wider = rows.batch();
  wider.row_stride += 1;
  wider.table.assign(wider.seq_lens.size() * static_cast<size_t>(wider.row_stride), 0);
  for (size_t r = 0; r < rows.pages.size(); ++r)
    std::copy(rows.pages[r].begin(), rows.pages[r].end(),
              wider.table.begin() + static_cast<int64_t>(r) * wider.row_stride);
  EXPECT_TRUE(planned_anew(first, table_forest(wider)));
  PageRows one_more = rows;
  one_more.add(200);
  EXPECT_TRUE(planned_anew(first, table_forest(one_more.batch())));
  EXPECT_TRUE(planned_anew(first, PrefixForest{}));
  EXPECT_TRUE(planned_anew(PrefixForest{}, first));
  PageRows longer = rows;
  for (int32_t r = 0; r < 6; ++r) longer.seq_lens[static_cast<size_t>(r)] = 208;
  EXPECT_FALSE(planned_anew(first, table_forest(longer.batch())));
  PageRows much_longer;  // by more than an eighth
  for (int32_t r = 0; r < 6; ++r) much_longer.add(320, r == 0 ? -1 : 0, 96);
  EXPECT_TRUE(planned_anew(table_forest(rows.batch()), table_forest(much_longer.batch())));
}

TEST(PlannerUpdate, AWarmUpdateDoesNotAllocate) {
  for (const Mode mode : kModes) {
    StepBatch batch = sampled_batch(256, 16, 6);
    ForestTracker tracker(16);
    Planner planner({32, 8, 128}, builtin_h200(), {mode});
    planner.update(track(tracker, batch));
    int64_t allocations = 0;
    int updated = 0;
    for (const bool warm : {false, true}) {
      for (int step = 0; step < 60; ++step) {
        batch.grow_all(1);
        const PrefixForest& forest = track(tracker, batch);
        const int64_t before = allocation_count();
        planner.update(forest);
        if (planner.planned_anew() || !warm) continue;
        allocations += allocation_count() - before;
        ++updated;
      }
      for (int32_t r = 0; r < 256; ++r) batch.roll_back(r, 60);
      planner.update(track(tracker, batch));
    }
    EXPECT_EQ(allocations, 0) << mode_name(mode);
    EXPECT_GT(updated, 40);
  }
}

// The lengthened plan computes what the oracle does.
TEST(PlannerUpdate, LengthenedPlansAreRight) {
  for (const Mode mode : kModes) {
    for (const ModelShape shape : {ModelShape{8, 2, 64}, ModelShape{40, 2, 64}}) {
      for (const int32_t cluster_size : {0, 4}) {
        const check::TreeSpec tree = check::level_tree({1, 3, 9}, {96, 64, 90});
        check::HostBatch batch =
            check::make_batch({.shape = shape, .table = check::make_table(tree, 16, 7)});
        constexpr int32_t kSteps = 23;
        std::vector<int32_t> lens = batch.seq_lens;
        for (int32_t& len : lens) len -= kSteps;
        Planner planner(shape, builtin_h200(), {mode, cluster_size});
        const auto forest_of = [&] {
          return PrefixForest::from_block_table(batch.block_table_view(), lens, 16);
        };
        planner.plan(forest_of());
        int updated = 0;
        for (int step = 0; step < kSteps; ++step) {
          for (int32_t& len : lens) ++len;
          planner.update(forest_of());
          updated += planner.planned_anew() ? 0 : 1;
        }
        ASSERT_EQ(lens, batch.seq_lens);
        EXPECT_GT(updated, kSteps / 2);
        const Plan& plan = planner.update(forest_of());
        ASSERT_FALSE(planner.planned_anew());
        batch.poison_outputs();
        decode_cpu(plan, batch.tensors());
        const check::Comparison comparison = check::compare_with_oracle(batch, false);
        EXPECT_TRUE(comparison.passed) << mode_name(mode) << ": " << comparison.first_failure;
      }
    }
  }
}

}  // namespace
}  // namespace capillary::testing
