// SPDX-License-Identifier: MIT
// Strict reading of JSON with errors that name the field (json_text.h).
#include "profile/json_text.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "capillary/error.h"
#include "fmt/format.h"

namespace capillary {
namespace {

using nlohmann::json;

std::string line_and_column(std::string_view text, size_t byte) {
  const std::string_view before = text.substr(0, std::min(byte, text.size()));
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const size_t newline = before.rfind('\n');
  const size_t column = newline == std::string_view::npos ? before.size() : before.size() - newline;
  return fmt::format("line {} column {}", line, std::max<size_t>(column, 1));
}

// The parser does not mind how deep values lie in one another, writing them out does: a call a level.
bool is_deep(const json& value, int levels) {
  if (!value.is_structured()) return false;
  return levels == 0 || std::any_of(value.begin(), value.end(), [&](const json& element) {
           return is_deep(element, levels - 1);
         });
}

}  // namespace

json parse_json_strictly(std::string_view function, std::string_view source,
                         std::string_view text) {
  // The parser keeps the last of two equal keys silently; each open object's keys are watched here.
  std::vector<std::set<std::string>> open_objects;
  std::string last_key;
  std::string duplicate;
  const auto watch = [&](int /*depth*/, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start) {
      open_objects.emplace_back();
    } else if (event == json::parse_event_t::object_end) {
      open_objects.pop_back();
    } else if (event == json::parse_event_t::key) {
      last_key = parsed.get<std::string>();
      if (!open_objects.back().insert(last_key).second && duplicate.empty()) duplicate = last_key;
    }
    return true;
  };
  json value;
  try {
    value = json::parse(text.begin(), text.end(), watch);
  } catch (const json::exception& error) {
    const auto* parse_error = dynamic_cast<const json::parse_error*>(&error);
    std::string what = "is not whole JSON";
    if (parse_error != nullptr) what += " at " + line_and_column(text, parse_error->byte);
    if (!last_key.empty()) what += fmt::format(", after field '{}'", last_key);
    throw InvalidArgument(
        five_parts(function, source, what,
                   "be one complete JSON text with finite numbers (no NaN, no infinity)",
                   "correct the file or write it anew"));
  }
  if (!duplicate.empty()) {
    throw InvalidArgument(five_parts(function, source,
                                     fmt::format("gives field '{}' twice", duplicate),
                                     "give every field once", "remove one of the two"));
  }
  return value;
}

JsonFields::JsonFields(const json& object, std::string_view function, std::string_view source,
                       std::string where)
    : object_(object), function_(function), source_(source), where_(std::move(where)) {
  if (!object.is_object()) {
    throw InvalidArgument(five_parts(
        function_, where_.empty() ? source_ : fmt::format("{}: {}", source_, where_),
        fmt::format("is {}", json_excerpt(object)), "be a JSON object", "see docs/cli.md"));
  }
}

void JsonFields::fail(std::string_view key, std::string_view came, std::string_view expected,
                      std::string_view remedy) const {
  const std::string place = where_.empty() ? source_ : fmt::format("{}: {}", source_, where_);
  throw InvalidArgument(
      five_parts(function_, fmt::format("{}: field '{}'", place, key), came, expected, remedy));
}

void JsonFields::allow_only(const std::vector<std::string_view>& keys) const {
  for (const auto& [key, value] : object_.items()) {
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
      fail(key, "is not known", fmt::format("be one of {}", fmt::join(keys, ", ")),
           "correct or remove it");
    }
  }
}

const json& JsonFields::at(const char* key) const {
  const auto found = object_.find(key);
  if (found == object_.end()) fail(key, "is missing", "be there", "add it");
  return *found;
}

int64_t JsonFields::integer(const char* key, int64_t smallest, int64_t largest) const {
  return integer_of(at(key), key, smallest, largest);
}

int64_t JsonFields::integer_of(const json& value, std::string_view key, int64_t smallest,
                               int64_t largest) const {
  const bool too_large =
      value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
  if (!value.is_number_integer() || too_large || value.get<int64_t>() < smallest ||
      value.get<int64_t>() > largest) {
    fail(key, fmt::format("is {}", json_excerpt(value)),
         fmt::format("be an integer from {} to {}", smallest, largest), "correct it");
  }
  return value.get<int64_t>();
}

double JsonFields::positive(const char* key) const {
  return positive_of(at(key), key);
}

double JsonFields::positive_of(const json& value, std::string_view key) const {
  if (!value.is_number() || !std::isfinite(value.get<double>()) || value.get<double>() <= 0) {
    fail(key, fmt::format("is {}", json_excerpt(value)), "be a finite number above 0",
         "correct it");
  }
  return value.get<double>();
}

std::string JsonFields::text(const char* key) const {
  const json& value = at(key);
  if (!value.is_string()) {
    fail(key, fmt::format("is {}", json_excerpt(value)), "be a string", "correct it");
  }
  return value.get<std::string>();
}

const json& JsonFields::array(const char* key, size_t at_least) const {
  const json& value = at(key);
  if (!value.is_array() || value.size() < at_least) {
    fail(key, fmt::format("is {}", json_excerpt(value)),
         at_least == 0 ? "be an array" : fmt::format("be an array of at least {}", at_least),
         "correct it");
  }
  return value;
}

std::string json_excerpt(const json& value) {
  constexpr size_t kLongest = 40;
  constexpr int kDeepest = 40;  // brackets of more levels would fill the excerpt
  if (is_deep(value, kDeepest)) return "a value of more than 40 levels";
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  return text;
}

}  // namespace capillary
