// SPDX-License-Identifier: MIT
// The command as users meet it: every verb's good path, and every way to end with another exit code. Whatever
// goes wrong gives exactly one line on standard error that begins with the verb, and leaves no file behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "capillary/device_profile.h"
#include "capillary/version.h"
#include "cli/expect_error.h"
#include "cli/process.h"
#include "nlohmann/json.hpp"
#include "profile/profile_json.h"

namespace capillary::test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

const char* const kTwoWorkloads = R"({"workloads": [
  {"name": "small", "nodes": [1, 6], "tokens": [96, 20], "heads": ["8/2", "4/4"], "page": 16},
  {"name": "flat", "nodes": [3], "tokens": [50], "heads": ["8/2"], "page": 8}]})";

std::vector<json> json_lines(const std::string& text) {
  std::vector<json> lines;
  std::istringstream stream(text);
  std::string line;
  while (std::getline(stream, line)) lines.push_back(json::parse(line));
  return lines;
}

class Cli : public ::testing::Test {
 protected:
  Workplace work_;
};

TEST_F(Cli, HelpAndVersion) {
  const Outcome help = work_.run({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  for (const char* verb :
       {"info", "plan", "run", "check", "bench", "replay", "generate", "calibrate"}) {
    EXPECT_THAT(help.out, HasSubstr(std::string("\n  ") + verb));
    const Outcome verb_help = work_.run({verb, "--help"});
    EXPECT_EQ(verb_help.exit_code, 0) << verb;
    EXPECT_THAT(verb_help.out, HasSubstr("--")) << verb;
    EXPECT_THAT(verb_help.err, IsEmpty()) << verb;
  }
  EXPECT_EQ(work_.run({"--version"}).out, "capillary " CAPILLARY_VERSION_STRING "\n");
}

TEST_F(Cli, BadUsageIsTwo) {
  const Outcome nothing = work_.run({});
  EXPECT_EQ(nothing.exit_code, 2);
  EXPECT_THAT(nothing.err, HasSubstr("Subcommands:"));
  expect_error(work_.run({"fly"}), 2, "", "see capillary --help");
  expect_error(work_.run({"--fly"}), 2, "", "see capillary --help");
  expect_error(work_.run({"plan", "--fly"}), 2, "plan", "see capillary plan --help");
  expect_error(work_.run({"plan", "--tree"}), 2, "plan", "--tree");
  expect_error(work_.run({"plan"}), 2, "plan", "the batch is given 0 times; must be given once");
  expect_error(work_.run({"plan", "--tree", "1x4", "--file", "x"}), 2, "plan",
               "the batch is given 2 times");
  expect_error(work_.run({"plan", "--tree", "1x4", "--workload", "x"}), 2, "plan",
               "--workload is given without --file");
  expect_error(work_.run({"plan", "--tree", "4096"}), 2, "plan", "has level '4096'");
  expect_error(work_.run({"plan", "--tree", "1x4", "--heads", "8/3"}), 2, "plan",
               "--heads is '8/3'; must be Q/KV");
  expect_error(work_.run({"plan", "--tree", "1x4", "--mode", "best"}), 2, "plan",
               "--mode is 'best'; must be auto, flat or shared-l2");
  expect_error(work_.run({"plan", "--tree", "1x4", "--dtype", "int4"}), 2, "plan",
               "--dtype is 'int4'");
  expect_error(work_.run({"plan", "--tree", "1x4", "--cluster-size", "3"}), 2, "plan",
               "--cluster-size");
  expect_error(work_.run({"plan", "--tree", "1x4", "--page-size", "0"}), 2, "plan", "--page-size");
  expect_error(work_.run({"plan", "--tree", "1x4", "--json", "--html", "-"}), 2, "plan",
               "leave standard output to one of them");
  expect_error(work_.run({"run", "--tree", "1x4", "--repeat", "0"}), 2, "run", "--repeat");
  expect_error(work_.run({"run", "--tree", "1x4", "--device", "gpu"}), 2, "run",
               "--device is 'gpu'; must be auto, cpu or cuda");
  expect_error(work_.run({"run", "--tree", "1x4", "--layout", "dhn"}), 2, "run",
               "--layout is 'dhn'; must be one of nhd");
  expect_error(work_.run({"bench", "--tree", "1x4", "--modes", "auto,best"}), 2, "bench",
               "--mode is 'best'");
  expect_error(work_.run({"bench", "--block-table", "x"}), 2, "bench", "--block-table is given");
  expect_error(work_.run({"check", "--case", "no-such-case"}), 2, "check",
               "--case 'no-such-case' matches none of the");
  EXPECT_THAT(work_.names(), IsEmpty());
}

TEST_F(Cli, WorkloadNames) {
  work_.put("two.json", kTwoWorkloads);
  expect_error(work_.run({"plan", "--file", "two.json"}), 2, "plan",
               "is not given and two.json has 2 workloads; must name one of small, flat");
  expect_error(work_.run({"plan", "--file", "two.json", "--workload", "big"}), 2, "plan",
               "'big' matches none of two.json");
  expect_error(work_.run({"run", "--file", "two.json", "--workload", "*"}), 2, "run",
               "'*' matches 2 workloads");
  const Outcome plan = work_.run({"plan", "--file", "two.json", "--workload", "sm?ll"});
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_THAT(plan.out, HasSubstr("small; heads 8/2, head_dim 128, bfloat16, pages of 16"));
  const Outcome stdin_plan =
      work_.run({"plan", "--file", "-", "--workload", "flat", "--json"}, kTwoWorkloads);
  EXPECT_EQ(stdin_plan.exit_code, 0) << stdin_plan.err;
  EXPECT_EQ(json::parse(stdin_plan.out)["forest"]["page_size"], 8);
}

TEST_F(Cli, BadInputIsThree) {
  expect_error(work_.run({"plan", "--file", "absent.json"}), 3, "plan",
               "--file 'absent.json' cannot be opened: No such file or directory");
  expect_error(work_.run({"plan", "--file", "."}), 3, "plan", "cannot be read: Is a directory");
  work_.put("torn.json", std::string(kTwoWorkloads).substr(0, 90));
  expect_error(work_.run({"plan", "--file", "torn.json"}), 3, "plan",
               "torn.json is not whole JSON at line 2");
  work_.put("wrong.json", R"({"workloads": [
    {"name": "w", "nodes": [4, 2], "tokens": [1, 1], "heads": ["8/1"], "page": 16}]})");
  expect_error(work_.run({"bench", "--file", "wrong.json"}), 3, "bench",
               "wrong.json: workload 'w': field 'nodes[1]' is 2, fewer than the 4");
  work_.put("narrow.json", R"({"page_size": 4, "seq_lens": [9], "block_table": [[0, 1]]})");
  expect_error(work_.run({"run", "--block-table", "narrow.json"}), 3, "run",
               "narrow.json: field 'block_table[0]' has 2 page ids; must have at least 3");
  work_.put("negative.json", R"({"page_size": 4, "seq_lens": [-1], "block_table": [[]]})");
  expect_error(work_.run({"plan", "--block-table", "negative.json"}), 3, "plan",
               "field 'seq_lens[0]' is -1");
  // 256 requests x 1M tokens x 64 KiB a token: far more than any build machine has.
  expect_error(work_.run({"run", "--tree", "256x1000000", "--heads", "128/128", "--page-size",
                          "1024", "--device", "cpu"}),
               3, "run", "of host memory; must fit nine tenths of the");
}

