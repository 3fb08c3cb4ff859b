// SPDX-License-Identifier: MIT
// What PrefixForest refuses, and that the message has its five parts: function, argument, what came, what was
// expected, what to do.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "capillary/error.h"
#include "capillary/prefix_forest.h"

namespace capillary::testing {
namespace {

using Ids = std::vector<int32_t>;

// `came`, `expected` and `remedy` may be any part of theirs.
template <typename Call>
void expect_refused(Call call, const std::string& function, const std::string& argument,
                    const std::string& came, const std::string& expected,
                    const std::string& remedy) {
  try {
    call();
    ADD_FAILURE() << "no error";
  } catch (const InvalidArgument& error) {
    const std::string message = error.what();
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(message.rfind("PrefixForest::" + function + ": " + argument + " ", 0), 0u) << message;
    const size_t must = message.find("; must ");
    ASSERT_NE(must, std::string::npos) << message;
    const size_t last = message.find("; ", must + 2);
    ASSERT_NE(last, std::string::npos) << message;
    EXPECT_NE(message.substr(0, must).find(came), std::string::npos) << message;
    EXPECT_NE(message.substr(must, last - must).find(expected), std::string::npos) << message;
    EXPECT_NE(message.substr(last).find(remedy), std::string::npos) << message;
  }
}

class BlockTableErrors : public ::testing::TestWithParam<bool> {
 protected:
  void expect(const std::string& argument, const std::string& came, const std::string& expected,
              const std::string& remedy) {
    const bool flat = GetParam();
    expect_refused(
        [&] {
          flat ? PrefixForest::flat(view_, lens_, page_size_)
               : PrefixForest::from_block_table(view_, lens_, page_size_);
        },
        flat ? "flat" : "from_block_table", argument, came, expected, remedy);
  }

  Ids ids_ = {1, 2, 3, 1, 2, 4};
  BlockTableView view_{ids_.data(), 2, 3, 3};
  Ids lens_ = {12, 9};
  int32_t page_size_ = 4;
};

TEST_P(BlockTableErrors, PageSizeBelowOne) {
  page_size_ = 0;
  expect("page_size", "is 0", "at least 1", "page size of the KV cache");
  page_size_ = -16;
  expect("page_size", "is -16", "at least 1", "page size of the KV cache");
}

TEST_P(BlockTableErrors, NegativeLength) {
  lens_[1] = -1;
  expect("seq_lens[1]", "is -1", "at least 0", "pass 0");
}

TEST_P(BlockTableErrors, TableTooNarrow) {
  lens_[1] = 13;
  expect("table", "has 3 columns", "at least 4 for seq_lens[1] = 13 with page_size 4", "widen");
  lens_[1] = std::numeric_limits<int32_t>::max();
  expect("table", "has 3 columns", "at least 536870912 for seq_lens[1]", "widen");
}

TEST_P(BlockTableErrors, AnotherNumberOfLengths) {
  lens_.push_back(1);
  expect("seq_lens", "has 3 lengths", "have 2", "one length for every block table row");
  lens_.clear();
  expect("seq_lens", "has 0 lengths", "have 2", "one length for every block table row");
}

TEST_P(BlockTableErrors, NegativePageIdInASharedPage) {
  ids_[1] = ids_[4] = -5;
  expect("table[0][1]", "is page id -5", "at least 0", "give the request its pages");
}

TEST_P(BlockTableErrors, NegativePageIdWhereRowsPart) {
  ids_[4] = -1;
  expect("table[1][1]", "is page id -1", "at least 0", "give the request its pages");
}

TEST_P(BlockTableErrors, NegativePageIdInAPartialPage) {
  ids_[5] = std::numeric_limits<int32_t>::min();
  expect("table[1][2]", "is page id -2147483648", "at least 0", "give the request its pages");
}

TEST_P(BlockTableErrors, NegativePageIdAnywhereInUse) {
  for (size_t i = 0; i < ids_.size(); ++i) {
    const int32_t id = ids_[i];
    ids_[i] = -9;
    const size_t column = i % 3;
    expect("table[" + std::to_string(i / 3) + "][" + std::to_string(column) + "]", "is page id -9",
           "at least 0", "give the request its pages");
    ids_[i] = id;
  }
}

TEST_P(BlockTableErrors, OverlappingRows) {
  view_.row_stride = 2;
  expect("table", "has row_stride 2", "at least 3 (num_columns)", "count row_stride in elements");
}

TEST_P(BlockTableErrors, NegativeExtent) {
  view_.num_columns = -3;
  expect("table", "has shape [2, -3]", "no negative extent", "real shape");
}

TEST_P(BlockTableErrors, NoData) {
  view_.data = nullptr;
  expect("table", "has no data", "have ids", "first entry");
}

INSTANTIATE_TEST_SUITE_P(Table, BlockTableErrors, ::testing::Bool(),
                         [](const auto& entry) { return entry.param ? "flat" : "shared"; });

class CsrErrors : public ::testing::Test {
 protected:
  void expect(const std::string& argument, const std::string& came, const std::string& expected,
              const std::string& remedy) {
    expect_refused(
        [&] {
          PrefixForest::from_csr(parent_, num_tokens_, page_indptr_, page_ids_, request_node_,
                                 page_size_);
        },
        "from_csr", argument, came, expected, remedy);
  }

