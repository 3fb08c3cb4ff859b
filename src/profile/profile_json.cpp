// SPDX-License-Identifier: MIT
// DeviceProfile <-> JSON (profile_json.h). One table of fields serves both directions, so that neither can
// forget one.
#include "profile/profile_json.h"

#include <array>

#include "fmt/format.h"
#include "profile/json_text.h"

namespace capillary {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char* kFunction = "profile_from_json";

constexpr std::array<ProfileField, 15> kNumbers = {{
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
    {"stream_start_us", &DeviceProfile::stream_start_us},
}};

constexpr std::array<const char*, kNumClusterSizes> kClusterSizeKeys = {"1", "2", "4", "8", "16"};

// Objects keyed by cluster size rather than arrays: a reader need not know the order.
JsonFields by_cluster_size(const JsonFields& fields, const char* key, std::string_view source) {
  JsonFields entries(fields.at(key), kFunction, source, fmt::format("field '{}'", key));
  entries.allow_only({"1", "2", "4", "8", "16"});
  return entries;
}

// null: of no card in particular.
CardIdentity read_card(const JsonFields& fields, std::string_view source) {
  const json& value = fields.at("card");
  CardIdentity card;
  if (value.is_null()) return card;
  const JsonFields entries(value, kFunction, source, "field 'card'");
  entries.allow_only({"name", "num_sms", "clock_mhz"});
  card.name = entries.text("name");
  if (card.name.empty())
    entries.fail("name", "is empty", "name the card as its driver does", "correct it");
  card.num_sms = static_cast<int32_t>(entries.integer("num_sms", 1, INT32_MAX));
  card.clock_mhz = static_cast<int32_t>(entries.integer("clock_mhz", 1, INT32_MAX));
  return card;
}

bool is_figure(std::string_view key) {
  for (const ProfileField& field : kNumbers)
    if (key == field.key) return true;
  for (const char* size : kClusterSizeKeys)
    for (const char* name : {"max_clusters", "dsm_load_gbps_per_cta"})
      if (key == fmt::format("{}[{}]", name, size)) return true;
  return false;
}

void read_notes(const JsonFields& fields, std::string_view source, ProfileRecord* record) {
  if (!fields.has("notes")) return;
  const json& notes = fields.at("notes");
  const JsonFields entries(notes, kFunction, source, "field 'notes'");
  for (const auto& [key, value] : notes.items()) {
    if (!is_figure(key))
      entries.fail(key, "is not known", "be the name of a figure", "correct or remove it");
    const JsonFields note(value, kFunction, source, fmt::format("note of '{}'", key));
    note.allow_only({"method", "samples", "spread"});
    const json& spread = note.at("spread");
    if (!spread.is_number() || !(spread.get<double>() >= 0))
      note.fail("spread", fmt::format("is {}", json_excerpt(spread)), "be a number from 0",
                "correct it");
    const FigureNote read{note.text("method"),
                          static_cast<int>(note.integer("samples", 0, INT32_MAX)),
                          spread.get<double>()};
    record->notes[key] = read;
  }
}

void read_curves(const JsonFields& fields, std::string_view source, ProfileRecord* record) {
  if (!fields.has("curves")) return;
  for (const json& value : fields.array("curves", 0)) {
    const JsonFields entry(value, kFunction, source, "entry of 'curves'");
    entry.allow_only({"name", "x", "unit", "points"});
    Curve curve{entry.text("name"), entry.text("x"), entry.text("unit"), {}};
    for (const json& point : entry.array("points", 0)) {
      if (!point.is_array() || point.size() != 2 || !point[0].is_number() || !point[1].is_number())
        entry.fail("points", fmt::format("hold {}", json_excerpt(point)),
                   "be pairs of numbers, [x, y]", "correct it");
      curve.points.push_back({point[0].get<double>(), point[1].get<double>()});
    }
    record->curves.push_back(std::move(curve));
  }
}

}  // namespace

std::span<const ProfileField> profile_fields() {
  return kNumbers;
}

std::string profile_to_json(const DeviceProfile& profile, const ProfileRecord& record) {
  ordered_json object;
  object["schema_version"] = kProfileSchemaVersion;
  object["name"] = profile.name;
  object["source"] = profile.source;
  object["card"] = nullptr;
  if (!profile.card.name.empty())
    object["card"] = {{"name", profile.card.name},
                      {"num_sms", profile.card.num_sms},
                      {"clock_mhz", profile.card.clock_mhz}};
  object["num_sms"] = profile.num_sms;
  object["l2_bytes"] = profile.l2_bytes;
  object["smem_bytes_per_cta"] = profile.smem_bytes_per_cta;
  for (size_t i = 0; i < kClusterSizeKeys.size(); ++i) {
    object["max_clusters"][kClusterSizeKeys[i]] = profile.max_clusters[i];
  }
  for (const ProfileField& field : kNumbers) object[field.key] = profile.*field.member;
  for (size_t i = 0; i < kClusterSizeKeys.size(); ++i) {
    object["dsm_load_gbps_per_cta"][kClusterSizeKeys[i]] = profile.dsm_load_gbps_per_cta[i];
  }
  for (const auto& [key, note] : record.notes)
    object["notes"][key] = {
        {"method", note.method}, {"samples", note.samples}, {"spread", note.spread}};
  for (const Curve& curve : record.curves) {
    ordered_json points = ordered_json::array();
    for (const CurvePoint& point : curve.points) points.push_back({point.x, point.y});
    object["curves"].push_back(
        {{"name", curve.name}, {"x", curve.x}, {"unit", curve.unit}, {"points", points}});
  }
  return object.dump(2) + "\n";
}

DeviceProfile profile_from_json(std::string_view text, std::string_view source,
                                ProfileRecord* record) {
  const json object = parse_json_strictly(kFunction, source, text);
  const JsonFields fields(object, kFunction, source, "");
  // The version first: a newer file's other fields are not this reader's to judge.
  const int64_t version = fields.integer("schema_version", 1, INT32_MAX);
  if (version != kProfileSchemaVersion) {
    fields.fail("schema_version", fmt::format("is {}", version),
                fmt::format("be {}", kProfileSchemaVersion),
                "run capillary calibrate again (docs/calibration.md)");
  }
  std::vector<std::string_view> keys = {"schema_version",
                                        "name",
                                        "source",
                                        "card",
                                        "num_sms",
                                        "l2_bytes",
                                        "smem_bytes_per_cta",
                                        "max_clusters",
                                        "dsm_load_gbps_per_cta",
                                        "notes",
                                        "curves"};
  for (const ProfileField& field : kNumbers) keys.emplace_back(field.key);
  fields.allow_only(keys);
  DeviceProfile profile;
  profile.name = fields.text("name");
  profile.source = fields.text("source");
  profile.card = read_card(fields, source);
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
  for (const ProfileField& field : kNumbers) profile.*field.member = fields.positive(field.key);
  ProfileRecord found;
  read_notes(fields, source, &found);
  read_curves(fields, source, &found);
  if (record != nullptr) *record = std::move(found);
  validate_profile(profile);
  return profile;
}

}  // namespace capillary