TEST_F(Cli, UnwritableOutputIsFoundBeforeWork) {
  expect_error(work_.run({"plan", "--tree", "1x16", "--html", "no/such/plan.html"}), 3, "plan",
               "--html 'no/such/plan.html' cannot be created");
  expect_error(work_.run({"plan", "--tree", "1x16", "--html", "."}), 3, "plan", "is a directory");
  // Before work: a batch that could not be read either is not even looked at.
  expect_error(work_.run({"bench", "--file", "absent.json", "--out", "no/such/x.jsonl"}), 3,
               "bench", "--out 'no/such/x.jsonl' cannot be created");
  expect_error(work_.run({"bench", "--tree", "1x16", "--plot", "no/such/x.html"}), 3, "bench",
               "--plot 'no/such/x.html' cannot be created");
}

TEST_F(Cli, NothingHalfWritten) {
  work_.put("plan.html", "old");
  work_.put("bench.jsonl", "old");
  expect_error(work_.run({"plan", "--file", "absent.json", "--html", "plan.html"}), 3, "plan",
               "absent.json");
  expect_error(work_.run({"bench", "--file", "absent.json", "--out", "bench.jsonl"}), 3, "bench",
               "absent.json");
  EXPECT_EQ(work_.get("plan.html"), "old");
  EXPECT_EQ(work_.get("bench.jsonl"), "old");
  EXPECT_THAT(work_.names(), ElementsAre("bench.jsonl", "plan.html"));
}

