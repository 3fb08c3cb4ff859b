// SPDX-License-Identifier: MIT
// `capillary replay` and `capillary generate` as users meet them: reports, bad traces, places that cannot be
// written, interruption.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "cli/expect_error.h"
#include "cli/process.h"
#include "nlohmann/json.hpp"
#include "workload/trace.h"

namespace capillary::test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

const char* const kGoodLine =
    R"({"timestamp": 0, "input_length": 700, "output_length": 9, "hash_ids": [4, 5]})"
    "\n";
const char* const kShortIds =
    R"({"timestamp": 1, "input_length": 700, "output_length": 9, "hash_ids": [4]})"
    "\n";

class CliReplay : public ::testing::Test {
 protected:
  Workplace work_;
};

TEST_F(CliReplay, ReportsAsTextJsonAndPage) {
  work_.put("trace.jsonl", std::string(kGoodLine) + kGoodLine + kGoodLine);
  const Outcome outcome =
      work_.run({"replay", "trace.jsonl", "--execute-every", "2", "--device", "cpu", "--heads",
                 "4/2", "--head-dim", "32", "--json", "replay.json", "--report", "replay.html"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, IsEmpty());  // no progress bar where there is no terminal
  EXPECT_THAT(outcome.out,
              AllOf(StartsWith("trace          trace.jsonl\n"), HasSubstr("3 of 3 finished"),
                    HasSubstr("sharing        2.8"), HasSubstr("predicted"),
                    HasSubstr("cluster size"), HasSubstr("4 steps executed on cpu"),
                    HasSubstr("worst error"), HasSubstr("report         replay.html")));
  const json object = json::parse(work_.get("replay.json"));
  EXPECT_EQ(object["steps"], 8);
  EXPECT_EQ(object["requests"]["finished"], 3);
  EXPECT_EQ(object["execution"]["failures"], 0);
  EXPECT_EQ(object["options"]["num_q_heads"], 4);
  EXPECT_THAT(work_.get("replay.html"), AllOf(StartsWith("<!doctype html>"), HasSubstr("</html>")));
  EXPECT_THAT(work_.names(), ElementsAre("replay.html", "replay.json", "trace.jsonl"));
}

// The bar is for people: on a terminal it is drawn over itself and wiped off before the report, elsewhere it is not.
TEST_F(CliReplay, ProgressIsShownOnATerminalOnly) {
  work_.put("trace.jsonl", std::string(kGoodLine) + kGoodLine + kGoodLine);
  const std::vector<std::string> arguments = {"replay", "trace.jsonl"};
  const Outcome shown = work_.run_on_terminal(arguments);
  EXPECT_EQ(shown.exit_code, 0) << shown.err;
  EXPECT_THAT(shown.err, HasSubstr("\r[########################] 3/3 requests, 8 steps, sharing"));
  EXPECT_THAT(shown.err, Not(HasSubstr("\n"))) << "the bar has one line";
  // Last comes a line of blanks, as long as the bar, and the cursor goes back to its beginning.
  const size_t last = shown.err.rfind('\r', shown.err.size() - 2);
  ASSERT_NE(last, std::string::npos);
  EXPECT_EQ(shown.err.back(), '\r');
  EXPECT_EQ(shown.err.find_first_not_of(' ', last + 1), shown.err.size() - 1);

  const Outcome piped = work_.run(arguments);
  EXPECT_THAT(piped.err, IsEmpty());
  // The same report; times differ from run to run.
  EXPECT_EQ(shown.out.substr(0, shown.out.find('\n')), piped.out.substr(0, piped.out.find('\n')));
  std::vector<std::string> quiet = arguments;
  quiet.push_back("--quiet");
  EXPECT_THAT(work_.run_on_terminal(quiet).err, IsEmpty());
}

TEST_F(CliReplay, StandardInputAndOutput) {
  const Outcome outcome = work_.run({"replay", "-", "--json", "-", "--limit", "1"},
                                    std::string(kGoodLine) + "not a trace");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(json::parse(outcome.out)["requests"]["in_trace"], 1);
  EXPECT_THAT(outcome.err, StartsWith("trace          standard input\n"));
  EXPECT_THAT(work_.run({"replay", "-", "--report", "-"}, kGoodLine).out,
              StartsWith("<!doctype html>"));
}

TEST_F(CliReplay, BadUsageIsTwo) {
  work_.put("trace.jsonl", kGoodLine);
  expect_error(work_.run({"replay"}), 2, "replay",
               "trace is required; see capillary replay --help");
  expect_error(work_.run({"replay", "trace.jsonl", "--max-batch", "0"}), 2, "replay",
               "--max-batch");
  expect_error(work_.run({"replay", "trace.jsonl", "--heads", "8/3"}), 2, "replay",
               "--heads is '8/3'; must be Q/KV");
  expect_error(work_.run({"replay", "trace.jsonl", "--execute-every", "1", "--device", "gpu"}), 2,
               "replay", "--device is 'gpu'; must be auto, cpu or cuda");
  expect_error(work_.run({"replay", "trace.jsonl", "--json", "-", "--report", "-"}), 2, "replay",
               "--report is -, as --json is; must leave standard output to one of the two");
}

TEST_F(CliReplay, ABadLineIsNamedAndNothingIsWritten) {
  work_.put("trace.jsonl", std::string(kGoodLine) + kShortIds + "{\"timestamp\": 5\n");
  work_.put("replay.html", "old");
  const std::vector<std::string> arguments = {"replay",      "trace.jsonl", "--json",
                                              "replay.json", "--report",    "replay.html"};
  expect_error(work_.run(arguments), 3, "replay",
               "trace.jsonl line 2: field 'hash_ids' has length 1; must have length 2 (700 tokens "
               "in blocks of 512); correct the line or skip such lines (--skip-bad-lines)");
  EXPECT_EQ(work_.get("replay.html"), "old");
  EXPECT_THAT(work_.names(), ElementsAre("replay.html", "trace.jsonl"));

  std::vector<std::string> skipping = arguments;
  skipping.push_back("--skip-bad-lines");
  const Outcome outcome = work_.run(skipping);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("2 bad lines skipped, the first: "));
  EXPECT_EQ(json::parse(work_.get("replay.json"))["requests"]["bad_lines"], 2);
}

