// SPDX-License-Identifier: MIT
// Measures the ablation (bench_ablate.h). A card's time is dear: the KV content of a workload is made once, plans
// that do the same are measured once, and only the way of timing that comparisons are stated for is timed.
#include "cli/bench_ablate.h"

#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>

#include "cli/ablation.h"
#include "cli/ablation_report.h"
#include "cli/bench_record.h"
#include "cli/common.h"
#include "cli/device.h"
#include "fmt/format.h"
#include "shared/plan_layout.h"

namespace capillary::cli {
namespace {

constexpr const char* kVerb = "bench";
// Every plan is timed in so many rounds, each over all plans of the step: a clock that drifts meets them alike.
constexpr int kRounds = 2;
constexpr double kProgressSeconds = 5;

// Plans do the same when they differ in nothing but what their header says about the planning.
bool does_the_same(const Plan& a, const Plan& b) {
  if (a.size_bytes() != b.size_bytes() || a.size_bytes() < sizeof(PlanHeader)) {
    return a.size_bytes() == b.size_bytes();
  }
  PlanHeader header_a;
  PlanHeader header_b;
  std::memcpy(&header_a, a.data(), sizeof header_a);
  std::memcpy(&header_b, b.data(), sizeof header_b);
  header_a.mode = header_b.mode;
  header_a.predicted_us = header_b.predicted_us;
  return std::memcmp(&header_a, &header_b, sizeof header_a) == 0 &&
         std::memcmp(static_cast<const char*>(a.data()) + sizeof header_a,
                     static_cast<const char*>(b.data()) + sizeof header_b,
                     a.size_bytes() - sizeof header_a) == 0;
}

// An arm planned: a plan, or why there is none, and whose measurement it has.
struct PlannedArm {
  std::optional<PlanReport> report;
  std::string skipped;
  int32_t measured = 0;
  Measurement measurement;  // of its own, where measured is itself
};

std::vector<PlannedArm> plan_arms(const Step& step, const DeviceProfile& profile) {
  std::vector<PlannedArm> arms;
  for (const Arm& arm : ablation_arms()) {
    PlannedArm planned;
    const auto index = static_cast<int32_t>(arms.size());
    planned.measured = index;
    const int32_t forced = arm.options.cluster_size;
    if (forced != 0 && profile.max_clusters[static_cast<size_t>(cluster_size_index(forced))] == 0) {
      planned.skipped = fmt::format("clusters of {} cannot be launched here", forced);
    } else {
      planned.report = make_plan(step, arm.options, profile);
      validate_plan(planned.report->plan.data(), planned.report->plan.size_bytes(), step.forest);
      for (int32_t before = 0; before < index; ++before) {
        const std::optional<PlanReport>& other = arms[static_cast<size_t>(before)].report;
        if (!other || !does_the_same(other->plan, planned.report->plan)) continue;
        planned.measured = before;
        break;
      }
    }
    arms.push_back(std::move(planned));
  }
  return arms;
}

void measure_arms(TimedDevice& device, MeasuredStep& step, const MeasureOptions& options,
                  std::vector<PlannedArm>* arms) {
  const TimingKind kind = device.timing_kinds().front();
  const int repeats = (options.repeats + kRounds - 1) / kRounds;
  for (int round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < arms->size(); ++i) {
      PlannedArm& arm = (*arms)[i];
      if (!arm.report || arm.measured != static_cast<int32_t>(i)) continue;
      throw_if_interrupted();
      step.load(arm.report->plan);
      if (round == 0) {
        if (!options.no_check) arm.measurement.check = step.check();
        arm.measurement.times_us.emplace_back(kind, std::vector<double>());
      }
      std::vector<double>& times = arm.measurement.times_us.front().second;
      const std::vector<double> more = step.time_us(kind, repeats);
      times.insert(times.end(), more.begin(), more.end());
    }
  }
}

class Progress {
 public:
  explicit Progress(size_t rows) : rows_(rows), terminal_(is_terminal(fileno(stderr))) {}
  // Where nobody watches, a line now and then.
  void begin_row(const std::string& name) {
    const double seconds = seconds_since(start_);
    if (terminal_) {
      fmt::print(stderr, "\r{}/{} {:<60.60}", done_, rows_, name);
    } else if (done_ == 0 || seconds - printed_ > kProgressSeconds) {
      fmt::print(stderr, "capillary bench: {}/{} rows in {:.0f} s, next {}\n", done_, rows_,
                 seconds, name);
      printed_ = seconds;
    }
    ++done_;
  }
  void end() {
    if (terminal_) fmt::print(stderr, "\r{:80}\r", "");
  }
  double seconds() const { return seconds_since(start_); }

 private:
  using Clock = std::chrono::steady_clock;
  static double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  size_t rows_;
  bool terminal_;
  size_t done_ = 0;
  double printed_ = 0;
  Clock::time_point start_ = Clock::now();
};

class Ablation {
 public:
  explicit Ablation(const AblateOptions& options) : options_(options) {
    const auto open = [](const char* option, const std::string& path,
                         std::optional<OutputFile>* file) {
      if (!path.empty()) file->emplace(kVerb, option, path);
    };
    open("--out", options.out, &lines_);
    open("--plot", options.plot, &plot_);
    open("--report", options.report, &report_);
  }

