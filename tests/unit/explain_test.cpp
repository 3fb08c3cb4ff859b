// SPDX-License-Identifier: MIT
// explain: what a plan is, why no more is shared, and figures that are the summary's own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "capillary/plan.h"
#include "shared/plan_layout.h"

namespace capillary {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct Explained {
  PlanSummary summary;
  std::string text;
};

// parents[i], tokens[i]: node i; leaves are requests.
Explained explained(const std::vector<int32_t>& parents, const std::vector<int32_t>& tokens,
                    PlanOptions options = {}, DeviceProfile profile = builtin_h200()) {
  Planner planner({}, profile, options);
  planner.plan(PrefixForest::from_parents(parents, tokens, 16));
  return {planner.summary(), explain(planner.summary())};
}

// A root of 4096 tokens, ten requests of 416 more.
std::vector<int32_t> star_parents() {
  std::vector<int32_t> parents(11, 0);
  parents[0] = -1;
  return parents;
}
std::vector<int32_t> star_tokens() {
  std::vector<int32_t> tokens(11, 416);
  tokens[0] = 4096;
  return tokens;
}

TEST(Explain, SharedTree) {
  const auto [summary, text] = explained(star_parents(), star_tokens());
  EXPECT_EQ(summary.fallback, Fallback::kNone);
  EXPECT_GE(summary.num_groups, 1);
  EXPECT_LE(summary.num_groups, summary.num_jobs);
  EXPECT_THAT(text, Not(HasSubstr("fallback")));
  for (const char* label :
       {"path       shared: ", "reason     ",
        "sharing    5.47x: unique 33.8 MB, flat 184.8 MB; 10 requests, 11 nodes\n", "reads      ",
        "saves ", "partials   ", "launch     ", "resident   ", "predicted  ", "  terms    HBM "}) {
    EXPECT_THAT(text, HasSubstr(label));
  }
  EXPECT_THAT(text, HasSubstr(" of " + std::to_string(summary.cluster_size) + " CTA"));
}

// A choice that an estimate beats is one of those that count as equal, and the reason says so.
TEST(Explain, ReasonSaysWhyAFasterEstimateLost) {
  int beaten = 0;
  for (int requests = 128; requests <= 1024; requests += 64) {
    std::vector<int32_t> parents(static_cast<size_t>(requests) + 1, 0), tokens(parents.size(), 16);
    parents[0] = -1;
    tokens[0] = 8192;
    const PlanSummary summary = explained(parents, tokens).summary;
    ASSERT_GE(summary.candidates.size(), 2U);
    const double chosen = summary.candidates[0].predicted_us,
                 other = summary.candidates[1].predicted_us;
    beaten += other < chosen ? 1 : 0;
    EXPECT_LE(chosen, other * 1.0201) << requests;
    EXPECT_EQ(summary.reason.find("as good as equal (within 2 %)") != std::string::npos,
              other < chosen)
        << summary.reason;
  }
  EXPECT_GT(beaten, 0);
}

TEST(Explain, TermsCountTheJobsOfTheFullestCluster) {
  const auto [summary, text] =
      explained(star_parents(), star_tokens(), {.cluster_size = 16, .num_pieces = 4});
  const DeviceProfile& profile = builtin_h200();
  const int entries = summary.num_jobs * 8;
  ASSERT_GT(entries, summary.num_clusters);  // seven clusters of 16: jobs wait for each other
  const int most = (entries + summary.num_clusters - 1) / summary.num_clusters;
  EXPECT_DOUBLE_EQ(summary.job_start_us, most * profile.job_start_us);
  EXPECT_DOUBLE_EQ(summary.launch_us, profile.launch_us);
}

TEST(Explain, ResidentClustersAreTheProfiles) {
  const auto [summary, text] = explained(star_parents(), star_tokens(), {.cluster_size = 8});
  EXPECT_EQ(summary.resident_clusters, 15);
  EXPECT_THAT(text, HasSubstr("the card holds 15 clusters of 8, 120 CTAs"));
  DeviceProfile small = builtin_h200();
  small.max_clusters = {4, 2, 1, 0, 0};
  const auto on_small = explained(star_parents(), star_tokens(), {.cluster_size = 2}, small);
  EXPECT_EQ(on_small.summary.resident_clusters, 2);
  EXPECT_THAT(on_small.text, HasSubstr("4 CTAs at a time; the card holds 2 clusters of 2, 4 CTAs"));
}

TEST(Explain, WhyNoMoreIsShared) {
  const auto asked = explained(star_parents(), star_tokens(), {.mode = Mode::kFlat});
  EXPECT_EQ(asked.summary.fallback, Fallback::kAsked);
  EXPECT_THAT(asked.text,
              AllOf(HasSubstr("path       flat: every request is planned as if alone\n"),
                    HasSubstr("fallback   this mode was asked for\n")));
  EXPECT_THAT(asked.text, Not(HasSubstr("saves")));

  const auto through_l2 = explained(star_parents(), star_tokens(), {.mode = Mode::kSharedL2});
  EXPECT_EQ(through_l2.summary.fallback, Fallback::kAsked);
  EXPECT_THAT(through_l2.text, HasSubstr("path       shared-l2: "));

  const auto apart = explained({-1, -1, -1}, {500, 600, 700});
  EXPECT_EQ(apart.summary.fallback, Fallback::kNothingShared);
  EXPECT_THAT(apart.text, HasSubstr("fallback   no two requests have a page in common\n"));

  // One shared page of long requests: whatever the planner makes of it, it says so.
  const auto hardly = explained({-1, 0, 0}, {16, 9000, 9000});
  if (hardly.summary.mode == Mode::kFlat) {
    EXPECT_EQ(hardly.summary.fallback, Fallback::kNotWorthIt);
    EXPECT_THAT(hardly.text, HasSubstr("sharing is predicted to be slower than plain decode"));
  } else {
    EXPECT_EQ(hardly.summary.fallback, Fallback::kNone);
  }
}

TEST(Explain, EmptyBatchAndFreshSummary) {
  Planner planner({});
  planner.plan(PrefixForest());
  EXPECT_THAT(explain(planner.summary()), HasSubstr("nothing to do: no request has keys"));
  EXPECT_THAT(explain(PlanSummary()), HasSubstr("0 requests"));
  EXPECT_STREQ(fallback_reason(Fallback::kNone), "");
}

}  // namespace
}  // namespace capillary
