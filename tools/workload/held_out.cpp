// SPDX-License-Identifier: MIT
// The held-out forests (held_out.h).
#include "workload/held_out.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <random>

#include "capillary/error.h"
#include "fmt/format.h"

namespace capillary {
namespace {

constexpr double kLeastUs = 20;
constexpr double kMostUs = 2000;
constexpr double kOffTarget = 0.05;  // what rounding lengths to tokens may change
constexpr double kLaunchUs = 12;
constexpr double kReadBytesPerUs = 4.6e6;
constexpr double kFlopsPerUs = 4e8;
constexpr int32_t kMostLevels = 6;
constexpr int32_t kMostRequests = 700;
constexpr int64_t kMostRequestTokens = 150'000;
// Flat plans are measured too: they read each request's keys.
constexpr double kMostFlatBytes = 30e9;
constexpr int64_t kMostTableEntries = int64_t{1} << 22;

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  double uniform() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }
  int32_t between(int32_t low, int32_t high) {
    return low + static_cast<int32_t>(uniform() * (static_cast<double>(high) - low + 1));
  }
  double log_between(double low, double high) {
    return low * std::exp(uniform() * std::log(high / low));
  }
  template <class Container>
  auto pick(const Container& choices) {
    return choices[static_cast<size_t>(between(0, static_cast<int32_t>(choices.size()) - 1))];
  }

 private:
  std::mt19937_64 engine_;
};

double token_bytes(const Workload& workload, const Heads& heads) {
  return 4.0 * workload.head_dim * heads.num_kv_heads;  // K and V, two bytes an element
}

// Unique tokens, and tokens counted once a request, by the levels' own lengths.
std::pair<double, double> token_counts(const std::vector<int32_t>& nodes,
                                       const std::vector<double>& tokens) {
  double unique = 0;
  double flat = 0;
  for (size_t level = 0; level < nodes.size(); ++level) {
    unique += nodes[level] * tokens[level];
    flat += nodes.back() * tokens[level];
  }
  return {unique, flat};
}

double busy_us(const Workload& workload, const Heads& heads, const std::vector<double>& tokens) {
  const auto [unique, flat] = token_counts(workload.nodes, tokens);
  const double flops = 4.0 * flat * heads.num_q_heads * workload.head_dim;
  return std::max(unique * token_bytes(workload, heads) / kReadBytesPerUs, flops / kFlopsPerUs);
}

std::vector<double> as_lengths(const std::vector<int32_t>& tokens) {
  return {tokens.begin(), tokens.end()};
}

bool is_measurable(const Workload& workload, const Heads& heads, double target_us) {
  const std::vector<double> tokens = as_lengths(workload.tokens);
  int64_t request_tokens = 0;
  for (const int32_t count : workload.tokens) request_tokens += count;
  const double flat = token_counts(workload.nodes, tokens).second;
  const double us = held_out_estimate_us(workload, heads);
  return workload.tokens.back() >= 1 && request_tokens <= kMostRequestTokens &&
         request_tokens / workload.page_size * workload.num_requests() <= kMostTableEntries &&
         flat * token_bytes(workload, heads) <= kMostFlatBytes && us >= kLeastUs && us <= kMostUs &&
         std::abs(us - target_us) < kOffTarget * target_us;
}

// A forest whose keys and arithmetic take target_us, launch included.
Workload draw(Random& random, double target_us) {
  constexpr std::array kKvHeads = {1, 2, 3, 4, 5, 6, 8, 10, 12, 16};
  constexpr std::array kGroups = {1, 2, 3, 4, 5, 6, 7, 8, 12, 16};
  constexpr std::array kPages = {8, 16, 32, 48, 64, 128};
  Workload workload;
  Heads heads;
  heads.num_kv_heads = random.pick(kKvHeads);
  heads.num_q_heads = heads.num_kv_heads * random.pick(kGroups);
  workload.heads = {heads};
  workload.page_size = random.pick(kPages);
  if (random.uniform() < 0.75) workload.ragged = random.between(10, 90) / 100.0;
  const int32_t levels = random.between(1, kMostLevels);
  const auto requests = static_cast<int32_t>(random.log_between(1, kMostRequests + 1));
  for (int32_t level = 1; level < levels; ++level) {
    workload.nodes.push_back(static_cast<int32_t>(random.log_between(1, requests + 1)));
  }
  workload.nodes.push_back(requests);
  std::sort(workload.nodes.begin(), workload.nodes.end());
  // From lengths that know nothing of their level to as many tokens a level, however many nodes share them.
  const double evenness = random.uniform();
  std::vector<double> weights;
  for (const int32_t nodes : workload.nodes) {
    weights.push_back(random.log_between(1, 100) / std::pow(nodes, evenness));
  }
  const double scale = (target_us - kLaunchUs) / busy_us(workload, heads, weights);
  for (const double weight : weights) {
    const double tokens = std::min(weight * scale, static_cast<double>(kMostRequestTokens));
    workload.tokens.push_back(static_cast<int32_t>(std::lround(tokens)));
  }
  return workload;
}

}  // namespace

double held_out_estimate_us(const Workload& workload, const Heads& heads) {
  return kLaunchUs + busy_us(workload, heads, as_lengths(workload.tokens));
}

std::vector<Workload> held_out_forests(const HeldOutOptions& options) {
  if (options.num_forests < 1) {
    throw InvalidArgument(five_parts("held_out_forests", "num_forests",
                                     fmt::format("is {}", options.num_forests), "be at least 1",
                                     "ask for as many forests as you want to measure"));
  }
  std::vector<Workload> forests;
  for (int32_t index = 0; index < options.num_forests; ++index) {
    // A stream of its own for each, so that more forests do not move the first ones.
    Random random(options.seed * 0x9e3779b97f4a7c15ull + static_cast<uint64_t>(index));
    // Drawn once, so that times stay even however many shapes are too large for them.
    const double target_us = random.log_between(kLeastUs, kMostUs);
    Workload workload = draw(random, target_us);
    while (!is_measurable(workload, workload.heads.front(), target_us))
      workload = draw(random, target_us);
    workload.name = fmt::format("held-out-{}-{:03}", options.seed, index);
    forests.push_back(std::move(workload));
  }
  return forests;
}

}  // namespace capillary
