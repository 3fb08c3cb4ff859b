// SPDX-License-Identifier: MIT
// Profiles in files: `capillary calibrate` writes one for a card, this finds it again. In the library capillary::profile.
#pragma once

#include <string>
#include <string_view>

#include "capillary/device_profile.h"

namespace capillary {

// In the order in which they are looked for; the first that there is counts, whole or not at all.
enum class ProfileOrigin {
  kGiven,        // a path from the caller
  kEnvironment,  // the file that CAPILLARY_PROFILE names
  kCache,        // the user's own, of this card
  kBuiltIn,      // builtin_h200()
};

struct FoundProfile {
  DeviceProfile profile;
  ProfileOrigin origin = ProfileOrigin::kBuiltIn;
  std::string path;  // of the file; empty: built in
  // That the user's cache may hold this card's profile but cannot be searched, and why; empty: there is nothing to say.
  std::string warning;

  // "built in", "/path (CAPILLARY_PROFILE)", ...; with the warning, if there is one.
  std::string where() const;
};

// The profile in a file. Throws InvalidArgument naming path and field if it cannot be read, is torn, or holds a figure
// that cannot be (docs/calibration.md has the format).
DeviceProfile read_profile(const std::string& path);

// path: the caller's choice, or empty. card: the card that will be planned for (cuda::card_identity), if there is one;
// without it the cache is not looked at. Throws InvalidArgument if the file that counts is not a sound profile, or if
// one in the cache is of another card; a cache that cannot be searched is passed over with a warning. Another origin's
// must be held against the card by who runs on it (require_profile_fits, cuda::profile_for_device), since plans can be
// made anywhere.
FoundProfile find_profile(const std::string& path = "", const CardIdentity& card = {});

// The folder of the user's profiles: $XDG_CACHE_HOME/capillary, or $HOME/.cache/capillary; empty where neither is set.
std::string profile_cache_folder();
// The file in it for this card: "nvidia-h200-132sms-1980mhz.json". Empty where there is no folder.
std::string profile_cache_path(const CardIdentity& card);

}  // namespace capillary
