// SPDX-License-Identifier: MIT
// Runs the built `capillary` as a user would, in a folder of its own, and keeps everything it gave back.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace capillary::test {

struct Outcome {
  int exit_code = -1;  // 128 + signal when a signal ended it
  std::string out;
  std::string err;
};

class Workplace {
 public:
  Workplace();
  ~Workplace();
  Workplace(const Workplace&) = delete;
  Workplace& operator=(const Workplace&) = delete;

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  void put(const std::string& name, const std::string& text) const;
  std::string get(const std::string& name) const;
  bool has(const std::string& name) const { return std::filesystem::exists(folder_ / name); }
  // Names in the folder, sorted: shows what was left behind.
  std::vector<std::string> names() const;

  // Environment of the commands below, over the test's own. CAPILLARY_PROFILE starts unset, the cache empty.
  std::map<std::string, std::string> environment;
  // Where standard output goes instead of into the outcome.
  std::string stdout_path;

  // Runs to the end; names of files are relative to the folder.
  Outcome run(const std::vector<std::string>& arguments, const std::string& input = "") const;

  // The same with standard error on a pseudo-terminal; what came there, as a terminal got it ("\r\n"), is `err`.
  Outcome run_on_terminal(const std::vector<std::string>& arguments) const;

  // Runs until `ready` is true of what it has printed so far, sends the signal, waits for the end.
  template <class Ready>
  Outcome run_and_signal(const std::vector<std::string>& arguments, int signal,
                         const Ready& ready) {
    Running running = start(arguments, "");
    while (!ready(running) && !finished(&running)) pause_briefly();
    return stop(&running, signal);
  }

  struct Running {
    pid_t pid = -1;
    std::string out_file, err_file;
    bool ended = false;
    int status = 0;
  };

 private:
  Running start(const std::vector<std::string>& arguments, const std::string& input,
                const std::string& stderr_path = "") const;
  static bool finished(Running* running);
  static void pause_briefly();
  static Outcome stop(Running* running, int signal);
  static Outcome outcome_of(Running* running);

  std::filesystem::path folder_;
  // Outputs of commands lie apart, so that names() shows only what the commands made.
  std::filesystem::path logs_;
};

}  // namespace capillary::test
