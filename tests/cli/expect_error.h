// SPDX-License-Identifier: MIT
// How every verb fails: one line on standard error that begins with the verb, nothing on standard output.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "cli/process.h"

namespace capillary::test {

inline void expect_error(const Outcome& outcome, int exit_code, const std::string& verb,
                         const std::string& says) {
  EXPECT_EQ(outcome.exit_code, exit_code) << outcome.err;
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  EXPECT_THAT(outcome.err,
              ::testing::StartsWith(verb.empty() ? "capillary: " : "capillary " + verb + ": "));
  EXPECT_THAT(outcome.err, ::testing::HasSubstr(says));
  EXPECT_THAT(outcome.out, ::testing::IsEmpty());
}

}  // namespace capillary::test
