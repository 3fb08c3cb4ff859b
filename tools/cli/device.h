// SPDX-License-Identifier: MIT
// Where run and bench measure a step. A TimedDevice takes a batch and makes a MeasuredStep of it: random data
// in its own memory, a plan loaded, checked, and timed in each way the device knows. The CPU knows one way; a
// CUDA device adds graph replays with a cold and a warm L2. New devices are added in open_device alone.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "capillary/plan.h"
#include "check/backend.h"
#include "check/batch.h"
#include "cli/batch_options.h"

namespace capillary::cli {

enum class TimingKind {
  kEager,           // one call of decode at a time
  kGraphCold,       // a graph launch, the L2 holding nothing of this step's KV
  kGraphWarm,       // a graph launch, the L2 as the launch before left it
  kGraphDependent,  // as kGraphCold, each step a programmatic dependent of the one before
};
const char* timing_name(TimingKind kind);  // "eager", "graph cold", "graph warm", "graph dependent"

struct StepCheck {
  bool passed = true;
  std::string failure;
  int64_t rows = 0;  // (query, head) rows looked at
  double worst_rel_err = 0;
  double worst_of_bound = 0;  // worst error as a fraction of what is allowed
  double worst_lse_err = 0;
};

class MeasuredStep {
 public:
  virtual ~MeasuredStep() = default;
  // The plan must outlive the calls below, until the next load.
  virtual void load(const Plan& plan) = 0;
  // Runs once on poisoned outputs and compares with a computation that knows no plans.
  virtual StepCheck check() = 0;
  // Microseconds of each of `repeats` runs after a few that warm up; polls for interruption.
  virtual std::vector<double> time_us(TimingKind kind, int repeats) = 0;
  // One run's timeline as a Chrome trace. Throws UnsupportedConfig where there is none to be had.
  virtual std::string trace_json();
};

struct Floor {
  double us = 0;
  const char* kind = "memory";  // or "compute"
};

class TimedDevice {
 public:
  virtual ~TimedDevice() = default;
  virtual DeviceType type() const = 0;
  virtual std::string description() const = 0;  // card or processor, as a person would name it
  virtual std::string driver_version() const { return ""; }
  virtual std::string toolkit_version() const { return ""; }
  // The first is the one that efficiency and comparisons are stated for.
  virtual std::vector<TimingKind> timing_kinds() const = 0;
  // The profile with what this very device can launch.
  virtual DeviceProfile adapt_profile(const DeviceProfile& profile, const ModelShape& shape) const;
  // The least time that the step could take here: its unique bytes at the rate that a plain read reaches, or
  // its arithmetic at the profile's matrix rate.
  virtual Floor floor(const PlanSummary& summary) = 0;
  // Replaces step.forest where the device lays the block table out anew. verb: for messages.
  virtual std::unique_ptr<MeasuredStep> make_step(std::string_view verb, Step& step,
                                                  check::CacheLayout layout) = 0;
};

// "nhd", "hnd", ...; throws UsageError.
check::CacheLayout parse_layout(std::string_view verb, std::string_view text);

// "cpu", "cuda" or "auto", the best present. Throws UsageError for another name, UnsupportedConfig or
// UnsupportedArch where this build or machine has none.
std::unique_ptr<TimedDevice> open_device(std::string_view verb, const std::string& name,
                                         int32_t num_threads);
// The same choice for the check cases.
std::unique_ptr<check::Backend> open_check_backend(std::string_view verb, const std::string& name,
                                                   int32_t num_threads);

std::unique_ptr<TimedDevice> make_cpu_device(int32_t num_threads);
// Only where CAPILLARY_HAS_TIMED_CUDA.
std::unique_ptr<TimedDevice> make_cuda_device(int index);

// The first card that the kernels run on, -1 where this build or machine has none; and what it is (no name: none).
int first_card();
CardIdentity card_here();

// For info: one line a backend, present or why not.
struct DeviceLine {
  std::string backend;
  bool present = false;
  std::string text;
};
std::vector<DeviceLine> device_lines();
// For info: dtypes and head_dims of the kernels in this build; empty where it has none.
std::string kernel_instances();

// Bytes that this machine can still give out; INT64_MAX where that is not known.
int64_t available_memory_bytes();

double median(std::vector<double> values);
// at: 0 the least, 1 the largest, between two values in proportion; 0 of no values.
double quantile(std::vector<double> values, double at);
// Relative spread: (third - first quartile) / median.
double spread(std::vector<double> values);

}  // namespace capillary::cli
