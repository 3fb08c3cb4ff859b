// SPDX-License-Identifier: MIT
// `capillary check`: the table of check cases and random ones, each a whole step held against the fp64 oracle.
// A failure prints the command line that repeats it.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "check/runner.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "cli/device.h"
#include "fmt/format.h"

namespace capillary::cli {
namespace {

constexpr const char* kVerb = "check";

struct CheckOptions {
  std::string pattern;
  uint64_t seed = 1;
  int num_random = 0;
  std::string device = "auto";
  int32_t num_threads = 0;
  std::string profile;
  bool list = false;
  bool verbose = false;
};

struct PlannedCase {
  check::CheckCase check_case;
  uint64_t seed;
};

std::vector<PlannedCase> chosen_cases(const CheckOptions& options) {
  std::vector<PlannedCase> cases;
  const bool only_random = options.pattern == "random";
  if (!only_random) {
    for (const check::CheckCase& check_case : check::case_table()) {
      if (options.pattern.empty() || glob_match(options.pattern, check_case.name)) {
        cases.push_back({check_case, options.seed});
      }
    }
    if (cases.empty()) {
      throw UsageError(five_parts(kVerb, "--case",
                                  fmt::format("'{}' matches none of the {} cases", options.pattern,
                                              check::case_table().size()),
                                  "match a case's name, or be random",
                                  "list the names with capillary check --list"));
    }
  }
  const int num_random = only_random && options.num_random == 0 ? 1 : options.num_random;
  for (int i = 0; i < num_random; ++i) {
    const uint64_t seed = options.seed + static_cast<uint64_t>(i);
    cases.push_back({check::random_case(seed), seed});
  }
  return cases;
}

struct Tally {
  int passed = 0;
  int failed = 0;
  int unsupported = 0;
  double worst_of_bound = 0;
  std::string worst_case;
};

void print_result(const check::CheckResult& result, const check::CheckCase& check_case,
                  bool verbose) {
  using Outcome = check::CheckResult::Outcome;
  if (result.outcome == Outcome::kFailed) {
    fmt::print("FAIL  {} ({}): {}\n      {}\n", result.case_name, check::describe(check_case),
               result.message, result.reproducer);
  } else if (verbose && result.outcome == Outcome::kUnsupported) {
    fmt::print("skip  {} ({}): {}\n", result.case_name, check::describe(check_case),
               result.message);
  } else if (verbose) {
    fmt::print("ok    {} ({}): {:.2f} of the error bound, {:.2f} s\n", result.case_name,
               check::describe(check_case), result.comparison.worst_of_bound, result.seconds);
  }
  std::fflush(stdout);
}

void add_result(const check::CheckResult& result, uint64_t seed, Tally* tally) {
  using Outcome = check::CheckResult::Outcome;
  if (result.outcome == Outcome::kFailed) {
    ++tally->failed;
  } else if (result.outcome == Outcome::kUnsupported) {
    ++tally->unsupported;
  } else {
    ++tally->passed;
    if (result.comparison.worst_of_bound > tally->worst_of_bound) {
      tally->worst_of_bound = result.comparison.worst_of_bound;
      tally->worst_case = fmt::format("{}, seed {}", result.case_name, seed);
    }
  }
}

int run_check(const CheckOptions& options) {
  const std::vector<PlannedCase> cases = chosen_cases(options);
  if (options.list) {
    for (const PlannedCase& planned : cases) {
      fmt::print("{}: {}\n", planned.check_case.name, check::describe(planned.check_case));
    }
    return kOk;
  }
  const DeviceProfile profile = load_profile(kVerb, options.profile);
  const std::unique_ptr<check::Backend> backend =
      open_check_backend(kVerb, options.device, options.num_threads);
  const bool show_progress = is_terminal(STDERR_FILENO) && !options.verbose;
  const auto start = std::chrono::steady_clock::now();
  Tally tally;
  size_t done = 0;
  for (const PlannedCase& planned : cases) {
    if (interrupted()) break;
    if (show_progress) {
      fmt::print(stderr, "\r{}/{} {:<60.60}", done, cases.size(), planned.check_case.name);
    }
    const check::CheckResult result =
        check::run_case(planned.check_case, planned.seed, *backend, profile);
    if (show_progress) fmt::print(stderr, "\r{:72}\r", "");
    print_result(result, planned.check_case, options.verbose);
    add_result(result, planned.seed, &tally);
    ++done;
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  fmt::print("{}: {} passed, {} failed, {} unsupported", backend->name(), tally.passed,
             tally.failed, tally.unsupported);
  if (done < cases.size()) fmt::print(", {} not run", cases.size() - done);
  fmt::print(" in {:.1f} s", seconds);
  if (tally.passed > 0) {
    fmt::print("; worst error {:.2f} of its bound ({})", tally.worst_of_bound, tally.worst_case);
  }
  fmt::print("\n");
  if (interrupted()) throw Interrupted();
  if (tally.failed > 0) return kCheckFailed;
  if (tally.passed == 0) {
    throw UnsupportedConfig(five_parts(
        kVerb, "--case",
        fmt::format("chooses {} cases, none of which {} supports", cases.size(), backend->name()),
        "choose a supported one", "see why with --verbose, or use --device cpu"));
  }
  return kOk;
}

}  // namespace

void add_check_command(CLI::App& app, Invocation& invocation) {
  auto options = std::make_shared<CheckOptions>();
  CLI::App* command =
      app.add_subcommand(kVerb, "Run the check cases and compare with the fp64 oracle");
  command->add_option("--case", options->pattern,
                      "Only cases whose name matches (* and ?); random: only random ones");
  command
      ->add_option("--random", options->num_random, "Random cases too, with seeds from --seed on")
      ->check(CLI::Range(0, 1000000));
  command->add_option("--seed", options->seed, "Seed of page places and random cases")
      ->capture_default_str();
  command->add_option("--device", options->device, "auto, cpu or cuda")->capture_default_str();
  command->add_option("--threads", options->num_threads, "CPU threads [all]")
      ->check(CLI::Range(1, 4096));
  command->add_option("--profile", options->profile,
                      "Device profile to plan for [CAPILLARY_PROFILE, this card's own, built in]");
  command->add_flag("--list", options->list, "List the cases instead of running them");
  command->add_flag("--verbose", options->verbose, "A line for every case");
  command->callback([&invocation, options] {
    invocation.verb = kVerb;
    invocation.run = [options] { return run_check(*options); };
  });
}

}  // namespace capillary::cli
