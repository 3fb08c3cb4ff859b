// SPDX-License-Identifier: MIT
// `capillary bench`: every workload x heads x mode of a workload file, checked and timed. One JSON object a
// line (docs/cli.md lists the fields) and an aligned table.
#include <cstdio>
#include <memory>
#include <optional>

#include "CLI/CLI.hpp"
#include "cli/batch_options.h"
#include "cli/bench_ablate.h"
#include "cli/bench_plot.h"
#include "cli/bench_record.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "cli/device.h"
#include "cli/measure.h"
#include "cli/plan_report.h"
#include "fmt/format.h"

namespace capillary::cli {
namespace {

constexpr const char* kVerb = "bench";

struct BenchOptions {
  BatchOptions batch;
  std::vector<std::string> modes = {"auto", "flat", "shared-l2"};
  int32_t cluster_size = 0;
  MeasureOptions measure = {.repeats = 10};
  bool json = false;
  std::string out;
  std::string plot;
  bool ablate = false;
  std::string report;
  std::string from;
  int32_t sample = 0;
};

std::vector<std::string> table_row(const BenchResult& result) {
  const PlanSummary& summary = result.report.summary;
  const double time_us = result.measurement.headline_us();
  return {result.report.name,
          heads_name({result.report.shape.num_q_heads, result.report.shape.num_kv_heads}),
          mode_name(result.report.options.mode),
          fmt::format("{}", summary.cluster_size),
          fmt::format("{}", summary.num_jobs),
          fmt::format("{:.2f}", sharing_of(summary)),
          fmt::format("{:.1f}", time_us),
          fmt::format("{:.1f}", result.floor.us),
          fmt::format("{:.2f}", time_us > 0 ? result.floor.us / time_us : 0.0),
          fmt::format("{:.1f}", result.report.warm_plan_us),
          fmt::format("{:.1f}", summary.predicted_us),
          !result.measurement.check ? "not checked"
          : result.measurement.passed()
              ? fmt::format("{:.1e}", result.measurement.check->worst_rel_err)
              : "FAILED"};
}

// The outputs of a bench: each is whole up to the last step that was finished, whatever ends the verb.
class BenchOutput {
 public:
  explicit BenchOutput(const BenchOptions& options)
      : options_(options),
        table_({"workload", "heads", "mode", "cluster", "jobs", "sharing", "time us", "floor us",
                "efficiency", "plan us", "predicted us", "rel err"}) {
    if (!options.out.empty()) lines_.emplace(kVerb, "--out", options.out);
    if (!options.plot.empty()) plot_.emplace(kVerb, "--plot", options.plot);
  }

  void add(const BenchResult& result, const TimedDevice& device) {
    const std::string line = json_line(bench_record(result, options_.measure, device));
    if (lines_) lines_->write(line);
    if (options_.json) {
      fmt::print("{}", line);
      std::fflush(stdout);
    }
    table_.add_row(table_row(result));
    bars_.push_back(
        {result.report.name,
         heads_name({result.report.shape.num_q_heads, result.report.shape.num_kv_heads}),
         mode_name(result.report.options.mode), result.measurement.headline_us(), result.floor.us});
  }

  void finish(const std::string& device) {
    if (lines_) lines_->commit();
    if (plot_) {
      plot_->write(bench_plot_html(bars_, device));
      plot_->commit();
    }
    const bool print_table = !options_.json && options_.out != "-" && options_.plot != "-";
    if (print_table && table_.num_rows() > 0) fmt::print("{}", table_.str());
  }

