// SPDX-License-Identifier: MIT
// Implementation of what every verb shares (common.h).
#include "cli/common.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "capillary_commit.h"
#include "cli/device.h"
#include "fmt/format.h"
#include "profile/profile_json.h"

namespace capillary::cli {
namespace {

volatile std::sig_atomic_t interrupt_flag = 0;

void on_interrupt(int /*signal*/) {
  interrupt_flag = 1;
}

std::string errno_text(int error) {
  return std::strerror(error);
}

// The file a chain of symbolic links ends at, so that commit replaces the file and not the link.
std::string follow_links(const std::string& path) {
  char* resolved = ::realpath(path.c_str(), nullptr);
  if (resolved == nullptr) return path;
  std::string result(resolved);
  std::free(resolved);
  return result;
}

// The mode a plainly created file would get: what open(..., 0666) leaves after the umask.
mode_t default_file_mode() {
  const mode_t mask = ::umask(0);
  ::umask(mask);
  return 0666 & ~mask;
}

}  // namespace

void install_interrupt_handler() {
  struct sigaction action = {};
  action.sa_handler = on_interrupt;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool interrupted() {
  return interrupt_flag != 0;
}

void throw_if_interrupted() {
  if (interrupted()) throw Interrupted();
}

int exit_code_of(const Error& error) {
  if (dynamic_cast<const UsageError*>(&error) != nullptr) return kBadUsage;
  switch (error.code()) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kWorkspaceTooSmall:
    case ErrorCode::kOutOfPages:
      return kBadInput;
    case ErrorCode::kUnsupported:
      return kUnsupported;
    case ErrorCode::kDevice:
      return kDeviceError;
    case ErrorCode::kInternal:
      return kCheckFailed;
  }
  return kCheckFailed;
}

OutputFile::OutputFile(std::string_view verb, std::string_view option, std::string path)
    : verb_(verb), option_(option), path_(std::move(path)) {
  if (path_.empty()) {
    throw UsageError(five_parts(verb_, option_, "is empty", "name a file, or - for standard output",
                                "give a path"));
  }
  if (path_ == "-") {
    fd_ = STDOUT_FILENO;
    return;
  }
  target_ = follow_links(path_);
  struct stat info = {};
  const bool exists = ::stat(target_.c_str(), &info) == 0;
  if (exists && S_ISDIR(info.st_mode)) fail("is a directory");
  if (exists && !S_ISREG(info.st_mode)) {
    fd_ = ::open(target_.c_str(), O_WRONLY | O_CLOEXEC);
    if (fd_ < 0) fail("cannot be opened: " + errno_text(errno));
    return;
  }
  // Renaming over a read-only file would succeed where the directory is writable; respect the file's wish.
  if (exists && ::access(target_.c_str(), W_OK) != 0) {
    fail("cannot be written: " + errno_text(errno));
  }
  temporary_ = target_ + ".XXXXXX";
  fd_ = ::mkostemp(temporary_.data(), O_CLOEXEC);
  if (fd_ < 0) {
    const int error = errno;
    temporary_.clear();
    fail("cannot be created: " + errno_text(error));
  }
  if (::fchmod(fd_, exists ? (info.st_mode & 07777) : default_file_mode()) != 0) {
    const int error = errno;
    ::unlink(temporary_.c_str());
    ::close(fd_);
    fd_ = -1;
    temporary_.clear();
    fail("cannot be given its permissions: " + errno_text(error));
  }
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : verb_(std::move(other.verb_)),
      option_(std::move(other.option_)),
      path_(std::move(other.path_)),
      target_(std::move(other.target_)),
      temporary_(std::move(other.temporary_)),
      fd_(other.fd_) {
  other.fd_ = -1;
  other.temporary_.clear();
}

OutputFile::~OutputFile() {
  if (fd_ >= 0 && fd_ != STDOUT_FILENO) ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void OutputFile::fail(const std::string& what) const {
  throw InvalidArgument(five_parts(verb_, fmt::format("{} '{}'", option_, path_), what,
                                   "be a place that can be written",
                                   "choose another path or free the place"));
}

void OutputFile::write(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd_, text.data(), text.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      fail("could not be written: " + errno_text(errno));
    }
    text.remove_prefix(static_cast<size_t>(written));
  }
}

void OutputFile::commit() {
  if (fd_ < 0 || fd_ == STDOUT_FILENO) return;
  const int fd = fd_;
  fd_ = -1;
  // close reports what some file systems (quota, network) only find then.
  if (::close(fd) != 0) fail("could not be written: " + errno_text(errno));
  if (temporary_.empty()) return;
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) {
    fail("could not be put in place: " + errno_text(errno));
  }
  temporary_.clear();
}

void refuse_same_file(std::string_view verb, std::initializer_list<OptionPath> files) {
  namespace fs = std::filesystem;
  std::vector<std::pair<fs::path, OptionPath>> seen;
  for (const OptionPath& file : files) {
    if (file.path.empty() || file.path == "-") continue;
    std::error_code error;
    const fs::path place = fs::weakly_canonical(file.path, error);
    if (error || (fs::exists(place, error) && !fs::is_regular_file(place, error))) continue;
    for (const auto& [other_place, other] : seen) {
      if (place != other_place) continue;
      throw UsageError(five_parts(verb, file.option,
                                  fmt::format("is '{}', as {} is", file.path, other.option),
                                  "be another file", "give each a path of its own"));
    }
    seen.emplace_back(place, file);
  }
}

