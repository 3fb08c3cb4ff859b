// SPDX-License-Identifier: MIT
// The choice of a device, and what all devices share (device.h).
#include "cli/device.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <utility>

#include "cli/common.h"
#include "fmt/format.h"
#if CAPILLARY_WITH_CUDA
#include "capillary/cuda.h"
#endif

namespace capillary::cli {
namespace {

// Index of the CUDA device that `name` stands for; -1: the CPU.
int choose_device(std::string_view verb, const std::string& name) {
  if (name == "cpu") return -1;
  if (name != "cuda" && name != "auto") {
    throw UsageError(five_parts(verb, "--device", fmt::format("is '{}'", name),
                                "be auto, cpu or cuda", "give one of these"));
  }
#if CAPILLARY_WITH_CUDA
  const int index = first_card();
  if (index >= 0 || name == "auto") return index;
  if (cuda::device_count() > 0) cuda::require_supported(0);
  throw UnsupportedConfig(five_parts(verb, "--device", "is cuda, and no CUDA device is found",
                                     "be a device that is there",
                                     "install the driver and card, or use --device cpu"));
#else
  if (name == "auto") return -1;
  throw UnsupportedConfig(five_parts(verb, "--device", "is cuda, which this build does not have",
                                     "be cpu or auto",
                                     "build where nvcc is found, or use --device cpu"));
#endif
}

double sorted_quantile(const std::vector<double>& sorted, double at) {
  const double position = at * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(std::floor(position));
  const size_t above = std::min(below + 1, sorted.size() - 1);
  const double part = position - static_cast<double>(below);
  return sorted[below] * (1 - part) + sorted[above] * part;
}

}  // namespace

int first_card() {
#if CAPILLARY_WITH_CUDA
  for (int index = 0; index < cuda::device_count(); ++index) {
    try {
      cuda::require_supported(index);
      return index;
    } catch (const UnsupportedArch&) {
      continue;
    }
  }
#endif
  return -1;
}

CardIdentity card_here() {
#if CAPILLARY_WITH_CUDA
  const int index = first_card();
  if (index >= 0) return cuda::card_identity(index);
#endif
  return {};
}

std::string MeasuredStep::trace_json() {
  throw UnsupportedConfig(
      five_parts("run", "--trace", "is given for a device that keeps no timeline",
                 "come with --device cuda", "build with -DCAPILLARY_TRACE=ON and run on the card"));
}

DeviceProfile TimedDevice::adapt_profile(const DeviceProfile& profile,
                                         const ModelShape& /*shape*/) const {
  return profile;
}

const char* timing_name(TimingKind kind) {
  switch (kind) {
    case TimingKind::kEager:
      return "eager";
    case TimingKind::kGraphCold:
      return "graph cold";
    case TimingKind::kGraphWarm:
      return "graph warm";
    case TimingKind::kGraphDependent:
      return "graph dependent";
  }
  return "unknown";
}

check::CacheLayout parse_layout(std::string_view verb, std::string_view text) {
  using check::CacheLayout;
  std::string names;
  for (const CacheLayout layout :
       {CacheLayout::kNhd, CacheLayout::kHnd, CacheLayout::kPackedPage, CacheLayout::kPackedDim,
        CacheLayout::kCrossLayer, CacheLayout::kMixed}) {
    if (text == check::layout_name(layout)) return layout;
    names += (names.empty() ? "" : ", ") + std::string(check::layout_name(layout));
  }
  throw UsageError(five_parts(verb, "--layout", fmt::format("is '{}'", text),
                              fmt::format("be one of {}", names), "give one of these"));
}

std::unique_ptr<TimedDevice> open_device(std::string_view verb, const std::string& name,
                                         int32_t num_threads) {
  const int index = choose_device(verb, name);
  if (index < 0) return make_cpu_device(num_threads);
#if CAPILLARY_HAS_TIMED_CUDA
  return make_cuda_device(index);
#else
  throw UnsupportedConfig(five_parts(verb, "--device", "is cuda, which this build cannot time",
                                     "be cpu", "use --device cpu, or check --device cuda"));
#endif
}

std::unique_ptr<check::Backend> open_check_backend(std::string_view verb, const std::string& name,
                                                   int32_t num_threads) {
  const int index = choose_device(verb, name);
#if CAPILLARY_WITH_CUDA
  if (index >= 0) return check::make_cuda_backend(index);
#endif
  return index < 0 ? check::make_cpu_backend(num_threads) : nullptr;
}

std::vector<DeviceLine> device_lines() {
  std::vector<DeviceLine> lines = {{"cpu", true, make_cpu_device(0)->description()}};
#if CAPILLARY_WITH_CUDA
  const int count = cuda::device_count();
  for (int index = 0; index < count; ++index) {
    const cuda::DeviceInfo info = cuda::device_info(index);
    DeviceLine line{
        fmt::format("cuda:{}", index), true,
        fmt::format("{}, sm_{}{}, {} SMs, {}", info.name, info.compute_major, info.compute_minor,
                    info.num_sms, format_bytes(static_cast<double>(info.memory_bytes)))};
    try {
      cuda::require_supported(index);
    } catch (const UnsupportedArch& error) {
      line.present = false;
      line.text += fmt::format("; needs {}", error.needed());
    }
    lines.push_back(std::move(line));
  }
  if (count == 0) lines.push_back({"cuda", false, "no device or no driver"});
#else
  lines.push_back({"cuda", false, "not in this build"});
#endif
  return lines;
}

std::string kernel_instances() {
#if CAPILLARY_WITH_CUDA
  return cuda::supported_combinations();
#else
  return "";
#endif
}

int64_t available_memory_bytes() {
  std::ifstream info("/proc/meminfo");
  std::string word;
  while (info >> word) {
    int64_t kilobytes = 0;
    if (word == "MemAvailable:" && info >> kilobytes) return kilobytes * 1024;
  }
  return INT64_MAX;
}

double median(std::vector<double> values) {
  return quantile(std::move(values), 0.5);
}

double quantile(std::vector<double> values, double at) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return sorted_quantile(values, at);
}

double spread(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double middle = sorted_quantile(values, 0.5);
  return middle > 0 ? (sorted_quantile(values, 0.75) - sorted_quantile(values, 0.25)) / middle : 0;
}

}  // namespace capillary::cli
