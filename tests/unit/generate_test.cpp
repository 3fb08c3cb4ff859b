// SPDX-License-Identifier: MIT
// Generated traces: legal, repeatable, and shared the way their kind says.
#include "workload/generate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "capillary/error.h"

namespace capillary {
namespace {

std::string text_of(const Trace& trace) {
  std::string text;
  for (const TraceRequest& request : trace.requests) text += trace_line(request) + "\n";
  return text;
}

// Prompt tokens whose whole block path came before, over all prompt tokens: what an endless cache would hit.
double best_hit_rate(const Trace& trace) {
  std::set<std::vector<int64_t>> seen;
  double hit = 0;
  double all = 0;
  for (const TraceRequest& request : trace.requests) {
    std::vector<int64_t> path;
    int32_t left = request.input_length;
    for (const int64_t id : request.hash_ids) {
      path.push_back(id);
      const int32_t tokens = std::min(left, request.block_size);
      if (!seen.insert(path).second) hit += tokens;
      left -= tokens;
    }
    all += request.input_length;
  }
  return hit / all;
}

class Generators : public testing::TestWithParam<TraceKindName> {};

TEST_P(Generators, MakeLegalTracesThatReadBack) {
  GeneratorOptions options;
  options.kind = GetParam().kind;
  for (const int32_t block_size : {1, 64, 512}) {
    options.block_size = block_size;
    options.num_requests = block_size == 1 ? 20 : 211;
    options.length_scale = block_size == 1 ? 0.02 : 0.5;
    const Trace trace = generate_trace(options);
    ASSERT_EQ(trace.requests.size(), static_cast<size_t>(options.num_requests));
    const std::string text = text_of(trace);
    std::istringstream in(text);
    const Trace again = read_trace(in, "again");
    EXPECT_EQ(text_of(again), text);  // also: written in order of arrival
  }
}

TEST_P(Generators, TheSeedDecidesEverything) {
  GeneratorOptions options;
  options.kind = GetParam().kind;
  options.num_requests = 100;
  const std::string first = text_of(generate_trace(options));
  EXPECT_EQ(text_of(generate_trace(options)), first);
  options.seed = 2;
  EXPECT_NE(text_of(generate_trace(options)), first);
}

TEST_P(Generators, NamePathsSoThatABlockTellsItsPast) {
  GeneratorOptions options;
  options.kind = GetParam().kind;
  options.num_requests = 300;
  options.block_size = 64;
  std::map<int64_t, int64_t>
      before;  // of each id; an id after two different ones would share too much
  for (const TraceRequest& request : generate_trace(options).requests) {
    int64_t last = -1;
    for (const int64_t id : request.hash_ids) {
      EXPECT_EQ(before.try_emplace(id, last).first->second, last);
      last = id;
    }
  }
}

TEST_P(Generators, ShareAndArriveAtTheAskedRate) {
  GeneratorOptions options;
  options.kind = GetParam().kind;
  options.num_requests = 2000;
  options.block_size = 16;
  options.length_scale = 0.25;
  options.requests_per_second = 20;
  const Trace trace = generate_trace(options);
  EXPECT_GT(best_hit_rate(trace), 0.5);
  const double seconds = trace.requests.back().arrival_ms / 1000;
  EXPECT_GT(seconds, 2000 / 20.0 / 4);
  EXPECT_LT(seconds, 2000 / 20.0 * 4);
}

INSTANTIATE_TEST_SUITE_P(Kinds, Generators,
                         testing::ValuesIn(trace_kinds().begin(), trace_kinds().end()),
                         [](const auto& kind) {
                           std::string name = kind.param.name;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(GroupSampling, SixteenAnswersToOnePrompt) {
  GeneratorOptions options;
  options.kind = TraceKind::kGroupSampling;
  options.num_requests = 160;
  std::map<std::vector<int64_t>, int> answers;
  for (const TraceRequest& request : generate_trace(options).requests) ++answers[request.hash_ids];
  EXPECT_EQ(answers.size(), 10u);
  for (const auto& [prompt, count] : answers) EXPECT_EQ(count, 16);
}

TEST(TreeSearch, LaterRoundsContinueEarlierAnswers) {
  GeneratorOptions options;
  options.kind = TraceKind::kTreeSearch;
  options.num_requests = 200;
  options.block_size = 1;
  options.length_scale = 0.1;
  const Trace trace = generate_trace(options);
  // A prompt that extends another one holds at least that one's answer.
  std::map<std::vector<int64_t>, int32_t> shortest_answer;
  int extensions = 0;
  for (const TraceRequest& request : trace.requests) {
    for (size_t length = request.hash_ids.size() - 1; length > 0; --length) {
      const std::vector<int64_t> front(
          request.hash_ids.begin(), request.hash_ids.begin() + static_cast<std::ptrdiff_t>(length));
      const auto found = shortest_answer.find(front);
      if (found == shortest_answer.end()) continue;
      ++extensions;
      EXPECT_GE(static_cast<int32_t>(request.hash_ids.size() - length), found->second);
      break;
    }
    auto [entry, added] = shortest_answer.try_emplace(request.hash_ids, request.output_length);
    entry->second = std::min(entry->second, request.output_length);
  }
  EXPECT_GT(extensions, 50);
}

TEST(Generate, RefusesOptionsThatCannotBe) {
  const auto error_of = [](auto change) -> std::string {
    GeneratorOptions options;
    change(options);
    try {
      generate_trace(options);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "(nothing thrown)";
  };
  EXPECT_EQ(error_of([](auto& o) { o.num_requests = 0; }),
            "generate_trace: num_requests is 0; must be from 1 to 10000000; correct the option");
  EXPECT_EQ(error_of([](auto& o) { o.block_size = 0; }),
            "generate_trace: block_size is 0; must be from 1 to 16777216 tokens; correct the "
            "option");
  EXPECT_EQ(error_of([](auto& o) { o.requests_per_second = 0; }),
            "generate_trace: requests_per_second is 0; must be above 0 and below 1e9; correct the "
            "option");
  EXPECT_EQ(error_of([](auto& o) { o.length_scale = -1; }),
            "generate_trace: length_scale is -1; must be above 0 and at most 1000; correct the "
            "option");
}

}  // namespace
}  // namespace capillary
