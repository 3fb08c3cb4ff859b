// SPDX-License-Identifier: MIT
// Reading traces: good lines, every way a line can be bad, the public traces where CAPILLARY_TRACE_DIR has
// them, and that token ids are equal exactly where the trace says that content is.
#include "workload/trace.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "capillary/error.h"

namespace capillary {
namespace {

constexpr const char* kGood =
    R"({"timestamp": 5, "input_length": 600, "output_length": 3, "hash_ids": [7, 8]})";

Trace read_text(const std::string& text, const TraceOptions& options = {}) {
  std::istringstream in(text);
  return read_trace(in, "t.jsonl", options);
}

std::string error_of(const std::string& text) {
  try {
    read_text(text);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "(nothing thrown)";
}

TEST(Trace, ReadsALine) {
  const Trace trace = read_text(std::string(kGood) + "\n");
  ASSERT_EQ(trace.requests.size(), 1u);
  const TraceRequest& request = trace.requests[0];
  EXPECT_EQ(request.arrival_ms, 5);
  EXPECT_EQ(request.input_length, 600);
  EXPECT_EQ(request.output_length, 3);
  EXPECT_EQ(request.block_size, 512);
  EXPECT_EQ(request.hash_ids, (std::vector<int64_t>{7, 8}));
  EXPECT_EQ(trace.num_bad_lines, 0);
  EXPECT_EQ(trace.source, "t.jsonl");
}

TEST(Trace, TakesOtherFieldsBlankLinesReturnsAndAMissingLastNewline) {
  const Trace trace = read_text(
      "\n" + std::string(kGood) +
      "\r\n   \n"
      R"({"session": {"a": [1]}, "hash_ids": [1, 2, 3], "block_size": 64, "output_length": 0,)"
      R"( "input_length": 130, "timestamp": 0.5})");
  ASSERT_EQ(trace.requests.size(), 2u);
  EXPECT_EQ(trace.requests[0].arrival_ms, 0.5);  // by arrival, not by line
  EXPECT_EQ(trace.requests[0].block_size, 64);
  EXPECT_EQ(trace.requests[1].arrival_ms, 5);
}

TEST(Trace, EqualArrivalsKeepTheOrderOfTheFile) {
  std::string text;
  for (int i = 0; i < 50; ++i) {
    text += R"({"timestamp": 1, "input_length": )" + std::to_string(i + 1) +
            R"(, "output_length": 1, "hash_ids": [0]})" + "\n";
  }
  const Trace trace = read_text(text);
  for (int i = 0; i < 50; ++i)
    EXPECT_EQ(trace.requests[static_cast<size_t>(i)].input_length, i + 1);
}

struct BadLine {
  const char* name;
  std::string text;
  const char* argument;  // after the place
  const char* complaint;
};

class TraceBadLine : public testing::TestWithParam<BadLine> {};

TEST_P(TraceBadLine, IsNamedWithWhatIsWrong) {
  const std::string good = std::string(kGood) + "\n";
  const std::string text = good + "\n" + GetParam().text + "\n" + good;
  const std::string message = error_of(text);
  EXPECT_EQ(message.find(std::string("read_trace: t.jsonl line 3") + GetParam().argument), 0u)
      << message;
  EXPECT_NE(message.find(GetParam().complaint), std::string::npos) << message;
  EXPECT_NE(message.find("; correct the line or skip such lines (--skip-bad-lines)"),
            std::string::npos)
      << message;

  TraceOptions skip;
  skip.skip_bad_lines = true;
  const Trace trace = read_text(text, skip);
  EXPECT_EQ(trace.requests.size(), 2u);
  EXPECT_EQ(trace.num_bad_lines, 1);
  EXPECT_EQ(trace.first_bad_line, message);
}

std::string line_of(const char* timestamp, const char* input, const char* output, const char* ids,
                    const char* more = "") {
  return std::string(R"({"timestamp": )") + timestamp + R"(, "input_length": )" + input +
         R"(, "output_length": )" + output + R"(, "hash_ids": )" + ids + more + "}";
}

INSTANTIATE_TEST_SUITE_P(
    Lines, TraceBadLine,
    testing::Values(
        BadLine{"text", "hello", " is not JSON at column 1", "must be one whole JSON object"},
        BadLine{"cut", R"({"timestamp": 5, "input_len)", " ends too early", ""},
        BadLine{"two_objects", std::string(kGood) + kGood, " is not JSON at column", ""},
        BadLine{"array", "[1, 2]", " is [1,2]", "must be one whole JSON object"},
        BadLine{"number", "17", " is 17", ""},
        BadLine{"no_timestamp", R"({"input_length": 1, "output_length": 1, "hash_ids": [1]})",
                ": field 'timestamp' is missing", "must be there"},
        BadLine{"no_input", R"({"timestamp": 1, "output_length": 1, "hash_ids": [1]})",
                ": field 'input_length' is missing", ""},
        BadLine{"no_output", R"({"timestamp": 1, "input_length": 1, "hash_ids": [1]})",
                ": field 'output_length' is missing", ""},
        BadLine{"no_ids", R"({"timestamp": 1, "input_length": 1, "output_length": 1})",
                ": field 'hash_ids' is missing", ""},
        BadLine{"negative_time", line_of("-1", "1", "1", "[1]"), ": field 'timestamp' is -1",
                "must be a number of milliseconds from 0 to 1e15"},
        BadLine{"huge_time", line_of("1e300", "1", "1", "[1]"), ": field 'timestamp' is 1e+300",
                ""},
        BadLine{"infinite_time", line_of("1e400", "1", "1", "[1]"),
                " has a number that is out of range", ""},
        BadLine{"not_a_number", line_of("NaN", "1", "1", "[1]"), " is not JSON at column", ""},
        BadLine{"text_time", line_of("\"noon\"", "1", "1", "[1]"),
                ": field 'timestamp' is \"noon\"", ""},
        BadLine{"empty_prompt", line_of("1", "0", "1", "[]"), ": field 'input_length' is 0",
                "must be an integer from 1 to 16777216"},
        BadLine{"negative_length", line_of("1", "-5", "1", "[1]"), ": field 'input_length' is -5",
                ""},
        BadLine{"fraction", line_of("1", "1.5", "1", "[1]"), ": field 'input_length' is 1.5", ""},
        BadLine{"null", line_of("1", "null", "1", "[1]"), ": field 'input_length' is null", ""},
        BadLine{"wraps", line_of("1", "18446744073709551615", "1", "[1]"),
                ": field 'input_length' is 18446744073709551615", ""},
        BadLine{"huge_length", line_of("1", "99999999", "1", "[1]"),
                ": field 'input_length' is 99999999", ""},
        BadLine{"negative_output", line_of("1", "1", "-1", "[1]"), ": field 'output_length' is -1",
                "must be an integer from 0 to 16777216"},
        BadLine{"few_ids", line_of("1", "513", "1", "[1]"), ": field 'hash_ids' has length 1",
                "must have length 2 (513 tokens in blocks of 512)"},
        BadLine{"many_ids", line_of("1", "512", "1", "[1, 2]"), ": field 'hash_ids' has length 2",
                "must have length 1 (512 tokens in blocks of 512)"},
        BadLine{"ids_no_array", line_of("1", "1", "1", "3"), ": field 'hash_ids' is 3",
                "must be an array of integers"},
        BadLine{"negative_id", line_of("1", "1", "1", "[-1]"), ": field 'hash_ids' is -1", ""},
        BadLine{"text_id", line_of("1", "1", "1", "[\"a\"]"), ": field 'hash_ids' is \"a\"", ""},
        BadLine{"zero_block", line_of("1", "1", "1", "[1]", R"(, "block_size": 0)"),
                ": field 'block_size' is 0", ""},
        BadLine{"twice", line_of("1", "1", "1", "[1]", R"(, "timestamp": 2)"),
                ": field 'timestamp' is given twice", "must be given once"},
        BadLine{"bytes", "\xff\xfe{}", " is not JSON at column 1", ""}),
    [](const auto& line) { return line.param.name; });

TEST(Trace, CountsEveryBadLine) {
  TraceOptions skip;
  skip.skip_bad_lines = true;
  const Trace trace = read_text(std::string("x\n{}\n") + kGood + "\n[]\n", skip);
  EXPECT_EQ(trace.num_bad_lines, 3);
  EXPECT_NE(trace.first_bad_line.find("t.jsonl line 1 is not JSON"), std::string::npos);
}

TEST(Trace, ATraceWithoutRequestsIsAnError) {
  EXPECT_EQ(error_of("\n \n"),
            "read_trace: t.jsonl holds no request (2 lines, 0 of them bad); must hold at least one "
            "request; see docs/replay.md for the form of a line");
  TraceOptions skip;
  skip.skip_bad_lines = true;
  EXPECT_THROW(read_text("x\ny\n", skip), InvalidArgument);
}

TEST(Trace, LimitStopsReading) {
  TraceOptions options;
  options.limit = 1;
  EXPECT_EQ(read_text(std::string(kGood) + "\nnot read\n", options).requests.size(), 1u);
}

TEST(Trace, AbsentFilesAndDirectoriesAreNamed) {
  for (const char* path : {"/no/such/trace.jsonl", "/"}) {
    try {
      read_trace_file(path);
      FAIL() << path << " was read";
    } catch (const InvalidArgument& error) {
      const std::string message = error.what();
      EXPECT_EQ(message.find(std::string("read_trace: ") + path + " cannot be opened: "), 0u)
          << message;
      EXPECT_NE(message.find("check the path, or make a trace with `capillary generate`"),
                std::string::npos)
          << message;
    }
  }
}

TEST(Trace, LinesAreReadBackAsTheyWereWritten) {
  TraceRequest request;
  request.arrival_ms = 12;
  request.input_length = 100;
  request.output_length = 9;
  request.block_size = 64;
  request.hash_ids = {5, int64_t{1} << 62};
  TraceRequest plain = request;
  plain.block_size = 512;
  plain.hash_ids = {3};
  EXPECT_EQ(trace_line(plain),
            R"({"timestamp": 12, "input_length": 100, "output_length": 9, "hash_ids": [3]})");
  const Trace trace = read_text(trace_line(request) + "\n" + trace_line(plain));
  ASSERT_EQ(trace.requests.size(), 2u);
  EXPECT_EQ(trace.requests[0].block_size, 64);
  EXPECT_EQ(trace.requests[0].hash_ids, request.hash_ids);
  EXPECT_EQ(trace.requests[1].hash_ids, plain.hash_ids);
}

// ---- token ids ------------------------------------------------------------------------------------------

TEST(TokenIds, AreEqualExactlyWhereContentIs) {
  const Trace trace = read_text(
      R"({"timestamp": 0, "input_length": 150, "output_length": 20, "block_size": 64, "hash_ids": [1, 2, 3]}
{"timestamp": 1, "input_length": 128, "output_length": 0, "block_size": 64, "hash_ids": [1, 3]}
{"timestamp": 2, "input_length": 600, "output_length": 5, "hash_ids": [1, 9]}
)");
  const TokenIds ids(trace);
  // What a token stands for must be a function of its id, and the id of what it stands for.
  using Meaning = std::tuple<int64_t, int32_t, int32_t>;  // hash id, block size, offset
  std::map<int32_t, Meaning> meaning_of;
  std::map<Meaning, int32_t> id_of;
  for (size_t r = 0; r < trace.requests.size(); ++r) {
    const TraceRequest& request = trace.requests[r];
    std::vector<int32_t> tokens = {77};
    ids.append_prompt(r, tokens);
    ASSERT_EQ(tokens.size(), static_cast<size_t>(request.input_length) + 1);
    EXPECT_EQ(tokens[0], 77);
    for (int32_t i = 0; i < request.input_length; ++i) {
      const Meaning meaning = {request.hash_ids[static_cast<size_t>(i / request.block_size)],
                               request.block_size, i % request.block_size};
      const int32_t id = tokens[static_cast<size_t>(i) + 1];
      EXPECT_GE(id, 0);
      EXPECT_EQ(meaning_of.try_emplace(id, meaning).first->second, meaning);
      EXPECT_EQ(id_of.try_emplace(meaning, id).first->second, id);
    }
  }
  std::set<int32_t> generated;
  for (size_t r = 0; r < trace.requests.size(); ++r) {
    for (int32_t i = 0; i < trace.requests[r].output_length; ++i) {
      const int32_t id = ids.generated(r, i);
      EXPECT_LT(id, 0);
      EXPECT_TRUE(generated.insert(id).second);
    }
  }
}

TEST(TokenIds, TooManyDistinctTokensAreRefused) {
  Trace trace;
  for (int64_t i = 0; i < 129; ++i) {
    TraceRequest request;
    request.input_length = 1;
    request.block_size = 1 << 24;
    request.hash_ids = {i};
    trace.requests.push_back(request);
  }
  try {
    const TokenIds ids(trace);
    FAIL() << "2^31 + 2^24 ids were given out";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(),
                 "TokenIds: trace holds 2164260864 prompt and 0 generated tokens by request 128; "
                 "must hold at most 2147483648 of each; replay fewer requests (--limit)");
  }
  trace.requests.pop_back();
  const TokenIds ids(trace);
  std::vector<int32_t> tokens;
  ids.append_prompt(127, tokens);
  EXPECT_EQ(tokens, (std::vector<int32_t>{127 << 24}));
}

// ---- public traces --------------------------------------------------------------------------------------

struct PublicTrace {
  const char* file;
  size_t num_requests;
  int64_t input_tokens;
  int64_t output_tokens;
  size_t num_blocks;  // distinct
};

class PublicTraces : public testing::TestWithParam<PublicTrace> {};

TEST_P(PublicTraces, AreReadWhole) {
  const char* directory = std::getenv("CAPILLARY_TRACE_DIR");
  if (directory == nullptr) GTEST_SKIP() << "CAPILLARY_TRACE_DIR is not set";
  const auto start = std::chrono::steady_clock::now();
  const Trace trace = read_trace_file(std::string(directory) + "/" + GetParam().file);
  const TokenIds ids(trace);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  RecordProperty("seconds", std::to_string(elapsed.count()));
  EXPECT_EQ(trace.requests.size(), GetParam().num_requests);
  int64_t input = 0;
  int64_t output = 0;
  std::set<int64_t> blocks;
  double last = 0;
  for (const TraceRequest& request : trace.requests) {
    input += request.input_length;
    output += request.output_length;
    blocks.insert(request.hash_ids.begin(), request.hash_ids.end());
    EXPECT_GE(request.arrival_ms, last);
    last = request.arrival_ms;
  }
  EXPECT_EQ(input, GetParam().input_tokens);
  EXPECT_EQ(output, GetParam().output_tokens);
  EXPECT_EQ(blocks.size(), GetParam().num_blocks);
  EXPECT_LT(elapsed.count(), 20) << "3 MB of text";  // 0.2 s optimised; sanitizers take their share
}

INSTANTIATE_TEST_SUITE_P(
    Mooncake, PublicTraces,
    testing::Values(PublicTrace{"mooncake_conversation.jsonl", 12031, 144793823, 4122048, 182790},
                    PublicTrace{"mooncake_synthetic.jsonl", 3993, 61194628, 595432, 43924}),
    [](const auto& trace) {
      const std::string name = trace.param.file;
      return name.substr(9, name.find('.') - 9);
    });

}  // namespace
}  // namespace capillary