 private:
  const BenchOptions& options_;
  std::optional<OutputFile> lines_;
  std::optional<OutputFile> plot_;
  TextTable table_;
  std::vector<BenchBar> bars_;
};

int run_bench(const BenchOptions& options) {
  if (!options.batch.block_table.empty()) {
    throw UsageError(five_parts(kVerb, "--block-table", "is given",
                                "be left to plan and run; bench takes --file or --tree",
                                "use capillary run --block-table"));
  }
  if (options.ablate) {
    return run_ablation({options.batch, options.sample, options.measure, options.json, options.out,
                         options.plot, options.report, options.from});
  }
  std::vector<PlanOptions> plannings;
  for (const std::string& mode : options.modes) {
    plannings.push_back(resolve_planning(kVerb, {mode, options.cluster_size, 0}));
  }
  const check::CacheLayout layout = parse_layout(kVerb, options.measure.layout);
  BenchOutput output(options);
  const std::unique_ptr<TimedDevice> device =
      open_device(kVerb, options.measure.device, options.measure.num_threads);
  const DeviceProfile profile = load_profile(kVerb, options.batch.profile);
  const std::vector<StepChoice> choices =
      sample_choices(resolve_choices(kVerb, options.batch), options.sample, options.batch.seed);
  const bool show_progress = is_terminal(fileno(stderr));
  bool all_passed = true;
  size_t done = 0;
  try {
    for (const StepChoice& choice : choices) {
      Step step = make_step(kVerb, options.batch, choice);
      const std::unique_ptr<MeasuredStep> measured = device->make_step(kVerb, step, layout);
      const DeviceProfile step_profile = device->adapt_profile(profile, step.shape);
      for (const PlanOptions& planning : plannings) {
        throw_if_interrupted();
        if (show_progress) {
          fmt::print(stderr, "\r{}/{} {:<50.50} {:<10}", done, choices.size() * plannings.size(),
                     step.name, mode_name(planning.mode));
        }
        const PlanReport report = make_plan(step, planning, step_profile);
        validate_plan(report.plan.data(), report.plan.size_bytes(), step.forest);
        const Measurement measurement = measure(*device, *measured, report.plan, options.measure);
        if (show_progress) fmt::print(stderr, "\r{:80}\r", "");
        output.add({report, measurement, device->floor(report.summary)}, *device);
        if (!measurement.passed()) {
          all_passed = false;
          fmt::print(stderr, "capillary bench: {} {} {}: check failed: {}\n", report.name,
                     heads_name(choice.heads), mode_name(planning.mode),
                     measurement.check->failure);
        }
        ++done;
      }
    }
  } catch (...) {
    // What was measured before an interruption or an error is kept.
    if (show_progress) fmt::print(stderr, "\r{:80}\r", "");
    output.finish(device->description());
    std::fflush(stdout);
    throw;
  }
  output.finish(device->description());
  return all_passed ? kOk : kCheckFailed;
}

}  // namespace

void add_bench_command(CLI::App& app, Invocation& invocation) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App* command =
      app.add_subcommand(kVerb, "Time a workload file: every workload, head count and mode");
  add_batch_options(*command, options->batch);
  CLI::Option* modes =
      command->add_option("--modes", options->modes, "Modes to time, with commas between")
          ->delimiter(',')
          ->capture_default_str();
  CLI::Option* cluster_size = command
                                  ->add_option("--cluster-size", options->cluster_size,
                                               "1, 2, 4, 8 or 16 [chosen by the planner]")
                                  ->check(CLI::IsMember({1, 2, 4, 8, 16}));
  command
      ->add_option("--sample", options->sample,
                   "Only so many of the file's workloads x heads, drawn by --seed")
      ->check(CLI::Range(1, 1 << 20));
  add_measure_options(*command, options->measure);
  command->add_flag("--json", options->json, "Print JSON lines instead of the table");
  command->add_option("--out", options->out,
                      "Write the JSON lines to a file (- for standard output)");
  command->add_option("--plot", options->plot,
                      "Draw times and efficiency as one HTML page; with --ablate, an SVG file");
  CLI::Option* ablate =
      command
          ->add_flag("--ablate", options->ablate,
                     "Time flat, shared-l2 and every cluster size, each forced, and the planner's "
                     "own choice, against each other")
          ->excludes(modes)
          ->excludes(cluster_size);
  command->add_option("--report", options->report, "Write --ablate's table as Markdown")
      ->needs(ablate);
  CLI::Option* from = command->add_option(
      "--from", options->from, "Tell the lines that --ablate --out wrote before; measure nothing");
  from->needs(ablate);
  for (const char* other : {"--file", "--tree", "--out", "--json", "--sample"}) {
    from->excludes(command->get_option(other));
  }
  command->callback([&invocation, options] {
    invocation.verb = kVerb;
    invocation.run = [options] { return run_bench(*options); };
  });
}

}  // namespace capillary::cli
