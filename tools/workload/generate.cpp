// SPDX-License-Identifier: MIT
// The generators (generate.h). Lengths and habits are round numbers of the kind that public reports on such
// traffic give; docs/replay.md lists them.
#include "workload/generate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "capillary/error.h"
#include "fmt/format.h"

namespace capillary {
namespace {

constexpr std::array kKinds = {
    TraceKindName{TraceKind::kGroupSampling, "group-sampling",
                  "reinforcement learning: 16 answers to each prompt"},
    TraceKindName{TraceKind::kFewShot, "few-shot", "tasks with examples, short questions"},
    TraceKindName{TraceKind::kTreeSearch, "tree-search", "search over reasoning steps"},
    TraceKindName{TraceKind::kAgents, "agents", "agents that call tools, turn after turn"},
    TraceKindName{TraceKind::kLongDocument, "long-document", "one long document, many questions"},
    TraceKindName{TraceKind::kChat, "chat", "assistants with system prompts, several turns"},
    TraceKindName{TraceKind::kMixed, "mixed", "all of these at once"},
};

// A run of text that is the same wherever its id appears.
struct Piece {
  int64_t id = 0;
  int32_t length = 0;
};

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  double uniform() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }
  int32_t between(int32_t low, int32_t high) {
    return low + static_cast<int32_t>(uniform() * (static_cast<double>(high) - low + 1));
  }
  double exponential(double mean) { return -mean * std::log1p(-uniform()); }
  // Lengths of text: the median, with a long tail upwards.
  double long_tailed(double median, double spread) {
    const double radius = std::sqrt(-2 * std::log1p(-uniform()));
    return median * std::exp(spread * radius * std::cos(2 * 3.14159265358979323846 * uniform()));
  }

 private:
  std::mt19937_64 engine_;
};

class Writer {
 public:
  explicit Writer(const GeneratorOptions& options) : options_(options), random_(options.seed) {}

  Random& random() { return random_; }
  double mean_gap_ms() const { return 1000 / options_.requests_per_second; }

  Piece text(double length) {
    const double scaled = std::clamp(length * options_.length_scale, 1.0, 1e6);
    return {next_piece_++, static_cast<int32_t>(std::lround(scaled))};
  }
  Piece text_between(int32_t low, int32_t high) { return text(random_.between(low, high)); }
  Piece text_around(double median, double spread) {
    return text(std::min(random_.long_tailed(median, spread), median * 8));
  }

  void add(double arrival_ms, const std::vector<Piece>& prompt, const Piece& answer) {
    TraceRequest request;
    request.arrival_ms = std::max(0.0, arrival_ms);
    request.output_length = answer.length;
    request.block_size = options_.block_size;
    name_blocks(prompt, request);
    requests_.push_back(std::move(request));
  }

  std::vector<TraceRequest> take() { return std::move(requests_); }

 private:
  // What fills a block: pieces with the part of each, after the block before.
  using Content = std::vector<int64_t>;

  void name_blocks(const std::vector<Piece>& prompt, TraceRequest& request) {
    int64_t before = -1;
    int32_t filled = 0;
    Content content;
    const auto close = [&] {
      content.push_back(before);
      before = ids_.try_emplace(content, static_cast<int64_t>(ids_.size())).first->second;
      request.hash_ids.push_back(before);
      content.clear();
      filled = 0;
    };
    for (const Piece& piece : prompt) {
      request.input_length += piece.length;
      for (int32_t done = 0; done < piece.length;) {
        const int32_t count = std::min(options_.block_size - filled, piece.length - done);
        content.insert(content.end(), {piece.id, done, count});
        done += count;
        filled += count;
        if (filled == options_.block_size) close();
      }
    }
    if (filled > 0) close();
  }

  GeneratorOptions options_;
  Random random_;
  int64_t next_piece_ = 0;
  std::map<Content, int64_t> ids_;
  std::vector<TraceRequest> requests_;
};

// Each generator makes at least `count` requests from time 0 on.

void group_sampling(Writer& writer, int32_t count) {
  constexpr int32_t kAnswers = 16;
  const Piece rules = writer.text(200);
  double now = 0;
  for (int32_t made = 0; made < count; made += kAnswers) {
    const std::vector<Piece> prompt = {rules, writer.text_between(200, 1500)};
    for (int32_t i = 0; i < kAnswers; ++i) writer.add(now, prompt, writer.text_around(400, 0.7));
    now += writer.random().exponential(kAnswers * writer.mean_gap_ms());
  }
}

void few_shot(Writer& writer, int32_t count) {
  const Piece instruction = writer.text(300);
  std::vector<Piece> examples;
  for (int32_t task = 0; task < 6; ++task) examples.push_back(writer.text_between(800, 2400));
  double now = 0;
  for (int32_t made = 0; made < count; ++made) {
    const Piece& task = examples[static_cast<size_t>(writer.random().between(0, 5))];
    writer.add(now, {instruction, task, writer.text_around(120, 0.6)}, writer.text_around(40, 0.8));
    now += writer.random().exponential(writer.mean_gap_ms());
  }
}

