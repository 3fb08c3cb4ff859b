// SPDX-License-Identifier: MIT
// What the search leaves out without an estimate must be what an estimate would have refused.
#include "core/grouping.h"

#include <gtest/gtest.h>

#include "support/plan_batches.h"
#include "support/plan_checks.h"

namespace capillary::testing {
namespace {

TEST(Grouping, NoEstimateIsBelowItsLowerBound) {
  constexpr double kNever = 1e30;
  std::mt19937_64 rng(17);
  int compared = 0, near = 0;
  for (int round = 0; round < 300; ++round) {
    const Asked asked = random_asked(rng);
    PageRows rows;
    const auto below = [&](uint32_t n) { return static_cast<int32_t>(rng() % n); };
    const int32_t num_requests = 1 + below(60);
    for (int32_t r = 0; r < num_requests; ++r)
      rows.add(1 + below(round % 2 == 0 ? 300 : 4000), r == 0 || below(3) == 0 ? -1 : below(r),
               below(2000));
    const PrefixForest forest = table_forest(rows.batch());
    const DeviceProfile& profile = builtin_h200();
    Grouping grouping(CostModel(asked.shape, profile));
    for (const bool flat : {false, true}) {
      grouping.set_forest(forest, flat);
      for (const int32_t pieces : {grouping.min_groups(), 7, 40, 200})
        for (const bool keep_trees : {false, true}) {
          grouping.cut(pieces);
          if (keep_trees) grouping.keep_trees();
          for (int index = 0; index < kNumClusterSizes; ++index) {
            const int32_t clusters = profile.max_clusters[static_cast<size_t>(index)];
            const double reading = grouping.reading_bound_us(1 << index, clusters);
            const double bound = grouping.lower_bound_us(1 << index, clusters);
            const double us = grouping.evaluate(1 << index, clusters, kNever).us;
            ASSERT_LE(reading, us * (1 + 1e-12)) << asked << ", round " << round;
            ASSERT_LE(bound, us * (1 + 1e-12)) << asked << ", round " << round << ", " << pieces
                                               << " pieces, clusters of " << (1 << index);
            ++compared;
            near += bound > 0.7 * us ? 1 : 0;
          }
        }
    }
  }
  EXPECT_GT(near, compared / 3) << "bounds far below their estimates leave nothing out";
}

// Two trees of a trunk, once with the trunk's first keys shared by both: each group has the same to do, so that the
// second one's trunk begins in another group's node must not count as a phase more.
TEST(Grouping, ATrunkThatBeginsBeforeTheGroupIsOneElement) {
  const auto two_groups_us = [](const PrefixForest& forest) {
    Grouping grouping(CostModel({8, 1, 128}, builtin_h200()));
    grouping.set_forest(forest, false);
    grouping.cut(2);
    EXPECT_EQ(grouping.groups().size(), 2u);
    return grouping.evaluate(1, 132, 1e30).us;
  };
  const double apart_us = two_groups_us(parents_forest(level_tree("", {2, 16}, {768, 64})));
  const double shared_us =
      two_groups_us(parents_forest(level_tree("", {1, 2, 16}, {256, 512, 64})));
  EXPECT_LE(shared_us, apart_us);  // a part of its keys comes from L2
  EXPECT_GT(shared_us, apart_us - builtin_h200().item_start_us);
}

}  // namespace
}  // namespace capillary::testing
