// SPDX-License-Identifier: MIT
// What PrefixForest promises, on batches small enough to read and on the shared fixtures F0 to F14: sharing rules,
// canonical form, the same forest from every source, nothing read past a row's last page.
#include "capillary/prefix_forest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "support/forest_compare.h"
#include "support/forest_fixtures.h"
#include "support/forest_reference.h"

namespace capillary::testing {
namespace {

constexpr int32_t kWild = -1;

struct Table {
  int32_t num_requests;
  int32_t num_columns;
  std::vector<int32_t> ids;

  BlockTableView view() const { return {ids.data(), num_requests, num_columns, num_columns}; }
  PrefixForest build(const std::vector<int32_t>& lens, int32_t page_size) const {
    return PrefixForest::from_block_table(view(), lens, page_size);
  }
};

std::vector<int32_t> copy(std::span<const int32_t> values) {
  return {values.begin(), values.end()};
}

PrefixForest from_table(const Batch& batch) {
  return PrefixForest::from_block_table(batch.view(), batch.seq_lens, batch.page_size);
}

ReferenceForest reference(const Batch& batch) {
  return reference_forest(batch.view(), batch.seq_lens, batch.page_size);
}

TEST(PrefixForest, DefaultIsEmpty) {
  const PrefixForest forest;
  EXPECT_TRUE(forest.nodes().empty());
  EXPECT_EQ(forest.num_requests(), 0);
  EXPECT_EQ(forest.flat_tokens(), 0);
}

TEST(PrefixForest, NodesOfAReadableBatch) {
  // Requests 0 and 2 share two pages, 1 only the first of them; 3 shares nothing.
  const Table table{4, 4, {7, 8, 9, kWild, 7, 5, kWild, kWild, 7, 8, 4, 6, 1, 2, 3, kWild}};
  const PrefixForest forest = table.build({11, 7, 16, 12}, 4);
  const std::vector<ForestNode> expected = {
      {-1, 0, 4, 0, 3, 5, 0},   // page 7
      {0, 4, 4, 0, 2, 4, 1},    // page 8
      {1, 8, 3, 0, 1, 3, 2},    // request 0: page 9
      {1, 8, 8, 1, 2, 4, 10},   // request 2: pages 4 and 6
      {0, 4, 3, 2, 3, 5, 5},    // request 1: page 5
      {-1, 0, 12, 3, 4, 6, 12}  // request 3
  };
  EXPECT_EQ("", node_difference(forest.nodes(), expected, true));
  EXPECT_EQ(copy(forest.leaf_order()), (std::vector<int32_t>{0, 2, 1, 3}));
  EXPECT_EQ(copy(forest.request_node()), (std::vector<int32_t>{2, 3, 4, 5}));
  EXPECT_EQ(copy(forest.seq_lens()), (std::vector<int32_t>{11, 16, 7, 12}));
  EXPECT_EQ(forest.unique_tokens(), 4 + 4 + 3 + 8 + 3 + 12);
  EXPECT_EQ(forest.flat_tokens(), 11 + 7 + 16 + 12);
  EXPECT_FALSE(forest.owns_page_ids());
  EXPECT_EQ(forest.page_size(), 4);
}

TEST(PrefixForest, IdenticalRowsShareWholePagesOnly) {
  const Table table{2, 3, {1, 2, 3, 1, 2, 3}};
  const PrefixForest partial = table.build({9, 9}, 4);
  ASSERT_EQ(partial.nodes().size(), 3u);
  EXPECT_EQ(partial.nodes()[0].num_tokens, 8);
  EXPECT_EQ(partial.nodes()[1].num_tokens, 1);
  EXPECT_EQ(partial.nodes()[2].num_tokens, 1);
  const PrefixForest whole = table.build({12, 12}, 4);
  ASSERT_EQ(whole.nodes().size(), 1u);
  EXPECT_EQ(copy(whole.request_node()), (std::vector<int32_t>{0, 0}));
  const PrefixForest less_than_a_page = table.build({3, 3}, 4);
  EXPECT_EQ(less_than_a_page.nodes().size(), 2u);
}

// Case 64: one row is the other's prefix by id, but the last page of the shorter one is not whole.
TEST(PrefixForest, PageIsSharedOnlyWhereBothLengthsCoverIt) {
  Table table{2, 7, std::vector<int32_t>(14)};
  std::iota(table.ids.begin(), table.ids.begin() + 7, 10);
  std::copy(table.ids.begin(), table.ids.begin() + 7, table.ids.begin() + 7);
  const PrefixForest forest = table.build({100, 37}, 16);
  ASSERT_EQ(forest.nodes().size(), 3u);
  EXPECT_EQ(forest.nodes()[0].num_tokens, 32);
  EXPECT_EQ(forest.nodes()[1].num_tokens, 68);
  EXPECT_EQ(forest.nodes()[2].num_tokens, 5);
}

TEST(PrefixForest, EqualIdsBehindOtherPagesAreNotShared) {
  const Table table{2, 2, {1, 9, 2, 9}};
  EXPECT_EQ(table.build({8, 8}, 4).nodes().size(), 2u);
  const Table shifted{2, 2, {1, 2, 2, 1}};
  EXPECT_EQ(shifted.build({8, 8}, 4).nodes().size(), 2u);
}

TEST(PrefixForest, RequestThatEndsAtAnInnerNodeComesBeforeItsChildren) {
  const Table table{3, 3, {1, 2, 3, 1, 2, 4, 1, 2, kWild}};
  const PrefixForest forest = table.build({12, 12, 8}, 4);
  EXPECT_EQ(copy(forest.leaf_order()), (std::vector<int32_t>{2, 0, 1}));
  EXPECT_EQ(copy(forest.request_node()), (std::vector<int32_t>{0, 1, 2}));
}

TEST(PrefixForest, EmptyRequestsComeFirstAndHaveNoNode) {
  const Table table{4, 1, {3, kWild, 3, kWild}};
  const PrefixForest forest = table.build({4, 0, 4, 0}, 4);
  EXPECT_EQ(copy(forest.leaf_order()), (std::vector<int32_t>{1, 3, 0, 2}));
  EXPECT_EQ(copy(forest.request_node()), (std::vector<int32_t>{-1, -1, 0, 0}));
  ASSERT_EQ(forest.nodes().size(), 1u);
  EXPECT_EQ(forest.nodes()[0].request_begin, 2);
  EXPECT_EQ(forest.nodes()[0].request_end, 4);
}

TEST(PrefixForest, ChildrenAreOrderedBySmallestRequest) {
  const Table table{5, 2, {1, 9, 1, 8, 1, 7, 1, 8, 1, 9}};
  EXPECT_EQ(copy(table.build({8, 8, 8, 8, 8}, 4).leaf_order()),
            (std::vector<int32_t>{0, 4, 1, 3, 2}));
}

TEST(PrefixForest, TableWithoutRowsOrColumns) {
  EXPECT_TRUE(PrefixForest::from_block_table({}, {}, 16).nodes().empty());
  const std::vector<int32_t> lens = {0, 0, 0};
  const PrefixForest forest = PrefixForest::from_block_table({nullptr, 3, 0, 0}, lens, 16);
  EXPECT_TRUE(forest.nodes().empty());
  EXPECT_EQ(forest.num_requests(), 3);
  EXPECT_EQ(PrefixForest::flat({nullptr, 3, 0, 0}, lens, 16).num_requests(), 3);
}

TEST(PrefixForest, LargestLengthsAndIds) {
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  const Table table{2, 2, {kMost, 5, kMost, 6}};
  const PrefixForest forest = table.build({kMost, kMost}, 1 << 30);
  ASSERT_EQ(forest.nodes().size(), 3u);
  EXPECT_EQ(forest.nodes()[0].num_tokens, 1 << 30);
  EXPECT_EQ(forest.flat_tokens(), 2 * int64_t{kMost});
  const Table one{1, 1, {0}};
  EXPECT_EQ(one.build({kMost}, kMost).nodes()[0].num_tokens, kMost);
}

TEST(PrefixForest, FlatSharesNothing) {
  const Table table{3, 2, {1, 2, 1, 2, kWild, kWild}};
  const PrefixForest forest = PrefixForest::flat(table.view(), std::vector<int32_t>{8, 8, 0}, 4);
  EXPECT_EQ(copy(forest.leaf_order()), (std::vector<int32_t>{2, 0, 1}));
  ASSERT_EQ(forest.nodes().size(), 2u);
  EXPECT_EQ(forest.nodes()[1].page_offset, 2);
  EXPECT_EQ(forest.unique_tokens(), forest.flat_tokens());
}

// Beams on a prefix of 300 tokens: 288 are shared, 12 + 3 are every beam's own.
TEST(PrefixForest, ParentArrayMovesAPartialPageIntoTheChildren) {
  const Fixture beams = level_tree("beams", {1, 128}, {300, 3});
  const PrefixForest forest = PrefixForest::from_parents(beams.parent, beams.num_tokens, 16);
  ASSERT_EQ(forest.nodes().size(), 129u);
  EXPECT_EQ(forest.nodes()[0].num_tokens, 288);
  for (size_t i = 1; i < forest.nodes().size(); ++i) EXPECT_EQ(forest.nodes()[i].num_tokens, 15);
  EXPECT_EQ(forest.flat_tokens(), 128 * 303);
  std::vector<int32_t> in_order(18 + 128);
  std::iota(in_order.begin(), in_order.end(), 0);
  EXPECT_EQ(copy(forest.page_ids()), in_order);
}

TEST(PrefixForest, ParentsMayComeAfterTheirChildren) {
  const std::vector<int32_t> parent = {2, 2, 3, -1};
  const std::vector<int32_t> tokens = {16, 20, 32, 16};
  const PrefixForest forest = PrefixForest::from_parents(parent, tokens, 16);
  ASSERT_EQ(forest.nodes().size(), 3u);
  EXPECT_EQ(forest.nodes()[0].num_tokens, 48);  // an only child is its parent's end
}

TEST(PrefixForest, CsrMergesSiblingsWithEqualPages) {
  // Two roots with the same first page, one more that nobody uses, and a node without tokens.
  const std::vector<int32_t> parent = {-1, -1, -1, 1};
  const std::vector<int32_t> tokens = {8, 8, 4, 0};
  const std::vector<int32_t> indptr = {0, 2, 4, 5, 5};
  const std::vector<int32_t> ids = {1, 2, 1, 3, 1};
  const PrefixForest forest =
      PrefixForest::from_csr(parent, tokens, indptr, ids, std::vector<int32_t>{0, 3, -1}, 4);
  ASSERT_EQ(forest.nodes().size(), 3u);
  EXPECT_EQ(forest.nodes()[0].num_tokens, 4);
  EXPECT_EQ(copy(forest.leaf_order()), (std::vector<int32_t>{2, 0, 1}));
  EXPECT_EQ(copy(forest.page_ids()), (std::vector<int32_t>{1, 2, 3}));
  EXPECT_TRUE(forest.owns_page_ids());
}

TEST(PrefixForest, CsrRequestsThatEndTogetherShareNoPartialPage) {
  const std::vector<int32_t> parent = {-1};
  const PrefixForest forest =
      PrefixForest::from_csr(parent, std::vector<int32_t>{37}, std::vector<int32_t>{0, 3},
                             std::vector<int32_t>{5, 6, 7}, std::vector<int32_t>{0, 0}, 16);
  ASSERT_EQ(forest.nodes().size(), 3u);
  EXPECT_EQ(forest.nodes()[0].num_tokens, 32);
  EXPECT_EQ(copy(forest.page_ids()), (std::vector<int32_t>{5, 6, 7, 7}));
}

TEST(PrefixForest, DeepTreesNeedNoDeepStack) {
  constexpr int32_t kDepth = 300000;
  std::vector<int32_t> parent(kDepth);
  std::iota(parent.begin(), parent.end(), -1);
  std::vector<int32_t> indptr(kDepth + 1);
  std::iota(indptr.begin(), indptr.end(), 0);
  const std::vector<int32_t> tokens(kDepth, 1);
  const std::vector<int32_t> ids(kDepth, 4);
  std::vector<int32_t> ends(kDepth);
  std::iota(ends.begin(), ends.end(), 0);
  const PrefixForest forest = PrefixForest::from_csr(parent, tokens, indptr, ids, ends, 1);
  EXPECT_EQ(forest.nodes().size(), static_cast<size_t>(kDepth));
  EXPECT_EQ(forest.nodes()[0].subtree_end, kDepth);
}

// F4 in full: two to the sixteenth requests, too many for the definition, so the counts are checked.
TEST(PrefixForest, BinaryTreeOfDepthSixteen) {
  constexpr int32_t kDepth = 16;
  constexpr int32_t kRequests = 1 << kDepth;
  Table table{kRequests, kDepth + 1, std::vector<int32_t>(size_t{kRequests} * (kDepth + 1))};
  for (int32_t r = 0; r < kRequests; ++r) {
    for (int32_t level = 0; level <= kDepth; ++level) {
      table.ids[static_cast<size_t>(r) * (kDepth + 1) + static_cast<size_t>(level)] =
          (1 << level) + (r >> (kDepth - level));
    }
  }
  const PrefixForest forest = table.build(std::vector<int32_t>(kRequests, 8 * (kDepth + 1)), 8);
  ASSERT_EQ(forest.nodes().size(), 2u * kRequests - 1);
  EXPECT_EQ(forest.unique_tokens(), 8 * (2 * int64_t{kRequests} - 1));
  EXPECT_EQ(forest.flat_tokens(), 8 * int64_t{kRequests} * (kDepth + 1));
  EXPECT_TRUE(std::is_sorted(forest.leaf_order().begin(), forest.leaf_order().end()));
  for (const ForestNode& node : forest.nodes()) ASSERT_EQ(node.num_tokens, 8);
}

class PrefixForestFixture : public ::testing::TestWithParam<Fixture> {};

TEST_P(PrefixForestFixture, BlockTableGivesTheForestOfTheDefinition) {
  const Batch batch = make_batch(GetParam(), 1);
  EXPECT_EQ("", difference(from_table(batch), reference(batch), batch.view()));
  EXPECT_EQ(
      "", difference(PrefixForest::flat(batch.view(), batch.seq_lens, batch.page_size),
                     reference_flat(batch.view(), batch.seq_lens, batch.page_size), batch.view()));
}

TEST_P(PrefixForestFixture, EverySourceGivesTheSameForest) {
  const Batch batch = make_batch(GetParam(), 2);
  const ReferenceForest expected = reference(batch);
  std::mt19937 random(2);
  const PrefixForest csr = make_csr(expected, batch.page_size, random).build(batch.page_size);
  EXPECT_EQ("", difference(csr, expected, batch.view()));
  EXPECT_EQ("", difference(make_chains(batch).build(batch.page_size), csr));
  EXPECT_EQ("", difference(make_levels(expected).build(batch.page_size), csr));
  if (GetParam().request_node.empty()) {
    PrefixForest parents =
        PrefixForest::from_parents(GetParam().parent, GetParam().num_tokens, GetParam().page_size);
    EXPECT_EQ("", node_difference(parents.nodes(), csr.nodes(), true));
    EXPECT_EQ(copy(parents.leaf_order()), copy(csr.leaf_order()));
    EXPECT_EQ(copy(parents.request_node()), copy(csr.request_node()));
    EXPECT_EQ(copy(parents.seq_lens()), copy(csr.seq_lens()));
    EXPECT_EQ(parents.page_ids().size(), csr.page_ids().size());
  }
}

TEST_P(PrefixForestFixture, PathsConcatenateToTheRequests) {
  const Batch batch = make_batch(GetParam(), 3);
  const PrefixForest forest = from_table(batch);
  for (int32_t position = 0; position < forest.num_requests(); ++position) {
    const int32_t request = forest.leaf_order()[static_cast<size_t>(position)];
    int32_t end = batch.seq_lens[static_cast<size_t>(request)];
    ASSERT_EQ(forest.seq_lens()[static_cast<size_t>(position)], end);
    int32_t i = forest.request_node()[static_cast<size_t>(position)];
    for (; i >= 0; i = forest.nodes()[static_cast<size_t>(i)].parent) {
      const ForestNode& node = forest.nodes()[static_cast<size_t>(i)];
      ASSERT_EQ(node.token_begin + node.num_tokens, end);
      ASSERT_GE(position, node.request_begin);
      ASSERT_LT(position, node.request_end);
      const int32_t* row = batch.table.data() + request * batch.row_stride;
      for (int32_t token = node.token_begin; token < end; token += batch.page_size) {
        ASSERT_EQ(batch.table[static_cast<size_t>(node.page_offset +
                                                  (token - node.token_begin) / batch.page_size)],
                  row[token / batch.page_size]);
      }
      end = node.token_begin;
    }
    ASSERT_EQ(end, 0);
  }
}

TEST_P(PrefixForestFixture, FormIsCanonical) {
  const Batch batch = make_batch(GetParam(), 4);
  const PrefixForest forest = from_table(batch);
  std::vector<int32_t> ending(forest.nodes().size(), 0);
  std::vector<int32_t> children(forest.nodes().size(), 0);
  for (const int32_t node : forest.request_node()) {
    if (node >= 0) ++ending[static_cast<size_t>(node)];
  }
  for (const ForestNode& node : forest.nodes()) {
    if (node.parent >= 0) ++children[static_cast<size_t>(node.parent)];
  }
  for (size_t i = 0; i < forest.nodes().size(); ++i) {
    const ForestNode& node = forest.nodes()[i];
    EXPECT_GT(node.num_tokens, 0);
    EXPECT_EQ(node.token_begin % batch.page_size, 0);
    EXPECT_LT(node.parent, static_cast<int32_t>(i));
    EXPECT_GE(ending[i] + children[i], node.request_end - node.request_begin > 1 ? 1 : 0);
    EXPECT_TRUE(ending[i] > 0 || children[i] > 1) << "node " << i << " has an only child";
    if (node.num_tokens % batch.page_size != 0) {
      EXPECT_EQ(node.request_end - node.request_begin, 1) << "shared partial page";
      EXPECT_EQ(children[i], 0);
    }
  }
}

// Invariants I1 and I2: rows permuted and pages renamed change names, not the shape.
TEST_P(PrefixForestFixture, PermutedRowsAndRenamedPagesKeepTheShape) {
  const Batch batch = make_batch(GetParam(), 5);
  const PrefixForest forest = from_table(batch);
  Batch other = batch;
  std::mt19937 random(5);
  std::vector<int32_t> from(batch.seq_lens.size());
  std::iota(from.begin(), from.end(), 0);
  std::shuffle(from.begin(), from.end(), random);
  for (size_t r = 0; r < from.size(); ++r) {
    other.seq_lens[r] = batch.seq_lens[static_cast<size_t>(from[r])];
    for (int64_t column = 0; column < batch.row_stride; ++column) {
      const int32_t id = batch.table[static_cast<size_t>(from[r] * batch.row_stride + column)];
      other.table[static_cast<size_t>(static_cast<int64_t>(r) * batch.row_stride + column)] =
          id < 0 ? id : (id ^ 0x155);
    }
  }
  const PrefixForest permuted = from_table(other);
  EXPECT_EQ(permuted.unique_tokens(), forest.unique_tokens());
  EXPECT_EQ(permuted.flat_tokens(), forest.flat_tokens());
  using Shape = std::multiset<std::vector<int32_t>>;
  const auto shape = [](const PrefixForest& f, const std::vector<int32_t>* names) {
    Shape nodes;
    for (const ForestNode& node : f.nodes()) {
      std::vector<int32_t> key;
      for (int32_t position = node.request_begin; position < node.request_end; ++position) {
        const int32_t request = f.leaf_order()[static_cast<size_t>(position)];
        key.push_back(names ? (*names)[static_cast<size_t>(request)] : request);
      }
      std::sort(key.begin(), key.end());
      key.push_back(node.token_begin);
      key.push_back(node.num_tokens);
      nodes.insert(key);
    }
    return nodes;
  };
  EXPECT_EQ(shape(forest, nullptr), shape(permuted, &from));
}

// Case 53: what lies past a row's last page never matters.
TEST_P(PrefixForestFixture, WildTailsChangeNothing) {
  const Batch batch = make_batch(GetParam(), 6);
  const PrefixForest forest = from_table(batch);
  for (uint32_t seed = 0; seed < 3; ++seed) {
    Batch other = batch;
    std::mt19937 random(seed);
    for (size_t r = 0; r < batch.seq_lens.size(); ++r) {
      const int64_t used = (int64_t{batch.seq_lens[r]} + batch.page_size - 1) / batch.page_size;
      for (int64_t column = used; column < batch.row_stride; ++column) {
        other.table[static_cast<size_t>(static_cast<int64_t>(r) * batch.row_stride + column)] =
            wild_id(random);
      }
    }
    EXPECT_EQ("", difference(from_table(other), forest));
  }
}

INSTANTIATE_TEST_SUITE_P(All, PrefixForestFixture, ::testing::ValuesIn(all_fixtures()),
                         [](const auto& entry) { return entry.param.name; });

// Case 52 to the letter: entries past the last page are not read at all. Every row has memory of its own that
// ends with it, so that an address sanitizer sees a read too many.
TEST(PrefixForest, NeverReadsPastTheLastRowsEnd) {
  for (const int32_t page_size : {1, 4}) {
    for (int32_t len = 0; len <= 40; ++len) {
      const int32_t pages = (len + page_size - 1) / page_size;
      std::vector<int32_t> ids(static_cast<size_t>(60 + pages), 3);
      ids.shrink_to_fit();
      const std::vector<int32_t> lens = {60 * page_size, len};
      const BlockTableView view{ids.data(), 2, 60, 60};
      EXPECT_EQ(PrefixForest::from_block_table(view, lens, page_size).flat_tokens(),
                60 * page_size + len);
      EXPECT_EQ(PrefixForest::flat(view, lens, page_size).flat_tokens(), 60 * page_size + len);
    }
  }
}

}  // namespace
}  // namespace capillary::testing
