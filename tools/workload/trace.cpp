// SPDX-License-Identifier: MIT
// Reading and writing traces, and the token ids they stand for (trace.h).
#include "workload/trace.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iostream>
#include <set>
#include <unordered_map>
#include <utility>

#include "capillary/error.h"
#include "fmt/format.h"
#include "profile/json_text.h"

namespace capillary {
namespace {

using nlohmann::json;

constexpr std::string_view kFunction = "read_trace";
constexpr std::string_view kSkipRemedy = "correct the line or skip such lines (--skip-bad-lines)";

// One line of the text, with its place for messages.
class Line {
 public:
  Line(std::string_view source, int64_t number)
      : place_(fmt::format("{} line {}", source, number)) {}

  [[noreturn]] void fail(std::string_view what, std::string_view came,
                         std::string_view expected) const {
    const std::string argument =
        what.empty() ? place_ : fmt::format("{}: field '{}'", place_, what);
    throw InvalidArgument(five_parts(kFunction, argument, came, expected, kSkipRemedy));
  }

  json parse(std::string_view text) const {
    std::set<std::string> keys;
    std::string twice;
    const auto watch = [&](int depth, json::parse_event_t event, json& parsed) {
      if (event == json::parse_event_t::key && depth == 1) {
        const auto& key = parsed.get_ref<const std::string&>();
        if (!keys.insert(key).second) twice = key;
      }
      return true;
    };
    json value;
    try {
      value = json::parse(text.begin(), text.end(), watch);
    } catch (const json::parse_error& error) {
      const bool cut = error.byte > text.size();
      fail("", cut ? "ends too early" : fmt::format("is not JSON at column {}", error.byte),
           "be one whole JSON object");
    } catch (const json::exception&) {
      fail("", "has a number that is out of range", "be one whole JSON object");
    }
    if (!value.is_object()) {
      fail("", fmt::format("is {}", json_excerpt(value)), "be one whole JSON object");
    }
    if (!twice.empty()) fail(twice, "is given twice", "be given once");
    return value;
  }

  const json& field(const json& object, const char* name) const {
    const auto found = object.find(name);
    if (found == object.end()) fail(name, "is missing", "be there");
    return *found;
  }

  int64_t integer(const json& value, std::string_view name, int64_t smallest,
                  int64_t largest) const {
    if (value.is_number_integer()) {
      const bool wraps =
          value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
      const auto number = value.get<int64_t>();
      if (!wraps && number >= smallest && number <= largest) return number;
    }
    fail(name, fmt::format("is {}", json_excerpt(value)),
         fmt::format("be an integer from {} to {}", smallest, largest));
  }

 private:
  std::string place_;
};

TraceRequest parse_request(const Line& line, std::string_view text) {
  const json object = line.parse(text);
  TraceRequest request;
  const json& timestamp = line.field(object, "timestamp");
  constexpr double kLatest = 1e15;  // some 30,000 years; keeps sums of times exact to a microsecond
  if (!timestamp.is_number() || !(timestamp.get<double>() >= 0) ||
      timestamp.get<double>() > kLatest) {
    line.fail("timestamp", fmt::format("is {}", json_excerpt(timestamp)),
              "be a number of milliseconds from 0 to 1e15");
  }
  request.arrival_ms = timestamp.get<double>();
  request.input_length = static_cast<int32_t>(
      line.integer(line.field(object, "input_length"), "input_length", 1, kMaxTraceLength));
  request.output_length = static_cast<int32_t>(
      line.integer(line.field(object, "output_length"), "output_length", 0, kMaxTraceLength));
  if (object.contains("block_size")) {
    request.block_size =
        static_cast<int32_t>(line.integer(object["block_size"], "block_size", 1, kMaxTraceLength));
  }

  const json& ids = line.field(object, "hash_ids");
  if (!ids.is_array()) {
    line.fail("hash_ids", fmt::format("is {}", json_excerpt(ids)), "be an array of integers");
  }
  const int64_t num_blocks =
      (int64_t{request.input_length} + request.block_size - 1) / request.block_size;
  if (static_cast<int64_t>(ids.size()) != num_blocks) {
    line.fail("hash_ids", fmt::format("has length {}", ids.size()),
              fmt::format("have length {} ({} tokens in blocks of {})", num_blocks,
                          request.input_length, request.block_size));
  }
  request.hash_ids.reserve(ids.size());
  for (const json& id : ids) {
    request.hash_ids.push_back(
        line.integer(id, "hash_ids", 0, std::numeric_limits<int64_t>::max()));
  }
  return request;
}

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r\v\f") == std::string_view::npos;
}

}  // namespace

