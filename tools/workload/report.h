// SPDX-License-Identifier: MIT
// What a replay found, for people (text, HTML with plots) and for tools (JSON).
#pragma once

#include <string>
#include <vector>

#include "workload/replay.h"

namespace capillary {

// A dozen aligned lines.
std::string replay_text(const ReplayReport& report);

// One object; docs/replay.md lists its fields.
std::string replay_json(const ReplayReport& report);

// One page that needs nothing else: style and plots are inside, for light and dark screens.
std::string replay_html(const ReplayReport& report);

// The lines of replay_text as (name, what it says), which the page shows too.
struct ReportLine {
  std::string name;
  std::string text;
};
std::vector<ReportLine> replay_lines(const ReplayReport& report);

}  // namespace capillary
