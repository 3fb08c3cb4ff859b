// SPDX-License-Identifier: MIT
// DeviceProfile as JSON: what --profile and CAPILLARY_PROFILE read. Every
// field is named and needed; a field that is unknown, missing, not finite or not positive is refused by name,
// so that a profile never silently falls back to another card's figure.
#pragma once

#include <string>
#include <string_view>

#include "capillary/device_profile.h"

namespace capillary {

inline constexpr int kProfileSchemaVersion = 1;

// Round trips exactly: profile_from_json(profile_to_json(p)) has the same hash().
std::string profile_to_json(const DeviceProfile& profile);

// source names the text in messages (a path). Throws InvalidArgument.
DeviceProfile profile_from_json(std::string_view text, std::string_view source);

}  // namespace capillary
