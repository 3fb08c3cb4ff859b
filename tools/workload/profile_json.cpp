// SPDX-License-Identifier: MIT
// DeviceProfile <-> JSON (profile_json.h). One table of fields serves both directions, so that neither can
// forget one.
#include "workload/profile_json.h"

#include <array>

#include "fmt/format.h"
#include "workload/json_text.h"

namespace capillary {
namespace {

using nlohmann::ordered_json;

struct NumberField {
  const char* key;
  double DeviceProfile::*member;
};
constexpr std::array<NumberField, 14> kNumbers = {{
    {"hbm_gbps", &DeviceProfile::hbm_gbps},
    {"hbm_gbps_per_cta", &DeviceProfile::hbm_gbps_per_cta},
    {"l2_gbps_per_cta", &DeviceProfile::l2_gbps_per_cta},
    {"wide_gbps_per_cta", &DeviceProfile::wide_gbps_per_cta},
    {"dsm_latency_us", &DeviceProfile::dsm_latency_us},
    {"cluster_barrier_us", &DeviceProfile::cluster_barrier_us},
    {"l2_merge_latency_us", &DeviceProfile::l2_merge_latency_us},
    {"matrix_tflops", &DeviceProfile::matrix_tflops},
    {"matrix_ceiling_tflops", &DeviceProfile::matrix_ceiling_tflops},
    {"narrow_tile_us", &DeviceProfile::narrow_tile_us},
    {"stream_item_us", &DeviceProfile::stream_item_us},
    {"launch_us", &DeviceProfile::launch_us},
    {"job_start_us", &DeviceProfile::job_start_us},
    {"item_start_us", &DeviceProfile::item_start_us},
}};

constexpr std::array<const char*, kNumClusterSizes> kClusterSizeKeys = {"1", "2", "4", "8", "16"};

// Objects keyed by cluster size rather than arrays: a reader need not know the order.
JsonFields by_cluster_size(const JsonFields& fields, const char* key, std::string_view source) {
  JsonFields entries(fields.at(key), "profile_from_json", source, fmt::format("field '{}'", key));
  entries.allow_only({"1", "2", "4", "8", "16"});
  return entries;
}

}  // namespace

std::string profile_to_json(const DeviceProfile& profile) {
  ordered_json object;
  object["schema_version"] = kProfileSchemaVersion;
  object["name"] = profile.name;
  object["source"] = profile.source;
  object["num_sms"] = profile.num_sms;
  object["l2_bytes"] = profile.l2_bytes;
  object["smem_bytes_per_cta"] = profile.smem_bytes_per_cta;
  for (size_t i = 0; i < kClusterSizeKeys.size(); ++i) {
    object["max_clusters"][kClusterSizeKeys[i]] = profile.max_clusters[i];
  }
  for (const NumberField& field : kNumbers) object[field.key] = profile.*field.member;
  for (size_t i = 0; i < kClusterSizeKeys.size(); ++i) {
    object["dsm_load_gbps_per_cta"][kClusterSizeKeys[i]] = profile.dsm_load_gbps_per_cta[i];
  }
  return object.dump(2) + "\n";
}

DeviceProfile profile_from_json(std::string_view text, std::string_view source) {
  const nlohmann::json object = parse_json_strictly("profile_from_json", source, text);
  const JsonFields fields(object, "profile_from_json", source, "");
  // The version first: a newer file's other fields are not this reader's to judge.
  const int64_t version = fields.integer("schema_version", 1, INT32_MAX);
  if (version != kProfileSchemaVersion) {
    fields.fail("schema_version", fmt::format("is {}", version),
                fmt::format("be {}", kProfileSchemaVersion),
                "write the profile in this version's format (docs/cli.md)");
  }
  fields.allow_only({"schema_version",
                     "name",
                     "source",
                     "num_sms",
                     "l2_bytes",
                     "smem_bytes_per_cta",
                     "max_clusters",
                     "hbm_gbps",
                     "hbm_gbps_per_cta",
                     "l2_gbps_per_cta",
                     "wide_gbps_per_cta",
                     "dsm_load_gbps_per_cta",
                     "dsm_latency_us",
                     "cluster_barrier_us",
                     "l2_merge_latency_us",
                     "matrix_tflops",
                     "matrix_ceiling_tflops",
                     "narrow_tile_us",
                     "stream_item_us",
                     "launch_us",
                     "job_start_us",
                     "item_start_us"});
  DeviceProfile profile;
  profile.name = fields.text("name");
  profile.source = fields.text("source");
  profile.num_sms = static_cast<int32_t>(fields.integer("num_sms", 1, INT32_MAX));
  profile.l2_bytes = fields.integer("l2_bytes", 1, INT64_MAX);
  profile.smem_bytes_per_cta = fields.integer("smem_bytes_per_cta", 1, INT64_MAX);
  const JsonFields max_clusters = by_cluster_size(fields, "max_clusters", source);
  const JsonFields dsm_load = by_cluster_size(fields, "dsm_load_gbps_per_cta", source);
  for (size_t i = 0; i < kClusterSizeKeys.size(); ++i) {
    profile.max_clusters[i] =
        static_cast<int32_t>(max_clusters.integer(kClusterSizeKeys[i], 0, INT32_MAX));
    profile.dsm_load_gbps_per_cta[i] = dsm_load.positive(kClusterSizeKeys[i]);
  }
  for (const NumberField& field : kNumbers) profile.*field.member = fields.positive(field.key);
  validate_profile(profile);
  return profile;
}

}  // namespace capillary
