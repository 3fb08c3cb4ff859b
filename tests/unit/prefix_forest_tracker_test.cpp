// SPDX-License-Identifier: MIT
// ForestTracker: after every step of every sequence the forest is the one that a rebuild gives, and steps that
// only append are recognised as such. F15 of the case list, then thousands of random steps.
#include <gtest/gtest.h>

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "capillary/error.h"
#include "capillary/prefix_forest.h"
#include "support/forest_compare.h"
#include "support/forest_fixtures.h"
#include "support/forest_reference.h"
#include "support/forest_steps.h"

namespace capillary::testing {
namespace {

PrefixForest rebuilt(const Batch& batch) {
  return PrefixForest::from_block_table(batch.view(), batch.seq_lens, batch.page_size);
}

// Updates and compares; the text says what differs.
std::string step(ForestTracker& tracker, StepBatch& batch) {
  batch.lay_out();
  const PrefixForest& forest =
      tracker.update(batch.batch().view(), batch.batch().seq_lens, batch.previous_row());
  return difference(forest, rebuilt(batch.batch()));
}

TEST(ForestTracker, StartsEmpty) {
  ForestTracker tracker(16);
  EXPECT_EQ(tracker.forest().num_requests(), 0);
  EXPECT_TRUE(tracker.forest().nodes().empty());
  const PrefixForest& forest = tracker.update({}, {});
  EXPECT_EQ("", difference(forest, PrefixForest::from_block_table({}, {}, 16)));
}

TEST(ForestTracker, EveryFixtureThenFortySteps) {
  for (const Fixture& fixture : all_fixtures()) {
    SCOPED_TRACE(fixture.name);
    Batch batch = make_batch(fixture, 3);
    ForestTracker tracker(batch.page_size);
    ASSERT_EQ("", difference(tracker.update(batch.view(), batch.seq_lens), rebuilt(batch)));
    // Room for the pages to come, with ids that nobody else has.
    const int64_t columns = batch.num_columns + 40 / batch.page_size + 2;
    Batch wide = batch;
    wide.num_columns = wide.row_stride = columns;
    wide.table.assign(static_cast<size_t>(columns) * batch.seq_lens.size(), -1);
    int32_t fresh = 1 << 24;
    for (size_t r = 0; r < batch.seq_lens.size(); ++r) {
      const int64_t used = (int64_t{batch.seq_lens[r]} + batch.page_size - 1) / batch.page_size;
      int32_t* row = wide.table.data() + static_cast<int64_t>(r) * columns;
      for (int64_t page = 0; page < columns; ++page) {
        row[page] =
            page < used
                ? batch
                      .table[static_cast<size_t>(static_cast<int64_t>(r) * batch.row_stride + page)]
                : fresh++;
      }
    }
    for (int i = 0; i < 40; ++i) {
      for (int32_t& len : wide.seq_lens) ++len;
      ASSERT_EQ("", difference(tracker.update(wide.view(), wide.seq_lens), rebuilt(wide)))
          << "step " << i;
    }
  }
}

TEST(ForestTracker, SequenceOfF15) {
  StepBatch batch(16, 15, 1 << 20);
  ForestTracker tracker(16);
  batch.join(100);
  for (int i = 0; i < 5; ++i) batch.fork(0, 100);
  batch.join(40);
  ASSERT_EQ("", step(tracker, batch));
  const auto grow_40_steps = [&] {
    int restructured = 0;
    for (int i = 0; i < 40; ++i) {
      batch.grow_all(1);
      ASSERT_EQ("", step(tracker, batch)) << "step " << i;
      restructured += tracker.restructured() ? 1 : 0;
    }
    // Once for each request in which a first page of its own fills up, at most.
    EXPECT_LE(restructured, 3);
  };
  grow_40_steps();
  batch.leave(2);
  ASSERT_EQ("", step(tracker, batch));
  grow_40_steps();
  batch.join(333);
  ASSERT_EQ("", step(tracker, batch));
  grow_40_steps();
  batch.fork(1, 187);  // in the middle of a page
  ASSERT_EQ("", step(tracker, batch));
  grow_40_steps();
  batch.preempt_and_return(3);
  ASSERT_EQ("", step(tracker, batch));
  EXPECT_TRUE(tracker.restructured());
  grow_40_steps();
}

TEST(ForestTracker, AppendingNeverRestructuresRequestsWithAPageOfTheirOwn) {
  for (const int32_t page_size : {1, 3, 16}) {
    StepBatch batch(page_size, 4, 1 << 28);
    ForestTracker tracker(page_size);
    for (int i = 0; i < 8; ++i) batch.join(100);
    ASSERT_EQ("", step(tracker, batch));
    EXPECT_TRUE(tracker.restructured());
    for (int i = 0; i < 200; ++i) {
      batch.grow_all(i % 50 == 0 ? 5 * page_size : 1);
      ASSERT_EQ("", step(tracker, batch));
      ASSERT_FALSE(tracker.restructured()) << "page_size " << page_size << ", step " << i;
    }
  }
}

// Two requests whose first own page is partial: it becomes whole in both with the same id, which is sharing.
TEST(ForestTracker, PartialPageThatBecomesAnEqualWholeOneIsShared) {
  std::vector<int32_t> table = {5, 6, -1, 5, 6, -1};
  const BlockTableView view{table.data(), 2, 3, 3};
  std::vector<int32_t> lens = {7, 6};
  ForestTracker tracker(4);
  const auto update = [&] {
    const PrefixForest& forest = tracker.update(view, lens);
    EXPECT_EQ("", difference(forest, PrefixForest::from_block_table(view, lens, 4)));
    return forest.nodes().size();
  };
  EXPECT_EQ(update(), 3u);  // one shared page, two partial ones
  lens = {8, 7};
  EXPECT_EQ(update(), 3u);  // whole in one of them only
  EXPECT_TRUE(tracker.restructured());
  lens = {8, 8};
  EXPECT_EQ(update(), 1u);  // whole in both: identical requests
  EXPECT_TRUE(tracker.restructured());
  table = {5, 6, 9, 5, 6, 9};
  lens = {9, 9};
  EXPECT_EQ(update(), 3u);
  lens = {12, 12};
  EXPECT_EQ(update(), 1u);
}

// The appended page of one request is the page that another already has.
TEST(ForestTracker, AppendedPageEqualToANeighboursIsShared) {
  const std::vector<int32_t> table = {1, 2, 3, 4, 1, 2, 3, 7};
  const BlockTableView view{table.data(), 2, 4, 4};
  ForestTracker tracker(1);
  std::vector<int32_t> lens = {4, 2};
  for (; lens[1] <= 4; ++lens[1]) {
    EXPECT_EQ(
        "", difference(tracker.update(view, lens), PrefixForest::from_block_table(view, lens, 1)));
  }
  EXPECT_EQ(tracker.forest().nodes().size(), 3u);
  EXPECT_EQ(tracker.forest().nodes()[0].num_tokens, 3);
}

// Rolled back below its first own page and grown again in one go, over pages that a neighbour has, too.
TEST(ForestTracker, RolledBackRequestMayComeBackAsItsNeighbour) {
  std::vector<int32_t> table = {1, 2, 3, 4, 5, 6};
  const BlockTableView view{table.data(), 2, 3, 3};
  ForestTracker tracker(4);
  const auto update = [&](const std::vector<int32_t>& lens) {
    return difference(tracker.update(view, lens), PrefixForest::from_block_table(view, lens, 4));
  };
  EXPECT_EQ("", update({11, 11}));
  EXPECT_EQ("", update({11, 3}));
  EXPECT_FALSE(tracker.restructured());
  table = {1, 2, 3, 1, 2, 7};
  EXPECT_EQ("", update({11, 11}));
  EXPECT_TRUE(tracker.restructured());
  EXPECT_EQ(tracker.forest().nodes().size(), 3u);
}

TEST(ForestTracker, TableMayMoveAndChangeItsStride) {
  StepBatch batch(4, 5, 1 << 20);
  ForestTracker tracker(4);
  batch.join(30);
  batch.fork(0, 16);
  batch.grow_all(5);
  ASSERT_EQ("", step(tracker, batch));
  const Batch& before = batch.batch();
  Batch moved = before;
  moved.row_stride += 7;
  moved.table.assign(static_cast<size_t>(moved.row_stride) * 2, -1);
  for (int64_t r = 0; r < 2; ++r) {
    for (int64_t page = 0; page < before.num_columns; ++page) {
      moved.table[static_cast<size_t>(r * moved.row_stride + page)] =
          before.table[static_cast<size_t>(r * before.row_stride + page)];
    }
  }
  EXPECT_EQ("", difference(tracker.update(moved.view(), moved.seq_lens), rebuilt(moved)));
  EXPECT_FALSE(tracker.restructured());
}

TEST(ForestTracker, WithoutPreviousRowsLaterRowsAreNewOrGone) {
  StepBatch batch(4, 6, 1 << 20);
  ForestTracker tracker(4);
  batch.join(30);
  batch.join(21);
  const auto update = [&] {
    batch.lay_out();
    const Batch& now = batch.batch();
    return difference(tracker.update(now.view(), now.seq_lens), rebuilt(now));
  };
  EXPECT_EQ("", update());
  batch.fork(0, 17);
  batch.grow_all(1);
  EXPECT_EQ("", update());
  batch.leave(2);
  batch.grow_all(1);
  EXPECT_EQ("", update());
  batch.leave(1);
  batch.leave(0);
  EXPECT_EQ("", update());
  EXPECT_EQ(tracker.forest().num_requests(), 0);
}

struct StepCase {
  const char* name;
  int32_t page_size;
  int32_t id_range;
  size_t most_requests;
  int32_t longest;
};

void PrintTo(const StepCase& steps, std::ostream* out) {
  *out << steps.name;
}

class ForestTrackerRandom : public ::testing::TestWithParam<StepCase> {};

TEST_P(ForestTrackerRandom, EqualsARebuildAfterEveryStep) {
  const StepCase& param = GetParam();
  constexpr int kSteps = 4000;
  int appended = 0;
  for (uint32_t seed = 0; seed < 3; ++seed) {
    StepBatch batch(param.page_size, seed, param.id_range);
    ForestTracker tracker(param.page_size);
    for (int i = 0; i < kSteps; ++i) {
      batch.random_step(param.most_requests, param.longest);
      ASSERT_EQ("", step(tracker, batch)) << "seed " << seed << ", step " << i;
      appended += tracker.restructured() ? 0 : 1;
      if (i % 97 == 0) {
        const Batch& now = batch.batch();
        ASSERT_EQ("",
                  difference(tracker.forest(),
                             reference_forest(now.view(), now.seq_lens, now.page_size), now.view()))
            << "seed " << seed << ", step " << i;
      }
    }
  }
  // Both ways through a step have been taken many times.
  EXPECT_GT(appended, kSteps / 20);
  EXPECT_LT(appended, 3 * kSteps - kSteps / 20);
}

INSTANTIATE_TEST_SUITE_P(Steps, ForestTrackerRandom,
                         ::testing::Values(StepCase{"page_1", 1, 3, 8, 40},
                                           StepCase{"page_2_two_ids", 2, 2, 10, 24},
                                           StepCase{"page_3_one_id", 3, 1, 8, 30},
                                           StepCase{"page_4", 4, 4, 40, 100},
                                           StepCase{"page_16", 16, 1000, 64, 900}),
                         [](const auto& entry) { return std::string(entry.param.name); });

// What a throw leaves behind is the forest from before.
class ForestTrackerErrors : public ::testing::Test {
 protected:
  void SetUp() override {
    table_ = {1, 2, 9, 1, 3, 8};
    lens_ = {8, 7};
    tracker_.update(view(), lens_);
    before_ = tracker_.forest();
  }
  BlockTableView view() const { return {table_.data(), 2, 3, 3}; }