TEST_F(Cli, FullStandardOutputIsReported) {
  if (::access("/dev/full", W_OK) != 0) GTEST_SKIP() << "no /dev/full";
  work_.stdout_path = "/dev/full";
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"info"}, {"plan", "--tree", "1x4096,200x64", "--json"}}) {
    const Outcome outcome = work_.run(arguments);
    expect_error(outcome, 3, arguments.front(), "standard output could not be written");
  }
  expect_error(work_.run({"plan", "--tree", "1x16", "--html", "-"}), 3, "plan",
               "could not be written: No space left on device");
}

TEST_F(Cli, UnsupportedIsFour) {
  expect_error(work_.run({"plan", "--tree", "1x16", "--heads", "1024/1"}), 4, "plan",
               "num_q_heads / num_kv_heads is 1024; must be at most");
  if (!json::parse(work_.run({"info", "--json"}).out)["cuda"].get<bool>()) {
    for (const char* verb : {"run", "bench"}) {
      expect_error(work_.run({verb, "--tree", "1x16", "--device", "cuda"}), 4, verb,
                   "--device is cuda, which this build does not have; must be cpu or auto");
    }
    expect_error(work_.run({"check", "--device", "cuda"}), 4, "check", "--device is cuda");
    expect_error(
        work_.run({"calibrate", "--out", "card.json"}), 4, "calibrate",
        "this build has no CUDA backend, and only a card can be calibrated; must be a build "
        "with CUDA on a machine with an NVIDIA Hopper card");
    EXPECT_FALSE(work_.has("card.json"));
  }
}

TEST_F(Cli, Info) {
  const Outcome text = work_.run({"info"});
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_THAT(text.out, AllOf(HasSubstr("capillary  " CAPILLARY_VERSION_STRING),
                              HasSubstr("device     cpu: "), HasSubstr("profile    h200"),
                              HasSubstr("profile    from: built in\n")));
  const json object = json::parse(work_.run({"info", "--json"}).out);
  // The kernels are listed exactly where they are built in.
  const json& kernels = object["supports"]["on CUDA"];
  EXPECT_EQ(kernels.is_null(), !object["cuda"].get<bool>());
  const std::string listed = kernels.is_null() ? "not in this build" : kernels.get<std::string>();
  EXPECT_THAT(text.out, HasSubstr("supports   on CUDA: " + listed + "\n"));
  EXPECT_TRUE(kernels.is_null() || listed.starts_with("bfloat16 head_dim ")) << listed;
  EXPECT_EQ(object["version"], CAPILLARY_VERSION_STRING);
  EXPECT_FALSE(object["commit"].get<std::string>().empty());
  EXPECT_FALSE(object["compiler"].get<std::string>().empty());
  const DeviceProfile profile = profile_from_json(object["profile"].dump(), "info");
  EXPECT_EQ(profile.hash(), builtin_h200().hash());
}

TEST_F(Cli, ProfilesFromOptionAndEnvironment) {
  DeviceProfile slow = builtin_h200();
  slow.name = "slow-card";
  slow.hbm_gbps /= 4;
  work_.put("slow.json", profile_to_json(slow));
  work_.put("builtin.json", work_.run({"info", "--profile-json"}).out);
  const std::vector<std::string> plan = {"plan", "--tree", "64x4096", "--json"};
  const auto with_profile = [&](const std::string& path) {
    std::vector<std::string> arguments = plan;
    arguments.insert(arguments.end(), {"--profile", path});
    return json::parse(work_.run(arguments).out);
  };
  const json fast = json::parse(work_.run(plan).out);
  EXPECT_EQ(fast["profile"], "h200");
  EXPECT_GT(with_profile("slow.json")["summary"]["predicted_us"].get<double>(),
            3 * fast["summary"]["predicted_us"].get<double>());
  EXPECT_EQ(json::parse(work_.run({"info", "--json", "--profile", "-"}, profile_to_json(slow))
                            .out)["profile"]["name"],
            "slow-card");
  work_.environment["CAPILLARY_PROFILE"] = "slow.json";
  EXPECT_EQ(json::parse(work_.run(plan).out)["profile"], "slow-card");
  EXPECT_THAT(work_.run({"info"}).out,
              HasSubstr("profile    from: slow.json (CAPILLARY_PROFILE)\n"));
  EXPECT_EQ(with_profile("builtin.json")["profile"], "h200");
  EXPECT_EQ(with_profile("builtin.json")["plan"]["content_hash"], fast["plan"]["content_hash"]);

  work_.put("torn.json", profile_to_json(slow).substr(0, 100));
  work_.environment["CAPILLARY_PROFILE"] = "torn.json";
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"info"},
                                                    {"plan", "--tree", "1x16"},
                                                    {"run", "--tree", "1x16"},
                                                    {"bench", "--tree", "1x16"},
                                                    {"check"}}) {
    expect_error(work_.run(arguments), 3, arguments.front(), "torn.json is not whole JSON");
  }
  work_.environment["CAPILLARY_PROFILE"] = "absent.json";
  expect_error(work_.run({"plan", "--tree", "1x16"}), 3, "plan",
               "CAPILLARY_PROFILE 'absent.json' cannot be opened");
  json wrong = json::parse(profile_to_json(slow));
  wrong["launch_us"] = -2.5;
  work_.put("wrong.json", wrong.dump());
  expect_error(work_.run({"plan", "--tree", "1x16", "--profile", "wrong.json"}), 3, "plan",
               "wrong.json: field 'launch_us' is -2.5");
}

