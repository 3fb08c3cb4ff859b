// SPDX-License-Identifier: MIT
// What every verb shares: exit codes, interruption, output files that are whole or absent, device profiles,
// aligned tables. Verbs throw capillary::Error (or UsageError, Interrupted below);
// main turns what they throw into one line on standard error and an exit code.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "capillary/device_profile.h"
#include "capillary/error.h"
#include "capillary/plan.h"
#include "capillary/profile_file.h"
#include "capillary/tensor_view.h"
#include "workload/words.h"
#include "workload/workload.h"

namespace capillary::cli {

enum ExitCode : int {
  kOk = 0,
  kCheckFailed = 1,  // also: a bug in Capillary (InternalError)
  kBadUsage = 2,
  kBadInput = 3,
  kUnsupported = 4,
  kDeviceError = 5,
  kInterrupted = 130,
};

// The command line itself cannot be right: exit code 2, where bad content of a file is 3.
class UsageError : public InvalidArgument {
 public:
  using InvalidArgument::InvalidArgument;
};

class Interrupted : public std::runtime_error {
 public:
  Interrupted() : std::runtime_error("interrupted") {}
};

// The first SIGINT or SIGTERM only sets a flag, which long verbs poll to finish what they report; the second
// one kills. Verbs that never poll are stopped by the second.
void install_interrupt_handler();
bool interrupted();
void throw_if_interrupted();

int exit_code_of(const Error& error);

// A file that appears whole at commit() or not at all. The constructor already creates the temporary beside
// it, so an unwritable place is found before any work is done. "-" is standard output; an existing path that
// is no regular file (a pipe, /dev/null) is written directly.
class OutputFile {
 public:
  // option: the option's name, for the message.
  OutputFile(std::string_view verb, std::string_view option, std::string path);
  ~OutputFile();
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;
  OutputFile(const OutputFile&) = delete;

  void write(std::string_view text);
  void commit();
  const std::string& path() const { return path_; }

 private:
  [[noreturn]] void fail(const std::string& what) const;

  std::string verb_;
  std::string option_;
  std::string path_;
  std::string target_;     // path_ with symbolic links followed
  std::string temporary_;  // empty: written directly
  int fd_ = -1;
};

// Whole content of a file ("-": standard input); throws InvalidArgument naming verb, option and path.
std::string read_text_file(std::string_view verb, std::string_view option, const std::string& path);

// path if given (-: standard input), else the file that CAPILLARY_PROFILE names, else the user's own of the card in
// this machine, else the built-in profile (profile_file.h).
FoundProfile find_profile_here(std::string_view verb, const std::string& path);
DeviceProfile load_profile(std::string_view verb, const std::string& path);

// "auto", "flat", "shared-l2"; throws UsageError.
Mode parse_mode(std::string_view verb, std::string_view text);
// "bfloat16"/"bf16", "float16"/"fp16", "float32"/"fp32"; throws UsageError.
DType parse_dtype(std::string_view verb, std::string_view text);

// "32/8"; throws UsageError.
Heads parse_heads_option(std::string_view verb, std::string_view text);

// * any run of characters, ? any one.
bool glob_match(std::string_view pattern, std::string_view text);

bool is_terminal(int fd);

// Commit of the sources this binary was built from, "-dirty" behind it when they were changed; "unknown" when
// they were no git checkout.
const char* build_commit();

// Columns padded to their widest cell; the first to the left, numbers to the right.
class TextTable {
 public:
  explicit TextTable(std::vector<std::string> header);
  void add_row(std::vector<std::string> cells);
  std::string str(std::string_view indent = "") const;
  std::string markdown() const;
  size_t num_rows() const { return rows_.size() - 1; }

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace capillary::cli
