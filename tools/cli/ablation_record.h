// SPDX-License-Identifier: MIT
// Rows of an ablation out of its JSON lines: those just measured, or a record's, so that both are told alike.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/ablation.h"
#include "nlohmann/json.hpp"

namespace capillary::cli {

// records: one for each of ablation_arms, in that order. Throws nlohmann::json::exception when a field is absent.
AblationRow ablation_row(std::span<const nlohmann::ordered_json> records);

// What was measured with and how, one sentence.
std::string ablation_source(const nlohmann::ordered_json& record);

struct AblationRecord {
  std::vector<AblationRow> rows;
  std::string source;
};
// Of a file that bench --ablate --out wrote. Throws InvalidArgument naming path and line, also where a row's arms are
// of several workloads or lines are of several devices or commits.
AblationRecord ablation_from_lines(std::string_view text, const std::string& path);

}  // namespace capillary::cli