TEST_F(Cli, PlanAsTextJsonAndPicture) {
  const Outcome text = work_.run({"plan", "--tree", "1x4096,10x416", "--html", "plan.html"});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.out, AllOf(HasSubstr("sharing    5.47x"), HasSubstr("path       shared"),
                              HasSubstr("predicted"), HasSubstr("runner-up"),
                              HasSubstr("picture    plan.html")));
  EXPECT_THAT(work_.get("plan.html"), AllOf(StartsWith("<!DOCTYPE html>"), HasSubstr("</html>")));
  EXPECT_THAT(work_.names(), ElementsAre("plan.html"));
  EXPECT_THAT(work_.run({"plan", "--tree", "1x16", "--html", "-"}).out,
              StartsWith("<!DOCTYPE html>"));

  const std::vector<std::string> arguments = {"plan", "--tree", "1x4096,10x416", "--json"};
  const json first = json::parse(work_.run(arguments).out);
  const json second = json::parse(work_.run(arguments).out);
  EXPECT_EQ(first["plan"], second["plan"]);
  EXPECT_EQ(first["forest"]["nodes"].size(), 11u);
  EXPECT_EQ(first["summary"]["flat_bytes"].get<int64_t>(), int64_t{10} * 4512 * 8 * 256 * 2);
}

TEST_F(Cli, PlanOptionsAreHeeded) {
  const auto summary = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"plan", "--tree", "2x2048,32x300", "--json"});
    const Outcome outcome = work_.run(more);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return json::parse(outcome.out);
  };
  EXPECT_EQ(summary({"--cluster-size", "2"})["summary"]["cluster_size"], 2);
  EXPECT_EQ(summary({"--mode", "flat"})["summary"]["mode"], "flat");
  EXPECT_EQ(summary({"--mode", "shared-l2"})["summary"]["mode"], "shared-l2");
  const json wide = summary({"--heads", "16/2", "--head-dim", "64", "--head-dim-v", "96", "--dtype",
                             "fp16", "--page-size", "7"});
  EXPECT_EQ(wide["plan"]["num_q_heads"], 16);
  EXPECT_EQ(wide["plan"]["num_kv_heads"], 2);
  EXPECT_EQ(wide["plan"]["head_dim"], 64);
  EXPECT_EQ(wide["plan"]["head_dim_v"], 96);
  EXPECT_EQ(wide["plan"]["page_size"], 7);
  EXPECT_EQ(wide["dtype"], "float16");
  // Order and place of requests do not change what is shared.
  const json shuffled = summary({"--shuffle", "--seed", "9"});
  EXPECT_EQ(shuffled["summary"]["unique_bytes"], summary({})["summary"]["unique_bytes"]);
  EXPECT_NE(shuffled["forest"]["leaf_order"], summary({})["forest"]["leaf_order"]);
}

