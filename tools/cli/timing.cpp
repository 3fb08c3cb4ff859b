// SPDX-License-Identifier: MIT
// The timing engine's CPU side, and the choice of a device (timing.h).
#include "cli/timing.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <numeric>
#include <thread>

#include "cli/common.h"
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

int hardware_threads() { return static_cast<int>(std::max(1u, std::thread::hardware_concurrency())); }

// Streaming read of memory by all threads, the best of a few passes: what a step on the CPU is held against.
double measure_read_gbps(int num_threads) {
  constexpr size_t kWords = size_t{1} << 25;  // 256 MiB, far beyond the caches
  std::vector<uint64_t> words(kWords);
  for (size_t i = 0; i < kWords; i += 512) words[i] = i;
  double best_us = 1e30;
  for (int pass = 0; pass < 4; ++pass) {
    std::vector<uint64_t> sums(static_cast<size_t>(num_threads) * 16);
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
        for (const uint64_t part : sum) sums[static_cast<size_t>(t) * 16] += part;
      });
    }
    for (std::thread& thread : threads) thread.join();
    const double us = std::chrono::duration<double, std::micro>(
                          std::chrono::steady_clock::now() - start)
                          .count();
    // The sums are looked at, or the reads could be left out.
    const uint64_t total = std::accumulate(sums.begin(), sums.end(), uint64_t{0});
    if (total != 1) best_us = std::min(best_us, us);
  }
  return static_cast<double>(kWords * sizeof(uint64_t)) / best_us / 1e3;
}

class CpuTimedDevice final : public TimedDevice {
 public:
  explicit CpuTimedDevice(int32_t num_threads) { options_.num_threads = num_threads; }

  DeviceType type() const override { return DeviceType::kCpu; }
  std::string description() const override {
    return fmt::format("{}, {} thread{}", processor_name(), num_threads(),
                       num_threads() == 1 ? "" : "s");
  }
  std::vector<TimingKind> timing_kinds() const override { return {TimingKind::kEager}; }
  bool rounds_weights() const override { return false; }

  Floor floor(const PlanSummary& summary) override {
    if (read_gbps_ == 0) read_gbps_ = measure_read_gbps(num_threads());
    return {static_cast<double>(summary.unique_bytes) / (read_gbps_ * 1e3), "memory"};
  }

  void load(check::HostBatch& batch, const PrefixForest& /*forest*/, const Plan& plan) override {
    batch_ = &batch;
    plan_ = &plan;
  }
  void run_once() override { decode_cpu(*plan_, batch_->tensors(), options_); }

  std::vector<double> time_us(TimingKind /*kind*/, int repeats) override {
    const DecodeTensors tensors = batch_->tensors();
    decode_cpu(*plan_, tensors, options_);
    std::vector<double> times;
    for (int repeat = 0; repeat < repeats; ++repeat) {
      throw_if_interrupted();
      const auto start = std::chrono::steady_clock::now();
      decode_cpu(*plan_, tensors, options_);
      times.push_back(std::chrono::duration<double, std::micro>(
                          std::chrono::steady_clock::now() - start)
                          .count());
    }
    return times;
  }

 private:
  int num_threads() const {
    return options_.num_threads > 0 ? options_.num_threads : hardware_threads();
  }

  double read_gbps_ = 0;  // 0: not measured yet
  DecodeOptions options_;
  check::HostBatch* batch_ = nullptr;
  const Plan* plan_ = nullptr;
};

// The device that `name` stands for in this build.
DeviceType choose_device(std::string_view verb, const std::string& name) {
  if (name == "cpu" || name == "auto") return DeviceType::kCpu;
  if (name == "cuda") {
    throw UnsupportedConfig(five_parts(verb, "--device", "is cuda, which this build does not have",
                                       "be cpu or auto",
                                       "build where nvcc is found, or use --device cpu"));
  }
  throw UsageError(five_parts(verb, "--device", fmt::format("is '{}'", name),
                              "be auto, cpu or cuda", "give one of these"));
}

double quantile(const std::vector<double>& sorted, double at) {
  const double position = at * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(std::floor(position));
  const size_t above = std::min(below + 1, sorted.size() - 1);
  const double part = position - static_cast<double>(below);
  return sorted[below] * (1 - part) + sorted[above] * part;
}

}  // namespace

const char* timing_name(TimingKind kind) {
  switch (kind) {
    case TimingKind::kEager:
      return "eager";
    case TimingKind::kGraphCold:
      return "graph cold";
    case TimingKind::kGraphWarm:
      return "graph warm";
  }
  return "unknown";
}

std::unique_ptr<TimedDevice> make_cpu_timed_device(int32_t num_threads) {
  return std::make_unique<CpuTimedDevice>(num_threads);
}

std::unique_ptr<TimedDevice> open_device(std::string_view verb, const std::string& name,
                                         int32_t num_threads) {
  choose_device(verb, name);
  return make_cpu_timed_device(num_threads);
}

std::unique_ptr<check::Backend> open_check_backend(std::string_view verb, const std::string& name,
                                                   int32_t num_threads) {
  choose_device(verb, name);
  return check::make_cpu_backend(num_threads);
}

std::vector<DeviceLine> device_lines() {
  return {{"cpu", true, fmt::format("{}, {} threads", processor_name(), hardware_threads())},
          {"cuda", false, "not in this build (no nvcc when it was configured)"}};
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return quantile(values, 0.5);
}

double spread(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double middle = quantile(values, 0.5);
  return middle > 0 ? (quantile(values, 0.75) - quantile(values, 0.25)) / middle : 0;
}

}  // namespace capillary::cli
