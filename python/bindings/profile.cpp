// SPDX-License-Identifier: MIT
// DeviceProfile: read-only in Python; the built-in one, a card's, or a file's.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>

#include <cstdlib>

#include "bindings.h"
#include "capillary/device_profile.h"
#include "capillary/profile_file.h"
#include "chosen_profile.h"
#include "names.h"
#include "require_device.h"

namespace nb = nanobind;

namespace capillary::python {
namespace {

constexpr const char* kCard = "a Hopper GPU that is here";

// The figures, in the order of the file format: visit(name, member, what it is).
template <class Visit>
void for_each_field(Visit&& visit) {
  visit("name", &DeviceProfile::name, "The card's, as a rule.");
  visit("source", &DeviceProfile::source,
        "Where the figures come from: 'built in', or a calibration's date and build.");
  visit("num_sms", &DeviceProfile::num_sms, "SMs.");
  visit("l2_bytes", &DeviceProfile::l2_bytes, "L2 cache, bytes.");
  visit("smem_bytes_per_cta", &DeviceProfile::smem_bytes_per_cta,
        "Shared memory that one CTA may have, bytes.");
  visit("max_clusters", &DeviceProfile::max_clusters,
        "Clusters co-resident with one CTA an SM, by cluster size; 0: cannot be launched.");
  visit("hbm_gbps", &DeviceProfile::hbm_gbps, "Read rate of all SMs from HBM, GB/s.");
  visit("hbm_gbps_per_cta", &DeviceProfile::hbm_gbps_per_cta,
        "The most that one CTA draws from HBM while the others leave it idle, GB/s.");
  visit("l2_gbps_per_cta", &DeviceProfile::l2_gbps_per_cta, "Read rate of one CTA from L2, GB/s.");
  visit("wide_gbps_per_cta", &DeviceProfile::wide_gbps_per_cta,
        "What the wide path takes in at most on one SM, GB/s.");
  visit("dsm_load_gbps_per_cta", &DeviceProfile::dsm_load_gbps_per_cta,
        "Loads of one CTA from a peer's shared memory, by cluster size, GB/s.");
  visit("dsm_latency_us", &DeviceProfile::dsm_latency_us, "One load from a peer, us.");
  visit("cluster_barrier_us", &DeviceProfile::cluster_barrier_us,
        "Cluster barrier, from arrival to wake-up, us.");
  visit("l2_merge_latency_us", &DeviceProfile::l2_merge_latency_us,
        "Merging parts through the workspace, us.");
  visit("matrix_tflops", &DeviceProfile::matrix_tflops,
        "What the wide path reaches, TFLOP/s: for estimates.");
  visit("matrix_ceiling_tflops", &DeviceProfile::matrix_ceiling_tflops,
        "What the tensor cores reach by themselves, TFLOP/s: for floors.");
  visit("narrow_tile_us", &DeviceProfile::narrow_tile_us,
        "One 16-token tile of one narrow stream, us.");
  visit("stream_item_us", &DeviceProfile::stream_item_us,
        "One item of a narrow stream besides its tiles, us.");
  visit("launch_us", &DeviceProfile::launch_us,
        "From launch to the first byte requested, and drain, us.");
  visit("job_start_us", &DeviceProfile::job_start_us, "Between two jobs of a CTA, us.");
  visit("item_start_us", &DeviceProfile::item_start_us, "Starting a wide phase, us.");
  visit("stream_start_us", &DeviceProfile::stream_start_us, "Starting a narrow phase, us.");
}

DeviceProfile for_device(int device, const std::string& dtype, int head_dim) {
  const char* function = "DeviceProfile.for_device";
  const DType type = parse_dtype(function, dtype);
  require_device(function, device, kCard);  // -1, too: the CPU has no card
  return choose_profile(function, std::nullopt, device, type, head_dim).profile;
}

DeviceProfile read_file(const std::string& path) {
#if CAPILLARY_WITH_PROFILES
  return read_profile(path);
#else
  throw UnsupportedConfig(
      five_parts("load_profile", "profile", "is '" + path + "'",
                 "not be asked for: this package was built without profile files",
                 "build it where fmt and nlohmann-json are installed"));
#endif
}

ChosenProfile find_profile_of([[maybe_unused]] int32_t device) {
#if CAPILLARY_WITH_PROFILES
  CardIdentity card;
#if CAPILLARY_WITH_CUDA
  if (device >= 0) card = cuda::card_identity(device);
#endif
  const FoundProfile found = find_profile("", card);
  return {found.profile, found.where()};
#else
  if (const char* path = std::getenv("CAPILLARY_PROFILE"); path != nullptr && *path != '\0')
    (void)read_file(path);  // says that this build reads none
  return {builtin_h200(), "built in"};
#endif
}

// For calibrate(): the index of a card that the kernels run on, and where its profile is kept.
nb::tuple card_to_calibrate(const std::string& device) {
  const char* function = "calibrate";
  const int32_t index = parse_device(function, device);
  if (index < 0)
    throw InvalidArgument(five_parts(function, "device", "is '" + device + "'",
                                     "be 'cuda' or 'cuda:N'", "name the card to measure"));
  require_device(function, index, kCard);
  std::string path;
#if CAPILLARY_WITH_CUDA && CAPILLARY_WITH_PROFILES
  path = profile_cache_path(cuda::card_identity(index));
#endif
  return nb::make_tuple(index, path);
}

}  // namespace

ChosenProfile choose_profile(const char* function, const std::optional<DeviceProfile>& given,
                             int32_t device, [[maybe_unused]] DType dtype,
                             [[maybe_unused]] int32_t head_dim) {
  if (device >= 0) require_device(function, device);
  ChosenProfile chosen = given ? ChosenProfile{*given, "the caller's"} : find_profile_of(device);
#if CAPILLARY_WITH_CUDA
  if (device >= 0)
    chosen.profile = cuda::profile_for_device(device, dtype, head_dim, chosen.profile);
#endif
  return chosen;
}

void bind_profile(nb::module_& module) {
  nb::class_<DeviceProfile> profile(
      module, "DeviceProfile",
      "What the cost model knows about a card. Rates are in GB/s (1e9) and TFLOP/s, times in us;\n"
      "lists by cluster size are for 1, 2, 4, 8 and 16 CTAs. Read-only.");
  profile
      .def_static(
          "h200", [] { return builtin_h200(); }, "The built-in profile of an H200.")
      .def_static(
          "for_device", &for_device, nb::arg("device"), nb::kw_only(),
          nb::arg("dtype") = "bfloat16", nb::arg("head_dim") = 128,
          "The profile that a Planner on this CUDA device takes: what CAPILLARY_PROFILE names, "
          "else "
          "what\n"
          "calibrate() wrote for this card, else the built-in one; with the cluster limits of this "
          "device,\n"
          "asked of its driver.\n\n"
          "Raises UnsupportedArchError where it is no Hopper GPU, InvalidArgumentError for a file "
          "that is no\n"
          "sound profile or another card's.")
      .def("__repr__", [](const DeviceProfile& self) {
        return "<DeviceProfile " + self.name + " (" + self.source + ")>";
      });
  for_each_field(
      [&](const char* name, auto member, const char* what) { profile.def_ro(name, member, what); });
  module.def("_read_profile", &read_file, nb::arg("path"));
  module.def("_card_to_calibrate", &card_to_calibrate, nb::arg("device"),
             nb::sig("def _card_to_calibrate(device: str) -> tuple[int, str]"));
}

}  // namespace capillary::python
