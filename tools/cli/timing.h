// SPDX-License-Identifier: MIT
// The timing engine that run and bench drive: a device takes a batch and a plan once, then runs the step many
// times in each way it knows. The CPU knows one way; a CUDA device adds graph replays, L2 cold and warm.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "capillary/decode.h"
#include "capillary/plan.h"
#include "capillary/prefix_forest.h"
#include "check/backend.h"
#include "check/batch.h"

namespace capillary::cli {

enum class TimingKind {
  kEager,      // one call of decode at a time
  kGraphCold,  // a graph launch, the L2 holding nothing of this step's KV
  kGraphWarm,  // a graph launch, the L2 as the launch before left it
};
const char* timing_name(TimingKind kind);  // "eager", "graph cold", "graph warm"

class TimedDevice {
 public:
  virtual ~TimedDevice() = default;
  virtual DeviceType type() const = 0;
  virtual std::string description() const = 0;  // card or processor, as a person would name it
  virtual std::string driver_version() const { return ""; }
  virtual std::string toolkit_version() const { return ""; }
  virtual std::vector<TimingKind> timing_kinds() const = 0;
  // As check::Backend::rounds_weights.
  virtual bool rounds_weights() const = 0;

  struct Floor {
    double us = 0;
    const char* kind = "memory";  // or "compute"
  };
  // The least time that the step could take on this device: its unique bytes at the rate that a plain read
  // reaches (or its arithmetic at the rate that a plain product reaches).
  virtual Floor floor(const PlanSummary& summary) = 0;

  // All outlive the calls below, until the next load.
  virtual void load(check::HostBatch& batch, const PrefixForest& forest, const Plan& plan) = 0;
  // One run; every buffer of the batch is as the step left it.
  virtual void run_once() = 0;
  // Microseconds of each of `repeats` runs after a few that warm up; polls for interruption.
  virtual std::vector<double> time_us(TimingKind kind, int repeats) = 0;
};

std::unique_ptr<TimedDevice> make_cpu_timed_device(int32_t num_threads);

// "cpu", "cuda" or "auto", the best present. Throws UsageError for another name, UnsupportedConfig where this
// build or machine has none.
std::unique_ptr<TimedDevice> open_device(std::string_view verb, const std::string& name,
                                         int32_t num_threads);

// The same choice for the check cases.
std::unique_ptr<check::Backend> open_check_backend(std::string_view verb, const std::string& name,
                                                   int32_t num_threads);

// For info: one line a backend, present or why not.
struct DeviceLine {
  std::string backend;
  bool present = false;
  std::string text;
};
std::vector<DeviceLine> device_lines();

double median(std::vector<double> values);
// Relative spread: (third - first quartile) / median.
double spread(std::vector<double> values);

}  // namespace capillary::cli