TEST_F(Cli, BatchesOfOnesOwn) {
  work_.put("mine.json", R"({"name": "mine", "page_size": 4, "seq_lens": [6, 0, 9, 9],
    "block_table": [[700000, 3, -1], [], [700000, 5, 9, -5, 2147483647], [700000, 5, 9]]})");
  const Outcome plan = work_.run({"plan", "--block-table", "mine.json", "--json"});
  ASSERT_EQ(plan.exit_code, 0) << plan.err;
  const json object = json::parse(plan.out);
  EXPECT_EQ(object["workload"], "mine");
  // Page 700000 is shared by three requests and 5 by two. The last page is not full, so each has its own.
  EXPECT_EQ(object["forest"]["unique_tokens"], 4 + 2 + 4 + 1 + 1);
  EXPECT_EQ(object["forest"]["flat_tokens"], 24);
  const Outcome run = work_.run({"run", "--block-table", "mine.json", "--device", "cpu", "--repeat",
                                 "2", "--heads", "6/2", "--head-dim", "40"});
  EXPECT_EQ(run.exit_code, 0) << run.err << run.out;
  EXPECT_THAT(run.out, HasSubstr("check      passed: 24 rows"));
  expect_error(work_.run({"plan", "--block-table", "mine.json", "--page-size", "8"}), 2, "plan",
               "--page-size is 8 where mine.json has page_size 4");
  work_.put("nobody.json", R"({"page_size": 4, "seq_lens": [], "block_table": []})");
  EXPECT_EQ(work_.run({"plan", "--block-table", "nobody.json"}).exit_code, 0);
  EXPECT_EQ(work_.run({"run", "--block-table", "nobody.json", "--device", "cpu"}).exit_code, 0);
}

TEST_F(Cli, RunChecksAndTimes) {
  const Outcome text = work_.run({"run", "--tree", "1x200,6x37", "--heads", "6/2", "--repeat", "3",
                                  "--device", "cpu", "--threads", "2"});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.out, AllOf(HasSubstr("check      passed: 36 rows"), HasSubstr("median of 3"),
                              HasSubstr("path       "), HasSubstr("2 threads")));
  const Outcome as_json =
      work_.run({"run", "--tree", "1x200,6x37", "--heads", "6/2", "--repeat", "3", "--json",
                 "--layout", "mixed", "--mode", "flat", "--device", "cpu"});
  EXPECT_EQ(as_json.exit_code, 0) << as_json.err;
  const json object = json::parse(as_json.out);
  EXPECT_EQ(object["passed"], true);
  EXPECT_EQ(object["checked"], true);
  EXPECT_EQ(object["layout"], "mixed");
  EXPECT_EQ(object["mode"], "flat");
  EXPECT_EQ(object["times"][0]["kind"], "eager");
  EXPECT_EQ(object["times"][0]["count"], 3);
  EXPECT_GT(object["times"][0]["median_us"].get<double>(), 0);
  EXPECT_LT(object["max_rel_err"].get<double>(), 1e-2);
  EXPECT_THAT(work_.run({"run", "--tree", "1x9", "--no-check", "--repeat", "1"}).out,
              HasSubstr("not checked"));
}

TEST_F(Cli, CheckRunsCases) {
  const Outcome list = work_.run({"check", "--list"});
  EXPECT_EQ(list.exit_code, 0);
  EXPECT_GT(std::count(list.out.begin(), list.out.end(), '\n'), 100);
  const std::string first = list.out.substr(0, list.out.find(':'));
  const Outcome one = work_.run({"check", "--case", first, "--verbose", "--device", "cpu"});
  EXPECT_EQ(one.exit_code, 0) << one.out;
  EXPECT_THAT(one.out, AllOf(StartsWith("ok    " + first), HasSubstr("cpu: 1 passed, 0 failed")));
  const Outcome random =
      work_.run({"check", "--case", "random", "--random", "5", "--seed", "41", "--device", "cpu"});
  EXPECT_EQ(random.exit_code, 0) << random.out;
  EXPECT_THAT(random.out, HasSubstr("cpu: 5 passed, 0 failed"));
  EXPECT_EQ(work_.run({"check", "--case", "random", "--seed", "41", "--device", "cpu"}).exit_code,
            0);
}

