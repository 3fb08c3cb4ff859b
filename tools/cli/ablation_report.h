// SPDX-License-Identifier: MIT
// The ablation told: one table of every row, the sentences that sum it up, and one plot. Nothing is left out.
#pragma once

#include <string>
#include <vector>

#include "cli/ablation.h"

namespace capillary::cli {

// For the terminal.
std::string ablation_text(const std::vector<AblationRow>& rows);

// For docs: the same as Markdown. source: what was measured with and how, one sentence.
std::string ablation_markdown(const std::vector<AblationRow>& rows, const std::string& source);

// A standalone SVG file: a line of marks a row, each arm's time against auto's on a logarithmic axis.
std::string ablation_svg(const std::vector<AblationRow>& rows, const std::string& source);

}  // namespace capillary::cli
