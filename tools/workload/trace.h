// SPDX-License-Identifier: MIT
// Serving traces: JSON lines in Mooncake's form, one request a line,
//   {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 2353, ...]}
// with milliseconds, tokens, and one id for every block of the prompt: equal ids are equal content.
// A block is 512 tokens unless the line has a "block_size" of its own; other fields are ignored.
//
// A trace says nothing about the tokens themselves. TokenIds makes them up so that two tokens are equal
// exactly when the trace says that they are: (hash id, offset in block) for a prompt, (request, position) for
// what a request generates. No hashing is involved, so nothing is shared by accident.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace capillary {

inline constexpr int32_t kDefaultTraceBlock = 512;
// Longest prompt or output that a line may claim; a guard against a mistyped line eating all memory.
inline constexpr int32_t kMaxTraceLength = 1 << 24;

struct TraceRequest {
  double arrival_ms = 0;
  int32_t input_length = 0;   // tokens of the prompt, at least 1
  int32_t output_length = 0;  // tokens generated
  int32_t block_size = kDefaultTraceBlock;
  std::vector<int64_t> hash_ids;  // ceil(input_length / block_size) of them
};

struct Trace {
  std::string source;                  // where it was read from, for messages and reports
  std::vector<TraceRequest> requests;  // by arrival; equal arrivals in the order of the file
  int64_t num_bad_lines = 0;           // skipped
  std::string first_bad_line;          // what was wrong with the first of them
};

struct TraceOptions {
  bool skip_bad_lines = false;
  int64_t limit = std::numeric_limits<int64_t>::max();  // requests to read
};

// Throws InvalidArgument that names the line and what is wrong with it, or that there is no request at all.
Trace read_trace(std::istream& in, std::string_view source, const TraceOptions& options = {});
// path "-": standard input. Also throws when the file cannot be opened or read.
Trace read_trace_file(const std::string& path, const TraceOptions& options = {});

// "block_size" is written only where it is not 512. Times are rounded to whole milliseconds.
std::string trace_line(const TraceRequest& request);

class TokenIds {
 public:
  // Throws InvalidArgument when the trace holds more distinct tokens than there are int32 ids.
  explicit TokenIds(const Trace& trace);

  // Appends the prompt of a request; ids are >= 0.
  void append_prompt(size_t request, std::vector<int32_t>& tokens) const;
  // The token generated at a position (0: the first); ids are < 0.
  int32_t generated(size_t request, int32_t position) const {
    return static_cast<int32_t>(-1 - (first_generated_[request] + position));
  }

 private:
  struct Prompt {
    size_t first_block;  // into block_begin_
    int32_t length;
    int32_t block_size;
  };
  std::vector<Prompt> prompts_;
  std::vector<int32_t> block_begin_;  // first token id of each block
  std::vector<int64_t> first_generated_;
};

}  // namespace capillary