  void expect_error(const std::vector<std::string>& parts,
                    const std::vector<int32_t>& previous_row = {}) {
    try {
      tracker_.update(view(), lens_, previous_row);
      ADD_FAILURE() << "no error";
    } catch (const InvalidArgument& error) {
      const std::string message = error.what();
      EXPECT_EQ(message.rfind("ForestTracker::update: ", 0), 0u) << message;
      for (const std::string& part : parts) {
        EXPECT_NE(message.find(part), std::string::npos) << part << " not in: " << message;
      }
    }
    EXPECT_EQ("", difference(tracker_.forest(), before_));
    // Still of use.
    table_ = {1, 2, 9, 1, 3, 8};
    lens_ = {9, 8};
    EXPECT_EQ("", difference(tracker_.update(view(), lens_),
                             PrefixForest::from_block_table(view(), lens_, 4)));
  }

  std::vector<int32_t> table_;
  std::vector<int32_t> lens_;
  ForestTracker tracker_{4};
  PrefixForest before_;
};

TEST_F(ForestTrackerErrors, NegativeIdInAnAppendedPage) {
  table_[2] = -7;
  lens_[0] = 9;
  expect_error({"table[0][2]", "is page id -7", "must be at least 0", "or a smaller length"});
}

TEST_F(ForestTrackerErrors, NegativeIdOfAJoiningRequest) {
  table_[0] = -1;
  expect_error({"table[0][0]", "is page id -1", "must be at least 0"}, {-1, 1});
}

TEST_F(ForestTrackerErrors, TableTooNarrow) {
  lens_[1] = 13;
  expect_error({"table", "has 3 columns", "at least 4 for seq_lens[1] = 13", "widen the table"});
}

TEST_F(ForestTrackerErrors, NegativeLength) {
  lens_[1] = -2;
  expect_error({"seq_lens[1]", "is -2", "must be at least 0"});
}

TEST_F(ForestTrackerErrors, PreviousRowOutOfRange) {
  expect_error({"previous_row[1]", "is 2", "-1 or a row below 2"}, {0, 2});
}

TEST_F(ForestTrackerErrors, PreviousRowBelowMinusOne) {
  expect_error({"previous_row[0]", "is -2", "-1 or a row below 2"}, {-2, 1});
}

TEST_F(ForestTrackerErrors, PreviousRowNamedTwice) {
  expect_error({"previous_row[1]", "is 1 like previous_row[0]", "differ from every other"}, {1, 1});
}

TEST_F(ForestTrackerErrors, PreviousRowsForAnotherBatch) {
  expect_error({"previous_row", "has 3 entries", "have 2", "for every request"}, {0, 1, -1});
}

TEST(ForestTracker, RefusesAPageSizeBelowOne) {
  try {
    ForestTracker tracker(0);
    ADD_FAILURE() << "no error";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(),
                 "ForestTracker: page_size is 0; must be at least 1; pass the page size of the KV "
                 "cache");
  }
}

}  // namespace
}  // namespace capillary::testing
