// SPDX-License-Identifier: MIT
// `capillary calibrate`: measures this machine's card and writes its profile where the other verbs find it
// (docs/calibration.md).
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "CLI/CLI.hpp"
#include "capillary/version.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "cli/device.h"
#include "fmt/chrono.h"
#include "fmt/format.h"
#include "profile/profile_json.h"
#if CAPILLARY_HAS_TIMED_CUDA
#include "calibrate/calibrate_card.h"
#include "capillary/cuda.h"
#endif

namespace capillary::cli {
namespace {

constexpr const char* kVerb = "calibrate";

struct CalibrateOptions {
  std::string out;  // empty: the user's cache
  int card = -1;    // -1: the first that the kernels run on
};

#if CAPILLARY_HAS_TIMED_CUDA

// Measuring takes seconds. If a card does not answer, no call comes back to look at a clock: the alarm ends it all, and
// the profile that may be there stays.
constexpr unsigned kMostSeconds = 120;

void on_alarm(int /*signal*/) {
  constexpr std::string_view kMessage =
      "capillary calibrate: the card has not answered for two minutes; must be free of other work; "
      "look at nvidia-smi, then run this again\n";
  // The process ends either way.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kMessage.data(), kMessage.size());
  ::_exit(kDeviceError);
}

int card_of(const CalibrateOptions& options) {
  const int count = cuda::device_count();
  if (count > 0 && options.card >= count)
    throw UsageError(five_parts(kVerb, "--card", fmt::format("is {}", options.card),
                                fmt::format("be below {}, the number of cards here", count),
                                "leave it out to take the first that the kernels run on"));
  const int index = count > 0 && options.card >= 0 ? options.card : first_card();
  if (index >= 0) return index;
  throw UnsupportedConfig(five_parts(
      kVerb, "this machine", "has no card that the kernels run on",
      "have an NVIDIA Hopper card and its driver",
      "run this where the card is and pass the file it writes by --profile; without one the "
      "built-in h200 profile is used"));
}

std::string today() {
  return fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::time(nullptr)));
}

// Where the profile goes unless --out says otherwise.
std::string cache_file(const CardIdentity& card) {
  const std::string path = profile_cache_path(card);
  if (path.empty())
    throw InvalidArgument(five_parts(kVerb, "the cache",
                                     "has no place: XDG_CACHE_HOME and HOME are not set",
                                     "have one", "set one of them or give --out FILE"));
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  if (error)
    throw InvalidArgument(five_parts(kVerb, "the cache folder '" + profile_cache_folder() + "'",
                                     "cannot be made: " + error.message(), "be writable",
                                     "set XDG_CACHE_HOME or give --out FILE"));
  return path;
}

std::string significant(double value) {
  return fmt::format("{:.4g}", value);
}

// The figures beside the built-in ones; curves point by point.
void print_calibration(const calibrate::Calibration& calibration) {
  TextTable table({"figure", "measured", "built in", "runs", "spread"});
  const auto add_row = [&](const std::string& key, double measured, double built_in) {
    const auto note = calibration.record.notes.find(key);
    const bool noted = note != calibration.record.notes.end();
    table.add_row({key, significant(measured), significant(built_in),
                   noted ? fmt::format("{}", note->second.samples) : "-",
                   noted ? fmt::format("{:.1f} %", 100 * note->second.spread) : "-"});
  };
  const DeviceProfile& measured = calibration.profile;
  const DeviceProfile& built_in = builtin_h200();
  for (size_t i = 0; i < kNumClusterSizes; ++i)
    add_row(fmt::format("max_clusters[{}]", 1 << i), measured.max_clusters[i],
            built_in.max_clusters[i]);
  for (const ProfileField& field : profile_fields())
    add_row(field.key, measured.*field.member, built_in.*field.member);
  for (size_t i = 0; i < kNumClusterSizes; ++i)
    add_row(fmt::format("dsm_load_gbps_per_cta[{}]", 1 << i), measured.dsm_load_gbps_per_cta[i],
            built_in.dsm_load_gbps_per_cta[i]);
  fmt::print("\n{}\n", table.str());
  for (const Curve& curve : calibration.record.curves) {
    std::string points;
    for (const CurvePoint& point : curve.points)
      points += fmt::format("  {:g}: {}", point.x, significant(point.y));
    fmt::print("{} ({}), by {}:{}\n", curve.name, curve.unit, curve.x, points);
  }
}

int run_calibrate(const CalibrateOptions& options) {
  const int index = card_of(options);
  const CardIdentity card = cuda::card_identity(index);
  const std::string path = options.out.empty() ? cache_file(card) : options.out;
  OutputFile file(kVerb, options.out.empty() ? "the cache" : "--out", path);
  const bool quiet = path == "-";

  std::signal(SIGALRM, on_alarm);
  ::alarm(kMostSeconds);
  const auto begin = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  if (!quiet)
    fmt::print("card       {}, {} SMs at {} MHz\n", card.name, card.num_sms, card.clock_mhz);
  calibrate::Calibration calibration =
      calibrate::calibrate_card(index, [&](const std::string& what) {
        throw_if_interrupted();
        if (!quiet) fmt::print("{:5.1f} s    {}\n", seconds(), what);
        std::fflush(stdout);
      });
  ::alarm(0);
  calibration.profile.source = fmt::format("calibrated {}, capillary {} ({})", today(),
                                           CAPILLARY_VERSION_STRING, build_commit());
  file.write(profile_to_json(calibration.profile, calibration.record));
  file.commit();
  if (quiet) return kOk;
  print_calibration(calibration);
  fmt::print("\ncalibrated in {:.1f} s\nprofile    {}{}\n", seconds(), path,
             options.out.empty() ? ", used from now on where plans are made on this machine"
                                 : "; pass it by --profile or CAPILLARY_PROFILE");
  return kOk;
}

#else

int run_calibrate(const CalibrateOptions& /*options*/) {
  throw UnsupportedConfig(five_parts(kVerb, "this build",
                                     "has no CUDA backend, and only a card can be calibrated",
                                     "be a build with CUDA on a machine with an NVIDIA Hopper card",
                                     "build where nvcc is found and run it on the card; pass the "
                                     "file it writes by --profile here, or go on with "
                                     "the built-in h200 profile"));
}

#endif

}  // namespace

void add_calibrate_command(CLI::App& app, Invocation& invocation) {
  auto options = std::make_shared<CalibrateOptions>();
  CLI::App* command =
      app.add_subcommand(kVerb, "Measures the card and writes its profile for the planner");
  command->add_option("--out", options->out,
                      "Where to write the profile; - for standard output [the user's cache]");
  command->add_option("--card", options->card, "Index of the card [the first Hopper card]")
      ->check(CLI::Range(0, 1023));
  command->callback([&invocation, options] {
    invocation.verb = kVerb;
    invocation.run = [options] { return run_calibrate(*options); };
  });
}

}  // namespace capillary::cli
