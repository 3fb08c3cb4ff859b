// SPDX-License-Identifier: MIT
// The whole calibration of one card: what it does by itself (micro.h), what the kernel does on it (kernel_figures.h),
// put together into a profile.
#pragma once

#include <functional>
#include <string>

#include "calibrate/calibration.h"

namespace capillary::calibrate {

// Some ten seconds on an idle card. progress: called with what is about to be measured; may throw to stop. The profile
// has no date in its source yet. Throws UnsupportedArch, UnsupportedConfig, DeviceError.
Calibration calibrate_card(int device, const std::function<void(const std::string&)>& progress);

}  // namespace capillary::calibrate
