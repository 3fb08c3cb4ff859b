// SPDX-License-Identifier: MIT
// `capillary replay`: a serving trace through radix cache, batching, forest, planner and, where asked, a backend
// and the oracle (workload/replay.h, docs/replay.md).
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "CLI/CLI.hpp"
#include "cli/commands.h"
#include "cli/common.h"
#include "cli/device.h"
#include "fmt/format.h"
#include "workload/replay.h"
#include "workload/report.h"
#include "workload/trace.h"

namespace capillary::cli {
namespace {

constexpr const char* kVerb = "replay";

struct ReplayCommand {
  std::string trace;
  int64_t limit = 0;
  bool skip_bad_lines = false;
  ReplayOptions replay;
  std::string heads = "32/8";
  std::string dtype = "bfloat16";
  std::string profile;
  std::string device = "auto";
  int32_t num_threads = 0;
  std::string json;
  std::string report;
  bool quiet = false;
};

Trace read_trace_of(const ReplayCommand& command) {
  TraceOptions options;
  options.skip_bad_lines = command.skip_bad_lines;
  if (command.limit > 0) options.limit = command.limit;
  return read_trace_file(command.trace, options);
}

// One line that is drawn over itself.
class ProgressBar {
 public:
  void draw(const ReplayReport& report) {
    constexpr int kCells = 24;
    const int64_t done = report.batching.finished + report.batching.too_long;
    const double part = report.trace_requests == 0 ? 1
                                                   : static_cast<double>(done) /
                                                         static_cast<double>(report.trace_requests);
    const int filled = std::clamp(static_cast<int>(part * kCells), 0, kCells);
    std::string line =
        fmt::format("[{:#<{}}{:.<{}}] {}/{} requests, {} steps, sharing {:.2f}, hits {:.0f} %", "",
                    filled, "", kCells - filled, done, report.trace_requests,
                    format_count(report.steps), report.sharing(), 100 * report.hit_rate());
    if (part > 0.02 && part < 1) {
      line += fmt::format(", {:.0f} s left", report.wall_seconds / part * (1 - part));
    }
    fmt::print(stderr, "\r{:<{}}", line, width_);
    width_ = line.size();
    std::fflush(stderr);
  }
  void clear() {
    if (width_ > 0) fmt::print(stderr, "\r{:{}}\r", "", width_);
    width_ = 0;
  }