  Ids parent_ = {-1, 0, 0};
  Ids num_tokens_ = {8, 3, 4};
  Ids page_indptr_ = {0, 2, 3, 4};
  Ids page_ids_ = {7, 8, 9, 6};
  Ids request_node_ = {1, 2};
  int32_t page_size_ = 4;
};

TEST_F(CsrErrors, TheUnchangedArraysAreFine) {
  const PrefixForest forest = PrefixForest::from_csr(parent_, num_tokens_, page_indptr_, page_ids_,
                                                     request_node_, page_size_);
  EXPECT_EQ(forest.nodes().size(), 3u);
}

TEST_F(CsrErrors, Cycle) {
  parent_ = {2, 0, 1};
  expect("parent", "has a cycle through node", "lead from every node to a root", "check parent[");
}

TEST_F(CsrErrors, CycleBesideARoot) {
  parent_ = {-1, 2, 1};
  expect("parent", "has a cycle through node", "lead from every node to a root", "check parent[");
}

TEST_F(CsrErrors, NodeBelowACycleIsNotBlamed) {
  parent_ = {1, 1, 0};
  expect("parent", "has a cycle through node 1", "lead from every node to a root",
         "check parent[1] = 1");
}

TEST_F(CsrErrors, ParentOutOfRange) {
  parent_[2] = 3;
  expect("parent[2]", "is 3", "-1 or a node below 3", "give roots the parent -1");
  parent_[2] = -2;
  expect("parent[2]", "is -2", "-1 or a node below 3", "give roots the parent -1");
}

TEST_F(CsrErrors, RangeOutsideThePageIds) {
  page_indptr_[3] = 5;
  expect("page_indptr[2]", "3 and 5", "page_ids, which has 4 entries", "where the last one ended");
}

TEST_F(CsrErrors, RangeBackwards) {
  page_indptr_ = {0, 2, 1, 4};
  expect("page_indptr[1]", "2 and 1", "inside page_ids", "where the last one ended");
}

TEST_F(CsrErrors, NegativeRange) {
  page_indptr_[0] = -2;
  expect("page_indptr[0]", "-2 and 2", "inside page_ids", "where the last one ended");
}

TEST_F(CsrErrors, TooFewPages) {
  num_tokens_[2] = 5;
  expect("page_indptr[2]", "begins 1 pages", "begin 2 for 5 tokens with page_size 4",
         "exactly the pages");
}

TEST_F(CsrErrors, TooManyPages) {
  num_tokens_[0] = 4;
  expect("page_indptr[0]", "begins 2 pages", "begin 1 for 4 tokens with page_size 4",
         "exactly the pages");
}

TEST_F(CsrErrors, PartialPageInAnInnerNode) {
  num_tokens_[0] = 7;
  expect("num_tokens[0]", "is 7 in a node with children", "multiple of page_size 4",
         "into each child");
}

TEST_F(CsrErrors, NegativeTokenCount) {
  num_tokens_[1] = -4;
  expect("num_tokens[1]", "is -4", "at least 0", "pass 0");
}

TEST_F(CsrErrors, NegativePageId) {
  page_ids_[3] = -1;
  expect("page_ids[3]", "is page id -1", "at least 0", "real pages");
}

TEST_F(CsrErrors, RequestAtNoNode) {
  request_node_[0] = 3;
  expect("request_node[0]", "is 3", "-1 or a node below 3", "at which the request ends");
  request_node_[0] = -2;
  expect("request_node[0]", "is -2", "-1 or a node below 3", "at which the request ends");
}

TEST_F(CsrErrors, ArraysOfOtherLengths) {
  num_tokens_.pop_back();
  expect("num_tokens", "has 2 entries", "have 3", "for every node");
  num_tokens_.push_back(4);
  page_indptr_.pop_back();
  expect("page_indptr", "has 3 entries", "have 4", "one range end more");
}

TEST_F(CsrErrors, PathLongerThanALengthCanBe) {
  page_size_ = 1 << 30;
  num_tokens_ = {1 << 30, 1 << 30, 1};
  page_indptr_ = {0, 1, 2, 3};
  expect("num_tokens", "add up to 2147483648 on the path to node 1", "within 2147483647",
         "check the lengths");
}

TEST_F(CsrErrors, PageSizeBelowOne) {
  page_size_ = 0;
  expect("page_size", "is 0", "at least 1", "page size of the KV cache");
}

class LevelErrors : public ::testing::Test {
 protected:
  void expect(const std::string& argument, const std::string& came, const std::string& expected,
              const std::string& remedy) {
    const PrefixForest::Level levels[] = {{group0_, indptr0_, ids0_, tokens0_},
                                          {group1_, indptr1_, ids1_, tokens1_}};
    expect_refused([&] { PrefixForest::from_levels(levels, num_requests_, page_size_); },
                   "from_levels", argument, came, expected, remedy);
  }