std::string read_text_file(std::string_view verb, std::string_view option,
                           const std::string& path) {
  const auto fail = [&](const std::string& what) {
    throw InvalidArgument(five_parts(verb, fmt::format("{} '{}'", option, path), what,
                                     "be a readable file", "check the path and its permissions"));
  };
  int fd = STDIN_FILENO;
  if (path != "-") {
    fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) fail("cannot be opened: " + errno_text(errno));
  }
  std::string text;
  std::array<char, 1 << 16> buffer;
  int error = 0;
  while (true) {
    const ssize_t count = ::read(fd, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR && !interrupted()) continue;
    if (count < 0) error = errno;
    if (count <= 0) break;
    text.append(buffer.data(), static_cast<size_t>(count));
  }
  if (fd != STDIN_FILENO) ::close(fd);
  throw_if_interrupted();
  if (error != 0) fail("cannot be read: " + errno_text(error));
  return text;
}

FoundProfile find_profile_here(std::string_view verb, const std::string& path) {
  if (path == "-")
    return {profile_from_json(read_text_file(verb, "--profile", path), "standard input"),
            ProfileOrigin::kGiven, path, ""};
  // The driver takes a while to start, so the card is looked at only if there may be a profile of it; a folder that
  // cannot be searched may have one.
  std::error_code unsearchable;
  const bool may_have_cache =
      std::filesystem::is_directory(profile_cache_folder(), unsearchable) || unsearchable;
  return find_profile(path, may_have_cache ? card_here() : CardIdentity{});
}

DeviceProfile load_profile(std::string_view verb, const std::string& path) {
  const FoundProfile found = find_profile_here(verb, path);
  if (!found.warning.empty())
    fmt::print(stderr, "capillary {}: warning: {}; planning with the built-in profile\n", verb,
               found.warning);
  return found.profile;
}

Mode parse_mode(std::string_view verb, std::string_view text) {
  for (const Mode mode : {Mode::kAuto, Mode::kFlat, Mode::kSharedL2}) {
    if (text == mode_name(mode)) return mode;
  }
  throw UsageError(five_parts(verb, "--mode", fmt::format("is '{}'", text),
                              "be auto, flat or shared-l2", "give one of these"));
}

DType parse_dtype(std::string_view verb, std::string_view text) {
  if (text == "bfloat16" || text == "bf16") return DType::kBFloat16;
  if (text == "float16" || text == "fp16" || text == "half") return DType::kFloat16;
  if (text == "float32" || text == "fp32" || text == "float") return DType::kFloat32;
  throw UsageError(five_parts(verb, "--dtype", fmt::format("is '{}'", text),
                              "be bfloat16 (bf16), float16 (fp16) or, on the CPU, float32 (fp32)",
                              "give one of these"));
}

Heads parse_heads_option(std::string_view verb, std::string_view text) {
  const std::optional<Heads> heads = parse_heads(text);
  if (!heads) {
    throw UsageError(five_parts(verb, "--heads", fmt::format("is '{}'", text),
                                "be Q/KV, two positive counts, Q a multiple of KV",
                                "give for example 32/8"));
  }
  return *heads;
}

bool glob_match(std::string_view pattern, std::string_view text) {
  size_t p = 0;
  size_t t = 0;
  size_t star = std::string_view::npos;
  size_t star_text = 0;
  while (t < text.size()) {
    if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t]) && pattern[p] != '*') {
      ++p;
      ++t;
    } else if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      star_text = t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++star_text;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

const char* build_commit() {
  return CAPILLARY_COMMIT;
}

bool is_terminal(int fd) {
  return ::isatty(fd) == 1;
}

TextTable::TextTable(std::vector<std::string> header) {
  rows_.push_back(std::move(header));
}

void TextTable::add_row(std::vector<std::string> cells) {
  cells.resize(rows_.front().size());
  rows_.push_back(std::move(cells));
}

std::string TextTable::str(std::string_view indent) const {
  const size_t num_columns = rows_.front().size();
  std::vector<size_t> widths(num_columns, 0);
  std::vector<bool> is_number(num_columns, rows_.size() > 1);
  for (size_t row = 0; row < rows_.size(); ++row) {
    for (size_t column = 0; column < num_columns; ++column) {
      const std::string& cell = rows_[row][column];
      widths[column] = std::max(widths[column], cell.size());
      const bool starts_as_number =
          cell.empty() || cell == "-" || std::strchr("0123456789.+-", cell.front()) != nullptr;
      if (column == 0 || (row > 0 && !starts_as_number)) is_number[column] = false;
    }
  }
  std::string text;
  for (const std::vector<std::string>& row : rows_) {
    std::string line(indent);
    for (size_t column = 0; column < num_columns; ++column) {
      if (column > 0) line += "  ";
      line += is_number[column] ? fmt::format("{:>{}}", row[column], widths[column])
                                : fmt::format("{:<{}}", row[column], widths[column]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string TextTable::markdown() const {
  std::string text;
  for (size_t row = 0; row < rows_.size(); ++row) {
    std::string line = "|";
    for (const std::string& cell : rows_[row]) line += " " + cell + " |";
    text += line + "\n";
    if (row > 0) continue;
    text += "|";
    for (size_t column = 0; column < rows_[row].size(); ++column) text += "---|";
    text += "\n";
  }
  return text;
}

}  // namespace capillary::cli
