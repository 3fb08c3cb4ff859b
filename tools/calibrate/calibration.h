// SPDX-License-Identifier: MIT
// What a calibration finds: figures with a note each, and the curves behind them.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "capillary/device_profile.h"
#include "profile/profile_json.h"

namespace capillary::calibrate {

struct Figure {
  double value = 0;
  FigureNote note;
};

// Figures by the profile's keys ("hbm_gbps", "dsm_load_gbps_per_cta[4]").
struct Measurements {
  std::map<std::string, Figure> figures;
  std::vector<Curve> curves;
};

struct Calibration {
  DeviceProfile profile;
  ProfileRecord record;
};

// The profile with every figure that is measured (all numbers but those that the driver knows) put in. Throws
// InternalError naming a figure that was not.
Calibration make_calibration(const DeviceProfile& facts, const Measurements& measurements);

}  // namespace capillary::calibrate