TEST_F(CliReplay, BadInputIsThree) {
  expect_error(
      work_.run({"replay", "absent.jsonl"}), 3, "replay",
      "absent.jsonl cannot be opened: No such file or directory; must be a readable trace");
  expect_error(work_.run({"replay", "."}), 3, "replay", "cannot be opened: Is a directory");
  work_.put("empty.jsonl", "\n\n");
  expect_error(work_.run({"replay", "empty.jsonl"}), 3, "replay", "holds no request");
  work_.put("bad.jsonl", kShortIds);
  expect_error(work_.run({"replay", "bad.jsonl", "--skip-bad-lines"}), 3, "replay",
               "holds no request (1 lines, 1 of them bad)");
  work_.put("trace.jsonl", kGoodLine);
  // Executing keeps the KV of the pool: 2^31 pages of 16 tokens are more than any machine has.
  expect_error(work_.run({"replay", "trace.jsonl", "--execute-every", "1", "--device", "cpu",
                          "--pages", "2000000000"}),
               3, "replay", "--pages is 2000000000, up to ");
}

TEST_F(CliReplay, APoolTooSmallIsToldAndNotFatal) {
  work_.put("trace.jsonl", kGoodLine);
  const Outcome outcome = work_.run({"replay", "trace.jsonl", "--pages", "10"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out,
              HasSubstr("0 of 1 finished, 0 preemptions, 1 too long for the pool (request 0 of the "
                        "trace needs 45 pages, the pool has 10)"));
}

TEST_F(CliReplay, UnwritablePlacesAreFoundBeforeTheTraceIsRead) {
  expect_error(work_.run({"replay", "absent.jsonl", "--report", "no/such/x.html"}), 3, "replay",
               "--report 'no/such/x.html' cannot be created");
  expect_error(work_.run({"replay", "absent.jsonl", "--json", "."}), 3, "replay", "is a directory");
}

TEST_F(CliReplay, AReportIsNotWrittenOverTheTraceOrTheOtherReport) {
  work_.put("trace.jsonl", kGoodLine);
  expect_error(
      work_.run({"replay", "trace.jsonl", "--report", "./trace.jsonl"}), 2, "replay",
      "--report is './trace.jsonl', as the trace is; must be another file; give each a path "
      "of its own");
  expect_error(work_.run({"replay", "trace.jsonl", "--json", "new", "--report", "new"}), 2,
               "replay", "--report is 'new', as --json is");
  EXPECT_EQ(work_.get("trace.jsonl"), kGoodLine);
  EXPECT_THAT(work_.names(), ElementsAre("trace.jsonl"));
}

TEST_F(CliReplay, UnsupportedIsFour) {
  work_.put("trace.jsonl", kGoodLine);
  expect_error(work_.run({"replay", "trace.jsonl", "--heads", "1024/1"}), 4, "replay",
               "num_q_heads / num_kv_heads is 1024");
}

TEST_F(CliReplay, InterruptedKeepsItsReport) {
  // Far more than is served before the signal comes.
  std::string trace;
  for (int i = 0; i < 400; ++i) {
    trace += R"({"timestamp": 0, "input_length": 700, "output_length": 900, "hash_ids": [4, )" +
             std::to_string(i + 5) + "]}\n";
  }
  work_.put("trace.jsonl", trace);
  const auto start = std::chrono::steady_clock::now();
  const Outcome outcome = work_.run_and_signal(
      {"replay", "trace.jsonl", "--execute-every", "1", "--device", "cpu", "--json", "replay.json",
       "--report", "replay.html"},
      SIGINT, [&](const Workplace::Running&) {
        return std::chrono::steady_clock::now() - start > std::chrono::milliseconds(1500);
      });
  EXPECT_EQ(outcome.exit_code, 130) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("interrupted    what follows is what was done so far"));
  const json object = json::parse(work_.get("replay.json"));
  EXPECT_EQ(object["interrupted"], true);
  EXPECT_LT(object["requests"]["finished"].get<int64_t>(), 400);
  int64_t steps = 0;
  for (const json& point : object["series"]) steps += point["steps"].get<int64_t>();
  EXPECT_EQ(object["steps"], steps);
  EXPECT_THAT(work_.get("replay.html"), HasSubstr("Interrupted; this is what was done so far."));
  EXPECT_THAT(work_.names(), ElementsAre("replay.html", "replay.json", "trace.jsonl"));
}

