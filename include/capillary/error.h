// SPDX-License-Identifier: MIT
// The one error hierarchy. Library code never prints, exits or aborts: it throws one of these.
// A message has five parts: function, argument, what came, what was expected, what to do.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace capillary {

enum class ErrorCode : int {
  kInvalidArgument = 1,  // a value the caller passed cannot be right
  kUnsupported,          // a legal request that this build or device cannot serve
  kWorkspaceTooSmall,    // carries needed and given bytes
  kOutOfPages,           // the page pool is exhausted
  kDevice,               // the CUDA runtime reported an error
  kInternal,             // a bug in Capillary
};

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

class InvalidArgument : public Error {
 public:
  explicit InvalidArgument(const std::string& message)
      : Error(ErrorCode::kInvalidArgument, message) {}
};

// A combination of features (dtype, head_dim, ...) that is not built; lists what is.
class UnsupportedConfig : public Error {
 public:
  explicit UnsupportedConfig(const std::string& message)
      : Error(ErrorCode::kUnsupported, message) {}
};

// A device of another architecture, or none; names what was found and what is needed.
class UnsupportedArch : public Error {
 public:
  UnsupportedArch(const std::string& message, std::string found, std::string needed)
      : Error(ErrorCode::kUnsupported, message),
        found_(std::move(found)),
        needed_(std::move(needed)) {}
  const std::string& found() const noexcept { return found_; }
  const std::string& needed() const noexcept { return needed_; }

 private:
  std::string found_;
  std::string needed_;
};

class WorkspaceTooSmall : public Error {
 public:
  WorkspaceTooSmall(const std::string& message, int64_t needed_bytes, int64_t given_bytes)
      : Error(ErrorCode::kWorkspaceTooSmall, message),
        needed_bytes_(needed_bytes),
        given_bytes_(given_bytes) {}
  int64_t needed_bytes() const noexcept { return needed_bytes_; }
  int64_t given_bytes() const noexcept { return given_bytes_; }

 private:
  int64_t needed_bytes_;
  int64_t given_bytes_;
};

class OutOfPages : public Error {
 public:
  explicit OutOfPages(const std::string& message) : Error(ErrorCode::kOutOfPages, message) {}
};

class DeviceError : public Error {
 public:
  explicit DeviceError(const std::string& message) : Error(ErrorCode::kDevice, message) {}
};

class InternalError : public Error {
 public:
  explicit InternalError(const std::string& message) : Error(ErrorCode::kInternal, message) {}
};

// "function: argument came; must be expected; remedy" - the one way messages are put together.
// Example: five_parts("decode", "seq_lens", "has length 3", "have length 4 (num_requests)",
//                     "pass one length for every block table row").
std::string five_parts(std::string_view function, std::string_view argument, std::string_view came,
                       std::string_view expected, std::string_view remedy);

}  // namespace capillary
