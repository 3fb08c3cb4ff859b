// SPDX-License-Identifier: MIT
// DeviceProfile as JSON (docs/calibration.md). Every figure is named and needed; a field that is unknown, missing, not
// finite or not positive is refused by name, so that a profile never silently falls back to another card's figure.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "capillary/device_profile.h"

namespace capillary {

inline constexpr int kProfileSchemaVersion = 2;

// The figures that are single numbers, in the order they are written in.
struct ProfileField {
  const char* key;
  double DeviceProfile::*member;
};
std::span<const ProfileField> profile_fields();

// How a figure came about.
struct FigureNote {
  std::string method;
  int samples = 0;    // timed runs
  double spread = 0;  // the widest (third - first quartile) / median among them
};

// One measured quantity over another; the planner reads none of them, people do.
struct CurvePoint {
  double x = 0;
  double y = 0;
};
struct Curve {
  std::string name;  // "hbm_gbps_by_ctas"
  std::string x;     // "co-resident CTAs"
  std::string unit;  // of y
  std::vector<CurvePoint> points;
};

// What a calibration writes beside the figures. Notes by the figure's key, with "[4]" behind it where there is one a
// cluster size.
struct ProfileRecord {
  std::map<std::string, FigureNote> notes;
  std::vector<Curve> curves;
};

// Round trips exactly: profile_from_json(profile_to_json(p)) has the same hash(). A profile without a record is
// written without notes and curves.
std::string profile_to_json(const DeviceProfile& profile, const ProfileRecord& record = {});

// source names the text in messages (a path); record, when not null, receives notes and curves. Throws
// InvalidArgument.
DeviceProfile profile_from_json(std::string_view text, std::string_view source,
                                ProfileRecord* record = nullptr);

}  // namespace capillary
