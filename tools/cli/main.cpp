// SPDX-License-Identifier: MIT
// The `capillary` command: parses the command line, runs one verb, and turns whatever it throws into one line
// on standard error and an exit code (docs/cli.md lists them).
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <system_error>

#include "CLI/CLI.hpp"
#include "capillary/error.h"
#include "capillary/version.h"
#include "cli/commands.h"
#include "cli/common.h"

namespace capillary::cli {
namespace {

int report(const std::string& verb, const std::string& message, int exit_code) {
  std::string line = verb.empty() ? "capillary: " : "capillary " + verb + ": ";
  for (const char character : message) line += character == '\n' ? ' ' : character;
  std::fprintf(stderr, "%s\n", line.c_str());
  return exit_code;
}

// The verb as typed, for errors that come before CLI11 knows it.
std::string typed_verb(const CLI::App& app, int argc, char** argv) {
  const auto verbs = app.get_subcommands([](const CLI::App* /*verb*/) { return true; });
  for (int i = 1; i < argc; ++i) {
    for (const CLI::App* verb : verbs) {
      if (verb->get_name() == argv[i]) return argv[i];
    }
  }
  return "";
}

int run_verb(const Invocation& invocation) {
  const std::string& verb = invocation.verb;
  // Errors name the verb already where a verb raised them; the prefix is put there once.
  const auto without_verb = [&](std::string message) {
    return message.rfind(verb + ": ", 0) == 0 ? message.substr(verb.size() + 2) : message;
  };
  try {
    const int code = invocation.run();
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
      return report(verb,
                    "standard output could not be written; must be open and have room; "
                    "free the place or write elsewhere",
                    kBadInput);
    }
    return code;
  } catch (const Interrupted&) {
    return report(verb, "interrupted; nothing is half written", kInterrupted);
  } catch (const InternalError& error) {
    return report(
        verb,
        without_verb(error.what()) + std::string(" (this is a bug in capillary, please report it)"),
        kCheckFailed);
  } catch (const Error& error) {
    return report(verb, without_verb(error.what()), exit_code_of(error));
  } catch (const std::system_error& error) {
    return report(verb,
                  std::string("standard output could not be written: ") + error.what() +
                      "; must be open and have room; free the place or write elsewhere",
                  kBadInput);
  } catch (const std::bad_alloc&) {
    return report(verb, "memory is exhausted; must fit this machine; choose a smaller batch",
                  kBadInput);
  } catch (const std::exception& error) {
    return report(verb,
                  std::string(error.what()) + " (this is a bug in capillary, please report it)",
                  kCheckFailed);
  }
}

int main_of(int argc, char** argv) {
  install_interrupt_handler();
  CLI::App app("Prefix-sharing decode attention for NVIDIA Hopper, with a CPU backend everywhere.",
               "capillary");
  app.set_version_flag("--version", "capillary " CAPILLARY_VERSION_STRING);
  app.require_subcommand(1);
  app.footer(
      "`capillary VERB --help` tells a verb's options. Exit codes: 0 ok, 1 a check failed,\n"
      "2 bad usage, 3 bad input, 4 unsupported, 5 device error, 130 interrupted.");
  Invocation invocation;
  add_info_command(app, invocation);
  add_plan_command(app, invocation);
  add_run_command(app, invocation);
  add_check_command(app, invocation);
  add_bench_command(app, invocation);
  add_replay_command(app, invocation);
  add_generate_command(app, invocation);
  add_calibrate_command(app, invocation);

  if (argc <= 1) {
    std::fprintf(stderr, "%s", app.help().c_str());
    return kBadUsage;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {  // --help, --version
    app.exit(success);
    return kOk;
  } catch (const CLI::ParseError& error) {
    const std::string verb = typed_verb(app, argc, argv);
    return report(verb,
                  std::string(error.what()) + "; see capillary " +
                      (verb.empty() ? "--help" : verb + " --help"),
                  kBadUsage);
  }
  return run_verb(invocation);
}

}  // namespace
}  // namespace capillary::cli

int main(int argc, char** argv) {
  try {
    return capillary::cli::main_of(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "capillary: %s\n", error.what());
    return capillary::cli::kCheckFailed;
  }
}
