// SPDX-License-Identifier: MIT
#include "calibrate/calibration.h"

#include "capillary/error.h"

namespace capillary::calibrate {

Calibration make_calibration(const DeviceProfile& facts, const Measurements& measurements) {
  const auto value = [&](const std::string& key) {
    const auto found = measurements.figures.find(key);
    if (found == measurements.figures.end())
      throw InternalError(
          five_parts("make_calibration", key, "was not measured", "be measured", "report this"));
    return found->second.value;
  };
  Calibration calibration{facts, {}};
  for (const ProfileField& field : profile_fields())
    calibration.profile.*field.member = value(field.key);
  for (int index = 0; index < kNumClusterSizes; ++index)
    calibration.profile.dsm_load_gbps_per_cta[static_cast<size_t>(index)] =
        value("dsm_load_gbps_per_cta[" + std::to_string(1 << index) + "]");
  for (const auto& [key, figure] : measurements.figures)
    calibration.record.notes[key] = figure.note;
  calibration.record.curves = measurements.curves;
  validate_profile(calibration.profile);
  return calibration;
}

}  // namespace capillary::calibrate
