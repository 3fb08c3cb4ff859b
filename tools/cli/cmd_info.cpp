// SPDX-License-Identifier: MIT
// `capillary info`: what this build is, which devices it finds, what it supports, and which profile is in use.
#include <cstdio>
#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "capillary/version.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "cli/device.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"
#include "profile/profile_json.h"
#include "shared/plan_layout.h"
#include "shared/tile_table.h"

namespace capillary::cli {
namespace {

constexpr const char* kVerb = "info";

#if defined(__clang__)
constexpr const char* kCompiler = "clang " __clang_version__;
#elif defined(__GNUC__)
constexpr const char* kCompiler = "g++ " __VERSION__;
#else
constexpr const char* kCompiler = "unknown";
#endif

// What the plan format and the CPU interpreter take. The CUDA kernels take the same but for dtype and head_dim,
// which have a line of their own.
struct SupportRow {
  const char* what;
  const char* values;
};
constexpr SupportRow kSupport[] = {
    {"dtypes", "bfloat16, float16; float32 on the CPU"},
    {"head_dim", "1 to 256, V may differ from Q and K"},
    {"heads", "any number of query heads that is a multiple of the KV heads"},
    {"page size", "any from 1"},
    {"layouts", "NHD, HND, packed K|V, any strides with the last 1"},
    {"modes", "auto, flat, shared-l2"},
    {"cluster sizes", "1, 2, 4, 8, 16"},
};

struct InfoOptions {
  bool json = false;
  bool profile_only = false;
  std::string profile;
};

void print_text(const FoundProfile& found) {
  const DeviceProfile& profile = found.profile;
  fmt::print("capillary  {} ({}; {})\n", CAPILLARY_VERSION_STRING, CAPILLARY_BUILD_TYPE, kCompiler);
  fmt::print("plan       format {}\n", kPlanVersion);
  fmt::print("CUDA       {}\n", CAPILLARY_WITH_CUDA ? "compiled in (sm_90a)" : "not compiled in");
  for (const DeviceLine& line : device_lines()) {
    fmt::print("device     {}: {}{}\n", line.backend, line.present ? "" : "absent, ", line.text);
  }
  for (const SupportRow& row : kSupport) fmt::print("supports   {}: {}\n", row.what, row.values);
  const std::string instances = kernel_instances();
  fmt::print("supports   on CUDA: {}\n", instances.empty() ? "not in this build" : instances);
  std::string rows = "supports   rows of a job:";
  for (const int head_dim : {64, 128, 192, 256}) {
    rows += fmt::format("{} {} at head_dim {}", head_dim == 64 ? "" : ",",
                        tile_table(head_dim).max_job_rows, head_dim);
  }
  fmt::print("{}\n", rows);
  fmt::print(
      "profile    {} ({}): {} SMs, HBM {:.0f} GB/s, matrix {:.0f} TFLOP/s, clusters of 8: {}\n",
      profile.name, profile.source, profile.num_sms, profile.hbm_gbps, profile.matrix_tflops,
      profile.max_clusters[3]);
  fmt::print("profile    from: {}\n", found.where());
}

void print_json(const FoundProfile& found) {
  nlohmann::ordered_json object = {{"schema_version", 1},
                                   {"version", CAPILLARY_VERSION_STRING},
                                   {"build_type", CAPILLARY_BUILD_TYPE},
                                   {"compiler", kCompiler},
                                   {"commit", build_commit()},
                                   {"plan_format", kPlanVersion},
                                   {"cuda", static_cast<bool>(CAPILLARY_WITH_CUDA)}};
  object["devices"] = nlohmann::ordered_json::array();
  for (const DeviceLine& line : device_lines()) {
    object["devices"].push_back(
        {{"backend", line.backend}, {"present", line.present}, {"text", line.text}});
  }
  for (const SupportRow& row : kSupport) object["supports"][row.what] = row.values;
  const std::string instances = kernel_instances();
  object["supports"]["on CUDA"] = instances.empty() ? nullptr : nlohmann::ordered_json(instances);
  object["profile"] = nlohmann::ordered_json::parse(profile_to_json(found.profile));
  object["profile_from"] = found.where();
  fmt::print("{}\n", object.dump(2));
}

int run_info(const InfoOptions& options) {
  const FoundProfile found = find_profile_here(kVerb, options.profile);
  if (options.profile_only) {
    fmt::print("{}", profile_to_json(found.profile));
  } else if (options.json) {
    print_json(found);
  } else {
    print_text(found);
  }
  return kOk;
}

}  // namespace

void add_info_command(CLI::App& app, Invocation& invocation) {
  auto options = std::make_shared<InfoOptions>();
  CLI::App* command =
      app.add_subcommand(kVerb, "Build, devices, supported combinations, device profile");
  command->add_flag("--json", options->json, "Print as JSON");
  command->add_flag("--profile-json", options->profile_only,
                    "Print only the device profile, as JSON that --profile reads");
  command->add_option("--profile", options->profile,
                      "Device profile [CAPILLARY_PROFILE, this card's own, built in]");
  command->callback([&invocation, options] {
    invocation.verb = kVerb;
    invocation.run = [options] { return run_info(*options); };
  });
}

}  // namespace capillary::cli
