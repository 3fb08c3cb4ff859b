// SPDX-License-Identifier: MIT
// `capillary generate`: writes a trace of one of the generators (workload/generate.h).
#include <cstdio>
#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "cli/commands.h"
#include "cli/common.h"
#include "fmt/format.h"
#include "workload/generate.h"

namespace capillary::cli {
namespace {

constexpr const char* kVerb = "generate";

struct GenerateCommand {
  std::string kind;
  std::string out = "-";
  GeneratorOptions options;
};

std::string kind_names() {
  std::string names;
  for (const TraceKindName& kind : trace_kinds()) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", kind.name);
  }
  return names;
}

TraceKind parse_kind(const std::string& text) {
  for (const TraceKindName& kind : trace_kinds()) {
    if (text == kind.name) return kind.kind;
  }
  throw UsageError(five_parts(kVerb, "kind", fmt::format("is '{}'", text),
                              "be one of " + kind_names(), "see capillary generate --help"));
}

int run_command(GenerateCommand command) {
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
  CLI::App* verb = app.add_subcommand(kVerb, "Write a trace of a kind that public ones lack");
  verb->footer(kinds);
  verb->add_option("kind", command->kind, "One of the kinds below")->required();
  verb->add_option("--out,-o", command->out, "File to write (- is standard output)")
      ->capture_default_str();
  verb->add_option("--requests", command->options.num_requests, "Requests to make")
      ->check(CLI::Range(1, 10000000))
      ->capture_default_str();
  verb->add_option("--seed", command->options.seed, "The same seed gives the same trace")
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
