// SPDX-License-Identifier: MIT
// Running the built command (process.h).
#include "cli/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

extern char** environ;

namespace capillary::test {
namespace {

namespace fs = std::filesystem;

std::string read_file(const fs::path& path) {
  std::stringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

fs::path temporary_folder(const char* pattern) {
  std::string path = fs::temp_directory_path() / pattern;
  if (::mkdtemp(path.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
  return path;
}

std::string binary() {
  const char* given = std::getenv("CAPILLARY_CLI");
  return given != nullptr ? given : CAPILLARY_CLI_DEFAULT;
}

}  // namespace

Workplace::Workplace()
    : folder_(temporary_folder("capillary-cli-XXXXXX")),
      logs_(temporary_folder("capillary-log-XXXXXX")) {}

Workplace::~Workplace() {
  fs::remove_all(folder_);
  fs::remove_all(logs_);
}

void Workplace::put(const std::string& name, const std::string& text) const {
  std::ofstream(folder_ / name, std::ios::binary) << text;
}

std::string Workplace::get(const std::string& name) const {
  return read_file(folder_ / name);
}

std::vector<std::string> Workplace::names() const {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_)) {
    names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

Workplace::Running Workplace::start(const std::vector<std::string>& arguments,
                                    const std::string& input,
                                    const std::string& stderr_path) const {
  Running running;
  running.out_file = stdout_path.empty() ? (logs_ / "out").string() : stdout_path;
  running.err_file = stderr_path.empty() ? (logs_ / "err").string() : stderr_path;
  const std::string in_file = (logs_ / "in").string();
  std::ofstream(in_file, std::ios::binary) << input;
  // Emptied before the start: what lies there from then on is this command's.
  if (stdout_path.empty()) std::ofstream(running.out_file).close();

  // Everything that allocates happens before fork.
  std::vector<std::string> words = {binary()};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    const std::string name = text.substr(0, text.find('='));
    const bool own = name == "CAPILLARY_PROFILE" || name == "XDG_CACHE_HOME";
    if (!own && environment.count(name) == 0) variables.push_back(text);
  }
  if (environment.count("XDG_CACHE_HOME") == 0)
    variables.push_back("XDG_CACHE_HOME=" + (logs_ / "cache").string());
  for (const auto& [name, value] : environment) variables.push_back(name + "=" + value);
  std::vector<char*> envp;
  for (std::string& variable : variables) envp.push_back(variable.data());
  envp.push_back(nullptr);
  const std::string folder = folder_;

  running.pid = ::fork();
  if (running.pid < 0) throw std::runtime_error("fork failed");
  if (running.pid == 0) {
    const int in = ::open(in_file.c_str(), O_RDONLY);
    const int out = ::open(running.out_file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    const int err = ::open(running.err_file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOCTTY, 0600);
    if (in < 0 || out < 0 || err < 0 || ::dup2(in, 0) < 0 || ::dup2(out, 1) < 0 ||
        ::dup2(err, 2) < 0 || ::chdir(folder.c_str()) != 0) {
      ::_exit(126);
    }
    ::execve(argv[0], argv.data(), envp.data());
    ::_exit(127);
  }
  return running;
}

bool Workplace::finished(Running* running) {
  if (!running->ended) {
    running->ended = ::waitpid(running->pid, &running->status, WNOHANG) == running->pid;
  }
  return running->ended;
}

void Workplace::pause_briefly() {
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

Outcome Workplace::outcome_of(Running* running) {
  if (!running->ended) ::waitpid(running->pid, &running->status, 0);
  running->ended = true;
  Outcome outcome;
  outcome.exit_code =
      WIFEXITED(running->status) ? WEXITSTATUS(running->status) : 128 + WTERMSIG(running->status);
  if (fs::is_regular_file(running->out_file)) outcome.out = read_file(running->out_file);
  if (fs::is_regular_file(running->err_file)) outcome.err = read_file(running->err_file);
  return outcome;
}

Outcome Workplace::stop(Running* running, int signal) {
  if (!running->ended) ::kill(running->pid, signal);
  return outcome_of(running);
}

Outcome Workplace::run(const std::vector<std::string>& arguments, const std::string& input) const {
  Running running = start(arguments, input);
  return outcome_of(&running);
}

Outcome Workplace::run_on_terminal(const std::vector<std::string>& arguments) const {
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY);
  if (terminal < 0 || ::grantpt(terminal) != 0 || ::unlockpt(terminal) != 0)
    throw std::runtime_error("no pseudo-terminal");
  const std::string name = ::ptsname(terminal);
  // Open here too: a terminal that nobody has open any more gives nothing back.
  const int held = ::open(name.c_str(), O_RDWR | O_NOCTTY);
  if (held < 0) throw std::runtime_error("cannot open " + name);
  Running running = start(arguments, "", name);
  std::string shown;
  // A terminal holds few bytes, so it is read while the command runs; once more after its end, for the last of them.
  for (bool ended = false;;) {
    ended = ended || finished(&running);
    ::pollfd ready{terminal, POLLIN, 0};
    if (::poll(&ready, 1, ended ? 0 : 5) <= 0) {
      if (ended) break;
      continue;
    }
    char bytes[4096];
    const ssize_t count = ::read(terminal, bytes, sizeof bytes);
    if (count <= 0) break;
    shown.append(bytes, static_cast<size_t>(count));
  }
  ::close(held);
  ::close(terminal);
  Outcome outcome = outcome_of(&running);
  outcome.err = shown;
  return outcome;
}

}  // namespace capillary::test
