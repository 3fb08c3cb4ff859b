// SPDX-License-Identifier: MIT
// The CPU as a device to measure on (device.h): data in fenced host memory, checked against the fp64 oracle on
// exactly the inputs that are then timed.
#include <algorithm>
#include <chrono>
#include <fstream>
#include <numeric>
#include <thread>
#include <utility>

#include "capillary/decode.h"
#include "check/compare.h"
#include "cli/common.h"
#include "cli/device.h"
#include "fmt/format.h"

namespace capillary::cli {
namespace {

std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  std::string line;
  while (std::getline(info, line)) {
    if (line.rfind("model name", 0) != 0) continue;
    const size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unnamed processor";
}

double microseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
      .count();
}

// Streaming read of memory by all threads, the best of a few passes: what a step is held against.
double measure_read_gbps(int num_threads) {
  constexpr size_t kWords = size_t{1} << 25;  // 256 MiB, far beyond the caches
  std::vector<uint64_t> words(kWords);
  // One write a page, so that every page is there and none is the shared zero page.
  for (size_t i = 0; i < kWords; i += 512) words[i] = i;
  double best_us = 1e30;
  for (int pass = 0; pass < 4; ++pass) {
    std::vector<uint64_t> sums(static_cast<size_t>(num_threads));
    const auto start = std::chrono::steady_clock::now();
    std::vector<std::thread> threads;
    for (int t = 0; t < num_threads; ++t) {
      threads.emplace_back([&, t] {
        const size_t begin = kWords * static_cast<size_t>(t) / static_cast<size_t>(num_threads);
        const size_t end = kWords * static_cast<size_t>(t + 1) / static_cast<size_t>(num_threads);
        // Several sums, so that their additions do not wait for each other.
        uint64_t sum[8] = {};
        for (size_t i = begin; i + 8 <= end; i += 8) {
          for (size_t lane = 0; lane < 8; ++lane) sum[lane] += words[i + lane];
        }
        sums[static_cast<size_t>(t)] = std::accumulate(std::begin(sum), std::end(sum), uint64_t{0});
      });
    }
    for (std::thread& thread : threads) thread.join();
    const double us = microseconds_since(start);
    // The sums are looked at, or the reads could be left out.
    if (std::accumulate(sums.begin(), sums.end(), uint64_t{0}) != 1)
      best_us = std::min(best_us, us);
  }
  return static_cast<double>(kWords * sizeof(uint64_t)) / best_us / 1e3;
}

class CpuStep final : public MeasuredStep {
 public:
  CpuStep(check::HostBatch data, const DecodeOptions& options)
      : data_(std::move(data)), options_(options) {}

  void load(const Plan& plan) override { plan_ = &plan; }

  StepCheck check() override {
    data_.poison_outputs();
    const uint64_t fences = data_.fence_hash();
    decode_cpu(*plan_, data_.tensors(), options_);
    throw_if_interrupted();
    const check::Comparison comparison = check::compare_with_oracle(data_, false);
    StepCheck result;
    result.passed = comparison.passed;
    result.failure = comparison.first_failure;
    result.rows = data_.q.shape[0] * data_.q.shape[1];
    result.worst_rel_err = comparison.worst_error;
    result.worst_of_bound = comparison.worst_of_bound;
    result.worst_lse_err = comparison.worst_lse_error;
    if (data_.fence_hash() != fences) {
      result.passed = false;
      result.failure = "the step wrote outside of its outputs";
    }
    return result;
  }

  std::vector<double> time_us(TimingKind /*kind*/, int repeats) override {
    const DecodeTensors tensors = data_.tensors();
    decode_cpu(*plan_, tensors, options_);
    std::vector<double> times;
    for (int repeat = 0; repeat < repeats; ++repeat) {
      throw_if_interrupted();
      const auto start = std::chrono::steady_clock::now();
      decode_cpu(*plan_, tensors, options_);
      times.push_back(microseconds_since(start));
    }
    return times;
  }

 private:
  check::HostBatch data_;
  DecodeOptions options_;
  const Plan* plan_ = nullptr;
};

void require_memory(std::string_view verb, const Step& step, check::CacheLayout layout) {
  const ModelShape& shape = step.shape;
  const int64_t slots = int64_t{step.batch.num_pages} * step.batch.page_size;
  const int64_t layers = layout == check::CacheLayout::kCrossLayer ? 3 : 1;
  const int64_t token_bytes =
      int64_t{dtype_bytes(shape.dtype)} * shape.num_kv_heads * (shape.head_dim + shape.v_dim());
  // The data's keys, one a token, lie beside the caches.
  const int64_t needed = slots * (layers * token_bytes + static_cast<int64_t>(sizeof(uint64_t)));
  const int64_t available = available_memory_bytes();
  if (needed > available / 10 * 9) {
    throw InvalidArgument(five_parts(
        verb, fmt::format("workload '{}'", step.name),
        fmt::format("needs {} of host memory", format_bytes(static_cast<double>(needed))),
        fmt::format("fit nine tenths of the {} that are free",
                    format_bytes(static_cast<double>(available))),
        "choose fewer tokens, requests or KV heads"));
  }
}

class CpuDevice final : public TimedDevice {
 public:
  explicit CpuDevice(int32_t num_threads) { options_.num_threads = num_threads; }

  DeviceType type() const override { return DeviceType::kCpu; }
  std::string description() const override {
    return fmt::format("{}, {} thread{}", processor_name(), num_threads(),
                       num_threads() == 1 ? "" : "s");
  }
  std::vector<TimingKind> timing_kinds() const override { return {TimingKind::kEager}; }

  Floor floor(const PlanSummary& summary) override {
    if (read_gbps_ == 0) read_gbps_ = measure_read_gbps(num_threads());
    return {static_cast<double>(summary.unique_bytes) / (read_gbps_ * 1e3), "memory"};
  }

  std::unique_ptr<MeasuredStep> make_step(std::string_view verb, Step& step,
                                          check::CacheLayout layout) override {
    compact_pages(&step.batch);
    require_memory(verb, step, layout);
    check::BatchSpec spec;
    spec.shape = step.shape;
    spec.layout = layout;
    spec.table = check::adopt_table(step.batch.view(), step.batch.seq_lens, step.batch.page_size,
                                    step.batch.num_pages);
    check::HostBatch data = check::make_batch(spec);
    // Page offsets of the forest are places in the fenced table, which has columns of its own.
    step.forest = PrefixForest::from_block_table(data.block_table_view(), data.seq_lens,
                                                 step.batch.page_size);
    return std::make_unique<CpuStep>(std::move(data), options_);
  }

 private:
  int num_threads() const {
    if (options_.num_threads > 0) return options_.num_threads;
    return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  }

  double read_gbps_ = 0;  // 0: not measured yet
  DecodeOptions options_;
};

}  // namespace

std::unique_ptr<TimedDevice> make_cpu_device(int32_t num_threads) {
  return std::make_unique<CpuDevice>(num_threads);
}

}  // namespace capillary::cli