TEST_F(Cli, BenchWritesLinesAndTable) {
  work_.put("two.json", kTwoWorkloads);
  const Outcome outcome = work_.run({"bench", "--file", "two.json", "--repeat", "2", "--device",
                                     "cpu", "--out", "bench.jsonl", "--plot", "bench.html"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, StartsWith("workload"));
  EXPECT_EQ(std::count(outcome.out.begin(), outcome.out.end(), '\n'), 1 + 3 * 3);
  const std::vector<json> records = json_lines(work_.get("bench.jsonl"));
  ASSERT_EQ(records.size(), 9u);
  for (const json& record : records) {
    for (const char* field : {"workload",
                              "heads",
                              "head_dim",
                              "dtype",
                              "page_size",
                              "layout",
                              "mode",
                              "cluster_size",
                              "num_groups",
                              "time_us_graph_cold",
                              "time_us_graph_dependent",
                              "time_us_graph_warm",
                              "time_us_eager",
                              "floor_us",
                              "floor_kind",
                              "efficiency",
                              "unique_bytes",
                              "flat_bytes",
                              "exchange_bytes",
                              "plan_us",
                              "predicted_us",
                              "max_rel_err",
                              "commit",
                              "date",
                              "gpu",
                              "driver",
                              "toolkit"}) {
      EXPECT_TRUE(record.contains(field)) << field;
    }
    EXPECT_GT(record["time_us_eager"].get<double>(), 0);
    EXPECT_EQ(record["time_us_graph_cold"], nullptr);
    EXPECT_EQ(record["passed"], true);
  }
  EXPECT_EQ(records[0]["workload"], "small");
  EXPECT_EQ(records[0]["heads"], "8/2");
  EXPECT_EQ(records[3]["heads"], "4/4");
  EXPECT_EQ(records[7]["mode"], "flat");
  EXPECT_THAT(work_.get("bench.html"), AllOf(StartsWith("<!DOCTYPE html>"), HasSubstr("</html>")));
  EXPECT_THAT(work_.names(), ElementsAre("bench.html", "bench.jsonl", "two.json"));

  const Outcome lines = work_.run({"bench", "--file", "two.json", "--workload", "fl*", "--repeat",
                                   "1", "--modes", "flat,auto", "--json", "--device", "cpu"});
  EXPECT_EQ(json_lines(lines.out).size(), 2u);
}

TEST_F(Cli, BenchAblate) {
  work_.put("two.json", kTwoWorkloads);
  const Outcome outcome =
      work_.run({"bench", "--ablate", "--file", "two.json", "--repeat", "2", "--device", "cpu",
                 "--out", "a.jsonl", "--plot", "a.svg", "--report", "a.md"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out,
              AllOf(StartsWith("workload"), HasSubstr("regret, auto / the best forced: geomean"),
                    HasSubstr("over 3 rows")));
  const std::vector<json> records = json_lines(work_.get("a.jsonl"));
  ASSERT_EQ(records.size(), 3u * 8);
  std::map<std::string, double> times;
  for (const json& record : records) {
    const std::string row =
        record["workload"].get<std::string>() + record["heads"].get<std::string>();
    const double us = record["time_us_eager"];
    EXPECT_GT(us, 0);
    EXPECT_EQ(record["passed"], true);
    EXPECT_TRUE(record["time_us_graph_warm"].is_null());
    const std::string arm = record["arm"];
    if (arm.starts_with("dsm-")) {
      EXPECT_EQ(arm, "dsm-" + std::to_string(record["cluster_size"].get<int>()));
      EXPECT_EQ(record["forced_cluster_size"], record["cluster_size"]);
    }
    // A plan that does the same as an earlier one has its measurement.
    times[row + arm] = us;
    EXPECT_EQ(us, times.at(row + record["measured_as"].get<std::string>()));
  }
  // Three requests that share nothing: shared-l2 and clusters of one do what flat does.
  EXPECT_EQ(records[2 * 8 + 1]["arm"], "shared-l2");
  EXPECT_EQ(records[2 * 8 + 1]["partial_traffic"], 0);
  EXPECT_THAT(work_.get("a.md"), StartsWith("# Ablation"));
  EXPECT_THAT(work_.get("a.svg"), AllOf(StartsWith("<svg xmlns"), HasSubstr("</svg>")));
  EXPECT_THAT(work_.names(), ElementsAre("a.jsonl", "a.md", "a.svg", "two.json"));

  // The record alone tells the same.
  const Outcome again =
      work_.run({"bench", "--ablate", "--from", "a.jsonl", "--report", "b.md", "--plot", "b.svg"});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(again.out, outcome.out);
  EXPECT_EQ(work_.get("b.md"), work_.get("a.md"));
  EXPECT_EQ(work_.get("b.svg"), work_.get("a.svg"));
  const std::string lines = work_.get("a.jsonl");
  work_.put("torn.jsonl", lines.substr(0, lines.size() - 40));
  expect_error(work_.run({"bench", "--ablate", "--from", "torn.jsonl"}), 3, "bench",
               "--from torn.jsonl, line 24");
  work_.put("late.jsonl", lines.substr(lines.find('\n') + 1));
  expect_error(work_.run({"bench", "--ablate", "--from", "late.jsonl"}), 3, "bench",
               "is of arm \"shared-l2\" where flat comes next");
  expect_error(work_.run({"bench", "--ablate", "--from", "a.jsonl", "--tree", "1x4"}), 2, "bench",
               "--from");

  expect_error(work_.run({"bench", "--ablate", "--tree", "1x4", "--modes", "auto"}), 2, "bench",
               "--ablate");
  expect_error(work_.run({"bench", "--ablate", "--tree", "1x4", "--cluster-size", "2"}), 2, "bench",
               "--ablate");
  expect_error(work_.run({"bench", "--tree", "1x4", "--report", "x.md"}), 2, "bench", "--ablate");
  expect_error(work_.run({"bench", "--ablate", "--file", "absent", "--plot", "no/such/x"}), 3,
               "bench", "--plot 'no/such/x' cannot be created");
}

// What docs show of the ablations is what their records say.
TEST_F(Cli, AblationDocsFollowTheRecords) {
  const std::filesystem::path root = CAPILLARY_SOURCE_DIR;
  int compared = 0;
  for (const auto& [record, page] : {std::pair("ablation-h200.jsonl", "ablation.md"),
                                     std::pair("held-out-h200.jsonl", "ablation-held-out.md")}) {
    const std::filesystem::path path = root / "bench/results" / record;
    if (!std::filesystem::exists(path)) continue;
    const Outcome told = work_.run({"bench", "--ablate", "--from", path.string(), "--report", "-"});
    EXPECT_EQ(told.exit_code, 0) << told.err;
    std::ifstream file(root / "docs" / page);
    EXPECT_EQ(told.out, std::string(std::istreambuf_iterator<char>(file), {})) << page;
    ++compared;
  }
  if (compared == 0) GTEST_SKIP() << "no record of an ablation in bench/results";
}

TEST_F(Cli, BenchSamplesHeldOutForests) {
  const Outcome made =
      work_.run({"generate", "forests", "--forests", "9", "--out", "forests.json"});
  EXPECT_EQ(made.exit_code, 0) << made.err;
  EXPECT_EQ(json::parse(work_.get("forests.json"))["workloads"].size(), 9u);
  work_.put("two.json", kTwoWorkloads);
  const auto sample = [&](const char* seed) {
    const Outcome outcome =
        work_.run({"bench", "--file", "two.json", "--sample", "1", "--seed", seed, "--modes",
                   "auto", "--repeat", "1", "--json", "--device", "cpu"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(json_lines(outcome.out).size(), 1u);
    return json_lines(outcome.out).at(0)["workload"].get<std::string>() +
           json_lines(outcome.out).at(0)["heads"].get<std::string>();
  };
  std::set<std::string> seen;
  for (const char* seed : {"1", "2", "3", "4", "5", "6", "7", "8"}) seen.insert(sample(seed));
  EXPECT_EQ(seen.size(), 3u);
  EXPECT_EQ(sample("1"), sample("1"));
}

TEST_F(Cli, InterruptedBenchKeepsWhatItMeasured) {
  work_.put("two.json", kTwoWorkloads);
  for (const int signal : {SIGINT, SIGTERM}) {
    const Outcome outcome =
        work_.run_and_signal({"bench", "--file", "two.json", "--repeat", "4000", "--json", "--out",
                              "bench.jsonl", "--device", "cpu", "--threads", "1"},
                             signal, [&](const Workplace::Running& running) {
                               return std::filesystem::file_size(running.out_file) > 0;
                             });
    EXPECT_EQ(outcome.exit_code, 130);
    EXPECT_EQ(outcome.err, "capillary bench: interrupted; nothing is half written\n");
    const std::vector<json> printed = json_lines(outcome.out);
    EXPECT_GE(printed.size(), 1u);
    EXPECT_LT(printed.size(), 9u);
    EXPECT_EQ(json_lines(work_.get("bench.jsonl")), printed);
    EXPECT_THAT(work_.names(), ElementsAre("bench.jsonl", "two.json"));
  }
}

}  // namespace
}  // namespace capillary::test