TEST_F(CliReplay, GeneratedTracesAreReplayed) {
  const std::vector<std::string> arguments = {"generate",     "few-shot", "--requests", "25",
                                              "--block-size", "16",       "--scale",    "0.1",
                                              "--seed",       "3"};
  const Outcome printed = work_.run(arguments);
  EXPECT_EQ(printed.exit_code, 0) << printed.err;
  EXPECT_EQ(std::count(printed.out.begin(), printed.out.end(), '\n'), 25);
  std::vector<std::string> to_file = arguments;
  to_file.insert(to_file.end(), {"--out", "trace.jsonl"});
  EXPECT_EQ(work_.run(to_file).exit_code, 0);
  EXPECT_EQ(work_.get("trace.jsonl"), printed.out);
  const Outcome replayed = work_.run({"replay", "trace.jsonl", "--json", "-"});
  EXPECT_EQ(replayed.exit_code, 0) << replayed.err;
  const json object = json::parse(replayed.out);
  EXPECT_EQ(object["requests"]["finished"], 25);
  EXPECT_GT(object["cache"]["hit_rate"].get<double>(), 0.3);
}

TEST_F(CliReplay, GenerateRefuses) {
  expect_error(work_.run({"generate"}), 2, "generate", "kind is required");
  expect_error(work_.run({"generate", "poems"}), 2, "generate",
               "kind is 'poems'; must be one of group-sampling, few-shot");
  expect_error(work_.run({"generate", "chat", "--requests", "0"}), 2, "generate", "--requests");
  expect_error(work_.run({"generate", "chat", "--out", "no/such/x"}), 3, "generate",
               "--out 'no/such/x' cannot be created");
  EXPECT_THAT(work_.names(), IsEmpty());
}

TEST_F(CliReplay, TheDemoTraceIsReplayed) {
  // docs/replay.md names the command that makes it.
  std::stringstream demo;
  demo << std::ifstream(CAPILLARY_SOURCE_DIR "/traces/demo.jsonl").rdbuf();
  EXPECT_EQ(work_
                .run({"generate", "mixed", "--requests", "60", "--block-size", "64", "--scale",
                      "0.3", "--seed", "7", "--rate", "10"})
                .out,
            demo.str());
  const Outcome outcome = work_.run(
      {"replay", CAPILLARY_SOURCE_DIR "/traces/demo.jsonl", "--json", "-", "--compare-every", "1"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const json object = json::parse(outcome.out);
  EXPECT_EQ(object["requests"]["finished"], object["requests"]["in_trace"]);
  EXPECT_GT(object["sharing"].get<double>(), 1.5);
  // What is chosen is never much slower than plain decode, by the planner's own prediction.
  EXPECT_LE(object["predicted_us_a_step"]["worst_over_flat"].get<double>(), 1 / 0.97);
}

}  // namespace
}  // namespace capillary::test
