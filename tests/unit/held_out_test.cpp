// SPDX-License-Identifier: MIT
// The held-out forests: the same everywhere for a seed, readable as a workload file, of the sizes and the variety
// that they promise, and unlike round lists of shapes.
#include "workload/held_out.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "capillary/error.h"
#include "capillary/plan.h"

namespace capillary {
namespace {

using ::testing::HasSubstr;

TEST(HeldOut, SeededAndTheSameEverywhere) {
  const std::vector<Workload> first = held_out_forests({});
  ASSERT_EQ(first.size(), 500u);
  EXPECT_EQ(workloads_to_json(first, ""), workloads_to_json(held_out_forests({}), ""));
  EXPECT_NE(workloads_to_json(first, ""), workloads_to_json(held_out_forests({.seed = 2}), ""));
  // More of them begin with the same.
  const std::vector<Workload> few = held_out_forests({.num_forests = 3});
  EXPECT_EQ(workloads_to_json(few, ""), workloads_to_json(std::span(first).first(3), ""));
  // Pinned, so that what was measured once can be measured again.
  EXPECT_EQ(few[1].name, "held-out-1-001");
  EXPECT_THAT(few[1].nodes, ::testing::ElementsAre(19, 288));
  EXPECT_THAT(few[1].tokens, ::testing::ElementsAre(13399, 995));
  EXPECT_EQ(few[1].ragged, 0.43);
  EXPECT_EQ(heads_name(few[1].heads.front()), "60/12");
}

TEST(HeldOut, ReadsBackAndStaysInBounds) {
  const std::vector<Workload> made = held_out_forests({});
  const std::vector<Workload> read =
      workloads_from_json(workloads_to_json(made, "rule"), "held-out.json");
  ASSERT_EQ(read.size(), made.size());
  for (const Workload& workload : read) {
    SCOPED_TRACE(workload.name);
    ASSERT_EQ(workload.heads.size(), 1u);
    const double us = held_out_estimate_us(workload, workload.heads.front());
    EXPECT_GE(us, 20);
    EXPECT_LE(us, 2000);
    EXPECT_EQ(workload.head_dim, 128);
    EXPECT_GE(workload.tokens.back(), 1);
    // The planner takes the shape.
    const Heads& heads = workload.heads.front();
    EXPECT_NO_THROW(Planner({heads.num_q_heads, heads.num_kv_heads}));
  }
}

TEST(HeldOut, Varied) {
  std::map<size_t, int> depths;
  std::set<std::string> heads;
  std::set<int32_t> pages;
  int ragged = 0, uneven = 0, unshared = 0, fast = 0, slow = 0;
  for (const Workload& workload : held_out_forests({})) {
    ++depths[workload.nodes.size()];
    heads.insert(heads_name(workload.heads.front()));
    pages.insert(workload.page_size);
    if (workload.ragged > 0) ++ragged;
    bool divides = true;
    for (size_t level = 1; level < workload.nodes.size(); ++level) {
      divides = divides && workload.nodes[level] % workload.nodes[level - 1] == 0;
    }
    if (!divides) ++uneven;
    if (workload.nodes.size() == 1) ++unshared;
    const double us = held_out_estimate_us(workload, workload.heads.front());
    if (us < 100) ++fast;
    if (us > 500) ++slow;
  }
  ASSERT_EQ(depths.size(), 6u);
  for (const auto& [depth, count] : depths) EXPECT_GT(count, 40) << depth;
  EXPECT_GT(heads.size(), 60u);
  EXPECT_EQ(pages.size(), 6u);
  EXPECT_GT(ragged, 300);
  EXPECT_GT(uneven, 200);
  EXPECT_GT(unshared, 40);
  EXPECT_GT(fast, 80);
  EXPECT_GT(slow, 80);
}

TEST(HeldOut, RefusesNone) {
  try {
    held_out_forests({.num_forests = 0});
    FAIL() << "accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("num_forests is 0; must be at least 1"));
  }
}

}  // namespace
}  // namespace capillary
