// SPDX-License-Identifier: MIT
// Device profiles in JSON: an exact round trip, and every way a file can be wrong refused with the field's name.
#include "profile/profile_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "capillary/error.h"
#include "nlohmann/json.hpp"

namespace capillary {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

json builtin_json() {
  return json::parse(profile_to_json(builtin_h200()));
}

std::string refusal(const std::string& text) {
  try {
    profile_from_json(text, "card.json");
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(ProfileJson, RoundTripKeepsEveryBit) {
  DeviceProfile profile = builtin_h200();
  profile.name = "card \"7\"";
  profile.source = "calibrated 2025-01-02";
  profile.card = {"NVIDIA \"7\"", 132, 1980};
  profile.hbm_gbps = 4123.456789012345;
  profile.dsm_latency_us = 0.1 + 0.2;
  profile.max_clusters = {132, 66, 33, 16, 0};
  profile.dsm_load_gbps_per_cta = {1.0 / 3, 2, 3, 4, 5};
  const DeviceProfile back = profile_from_json(profile_to_json(profile), "card.json");
  EXPECT_EQ(back.hash(), profile.hash());
  EXPECT_NE(back.hash(), builtin_h200().hash());
  EXPECT_EQ(back.name, profile.name);
  EXPECT_EQ(back.source, profile.source);
  EXPECT_EQ(back.card.name, profile.card.name);
  EXPECT_EQ(back.card.num_sms, 132);
  EXPECT_EQ(back.card.clock_mhz, 1980);
  EXPECT_EQ(back.hbm_gbps, profile.hbm_gbps);
  EXPECT_EQ(back.dsm_latency_us, profile.dsm_latency_us);
  EXPECT_EQ(back.max_clusters, profile.max_clusters);
  EXPECT_EQ(back.dsm_load_gbps_per_cta, profile.dsm_load_gbps_per_cta);
}

// Changing any figure in the file changes the profile's hash: no field is read into the wrong place or dropped.
TEST(ProfileJson, EveryFigureReachesTheProfile) {
  const uint64_t builtin = builtin_h200().hash();
  int figures = 0;
  const json whole = builtin_json();
  for (const auto& [key, value] : whole.items()) {
    if (key == "schema_version" || key == "card" || value.is_string()) continue;
    const std::string name = key;
    const auto expect_change = [&](const json& changed) {
      EXPECT_NE(profile_from_json(changed.dump(), "card.json").hash(), builtin) << name;
      ++figures;
    };
    if (value.is_object()) {
      for (const auto& [size, figure] : value.items()) {
        json changed = whole;
        changed[key][size] = figure.is_number_integer() ? json(figure.get<int64_t>() - 1)
                                                        : json(figure.get<double>() * 1.01);
        expect_change(changed);
      }
    } else {
      json changed = whole;
      changed[key] = value.is_number_integer() ? json(value.get<int64_t>() - 1)
                                               : json(value.get<double>() * 1.01);
      expect_change(changed);
    }
  }
  EXPECT_EQ(figures, 3 + 15 + 2 * kNumClusterSizes);
}

TEST(ProfileJson, MissingFieldIsNamed) {
  const json whole = builtin_json();
  for (const auto& [key, value] : whole.items()) {
    json torn = whole;
    torn.erase(key);
    const std::string message = refusal(torn.dump());
    EXPECT_THAT(message, HasSubstr("'" + key + "' is missing"));
    EXPECT_THAT(message, HasSubstr("card.json"));
  }
  json torn = whole;
  torn["dsm_load_gbps_per_cta"].erase("8");
  EXPECT_THAT(refusal(torn.dump()),
              HasSubstr("field 'dsm_load_gbps_per_cta': field '8' is missing"));
}

TEST(ProfileJson, UnknownFieldIsNamed) {
  json object = builtin_json();
  object["hbm_gpbs"] = 4000;
  EXPECT_THAT(refusal(object.dump()), HasSubstr("'hbm_gpbs' is not known"));
  object = builtin_json();
  object["max_clusters"]["32"] = 1;
  EXPECT_THAT(refusal(object.dump()), HasSubstr("field 'max_clusters': field '32' is not known"));
}

TEST(ProfileJson, ValuesThatCannotBeAreNamed) {
  const json whole = builtin_json();
  for (const auto& [key, value] : whole.items()) {
    if (!value.is_number() || key == "schema_version") continue;
    for (const json& wrong : {json(-1), json(0), json(nullptr), json("4620"), json(true)}) {
      json object = whole;
      object[key] = wrong;
      EXPECT_THAT(refusal(object.dump()), HasSubstr("'" + key + "' is " + wrong.dump()))
          << key << " " << wrong;
    }
  }
  json object = whole;
  object["max_clusters"]["16"] = -1;
  EXPECT_THAT(refusal(object.dump()), HasSubstr("field 'max_clusters': field '16' is -1"));
  object = whole;
  object["dsm_load_gbps_per_cta"] = 28;
  EXPECT_THAT(refusal(object.dump()), HasSubstr("field 'dsm_load_gbps_per_cta' is 28"));
  object = whole;
  object["num_sms"] = 131.5;
  EXPECT_THAT(refusal(object.dump()), HasSubstr("'num_sms' is 131.5"));
  object = whole;
  object["l2_bytes"] = 18446744073709551615ull;
  EXPECT_THAT(refusal(object.dump()), HasSubstr("'l2_bytes' is 18446744073709551615"));
  object = whole;
  object["name"] = 3;
  EXPECT_THAT(refusal(object.dump()), HasSubstr("'name' is 3; must be a string"));
}

std::string with_text(const std::string& from, const std::string& to) {
  std::string text = profile_to_json(builtin_h200());
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos);
  return text.replace(at, from.size(), to);
}

TEST(ProfileJson, NotANumberAndOverflowNameTheField) {
  EXPECT_THAT(refusal(with_text("\"hbm_gbps\": 4620.0", "\"hbm_gbps\": NaN")),
              HasSubstr("after field 'hbm_gbps'"));
  EXPECT_THAT(refusal(with_text("\"hbm_gbps\": 4620.0", "\"hbm_gbps\": 1e999")),
              HasSubstr("after field 'hbm_gbps'"));
  EXPECT_THAT(refusal(with_text("\"hbm_gbps\": 4620.0", "\"hbm_gbps\": -Infinity")),
              HasSubstr("after field 'hbm_gbps'"));
}

TEST(ProfileJson, AnyDepthIsRefusedByName) {
  const std::string deep = std::string(200000, '[') + std::string(200000, ']');
  EXPECT_THAT(refusal(deep), HasSubstr("is a value of more than 40 levels; must be a JSON object"));
  EXPECT_THAT(refusal(with_text("\"card\": null", "\"card\": " + deep)),
              HasSubstr("field 'card' is a value of more than 40 levels"));
}

TEST(ProfileJson, GivenTwiceIsRefused) {
  EXPECT_THAT(refusal(with_text("\"hbm_gbps\": 4620.0", "\"hbm_gbps\": 4620.0, \"hbm_gbps\": 1.0")),
              HasSubstr("gives field 'hbm_gbps' twice"));
}

TEST(ProfileJson, EveryTornPrefixIsRefused) {
  const std::string text = profile_to_json(builtin_h200());
  // The last character is the newline after the closing brace.
  for (size_t length = 0; length + 1 < text.size(); ++length) {
    const std::string message = refusal(text.substr(0, length));
    ASSERT_THAT(message, HasSubstr("is not whole JSON")) << length;
  }
  EXPECT_EQ(refusal(text), "accepted");
  EXPECT_THAT(refusal(text + "{}"), HasSubstr("is not whole JSON"));
}

TEST(ProfileJson, OtherSchemaVersionSaysWhatToDo) {
  json object = builtin_json();
  object["schema_version"] = 3;
  object["a_field_of_tomorrow"] = 1;
  const std::string message = refusal(object.dump());
  EXPECT_THAT(message, HasSubstr("'schema_version' is 3; must be 2"));
  EXPECT_THAT(message, HasSubstr("run capillary calibrate again (docs/calibration.md)"));
}

TEST(ProfileJson, CardIsWholeOrNull) {
  const json whole = builtin_json();
  EXPECT_TRUE(whole["card"].is_null());
  json object = whole;
  object["card"] = {{"name", "NVIDIA H200"}, {"num_sms", 132}, {"clock_mhz", 1980}};
  EXPECT_EQ(refusal(object.dump()), "accepted");
  for (const char* key : {"name", "num_sms", "clock_mhz"}) {
    json torn = object;
    torn["card"].erase(key);
    EXPECT_THAT(refusal(torn.dump()),
                HasSubstr("field 'card': field '" + std::string(key) + "' is missing"));
  }
  object["card"]["num_sms"] = 0;
  EXPECT_THAT(refusal(object.dump()), HasSubstr("field 'num_sms' is 0"));
  object["card"]["num_sms"] = 132;
  object["card"]["name"] = "";
  EXPECT_THAT(refusal(object.dump()), HasSubstr("field 'name' is empty"));
  object["card"] = "NVIDIA H200";
  EXPECT_THAT(refusal(object.dump()), HasSubstr("field 'card' is \"NVIDIA H200\""));
}

TEST(ProfileJson, NotesAndCurvesAreReadBackOrRefused) {
  ProfileRecord record;
  record.notes["hbm_gbps"] = {"streaming", 7, 0.25};
  record.notes["max_clusters[16]"] = {"asked", 0, 0};
  record.curves = {{"hbm_gbps_by_ctas", "CTAs", "GB/s", {{1, 50.5}, {132, 4600}}}};
  const std::string text = profile_to_json(builtin_h200(), record);
  ProfileRecord back;
  EXPECT_EQ(profile_from_json(text, "card.json", &back).hash(), builtin_h200().hash());
  EXPECT_EQ(back.notes.at("hbm_gbps").method, "streaming");
  EXPECT_EQ(back.notes.at("hbm_gbps").samples, 7);
  EXPECT_EQ(back.notes.at("hbm_gbps").spread, 0.25);
  EXPECT_EQ(back.notes.count("max_clusters[16]"), 1u);
  ASSERT_EQ(back.curves.size(), 1u);
  EXPECT_EQ(back.curves[0].unit, "GB/s");
  EXPECT_EQ(back.curves[0].points[1].y, 4600);

  const json whole = json::parse(text);
  json wrong = whole;
  wrong["notes"]["hbm_gpbs"] = wrong["notes"]["hbm_gbps"];
  EXPECT_THAT(refusal(wrong.dump()), HasSubstr("field 'hbm_gpbs' is not known"));
  wrong = whole;
  wrong["notes"]["hbm_gbps"].erase("method");
  EXPECT_THAT(refusal(wrong.dump()), HasSubstr("note of 'hbm_gbps': field 'method' is missing"));
  wrong = whole;
  wrong["notes"]["hbm_gbps"]["spread"] = -1;
  EXPECT_THAT(refusal(wrong.dump()), HasSubstr("field 'spread' is -1"));
  wrong = whole;
  wrong["curves"][0]["points"][1] = {1, "2"};
  EXPECT_THAT(refusal(wrong.dump()), HasSubstr("field 'points' hold [1,\"2\"]"));
  wrong = whole;
  wrong["curves"] = 3;
  EXPECT_THAT(refusal(wrong.dump()), HasSubstr("field 'curves' is 3; must be an array"));
}

TEST(ProfileJson, NotAnObject) {
  EXPECT_THAT(refusal("[1, 2]"), HasSubstr("card.json is [1,2]; must be a JSON object"));
  EXPECT_THAT(refusal(""), HasSubstr("is not whole JSON"));
}

}  // namespace
}  // namespace capillary
