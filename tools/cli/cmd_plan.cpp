// SPDX-License-Identifier: MIT
// `capillary plan`: plans one batch and explains the plan as text, JSON or a picture. Nothing is executed; the
// plan is proved (validate_plan) before anything is said about it.
#include <cstdio>
#include <memory>
#include <optional>

#include "CLI/CLI.hpp"
#include "cli/batch_options.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "cli/plan_html.h"
#include "cli/plan_json.h"
#include "cli/plan_report.h"
#include "cli/plan_text.h"
#include "fmt/format.h"

namespace capillary::cli {
namespace {

constexpr const char* kVerb = "plan";

struct PlanCommandOptions {
  BatchOptions batch;
  PlanningOptions planning;
  bool json = false;
  std::string html;
};

int run_plan(const PlanCommandOptions& options) {
  refuse_same_file(kVerb, {{"--file", options.batch.file},
                           {"--block-table", options.batch.block_table},
                           {"--html", options.html}});
  std::optional<OutputFile> html;
  if (!options.html.empty()) html.emplace(kVerb, "--html", options.html);
  if (options.json && options.html == "-") {
    throw UsageError(five_parts(kVerb, "--html -", "is given with --json",
                                "leave standard output to one of them", "give --html a file name"));
  }
  const PlanOptions planning = resolve_planning(kVerb, options.planning);
  const DeviceProfile profile = load_profile(kVerb, options.batch.profile);
  const Step step = resolve_step(kVerb, options.batch);
  const PlanReport report = make_plan_report(step, planning, profile);
  validate_plan(report.plan.data(), report.plan.size_bytes(), step.forest);
  throw_if_interrupted();

  if (html) {
    html->write(plan_html(report));
    html->commit();
  }
  if (options.json) {
    fmt::print("{}", plan_json(report));
  } else if (options.html != "-") {
    fmt::print("{}", plan_text(report));
    if (html) fmt::print("{:<11}{}\n", "picture", html->path());
  }
  return kOk;
}

}  // namespace

void add_plan_command(CLI::App& app, Invocation& invocation) {
  auto options = std::make_shared<PlanCommandOptions>();
  CLI::App* command = app.add_subcommand(
      kVerb, "Plan one batch: which requests are grouped, how many CTAs run them, and why");
  add_batch_options(*command, options->batch);
  add_planning_options(*command, options->planning);
  command->add_flag("--json", options->json, "Print everything as JSON instead")->group("Output");
  command
      ->add_option("--html", options->html,
                   "Draw the plan as one HTML page (- for standard output)")
      ->group("Output");
  command->callback([&invocation, options] {
    invocation.verb = kVerb;
    invocation.run = [options] { return run_plan(*options); };
  });
}

}  // namespace capillary::cli
