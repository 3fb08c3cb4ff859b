// SPDX-License-Identifier: MIT
// Numbers and text as people and pages want them; every report says them the same way.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace capillary {

std::string format_bytes(double bytes);   // "12.3 MB", decimal units
std::string format_us(double us);         // "12.3 us", "4.56 ms"
std::string format_count(int64_t count);  // "131,072"

// For text and for attributes of HTML and SVG.
std::string escape_html(std::string_view text);

}  // namespace capillary
