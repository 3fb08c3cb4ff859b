// SPDX-License-Identifier: MIT
// Parts of the command line tool that need no process of their own: files that are whole or absent, patterns,
// numbers and tables.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "cli/common.h"
#include "cli/device.h"
#include "profile/profile_json.h"

namespace capillary::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = fs::temp_directory_path() / "capillary-test-XXXXXX";
    path_ = ::mkdtemp(pattern.data());
  }
  ~TemporaryFolder() { fs::remove_all(path_); }
  fs::path operator/(const std::string& name) const { return path_ / name; }
  size_t num_entries() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(path_), {}));
  }

 private:
  fs::path path_;
};

void put(const fs::path& path, const std::string& text) {
  std::ofstream(path) << text;
}
std::string get(const fs::path& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

template <class Work>
std::string refusal(const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(OutputFile, AppearsWholeOrNotAtAll) {
  TemporaryFolder folder;
  const fs::path path = folder / "out.json";
  {
    OutputFile file("plan", "--html", path);
    file.write("half");
    EXPECT_FALSE(fs::exists(path));
  }
  EXPECT_EQ(folder.num_entries(), 0u);
  OutputFile file("plan", "--html", path);
  file.write("one ");
  file.write("two");
  file.commit();
  EXPECT_EQ(get(path), "one two");
  EXPECT_EQ(folder.num_entries(), 1u);
}

TEST(OutputFile, OldContentStaysUntilCommit) {
  TemporaryFolder folder;
  const fs::path path = folder / "out.json";
  put(path, "old");
  {
    OutputFile file("plan", "--html", path);
    file.write("new");
    EXPECT_EQ(get(path), "old");
  }
  EXPECT_EQ(get(path), "old");
  EXPECT_EQ(folder.num_entries(), 1u);
}

TEST(OutputFile, KeepsModeAndLinks) {
  TemporaryFolder folder;
  put(folder / "real", "old");
  fs::permissions(folder / "real", fs::perms(0640));
  fs::create_symlink(folder / "real", folder / "link");
  OutputFile file("plan", "--html", folder / "link");
  file.write("new");
  file.commit();
  EXPECT_TRUE(fs::is_symlink(folder / "link"));
  EXPECT_EQ(get(folder / "real"), "new");
  EXPECT_EQ(fs::status(folder / "real").permissions(), fs::perms(0640));

  const mode_t mask = ::umask(027);
  OutputFile fresh("plan", "--html", folder / "fresh");
  ::umask(mask);
  fresh.commit();
  EXPECT_EQ(fs::status(folder / "fresh").permissions(), fs::perms(0640));
}

TEST(OutputFile, UnwritablePlacesAreFoundAtOnce) {
  TemporaryFolder folder;
  EXPECT_THAT(refusal([&] { OutputFile("plan", "--html", folder / "no/such/folder/x"); }),
              HasSubstr("cannot be created: No such file or directory; must be a place that can be "
                        "written"));
  fs::create_directory(folder / "folder");
  EXPECT_THAT(refusal([&] { OutputFile("plan", "--html", folder / "folder"); }),
              HasSubstr("is a directory"));
  EXPECT_THAT(refusal([&] { OutputFile("plan", "--html", ""); }), HasSubstr("--html is empty"));
  put(folder / "file", "");
  EXPECT_THAT(refusal([&] { OutputFile("plan", "--html", folder / "file/x"); }),
              HasSubstr("Not a directory"));
}

TEST(OutputFile, FullDeviceIsReported) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  OutputFile file("bench", "--out", "/dev/full");
  EXPECT_THAT(refusal([&] { file.write("text"); }),
              HasSubstr("'/dev/full' could not be written: No space left on device"));
}

TEST(ReadTextFile, NamesVerbOptionAndPath) {
  TemporaryFolder folder;
  put(folder / "in", std::string(200000, 'x') + "end");
  EXPECT_EQ(read_text_file("plan", "--file", folder / "in").size(), 200003u);
  EXPECT_THAT(refusal([&] { read_text_file("plan", "--file", folder / "absent"); }),
              HasSubstr("plan: --file '" + (folder / "absent").string() +
                        "' cannot be opened: No such file or directory"));
  fs::create_directory(folder / "folder");
  EXPECT_THAT(refusal([&] { read_text_file("plan", "--file", folder / "folder"); }),
              HasSubstr("cannot be read: Is a directory"));
}

TEST(LoadProfile, OptionThenEnvironmentThenBuiltIn) {
  TemporaryFolder folder;
  DeviceProfile profile = builtin_h200();
  profile.name = "option";
  put(folder / "option.json", profile_to_json(profile));
  profile.name = "environment";
  put(folder / "environment.json", profile_to_json(profile));
  ::unsetenv("CAPILLARY_PROFILE");
  ::setenv("XDG_CACHE_HOME", (folder / "cache").c_str(), 1);
  EXPECT_EQ(load_profile("plan", "").name, "h200");
  ::setenv("CAPILLARY_PROFILE", (folder / "environment.json").c_str(), 1);
  EXPECT_EQ(load_profile("plan", "").name, "environment");
  EXPECT_EQ(load_profile("plan", folder / "option.json").name, "option");
  ::setenv("CAPILLARY_PROFILE", (folder / "absent.json").c_str(), 1);
  EXPECT_THAT(refusal([&] { load_profile("plan", ""); }), HasSubstr("CAPILLARY_PROFILE"));
  ::setenv("CAPILLARY_PROFILE", "", 1);
  EXPECT_EQ(load_profile("plan", "").name, "h200");
  ::unsetenv("CAPILLARY_PROFILE");
  // A cached profile counts where its card is in this machine, and nowhere else.
  const CardIdentity here = card_here();
  fs::create_directories(profile_cache_folder());
  profile.name = "cached";
  profile.card = here.name.empty() ? CardIdentity{"NVIDIA H200", 132, 1980} : here;
  put(profile_cache_path(profile.card), profile_to_json(profile));
  EXPECT_EQ(load_profile("plan", "").name, here.name.empty() ? "h200" : "cached");
  ::unsetenv("XDG_CACHE_HOME");
}

TEST(ExitCodes, FollowTheErrorsKind) {
  EXPECT_EQ(exit_code_of(UsageError("")), 2);
  EXPECT_EQ(exit_code_of(InvalidArgument("")), 3);
  EXPECT_EQ(exit_code_of(OutOfPages("")), 3);
  EXPECT_EQ(exit_code_of(WorkspaceTooSmall("", 2, 1)), 3);
  EXPECT_EQ(exit_code_of(UnsupportedConfig("")), 4);
  EXPECT_EQ(exit_code_of(UnsupportedArch("", "sm_80", "sm_90a")), 4);
  EXPECT_EQ(exit_code_of(DeviceError("")), 5);
  EXPECT_EQ(exit_code_of(InternalError("")), 1);
}

TEST(Options, WordsAndTheirRefusal) {
  EXPECT_EQ(parse_mode("plan", "shared-l2"), Mode::kSharedL2);
  EXPECT_EQ(parse_mode("plan", "flat"), Mode::kFlat);
  EXPECT_THROW(parse_mode("plan", "Flat"), UsageError);
  EXPECT_EQ(parse_dtype("plan", "bf16"), DType::kBFloat16);
  EXPECT_EQ(parse_dtype("plan", "float16"), DType::kFloat16);
  EXPECT_EQ(parse_dtype("plan", "fp32"), DType::kFloat32);
  EXPECT_THROW(parse_dtype("plan", "int8"), UsageError);
  EXPECT_EQ(parse_heads_option("plan", "64/8"), (Heads{64, 8}));
  EXPECT_THROW(parse_heads_option("plan", "64/7"), UsageError);
  EXPECT_THROW(parse_heads_option("plan", ""), UsageError);
  EXPECT_EQ(parse_layout("run", "packed-dim"), check::CacheLayout::kPackedDim);
  EXPECT_THAT(refusal([] { parse_layout("run", "NHD"); }),
              HasSubstr("run: --layout is 'NHD'; must be one of nhd, hnd"));
  EXPECT_THROW(open_device("run", "gpu", 0), UsageError);
}

TEST(GlobMatch, StarsAndQuestionMarks) {
  EXPECT_TRUE(glob_match("", ""));
  EXPECT_TRUE(glob_match("*", ""));
  EXPECT_TRUE(glob_match("pat-*", "pat-01"));
  EXPECT_TRUE(glob_match("*-0?", "pat-01"));
  EXPECT_TRUE(glob_match("a*b*c", "a-bb-b-c"));
  EXPECT_TRUE(glob_match("**", "x"));
  EXPECT_TRUE(glob_match("a*", "a*"));
  EXPECT_FALSE(glob_match("", "x"));
  EXPECT_FALSE(glob_match("pat", "pat-01"));
  EXPECT_FALSE(glob_match("*-0?", "pat-0"));
  EXPECT_FALSE(glob_match("a*b", "abc"));
  // Backtracking stays linear in the text for each star.
  EXPECT_FALSE(glob_match("*a*a*a*a*a*a*a*a*b", std::string(2000, 'a')));
}

TEST(Format, Numbers) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(999), "999 B");
  EXPECT_EQ(format_bytes(1000), "1.00 kB");
  EXPECT_EQ(format_bytes(999960), "1.00 MB");
  EXPECT_EQ(format_bytes(33816576), "33.8 MB");
  EXPECT_EQ(format_bytes(4.2949e21), "4294.9 EB");
  EXPECT_EQ(format_bytes(4.2949e15), "4.29 PB");
  EXPECT_EQ(format_us(7.316), "7.32 us");
  EXPECT_EQ(format_us(539.72), "539.7 us");
  EXPECT_EQ(format_us(12345.6), "12.35 ms");
  EXPECT_EQ(format_us(2.5e7), "25.00 s");
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(131072), "131,072");
  EXPECT_EQ(format_count(-1234567), "-1,234,567");
  EXPECT_EQ(format_count(-123), "-123");
}

TEST(Format, EscapedText) {
  EXPECT_EQ(escape_html("<a href=\"x\">'&amp;</a>"),
            "&lt;a href=&quot;x&quot;&gt;&#39;&amp;amp;&lt;/a&gt;");
}

TEST(Format, Tables) {
  TextTable table({"name", "us", "note"});
  table.add_row({"1x4", "9.5", "x"});
  table.add_row({"a", "10.25"});
  EXPECT_EQ(table.num_rows(), 2u);
  EXPECT_EQ(table.str("> "),
            "> name     us  note\n"
            "> 1x4     9.5  x\n"
            "> a     10.25\n");
}

TEST(Statistics, MedianAndSpread) {
  EXPECT_EQ(median({}), 0);
  EXPECT_EQ(median({3}), 3);
  EXPECT_EQ(median({4, 1, 3, 2}), 2.5);
  EXPECT_EQ(spread({1, 2, 3, 4, 5}), 2.0 / 3);
  EXPECT_EQ(spread({0, 0}), 0);
}

}  // namespace
}  // namespace capillary::cli
