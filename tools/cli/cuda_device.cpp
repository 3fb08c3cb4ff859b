// SPDX-License-Identifier: MIT
// A CUDA card as a device to measure on (device.h): a thin adapter of device::DeviceStep, which makes its data
// on the card and checks it there.
#include <algorithm>
#include <utility>

#include "capillary/cuda.h"
#include "cli/common.h"
#include "cli/device.h"
#include "device/device_step.h"
#include "fmt/format.h"

namespace capillary::cli {
namespace {

// cudaDriverGetVersion's 13000 is 13.0.
std::string cuda_version(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

device::Timing timing_of(TimingKind kind) {
  switch (kind) {
    case TimingKind::kGraphCold:
      return device::Timing::kGraphCold;
    case TimingKind::kGraphWarm:
      return device::Timing::kGraphWarm;
    case TimingKind::kGraphDependent:
      return device::Timing::kGraphDependent;
    case TimingKind::kEager:
      break;
  }
  return device::Timing::kEager;
}

class CudaStep final : public MeasuredStep {
 public:
  explicit CudaStep(const device::StepSpec& spec) : step_(spec) {}

  void load(const Plan& plan) override { step_.load(plan); }
  StepCheck check() override {
    const device::CheckOutcome outcome = step_.check();
    StepCheck result;
    result.passed = outcome.passed;
    if (!outcome.passed) {
      result.failure = fmt::format("worst relative error {:.2e}, worst LSE error {:.2e} of {} rows",
                                   outcome.worst_rel_err, outcome.worst_lse_err, outcome.rows);
    }
    result.rows = outcome.rows;
    result.worst_rel_err = outcome.worst_rel_err;
    result.worst_lse_err = outcome.worst_lse_err;
    return result;
  }
  std::vector<double> time_us(TimingKind kind, int repeats) override {
    throw_if_interrupted();
    return step_.time_us(timing_of(kind), repeats);
  }
  std::string trace_json() override { return step_.trace_json(); }

 private:
  device::DeviceStep step_;
};

class CudaDevice final : public TimedDevice {
 public:
  explicit CudaDevice(int index) : info_(cuda::device_info(index)) {
    cuda::require_supported(index);
  }

  DeviceType type() const override { return DeviceType::kCuda; }
  std::string description() const override { return info_.name; }
  std::string driver_version() const override { return cuda_version(info_.driver_version); }
  std::string toolkit_version() const override { return cuda_version(info_.runtime_version); }
  std::vector<TimingKind> timing_kinds() const override {
    return {TimingKind::kGraphCold, TimingKind::kGraphDependent, TimingKind::kGraphWarm,
            TimingKind::kEager};
  }
  DeviceProfile adapt_profile(const DeviceProfile& profile,
                              const ModelShape& shape) const override {
    return cuda::profile_for_device(info_.index, shape.dtype, shape.head_dim, profile);
  }
  Floor floor(const PlanSummary& summary) override {
    if (read_gbps_ == 0) read_gbps_ = device::measure_read_gbps(info_.index);
    const double memory_us = static_cast<double>(summary.unique_bytes) / (read_gbps_ * 1e3);
    // The profile's arithmetic ceiling; a matrix product is not timed here.
    const bool compute = summary.floor_us > summary.hbm_us && summary.floor_us > memory_us;
    return compute ? Floor{summary.floor_us, "compute"} : Floor{memory_us, "memory"};
  }
  std::unique_ptr<MeasuredStep> make_step(std::string_view verb, Step& step,
                                          check::CacheLayout layout) override {
    if (layout != check::CacheLayout::kNhd && layout != check::CacheLayout::kHnd) {
      throw UnsupportedConfig(
          five_parts(verb, "--layout", fmt::format("is {}", check::layout_name(layout)),
                     "be nhd or hnd to be timed on a CUDA device", "give one of these"));
    }
    compact_pages(&step.batch);
    step.forest = PrefixForest::from_block_table(step.batch.view(), step.batch.seq_lens,
                                                 step.batch.page_size);
    device::StepSpec spec;
    spec.shape = step.shape;
    spec.table = step.batch.view();
    spec.seq_lens = step.batch.seq_lens;
    spec.page_size = step.batch.page_size;
    spec.num_pages = step.batch.num_pages;
    spec.layout = layout == check::CacheLayout::kNhd ? device::Layout::kNhd : device::Layout::kHnd;
    spec.device = info_.index;
    return std::make_unique<CudaStep>(spec);
  }

 private:
  cuda::DeviceInfo info_;
  double read_gbps_ = 0;  // 0: not measured yet
};

}  // namespace

std::unique_ptr<TimedDevice> make_cuda_device(int index) {
  return std::make_unique<CudaDevice>(index);
}

}  // namespace capillary::cli