  int32_t num_requests_ = 3;
  int32_t page_size_ = 4;
  Ids group0_ = {0, 0, -1}, indptr0_ = {0, 2}, ids0_ = {1, 2}, tokens0_ = {8};
  Ids group1_ = {0, 1, 0}, indptr1_ = {0, 1, 2}, ids1_ = {3, 4}, tokens1_ = {4, 2};
};

TEST_F(LevelErrors, GroupOutOfRange) {
  group1_[2] = 2;
  expect("levels[1].group[2]", "is 2", "-1 or a group below 2", "from 0");
  group1_[2] = -2;
  expect("levels[1].group[2]", "is -2", "-1 or a group below 2", "from 0");
}

TEST_F(LevelErrors, GroupsForAnotherBatch) {
  group0_.pop_back();
  expect("levels[0].group", "has 2 entries", "have 3", "for every request");
}

TEST_F(LevelErrors, RangesAndPages) {
  indptr1_[2] = 3;
  expect("levels[1].indptr[1]", "1 and 3", "page_ids, which has 2 entries", "where the last");
  indptr1_ = {0, 1};
  expect("levels[1].indptr", "has 2 entries", "have 3", "one range end more");
  indptr1_ = {0, 1, 2};
  tokens1_[1] = 5;
  expect("levels[1].indptr[1]", "begins 1 pages", "begin 2 for 5 tokens", "exactly the pages");
  tokens1_[1] = -1;
  expect("levels[1].num_tokens[1]", "is -1", "at least 0", "pass 0");
  tokens1_[1] = 2;
  ids1_[0] = -3;
  expect("levels[1].page_ids[0]", "is page id -3", "at least 0", "real pages");
}

TEST_F(LevelErrors, PartialPageAboveAnotherLevel) {
  tokens0_[0] = 7;
  expect("levels[1].group[0]", "goes on after 7 tokens", "multiple of page_size 4",
         "to the request's last level");
}

TEST_F(LevelErrors, LongerThanALengthCanBe) {
  page_size_ = 1 << 30;
  tokens0_ = {1 << 30};
  indptr0_ = {0, 1};
  tokens1_ = {1 << 30, 2};
  expect("levels[1].group[0]", "makes request 0 2147483648 tokens long", "within 2147483647",
         "check num_tokens");
}

TEST_F(LevelErrors, PageSizeBelowOne) {
  page_size_ = 0;
  expect("page_size", "is 0", "at least 1", "page size of the KV cache");
}

TEST_F(LevelErrors, NegativeNumberOfRequests) {
  num_requests_ = -1;
  expect("num_requests", "is -1", "at least 0", "number of requests");
}

TEST(ParentErrors, CycleAndRanges) {
  const auto expect = [](const Ids& parent, const Ids& tokens, int32_t page_size,
                         const std::string& argument, const std::string& came,
                         const std::string& expected, const std::string& remedy) {
    expect_refused([&] { PrefixForest::from_parents(parent, tokens, page_size); }, "from_parents",
                   argument, came, expected, remedy);
  };
  expect({1, 0}, {4, 4}, 4, "parent", "has a cycle through node", "to a root", "check parent[");
  expect({0}, {4}, 4, "parent", "has a cycle through node 0", "to a root", "check parent[0] = 0");
  expect({-1, 5}, {4, 4}, 4, "parent[1]", "is 5", "below 2", "number nodes from 0");
  expect({-1, 0}, {4}, 4, "num_tokens", "has 1 entries", "have 2", "for every node");
  expect({-1, 0}, {4, -1}, 4, "num_tokens[1]", "is -1", "at least 0", "pass 0");
  expect({-1}, {4}, 0, "page_size", "is 0", "at least 1", "page size of the KV cache");
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  expect({-1, 0}, {kMost, 1}, 1 << 30, "num_tokens", "add up to 2147483648 on the path to node 1",
         "within 2147483647", "check the lengths");
  expect({-1, -1}, {kMost, kMost}, 1, "num_tokens", "need 4294967294 pages",
         "no more than 2147483647", "larger pages");
}

}  // namespace
}  // namespace capillary::testing
