// SPDX-License-Identifier: MIT
// `capillary run`: one decode step on random data, checked against the oracle and timed.
#include <cstdio>
#include <memory>

#include "CLI/CLI.hpp"
#include "cli/batch_options.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "cli/device.h"
#include "cli/measure.h"
#include "cli/plan_report.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace capillary::cli {
namespace {

constexpr const char* kVerb = "run";

struct RunOptions {
  BatchOptions batch;
  PlanningOptions planning;
  MeasureOptions measure;
  bool json = false;
  std::string trace;
};

void print_text(const PlanReport& report, const Measurement& measurement, TimedDevice& device,
                const RunOptions& options) {
  const Floor floor = device.floor(report.summary);
  fmt::print("{:<11}{}; heads {}/{}, head_dim {}, {}, pages of {}, {}\n", "workload", report.name,
             report.shape.num_q_heads, report.shape.num_kv_heads, report.shape.head_dim,
             dtype_name(report.shape.dtype), report.forest.page_size(), options.measure.layout);
  fmt::print("{:<11}{}\n", "path", explain_line(report));
  fmt::print("{:<11}{}\n", "device", device.description());
  for (const auto& [kind, times] : measurement.times_us) {
    const double time = median(times);
    fmt::print(
        "{:<11}{} median of {} ({}, quartiles {:.1f}% apart); floor {} ({}), efficiency {:.2f}\n",
        "time", format_us(time), times.size(), timing_name(kind), 100 * spread(times),
        format_us(floor.us), floor.kind, time > 0 ? floor.us / time : 0.0);
  }
  fmt::print("{:<11}{} to plan; {} predicted on profile {}\n", "planner",
             format_us(report.warm_plan_us), format_us(report.summary.predicted_us),
             report.profile.name);
  if (!measurement.check) {
    fmt::print("{:<11}not checked (--no-check)\n", "check");
  } else if (measurement.check->passed) {
    fmt::print(
        "{:<11}passed: {} rows, worst relative error {:.2e} ({:.2f} of its bound), worst LSE error "
        "{:.1e}\n",
        "check", format_count(measurement.check->rows), measurement.check->worst_rel_err,
        measurement.check->worst_of_bound, measurement.check->worst_lse_err);
  } else {
    fmt::print("{:<11}FAILED: {}\n", "check", measurement.check->failure);
  }
}

void print_json(const PlanReport& report, const Measurement& measurement, TimedDevice& device,
                const RunOptions& options) {
  const Floor floor = device.floor(report.summary);
  nlohmann::ordered_json object = {
      {"schema_version", 1},
      {"workload", report.name},
      {"heads", heads_name({report.shape.num_q_heads, report.shape.num_kv_heads})},
      {"head_dim", report.shape.head_dim},
      {"dtype", dtype_name(report.shape.dtype)},
      {"page_size", report.forest.page_size()},
      {"layout", options.measure.layout},
      {"device", device.description()},
      {"mode", mode_name(report.summary.mode)},
      {"cluster_size", report.summary.cluster_size},
      {"num_jobs", report.summary.num_jobs},
      {"path", explain_line(report)},
      {"unique_bytes", report.summary.unique_bytes},
      {"flat_bytes", report.summary.flat_bytes},
      {"floor_us", floor.us},
      {"floor_kind", floor.kind},
      {"plan_us", report.warm_plan_us},
      {"predicted_us", report.summary.predicted_us}};
  for (const auto& [kind, times] : measurement.times_us) {
    object["times"].push_back({{"kind", timing_name(kind)},
                               {"median_us", median(times)},
                               {"spread", spread(times)},
                               {"count", times.size()}});
  }
  object["checked"] = measurement.check.has_value();
  object["passed"] = measurement.passed();
  if (measurement.check) {
    object["failure"] = measurement.check->failure;
    object["max_rel_err"] = measurement.check->worst_rel_err;
    object["max_lse_err"] = measurement.check->worst_lse_err;
  }
  fmt::print("{}\n", object.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

int run_run(const RunOptions& options) {
  const PlanOptions planning = resolve_planning(kVerb, options.planning);
  const check::CacheLayout layout = parse_layout(kVerb, options.measure.layout);
  const std::unique_ptr<TimedDevice> device =
      open_device(kVerb, options.measure.device, options.measure.num_threads);
  const DeviceProfile profile = load_profile(kVerb, options.batch.profile);
  Step step = resolve_step(kVerb, options.batch);
  const std::unique_ptr<MeasuredStep> measured = device->make_step(kVerb, step, layout);
  const PlanReport report =
      make_plan_report(step, planning, device->adapt_profile(profile, step.shape));
  validate_plan(report.plan.data(), report.plan.size_bytes(), step.forest);
  throw_if_interrupted();
  const Measurement measurement = measure(*device, *measured, report.plan, options.measure);
  if (!options.trace.empty()) {
    OutputFile file(kVerb, "--trace", options.trace);
    file.write(measured->trace_json());
    file.commit();
  }
  if (options.json) {
    print_json(report, measurement, *device, options);
  } else {
    print_text(report, measurement, *device, options);
  }
  return measurement.passed() ? kOk : kCheckFailed;
}

}  // namespace

void add_run_command(CLI::App& app, Invocation& invocation) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* command =
      app.add_subcommand(kVerb, "Run one decode step on random data: timed, and checked");
  add_batch_options(*command, options->batch);
  add_planning_options(*command, options->planning);
  add_measure_options(*command, options->measure);
  command->add_flag("--json", options->json, "Print as JSON instead");
  command->add_option("--trace", options->trace,
                      "Write the kernel's timeline as a Chrome trace (CAPILLARY_TRACE builds)");
  command->callback([&invocation, options] {
    invocation.verb = kVerb;
    invocation.run = [options] { return run_run(*options); };
  });
}

}  // namespace capillary::cli
