// SPDX-License-Identifier: MIT
// Formatting and escaping (words.h).
#include "workload/words.h"

#include <array>
#include <cstddef>

#include "fmt/format.h"

namespace capillary {

std::string format_bytes(double bytes) {
  constexpr std::array<const char*, 7> kUnits = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
  size_t unit = 0;
  while (bytes >= 999.95 && unit + 1 < kUnits.size()) {
    bytes /= 1000;
    ++unit;
  }
  if (unit == 0) return fmt::format("{:.0f} B", bytes);
  return fmt::format("{:.{}f} {}", bytes, bytes < 9.995 ? 2 : 1, kUnits[unit]);
}

std::string format_us(double us) {
  if (us < 9999.5) return fmt::format("{:.{}f} us", us, us < 99.95 ? 2 : 1);
  if (us < 9999500) return fmt::format("{:.2f} ms", us / 1e3);
  return fmt::format("{:.2f} s", us / 1e6);
}

std::string format_count(int64_t count) {
  std::string digits = fmt::format("{}", count);
  for (ptrdiff_t at = static_cast<ptrdiff_t>(digits.size()) - 3; at > (count < 0 ? 1 : 0);
       at -= 3) {
    digits.insert(static_cast<size_t>(at), ",");
  }
  return digits;
}

std::string escape_html(std::string_view text) {
  std::string escaped;
  escaped.reserve(text.size());
  for (const char character : text) {
    switch (character) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      default:
        escaped += character;
    }
  }
  return escaped;
}

}  // namespace capillary
