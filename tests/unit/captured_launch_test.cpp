// SPDX-License-Identifier: MIT
// What a captured launch holds later plans to; every message names what came and what was captured.
#include "core/captured_launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capillary/error.h"
#include "capillary/plan.h"

namespace capillary {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

PlanHeader captured_header() {
  PlanHeader header{};
  header.cluster_size = 4, header.num_clusters = 30;
  header.num_q_heads = 32, header.num_kv_heads = 8, header.head_dim = header.head_dim_v = 128;
  header.page_size = 16, header.num_requests = header.num_queries = 64;
  header.profile_hash = 0xabc;
  header.split_rows = 100, header.num_page_ids = 1000;
  return header;
}

CapturedLaunch captured_launch() {
  return {captured_header(), 2000, workspace_layout(8, 150, 128).total_bytes};
}

template <class E>
std::string refused(PlanHeader plan) {
  try {
    check_replay(plan, captured_launch());
  } catch (const E& error) {
    return error.what();
  }
  return "";
}

TEST(CapturedLaunch, TakesPlansThatFit) {
  PlanHeader plan = captured_header();
  EXPECT_NO_THROW(check_replay(plan, captured_launch()));
  plan.num_requests = plan.num_queries = 3;
  plan.split_rows = 150, plan.num_page_ids = 2000, plan.mode = 1, plan.unique_tokens = 1 << 20;
  EXPECT_NO_THROW(check_replay(plan, captured_launch()));
}

TEST(CapturedLaunch, RefusesAnotherGridShapeOrProfile) {
  PlanHeader plan = captured_header();
  plan.num_clusters = 29;
  EXPECT_THAT(refused<InvalidArgument>(plan),
              AllOf(HasSubstr("wants 29 clusters of 4"), HasSubstr("captured 30 clusters of 4")));
  plan = captured_header();
  plan.cluster_size = 8;
  EXPECT_THAT(refused<InvalidArgument>(plan), HasSubstr("clusters of 8"));
  for (int32_t PlanHeader::*field :
       {&PlanHeader::num_q_heads, &PlanHeader::num_kv_heads, &PlanHeader::head_dim,
        &PlanHeader::head_dim_v, &PlanHeader::page_size}) {
    plan = captured_header();
    plan.*field /= 2;
    EXPECT_THAT(refused<InvalidArgument>(plan),
                HasSubstr("captured 32/8 heads, head_dim 128:128, page_size 16"));
  }
  plan = captured_header();
  plan.profile_hash = 0xdef;
  EXPECT_THAT(refused<InvalidArgument>(plan),
              AllOf(HasSubstr("0000000000000def"), HasSubstr("0000000000000abc")));
}

TEST(CapturedLaunch, RefusesPlansPastTheMaxima) {
  PlanHeader plan = captured_header();
  plan.num_queries = 65;
  EXPECT_THAT(refused<InvalidArgument>(plan),
              AllOf(HasSubstr("has 65 queries"), HasSubstr("at most the captured 64")));
  plan = captured_header();
  plan.num_page_ids = 2001;
  EXPECT_THAT(refused<InvalidArgument>(plan),
              AllOf(HasSubstr("reaches 2001 page ids"), HasSubstr("captured 2000")));
  plan = captured_header();
  plan.split_rows = 200;
  const int64_t needed = workspace_layout(8, 200, 128).total_bytes;
  EXPECT_THAT(refused<WorkspaceTooSmall>(plan), HasSubstr(std::to_string(needed)));
}

TEST(CapturedLaunch, APlanKnowsItsProfile) {
  const PrefixForest forest =
      PrefixForest::from_parents(std::vector<int32_t>{-1}, std::vector<int32_t>{100}, 16);
  Planner planner({8, 1, 128});
  const Plan& plan = planner.plan(forest);
  EXPECT_NO_THROW(check_profile(plan, builtin_h200()));
  DeviceProfile other = builtin_h200();
  other.name = "other";
  other.hbm_gbps *= 0.5;
  try {
    check_profile(plan, other);
    FAIL() << "not refused";
  } catch (const InvalidArgument& error) {
    char mine[20], theirs[20];
    std::snprintf(mine, sizeof mine, "%016lx", static_cast<unsigned long>(plan.profile_hash()));
    std::snprintf(theirs, sizeof theirs, "%016lx", static_cast<unsigned long>(other.hash()));
    EXPECT_THAT(error.what(), AllOf(HasSubstr(mine), HasSubstr(theirs), HasSubstr("(other)")));
  }
}

}  // namespace
}  // namespace capillary
