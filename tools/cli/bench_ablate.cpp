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
#include "cli/ablation_record.h"
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

// What is told of the rows, in each of the forms that were asked for.
class AblationOutput {
 public:
  explicit AblationOutput(const AblateOptions& options) : options_(options) {
    open("--out", options.out, &lines_);
    open("--plot", options.plot, &plot_);
    open("--report", options.report, &report_);
  }

  void add_line(const nlohmann::ordered_json& record) {
    const std::string line = json_line(record);
    if (lines_) lines_->write(line);
    if (!options_.json) return;
    fmt::print("{}", line);
    std::fflush(stdout);
  }

  void finish(const AblationRecord& record) {
    if (lines_) lines_->commit();
    if (plot_) {
      plot_->write(ablation_svg(record.rows, record.source));
      plot_->commit();
    }
    if (report_) {
      report_->write(ablation_markdown(record.rows, record.source));
      report_->commit();
    }
    const bool quiet =
        options_.json || options_.out == "-" || options_.plot == "-" || options_.report == "-";
    if (!quiet) fmt::print("{}", ablation_text(record.rows));
    std::fflush(stdout);
  }

 private:
  static void open(const char* option, const std::string& path, std::optional<OutputFile>* file) {
    if (!path.empty()) file->emplace(kVerb, option, path);
  }

  const AblateOptions& options_;
  std::optional<OutputFile> lines_;
  std::optional<OutputFile> plot_;
  std::optional<OutputFile> report_;
};

// One line an arm; arms without a plan say why.
std::vector<nlohmann::ordered_json> records_of(const Step& step,
                                               const std::vector<PlannedArm>& arms,
                                               const MeasureOptions& options, TimedDevice& device) {
  const Floor floor = device.floor(arms.back().report->summary);
  const double partial_traffic = partial_traffic_of(step.forest, step.shape);
  std::vector<nlohmann::ordered_json> records;
  for (size_t i = 0; i < arms.size(); ++i) {
    const PlannedArm& arm = arms[i];
    nlohmann::ordered_json record;
    if (arm.report) {
      const Measurement& measurement = arms[static_cast<size_t>(arm.measured)].measurement;
      record = bench_record({*arm.report, measurement, floor}, options, device);
      record["repeats"] = measurement.times_us.front().second.size();
      record["arm"] = ablation_arms()[i].name;
      record["measured_as"] = ablation_arms()[static_cast<size_t>(arm.measured)].name;
      record["partial_traffic"] = partial_traffic;
    } else {
      record = {{"workload", step.name},
                {"heads", heads_name({step.shape.num_q_heads, step.shape.num_kv_heads})},
                {"arm", ablation_arms()[i].name},
                {"skipped", arm.skipped}};
    }
    records.push_back(std::move(record));
  }
  return records;
}

// False if a plan gave wrong results, which is said on standard error.
bool all_passed(const std::vector<PlannedArm>& arms) {
  bool passed = true;
  for (size_t i = 0; i < arms.size(); ++i) {
    const PlannedArm& arm = arms[i];
    if (arm.measured != static_cast<int32_t>(i) || arm.measurement.passed()) continue;
    passed = false;
    fmt::print(stderr, "capillary bench: {} {}: check failed: {}\n", row_name(*arm.report),
               ablation_arms()[i].name, arm.measurement.check->failure);
  }
  return passed;
}

// An earlier run's lines told again.
int retell(const AblateOptions& options) {
  AblationOutput output(options);
  output.finish(ablation_from_lines(read_text_file(kVerb, "--from", options.from), options.from));
  return kOk;
}

}  // namespace

int run_ablation(const AblateOptions& options) {
  if (!options.from.empty()) return retell(options);
  const check::CacheLayout layout = parse_layout(kVerb, options.measure.layout);
  AblationOutput output(options);
  const std::unique_ptr<TimedDevice> device =
      open_device(kVerb, options.measure.device, options.measure.num_threads);
  const DeviceProfile profile = load_profile(kVerb, options.batch.profile);
  const std::vector<StepChoice> choices =
      sample_choices(resolve_choices(kVerb, options.batch), options.sample, options.batch.seed);
  Progress progress(choices.size());
  AblationRecord record;
  bool passed = true;
  try {
    for (const StepChoice& choice : choices) {
      throw_if_interrupted();
      progress.begin_row(choice.workload.name + " " + heads_name(choice.heads));
      Step step = make_step(kVerb, options.batch, choice);
      const std::unique_ptr<MeasuredStep> measured = device->make_step(kVerb, step, layout);
      std::vector<PlannedArm> arms = plan_arms(step, device->adapt_profile(profile, step.shape));
      measure_arms(*device, *measured, options.measure, &arms);
      passed = all_passed(arms) && passed;
      const auto records = records_of(step, arms, options.measure, *device);
      for (const nlohmann::ordered_json& line : records) output.add_line(line);
      record.rows.push_back(ablation_row(records));
      record.source = ablation_source(records.back());
    }
  } catch (...) {
    progress.end();
    output.finish(record);
    throw;
  }
  progress.end();
  output.finish(record);
  if (!options.json) {
    fmt::print(stderr, "capillary bench: {} rows in {:.0f} s\n", choices.size(),
               progress.seconds());
  }
  return passed ? kOk : kCheckFailed;
}

}  // namespace capillary::cli