  void add(const Step& step, const std::vector<PlannedArm>& arms, TimedDevice& device) {
    AblationRow row;
    const Heads heads = {step.shape.num_q_heads, step.shape.num_kv_heads};
    row.workload = step.name;
    row.heads = heads_name(heads);
    row.one_kv_head = heads.num_kv_heads == 1;
    row.partial_traffic = partial_traffic_of(step.forest, step.shape);
    const PlanReport& planner = *arms.back().report;
    row.sharing = sharing_of(planner.summary);
    const Floor floor = device.floor(planner.summary);
    row.floor_us = floor.us;
    for (size_t i = 0; i < arms.size(); ++i) {
      const PlannedArm& arm = arms[i];
      const Arm& forced = ablation_arms()[i];
      ArmResult result;
      result.skipped = arm.skipped;
      result.measured = arm.measured;
      if (!arm.report) {
        row.arms.push_back(result);
        write(json_line({{"workload", row.workload},
                         {"heads", row.heads},
                         {"arm", forced.name},
                         {"skipped", arm.skipped}}));
        continue;
      }
      const Measurement& measurement = arms[static_cast<size_t>(arm.measured)].measurement;
      result.time_us = measurement.headline_us();
      result.path = arm.report->summary.mode;
      result.cluster_size = arm.report->summary.cluster_size;
      result.predicted_us = arm.report->summary.predicted_us;
      result.passed = measurement.passed();
      row.arms.push_back(result);
      nlohmann::ordered_json record =
          bench_record({*arm.report, measurement, floor}, options_.measure, device);
      record["arm"] = forced.name;
      record["measured_as"] = ablation_arms()[static_cast<size_t>(arm.measured)].name;
      record["partial_traffic"] = row.partial_traffic;
      write(json_line(record));
      if (!result.passed && arm.measured == static_cast<int32_t>(i)) {
        all_passed_ = false;
        fmt::print(stderr, "capillary bench: {} {}: check failed: {}\n", row_name(*arm.report),
                   forced.name, measurement.check->failure);
      }
    }
    rows_.push_back(std::move(row));
  }

  void finish(const TimedDevice& device) {
    const std::string source = fmt::format(
        "{}, commit {}; {}, median of {} in {} rounds; {}", device.description(), build_commit(),
        timing_name(device.timing_kinds().front()), options_.measure.repeats, kRounds,
        options_.measure.no_check ? "not checked" : "every plan checked");
    if (lines_) lines_->commit();
    if (plot_) {
      plot_->write(ablation_svg(rows_, source));
      plot_->commit();
    }
    if (report_) {
      report_->write(ablation_markdown(rows_, source));
      report_->commit();
    }
    const bool quiet =
        options_.json || options_.out == "-" || options_.plot == "-" || options_.report == "-";
    if (!quiet) fmt::print("{}", ablation_text(rows_));
  }

  bool all_passed() const { return all_passed_; }

 private:
  void write(const std::string& line) {
    if (lines_) lines_->write(line);
    if (!options_.json) return;
    fmt::print("{}", line);
    std::fflush(stdout);
  }

  const AblateOptions& options_;
  std::optional<OutputFile> lines_;
  std::optional<OutputFile> plot_;
  std::optional<OutputFile> report_;
  std::vector<AblationRow> rows_;
  bool all_passed_ = true;
};

}  // namespace

int run_ablation(const AblateOptions& options) {
  const check::CacheLayout layout = parse_layout(kVerb, options.measure.layout);
  Ablation ablation(options);
  const std::unique_ptr<TimedDevice> device =
      open_device(kVerb, options.measure.device, options.measure.num_threads);
  const DeviceProfile profile = load_profile(kVerb, options.batch.profile);
  const std::vector<StepChoice> choices =
      sample_choices(resolve_choices(kVerb, options.batch), options.sample, options.batch.seed);
  Progress progress(choices.size());
  try {
    for (const StepChoice& choice : choices) {
      throw_if_interrupted();
      progress.begin_row(choice.workload.name + " " + heads_name(choice.heads));
      Step step = make_step(kVerb, options.batch, choice);
      const std::unique_ptr<MeasuredStep> measured = device->make_step(kVerb, step, layout);
      std::vector<PlannedArm> arms = plan_arms(step, device->adapt_profile(profile, step.shape));
      measure_arms(*device, *measured, options.measure, &arms);
      ablation.add(step, arms, *device);
    }
  } catch (...) {
    progress.end();
    ablation.finish(*device);
    std::fflush(stdout);
    throw;
  }
  progress.end();
  ablation.finish(*device);
  if (!options.json) {
    fmt::print(stderr, "capillary bench: {} rows in {:.0f} s\n", choices.size(),
               progress.seconds());
  }
  return ablation.all_passed() ? kOk : kCheckFailed;
}

}  // namespace capillary::cli
