// SPDX-License-Identifier: MIT
// What is wrong with a generated page, as text: empty when it is whole, finite and needs nothing else.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

namespace capillary::testing {

// Every tag that is opened is closed in the right order; attributes are quoted; no stray < or &.
inline std::string markup_fault(const std::string& page) {
  const std::vector<std::string> never_closed = {"!DOCTYPE", "!doctype", "meta"};
  std::vector<std::string> open;
  size_t at = 0;
  while ((at = page.find('<', at)) != std::string::npos) {
    const size_t end = page.find('>', at);
    if (end == std::string::npos) return "a tag without end";
    const std::string tag = page.substr(at + 1, end - at - 1);
    if (tag.find('<') != std::string::npos) return "a stray < before " + tag;
    const std::string name = tag.substr(0, tag.find_first_of(" /", 1));
    if (std::count(tag.begin(), tag.end(), '"') % 2 != 0) return "an open quote in " + tag;
    if (tag.front() == '/') {
      if (open.empty() || open.back() != tag.substr(1)) return "unexpected end of " + tag;
      open.pop_back();
    } else if (tag.back() != '/' &&
               std::find(never_closed.begin(), never_closed.end(), name) == never_closed.end()) {
      open.push_back(name);
    }
    // Style sheets have > of their own.
    at = name == "style" ? page.find("</style", end) : end + 1;
  }
  return open.empty() ? "" : "no end of " + open.back();
}

inline std::string page_fault(const std::string& page) {
  for (const char* bad : {"\"nan", "\"-nan", "\"inf", "\"-inf", ">nan", ">inf", " nan", "width=\"-",
                          "height=\"-", "http://", "https://", "<script"}) {
    if (page.find(bad) != std::string::npos) return std::string("has ") + bad;
  }
  return markup_fault(page);
}

}  // namespace capillary::testing
