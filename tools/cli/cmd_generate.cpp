// SPDX-License-Identifier: MIT
// `capillary generate`: writes a trace of one of the generators (workload/generate.h), or a workload file of forests
// that nothing was tuned on (workload/held_out.h).
#include <cstdio>
#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "cli/commands.h"
#include "cli/common.h"
#include "fmt/format.h"
#include "workload/generate.h"
#include "workload/held_out.h"

namespace capillary::cli {
namespace {

constexpr const char* kVerb = "generate";
constexpr const char* kForests = "forests";

struct GenerateCommand {
  std::string kind;
  std::string out = "-";
  GeneratorOptions options;
  int32_t num_forests = HeldOutOptions{}.num_forests;
};

std::string kind_names() {
  std::string names;
  for (const TraceKindName& kind : trace_kinds()) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", kind.name);
  }
  return names + ", " + kForests;
}

TraceKind parse_kind(const std::string& text) {
  for (const TraceKindName& kind : trace_kinds()) {
    if (text == kind.name) return kind.kind;
  }
  throw UsageError(five_parts(kVerb, "kind", fmt::format("is '{}'", text),
                              "be one of " + kind_names(), "see capillary generate --help"));
}

int write_forests(const GenerateCommand& command) {
  OutputFile out(kVerb, "--out", command.out);
  const HeldOutOptions options = {command.num_forests, command.options.seed};
  out.write(workloads_to_json(
      held_out_forests(options),
      fmt::format(
          "capillary generate forests --forests {} --seed {}; nodes[i] nodes of tokens[i] "
          "tokens on level i, each longer or shorter by up to the part 'ragged'; child j of "
          "n on a level hangs under parent floor(j * parents / n)",
          options.num_forests, options.seed)));
  out.commit();
  return kOk;
}

int run_command(GenerateCommand command) {
  if (command.kind == kForests) return write_forests(command);
  command.options.kind = parse_kind(command.kind);
  OutputFile out(kVerb, "--out", command.out);
  const Trace trace = generate_trace(command.options);
  std::string text;
  for (const TraceRequest& request : trace.requests) {
    throw_if_interrupted();
    text += trace_line(request) + "\n";
    if (text.size() > (1u << 20)) {
      out.write(text);
      text.clear();
    }
  }
  out.write(text);
  out.commit();
  return kOk;
}

}  // namespace

void add_generate_command(CLI::App& app, Invocation& invocation) {
  auto command = std::make_shared<GenerateCommand>();
  std::string kinds = "Kinds of trace:";
  for (const TraceKindName& kind : trace_kinds()) {
    kinds += fmt::format("\n  {:<16}{}", kind.name, kind.help);
  }
  kinds += fmt::format("\nor\n  {:<16}{}", kForests,
                       "a workload file of random forests x heads, for bench");
  CLI::App* verb = app.add_subcommand(
      kVerb, "Write a trace of a kind that public ones lack, or forests for bench");
  verb->footer(kinds);
  verb->add_option("kind", command->kind, "One of the kinds below")->required();
  verb->add_option("--out,-o", command->out, "File to write (- is standard output)")
      ->capture_default_str();
  verb->add_option("--requests", command->options.num_requests, "Requests to make")
      ->check(CLI::Range(1, 10000000))
      ->capture_default_str();
  verb->add_option("--seed", command->options.seed, "The same seed gives the same trace")
      ->capture_default_str();
  verb->add_option("--forests", command->num_forests, "Forests to make, for the kind of that name")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  verb->add_option("--rate", command->options.requests_per_second, "Requests a second, on average")
      ->check(CLI::Range(1e-5, 1e8))
      ->capture_default_str();
  verb->add_option("--block-size", command->options.block_size,
                   "Tokens that one hash id stands for")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  verb->add_option("--scale", command->options.length_scale, "Multiply every length")
      ->check(CLI::Range(1e-6, 1000.0))
      ->capture_default_str();
  verb->callback([&invocation, command] {
    invocation.verb = kVerb;
    invocation.run = [command] { return run_command(*command); };
  });
}

}  // namespace capillary::cli