Trace read_trace(std::istream& in, std::string_view source, const TraceOptions& options) {
  Trace trace;
  trace.source = source;
  std::string text;
  int64_t number = 0;
  while (static_cast<int64_t>(trace.requests.size()) < options.limit && std::getline(in, text)) {
    ++number;
    if (is_blank(text)) continue;
    try {
      trace.requests.push_back(parse_request(Line(source, number), text));
    } catch (const InvalidArgument& error) {
      if (!options.skip_bad_lines) throw;
      if (trace.num_bad_lines++ == 0) trace.first_bad_line = error.what();
    }
  }
  if (in.bad()) {
    throw InvalidArgument(five_parts(kFunction, source,
                                     fmt::format("cannot be read after line {}", number),
                                     "be a readable file", "check the path and the disk"));
  }
  if (trace.requests.empty()) {
    throw InvalidArgument(five_parts(
        kFunction, source,
        fmt::format("holds no request ({} lines, {} of them bad)", number, trace.num_bad_lines),
        "hold at least one request", "see docs/replay.md for the form of a line"));
  }
  std::stable_sort(
      trace.requests.begin(), trace.requests.end(),
      [](const TraceRequest& a, const TraceRequest& b) { return a.arrival_ms < b.arrival_ms; });
  return trace;
}

Trace read_trace_file(const std::string& path, const TraceOptions& options) {
  if (path == "-") return read_trace(std::cin, "standard input", options);
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  // Opening a directory succeeds; only reading from it fails.
  if (!file || (file.peek() == std::ifstream::traits_type::eof() && file.bad())) {
    throw InvalidArgument(five_parts(
        kFunction, path, fmt::format("cannot be opened: {}", std::strerror(errno)),
        "be a readable trace file", "check the path, or make a trace with `capillary generate`"));
  }
  file.clear();
  return read_trace(file, path, options);
}

std::string trace_line(const TraceRequest& request) {
  std::string block_size;
  if (request.block_size != kDefaultTraceBlock) {
    block_size = fmt::format("\"block_size\": {}, ", request.block_size);
  }
  return fmt::format(
      "{{\"timestamp\": {}, \"input_length\": {}, \"output_length\": {}, {}\"hash_ids\": [{}]}}",
      static_cast<int64_t>(std::llround(request.arrival_ms)), request.input_length,
      request.output_length, block_size, fmt::join(request.hash_ids, ", "));
}

TokenIds::TokenIds(const Trace& trace) {
  constexpr int64_t kNumIds = int64_t{1} << 31;  // of each sign
  struct BlockKey {
    int64_t hash_id;
    int32_t block_size;  // equal ids of unequal block sizes name different content
    bool operator==(const BlockKey&) const = default;
  };
  struct BlockHash {
    size_t operator()(const BlockKey& key) const {
      return static_cast<size_t>((static_cast<uint64_t>(key.hash_id) * 0x9e3779b97f4a7c15ull) ^
                                 (static_cast<uint64_t>(key.block_size) << 32));
    }
  };
  std::unordered_map<BlockKey, int64_t, BlockHash> begin_of;
  int64_t num_prompt_ids = 0;
  int64_t num_generated_ids = 0;
  for (const TraceRequest& request : trace.requests) {
    prompts_.push_back({block_begin_.size(), request.input_length, request.block_size});
    for (const int64_t hash_id : request.hash_ids) {
      const auto [found, added] =
          begin_of.try_emplace({hash_id, request.block_size}, num_prompt_ids);
      if (added) num_prompt_ids += request.block_size;
      block_begin_.push_back(static_cast<int32_t>(std::min(found->second, kNumIds - 1)));
    }
    first_generated_.push_back(num_generated_ids);
    num_generated_ids += request.output_length;
    if (num_prompt_ids > kNumIds || num_generated_ids > kNumIds) {
      throw InvalidArgument(five_parts(
          "TokenIds", "trace",
          fmt::format("holds {} prompt and {} generated tokens by request {}", num_prompt_ids,
                      num_generated_ids, prompts_.size() - 1),
          fmt::format("hold at most {} of each", kNumIds), "replay fewer requests (--limit)"));
    }
  }
}

void TokenIds::append_prompt(size_t request, std::vector<int32_t>& tokens) const {
  const Prompt& prompt = prompts_[request];
  tokens.reserve(tokens.size() + static_cast<size_t>(prompt.length));
  size_t block = prompt.first_block;
  for (int32_t done = 0; done < prompt.length; done += prompt.block_size, ++block) {
    const int32_t count = std::min(prompt.block_size, prompt.length - done);
    const int32_t begin = block_begin_[block];
    for (int32_t i = 0; i < count; ++i) tokens.push_back(begin + i);
  }
}

}  // namespace capillary
