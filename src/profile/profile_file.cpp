// SPDX-License-Identifier: MIT
#include "capillary/profile_file.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "capillary/error.h"
#include "profile/profile_json.h"

namespace capillary {

namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// `whose` says in messages which of the places named the path.
DeviceProfile read_from(const std::string& whose, const std::string& path) {
  const auto fail = [&](const std::string& what) {
    throw InvalidArgument(five_parts("read_profile", whose + "'" + path + "'", what,
                                     "be a readable profile",
                                     "check the path and its permissions"));
  };
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(std::string("cannot be opened: ") + std::strerror(errno));
  std::string text;
  try {
    file.exceptions(std::ios::badbit);
    text.assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  } catch (const std::ios_base::failure&) {
    fail(std::string("cannot be read: ") + std::strerror(errno));
  }
  return profile_from_json(text, path);
}

// Letters and digits in small, everything else a hyphen.
std::string slug(std::string_view text) {
  std::string result;
  for (const char character : text) {
    const bool upper = character >= 'A' && character <= 'Z';
    const bool plain =
        (character >= 'a' && character <= 'z') || (character >= '0' && character <= '9');
    if (upper)
      result += static_cast<char>(character - 'A' + 'a');
    else if (plain)
      result += character;
    else if (!result.empty() && result.back() != '-')
      result += '-';
  }
  while (!result.empty() && result.back() == '-') result.pop_back();
  return result;
}

}  // namespace

std::string FoundProfile::where() const {
  switch (origin) {
    case ProfileOrigin::kGiven:
      return path;
    case ProfileOrigin::kEnvironment:
      return path + " (CAPILLARY_PROFILE)";
    case ProfileOrigin::kCache:
      return path + " (this card's, in the user's cache)";
    case ProfileOrigin::kBuiltIn:
      break;
  }
  return warning.empty() ? "built in" : "built in (" + warning + ")";
}

DeviceProfile read_profile(const std::string& path) {
  return read_from("", path);
}

FoundProfile find_profile(const std::string& path, const CardIdentity& card) {
  if (!path.empty()) return {read_from("profile ", path), ProfileOrigin::kGiven, path, ""};
  const std::string named = variable("CAPILLARY_PROFILE");
  if (!named.empty())
    return {read_from("CAPILLARY_PROFILE ", named), ProfileOrigin::kEnvironment, named, ""};
  const std::string cached = card.name.empty() ? "" : profile_cache_path(card);
  std::error_code unsearchable;  // unset where the file merely is not there
  if (!cached.empty() && std::filesystem::exists(cached, unsearchable)) {
    FoundProfile found{read_from("cached profile ", cached), ProfileOrigin::kCache, cached, ""};
    require_profile_fits(found.profile, card);
    return found;
  }
  FoundProfile built_in{builtin_h200(), ProfileOrigin::kBuiltIn, "", ""};
  if (unsearchable)
    built_in.warning = "cached profile '" + cached +
                       "' cannot be looked for: " + unsearchable.message() +
                       "; make its folder searchable or pass a profile";
  return built_in;
}

std::string profile_cache_folder() {
  // Relative paths in it are to be taken for unset (XDG Base Directory Specification).
  const std::string cache = variable("XDG_CACHE_HOME"), home = variable("HOME");
  if (!cache.empty() && cache.front() == '/') return cache + "/capillary";
  return home.empty() ? "" : home + "/.cache/capillary";
}

std::string profile_cache_path(const CardIdentity& card) {
  const std::string folder = profile_cache_folder();
  if (folder.empty()) return "";
  return folder + "/" + slug(card.name) + "-" + std::to_string(card.num_sms) + "sms-" +
         std::to_string(card.clock_mhz) + "mhz.json";
}

}  // namespace capillary