void tree_search(Writer& writer, int32_t count) {
  constexpr int32_t kBranches = 4;
  constexpr size_t kKept = 3;
  const Piece rules = writer.text(600);
  double start = 0;
  int32_t made = 0;
  while (made < count) {
    std::vector<std::vector<Piece>> states = {{rules, writer.text_between(150, 600)}};
    double now = start;
    const int32_t depth = writer.random().between(3, 7);
    for (int32_t round = 0; round < depth && made < count; ++round) {
      std::vector<std::vector<Piece>> children;
      for (const std::vector<Piece>& state : states) {
        for (int32_t branch = 0; branch < kBranches; ++branch) {
          const Piece step = writer.text_around(100, 0.5);
          writer.add(now, state, step);
          ++made;
          children.push_back(state);
          children.back().push_back(step);
        }
      }
      // A judge keeps the best; which they are is chance here.
      for (size_t i = 0; i < std::min(kKept, children.size()); ++i) {
        const auto last = static_cast<int32_t>(children.size() - 1);
        std::swap(
            children[i],
            children[static_cast<size_t>(writer.random().between(static_cast<int32_t>(i), last))]);
      }
      children.resize(std::min(kKept, children.size()));
      states = std::move(children);
      now += 2000 + writer.random().exponential(1000);
    }
    start += writer.random().exponential(40 * writer.mean_gap_ms());
  }
}

// Sessions over one of several openings: turn after turn, what was said so far is the next prompt's start.
struct SessionHabits {
  int32_t num_openings;
  int32_t opening_low, opening_high;  // tokens
  int32_t most_turns;
  double turn_median, answer_median;  // tokens that a turn adds, and gets
  double pause_ms;
};

void sessions(Writer& writer, int32_t count, const SessionHabits& habits) {
  std::vector<Piece> openings;
  for (int32_t i = 0; i < habits.num_openings; ++i) {
    openings.push_back(writer.text_between(habits.opening_low, habits.opening_high));
  }
  double start = 0;
  int32_t made = 0;
  while (made < count) {
    // The square favours the first openings: some assistants are more popular than others.
    const double place = writer.random().uniform();
    std::vector<Piece> prompt = {
        openings[static_cast<size_t>(place * place * static_cast<double>(openings.size()))]};
    const int32_t turns = writer.random().between(1, habits.most_turns);
    double now = start;
    for (int32_t turn = 0; turn < turns && made < count; ++turn, ++made) {
      prompt.push_back(writer.text_around(habits.turn_median, 0.9));
      const Piece answer = writer.text_around(habits.answer_median, 0.7);
      writer.add(now, prompt, answer);
      prompt.push_back(answer);
      now += 15.0 * answer.length + writer.random().exponential(habits.pause_ms);
    }
    start += writer.random().exponential((habits.most_turns + 1) / 2.0 * writer.mean_gap_ms());
  }
}

void agents(Writer& writer, int32_t count) {
  sessions(writer, count, {4, 3000, 6000, 12, 500, 120, 1500});
}

void chat(Writer& writer, int32_t count) {
  sessions(writer, count, {8, 200, 2000, 6, 150, 250, 8000});
}

void long_document(Writer& writer, int32_t count) {
  const Piece document = writer.text(50000);
  double now = 0;
  for (int32_t made = 0; made < count; ++made) {
    writer.add(now, {document, writer.text_around(80, 0.6)}, writer.text_around(180, 0.7));
    now += writer.random().exponential(writer.mean_gap_ms());
  }
}

void mixed(Writer& writer, int32_t count) {
  // The document's questions come rarely: one of them outweighs many chats.
  const int32_t share = (count + 5) / 6;
  group_sampling(writer, share);
  few_shot(writer, share);
  tree_search(writer, share);
  agents(writer, share);
  chat(writer, share);
  long_document(writer, share);
}

void check_options(const GeneratorOptions& options) {
  const auto fail = [](const char* argument, const std::string& came, const char* expected) {
    throw InvalidArgument(
        five_parts("generate_trace", argument, "is " + came, expected, "correct the option"));
  };
  if (options.num_requests < 1 || options.num_requests > 10'000'000) {
    fail("num_requests", fmt::format("{}", options.num_requests), "be from 1 to 10000000");
  }
  if (options.block_size < 1 || options.block_size > kMaxTraceLength) {
    fail("block_size", fmt::format("{}", options.block_size), "be from 1 to 16777216 tokens");
  }
  if (!(options.requests_per_second > 1e-6 && options.requests_per_second < 1e9)) {
    fail("requests_per_second", fmt::format("{}", options.requests_per_second),
         "be above 0 and below 1e9");
  }
  if (!(options.length_scale > 0 && options.length_scale <= 1000)) {
    fail("length_scale", fmt::format("{}", options.length_scale), "be above 0 and at most 1000");
  }
}

}  // namespace

std::span<const TraceKindName> trace_kinds() {
  return kKinds;
}

Trace generate_trace(const GeneratorOptions& options) {
  check_options(options);
  Writer writer(options);
  const int32_t count = options.num_requests;
  switch (options.kind) {
    case TraceKind::kGroupSampling:
      group_sampling(writer, count);
      break;
    case TraceKind::kFewShot:
      few_shot(writer, count);
      break;
    case TraceKind::kTreeSearch:
      tree_search(writer, count);
      break;
    case TraceKind::kAgents:
      agents(writer, count);
      break;
    case TraceKind::kLongDocument:
      long_document(writer, count);
      break;
    case TraceKind::kChat:
      chat(writer, count);
      break;
    case TraceKind::kMixed:
      mixed(writer, count);
      break;
  }
  Trace trace;
  trace.source = "generated";
  trace.requests = writer.take();
  for (TraceRequest& request : trace.requests) request.arrival_ms = std::round(request.arrival_ms);
  std::stable_sort(
      trace.requests.begin(), trace.requests.end(),
      [](const TraceRequest& a, const TraceRequest& b) { return a.arrival_ms < b.arrival_ms; });
  trace.requests.resize(static_cast<size_t>(count));
  return trace;
}

}  // namespace capillary
