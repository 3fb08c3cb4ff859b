// SPDX-License-Identifier: MIT
// The verbs of the `capillary` command. add_X_command declares a verb's options on the CLI11 app; parsing
// then leaves the verb's work in the Invocation, which main runs once, so that errors become exit codes in
// one place and no verb starts work before the whole command line is known to be good.
#pragma once

#include <functional>
#include <string>

namespace CLI {
class App;
}

namespace capillary::cli {

struct Invocation {
  std::string verb;
  std::function<int()> run;  // returns an exit code (common.h); throws capillary::Error
};

void add_info_command(CLI::App& app, Invocation& invocation);
void add_plan_command(CLI::App& app, Invocation& invocation);
void add_run_command(CLI::App& app, Invocation& invocation);
void add_check_command(CLI::App& app, Invocation& invocation);
void add_bench_command(CLI::App& app, Invocation& invocation);
void add_replay_command(CLI::App& app, Invocation& invocation);
void add_generate_command(CLI::App& app, Invocation& invocation);
void add_calibrate_command(CLI::App& app, Invocation& invocation);

}  // namespace capillary::cli
