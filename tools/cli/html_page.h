// SPDX-License-Identifier: MIT
// The frame of the pages that the tool writes: style for light and dark, the shared hatch pattern. No script,
// no external file, so that a page opens from a mail attachment.
#pragma once

#include <string>

namespace capillary::cli {

// <!DOCTYPE ... <body> and the heading; title is escaped here.
std::string html_page_begin(const std::string& title);
std::string html_page_end();
// The style sheet alone, for an SVG file.
const char* page_style();

// A coloured square with its meaning, for legends; color is a class of the style sheet.
std::string html_key(const char* color, const char* text);

// Heading, explanation and drawing; words and drawing are HTML already.
std::string html_section(const char* title, const std::string& words, const std::string& drawing);

}  // namespace capillary::cli