 private:
  size_t width_ = 0;
};

// The executed steps keep their KV; better to say before an hour's run than in it that there is no room.
void check_memory(const ReplayCommand& command) {
  const BatchingOptions& batching = command.replay.batching;
  const double needed =
      StepExecutor::most_bytes(command.replay.shape, batching.num_pages, batching.page_size);
  const auto available = static_cast<double>(available_memory_bytes());
  if (needed > available) {
    throw InvalidArgument(
        five_parts(kVerb, "--pages",
                   fmt::format("is {}, up to {} of KV", batching.num_pages, format_bytes(needed)),
                   fmt::format("fit the free memory, {}", format_bytes(available)),
                   "use fewer pages, fewer or smaller heads, or run without --execute-every"));
  }
}

int run_command(ReplayCommand command) {
  const Heads heads = parse_heads_option(kVerb, command.heads);
  ReplayOptions& options = command.replay;
  options.shape.num_q_heads = heads.num_q_heads;
  options.shape.num_kv_heads = heads.num_kv_heads;
  options.shape.dtype = parse_dtype(kVerb, command.dtype);
  if (command.json == "-" && command.report == "-") {
    throw UsageError(five_parts(kVerb, "--report", "is -, as --json is",
                                "leave standard output to one of the two", "name a file for one"));
  }
  // Places first, then input: nothing runs for long before what could stop it is known.
  std::optional<OutputFile> json;
  std::optional<OutputFile> report_page;
  if (!command.json.empty()) json.emplace(kVerb, "--json", command.json);
  if (!command.report.empty()) report_page.emplace(kVerb, "--report", command.report);
  DeviceProfile profile = load_profile(kVerb, command.profile);
  std::unique_ptr<check::Backend> backend;
  if (options.execute_every > 0) {
    profile = open_device(kVerb, command.device, command.num_threads)
                  ->adapt_profile(profile, options.shape);
    backend = open_check_backend(kVerb, command.device, command.num_threads);
    if (backend->name() == "cpu") check_memory(command);
  }
  const Trace trace = read_trace_of(command);

  ReplayHooks hooks;
  hooks.stop = [] { return interrupted(); };
  ProgressBar bar;
  if (is_terminal(STDERR_FILENO) && !command.quiet) {
    hooks.progress = [&bar](const ReplayReport& report) { bar.draw(report); };
  }
  const ReplayReport report = run_replay(trace, options, profile, backend.get(), hooks);
  bar.clear();

  const bool stdout_taken = command.json == "-" || command.report == "-";
  fmt::print(stdout_taken ? stderr : stdout, "{}", replay_text(report));
  if (json) {
    json->write(replay_json(report));
    json->commit();
  }
  if (report_page) {
    report_page->write(replay_html(report));
    report_page->commit();
    if (command.report != "-") {
      fmt::print(stdout_taken ? stderr : stdout, "report         {}\n", command.report);
    }
  }
  if (report.execution.failures > 0) return kCheckFailed;
  return report.interrupted ? kInterrupted : kOk;
}

void add_input_options(CLI::App& app, ReplayCommand& command) {
  app.add_option("trace,--trace", command.trace,
                 "Trace: JSON lines of timestamp, input_length, output_length, hash_ids; - reads "
                 "standard input")
      ->required();
  app.add_option("--limit", command.limit, "Only the first so many requests")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  app.add_flag("--skip-bad-lines", command.skip_bad_lines, "Count lines that are wrong and go on");
  app.add_option("--time-scale", command.replay.batching.time_scale,
                 "Multiply arrival times; 0.5 is twice the load, 0 all at once")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
}

void add_engine_options(CLI::App& app, ReplayCommand& command) {
  BatchingOptions& batching = command.replay.batching;
  app.add_option("--max-batch", batching.max_batch, "Requests decoded at once")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  app.add_option("--pages", batching.num_pages, "Pages of the KV pool")
      ->check(CLI::Range(int64_t{1}, int64_t{2147483646}))
      ->capture_default_str();
  app.add_option("--page-size", batching.page_size, "Tokens of a page")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  app.add_option("--prefill-tokens", batching.max_prefill_tokens,
                 "Prompt tokens admitted in one step")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
      ->capture_default_str();
  app.add_option("--heads", command.heads, "Query/KV heads of one layer")->capture_default_str();
  app.add_option("--head-dim", command.replay.shape.head_dim, "Size of a head")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  app.add_option("--dtype", command.dtype, "bfloat16 or float16 (float32 on the CPU)")
      ->capture_default_str();
  app.add_option("--profile", command.profile,
                 "Device profile to plan for [CAPILLARY_PROFILE, this card's own, built in]");
  app.add_option("--layers", command.replay.num_layers,
                 "Layers: a step takes layers x (attention + --other-us)")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  app.add_option("--other-us", command.replay.other_us, "Time of a layer besides attention")
      ->check(CLI::Range(0.0, 1e9))
      ->capture_default_str();
  app.add_option("--prefill-us", command.replay.prefill_us, "Time of a prefill token, all layers")
      ->check(CLI::Range(0.0, 1e9))
      ->capture_default_str();
}

void add_check_options(CLI::App& app, ReplayCommand& command) {
  app.add_option("--compare-every", command.replay.compare_every,
                 "Plan flat and shared-l2 too on every Nth step; 0: never")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40))
      ->capture_default_str();
  app.add_option("--execute-every", command.replay.execute_every,
                 "Execute every Nth step and check sampled rows; 1: all, 0: none")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40))
      ->capture_default_str();
  app.add_option("--check-rows", command.replay.check_requests,
                 "Requests to compare with the oracle on an executed step, all their heads")
      ->check(CLI::Range(0, 65536))
      ->capture_default_str();
  app.add_option("--device", command.device, "Where steps execute: auto, cpu or cuda")
      ->capture_default_str();
  app.add_option("--threads", command.num_threads, "CPU threads [all]")->check(CLI::Range(1, 4096));
  app.add_option("--seed", command.replay.seed, "Seed of KV content and sampling")
      ->capture_default_str();
}

}  // namespace

void add_replay_command(CLI::App& app, Invocation& invocation) {
  auto command = std::make_shared<ReplayCommand>();
  CLI::App* verb = app.add_subcommand(
      kVerb, "Run a serving trace through radix cache, batching, planner and backend");
  add_input_options(*verb, *command);
  add_engine_options(*verb, *command);
  add_check_options(*verb, *command);
  verb->add_option("--json", command->json, "Write the report as JSON (- is standard output)");
  verb->add_option("--report", command->report, "Write the report as one HTML page with plots");
  verb->add_flag("--quiet", command->quiet, "No progress bar");
  verb->callback([&invocation, command] {
    invocation.verb = kVerb;
    invocation.run = [command] { return run_command(*command); };
  });
}

}  // namespace capillary::cli
