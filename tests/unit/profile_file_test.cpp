// SPDX-License-Identifier: MIT
// Which profile counts: the caller's, CAPILLARY_PROFILE's, this card's in the user's cache, the built-in one, in this
// order; and a file that counts but is not sound is refused, never passed over.
#include "capillary/profile_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "capillary/error.h"
#include "profile/profile_json.h"

namespace capillary {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;

const CardIdentity kCard = {"NVIDIA H200", 132, 1980};

class ProfileFile : public ::testing::Test {
 protected:
  ProfileFile() {
    std::string pattern = fs::temp_directory_path() / "capillary-profile-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    ::unsetenv("CAPILLARY_PROFILE");
    ::setenv("XDG_CACHE_HOME", folder_.c_str(), 1);
  }
  ~ProfileFile() override {
    ::unsetenv("CAPILLARY_PROFILE");
    ::unsetenv("XDG_CACHE_HOME");
    fs::remove_all(folder_);
  }
  std::string put(const fs::path& path, const std::string& text) const {
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }
  static std::string named(const std::string& name, const CardIdentity& card = {}) {
    DeviceProfile profile;
    profile.name = name;
    profile.card = card;
    return profile_to_json(profile);
  }
  static std::string refusal(const std::string& path, const CardIdentity& card = {}) {
    try {
      find_profile(path, card);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "accepted";
  }
  fs::path folder_;
};

TEST_F(ProfileFile, OrderOfThePlaces) {
  const FoundProfile built_in = find_profile("", kCard);
  EXPECT_EQ(built_in.origin, ProfileOrigin::kBuiltIn);
  EXPECT_EQ(built_in.profile.hash(), builtin_h200().hash());
  EXPECT_EQ(built_in.where(), "built in");

  const std::string cached = put(profile_cache_path(kCard), named("cached", kCard));
  EXPECT_EQ(find_profile("", kCard).profile.name, "cached");
  EXPECT_EQ(find_profile("", kCard).origin, ProfileOrigin::kCache);
  EXPECT_THAT(find_profile("", kCard).where(), HasSubstr(cached));
  // Another card's, and no card in sight.
  EXPECT_EQ(find_profile("", {"NVIDIA H100", 132, 1980}).origin, ProfileOrigin::kBuiltIn);
  EXPECT_EQ(find_profile("").origin, ProfileOrigin::kBuiltIn);

  const std::string environment = put(folder_ / "environment.json", named("environment"));
  ::setenv("CAPILLARY_PROFILE", environment.c_str(), 1);
  EXPECT_EQ(find_profile("", kCard).profile.name, "environment");
  EXPECT_EQ(find_profile("").where(), environment + " (CAPILLARY_PROFILE)");
  const std::string given = put(folder_ / "given.json", named("given"));
  EXPECT_EQ(find_profile(given, kCard).profile.name, "given");
  EXPECT_EQ(find_profile(given).where(), given);
  EXPECT_EQ(read_profile(given).name, "given");
  ::setenv("CAPILLARY_PROFILE", "", 1);
  EXPECT_EQ(find_profile("", kCard).profile.name, "cached");
}

// What counts is used whole or refused; no other place steps in.
TEST_F(ProfileFile, UnsoundFilesAreRefusedWhereTheyCount) {
  const std::string text = named("torn", kCard);
  const std::string cached = put(profile_cache_path(kCard), text.substr(0, text.size() / 2));
  EXPECT_THAT(refusal("", kCard), AllOf(HasSubstr(cached), HasSubstr("is not whole JSON")));
  EXPECT_EQ(refusal(""), "accepted");
  put(cached, "");
  EXPECT_THAT(refusal("", kCard), HasSubstr("is not whole JSON"));
  put(cached, named("other", {"NVIDIA H100 PCIe", 114, 1755}));
  EXPECT_THAT(
      refusal("", kCard),
      HasSubstr("profile 'other' is of NVIDIA H100 PCIe with 114 SMs at 1755 MHz; must be of "
                "this card, NVIDIA H200 with 132 SMs at 1980 MHz; run capillary calibrate"));

  const std::string torn = put(folder_ / "torn.json", text.substr(0, 100));
  EXPECT_THAT(refusal(torn, kCard), HasSubstr("torn.json is not whole JSON"));
  ::setenv("CAPILLARY_PROFILE", torn.c_str(), 1);
  EXPECT_THAT(refusal("", kCard), HasSubstr("torn.json is not whole JSON"));
  ::setenv("CAPILLARY_PROFILE", (folder_ / "absent.json").c_str(), 1);
  EXPECT_THAT(refusal("", kCard), AllOf(HasSubstr("CAPILLARY_PROFILE '"),
                                        HasSubstr("absent.json' cannot be opened: No such file")));
  EXPECT_THAT(refusal(folder_.string(), kCard), HasSubstr("cannot be read"));
}

// A profile that may be there and cannot be seen is not the same as none: the built-in one steps in, and says so.
TEST_F(ProfileFile, ACacheThatCannotBeSearchedIsToldOf) {
  EXPECT_EQ(find_profile("", kCard).warning, "");
  const fs::path cache = folder_ / "capillary";
  fs::create_directory_symlink(cache, cache);  // leads to itself, also for root
  const FoundProfile found = find_profile("", kCard);
  EXPECT_EQ(found.origin, ProfileOrigin::kBuiltIn);
  EXPECT_EQ(found.profile.hash(), builtin_h200().hash());
  EXPECT_THAT(found.warning, AllOf(HasSubstr(profile_cache_path(kCard)),
                                   HasSubstr("cannot be looked for: Too many levels")));
  EXPECT_THAT(found.where(), AllOf(HasSubstr("built in ("), HasSubstr(found.warning)));
  EXPECT_EQ(find_profile("").warning, "") << "without a card nothing is looked for";
  const std::string given = put(folder_ / "given.json", named("given"));
  EXPECT_EQ(find_profile(given, kCard).warning, "");
}

TEST_F(ProfileFile, ACacheWithoutPermissionIsToldOf) {
  put(profile_cache_path(kCard), named("cached", kCard));
  fs::permissions(folder_ / "capillary", fs::perms::none);
  const bool root = ::geteuid() == 0;  // may search everything, so somebody else asks
  ASSERT_EQ(root ? ::seteuid(65534) : 0, 0);
  const std::string where = find_profile("", kCard).where();
  ASSERT_EQ(root ? ::seteuid(0) : 0, 0);
  EXPECT_THAT(where, HasSubstr("Permission denied"));
  fs::permissions(folder_ / "capillary", fs::perms::owner_all);
  EXPECT_EQ(find_profile("", kCard).profile.name, "cached");
}

TEST_F(ProfileFile, PlaceOfTheCache) {
  EXPECT_EQ(profile_cache_path(kCard),
            folder_.string() + "/capillary/nvidia-h200-132sms-1980mhz.json");
  EXPECT_THAT(profile_cache_path({" GH200 (480GB)/x ", 1, 2}),
              EndsWith("/gh200-480gb-x-1sms-2mhz.json"));
  const char* home = ::getenv("HOME");
  const std::string old_home = home == nullptr ? "" : home;
  ::setenv("HOME", "/home-of-somebody", 1);
  for (const char* unusable : {"", "relative/cache"}) {
    ::setenv("XDG_CACHE_HOME", unusable, 1);
    EXPECT_EQ(profile_cache_folder(), "/home-of-somebody/.cache/capillary");
  }
  ::unsetenv("HOME");
  EXPECT_EQ(profile_cache_folder(), "");
  EXPECT_EQ(profile_cache_path(kCard), "");
  EXPECT_EQ(find_profile("", kCard).origin, ProfileOrigin::kBuiltIn);
  if (home != nullptr) ::setenv("HOME", old_home.c_str(), 1);
}

}  // namespace
}  // namespace capillary
