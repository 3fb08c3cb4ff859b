// SPDX-License-Identifier: MIT
// Reading JSON that people wrote: strict where the library is lenient (a key given twice, text after the end),
// and with errors that name file, place and field in the five-part form.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "nlohmann/json.hpp"

namespace capillary {

// source names the text in messages (a path). Throws InvalidArgument with line, column and the last key seen.
nlohmann::json parse_json_strictly(std::string_view function, std::string_view source,
                                   std::string_view text);

// One JSON object being read; where tells what it is ("workload 'rl-8x8'", empty for the whole text).
class JsonFields {
 public:
  JsonFields(const nlohmann::json& object, std::string_view function, std::string_view source,
             std::string where);

  // Throws when a key is none of these.
  void allow_only(const std::vector<std::string_view>& keys) const;
  bool has(const char* key) const { return object_.contains(key); }
  // The value of a field that must be there.
  const nlohmann::json& at(const char* key) const;
  int64_t integer(const char* key, int64_t smallest, int64_t largest) const;
  // Finite and > 0.
  double positive(const char* key) const;
  std::string text(const char* key) const;
  // A non-empty array when at_least > 0.
  const nlohmann::json& array(const char* key, size_t at_least) const;
  // Integer out of a value that belongs to field key ("tokens[2]").
  int64_t integer_of(const nlohmann::json& value, std::string_view key, int64_t smallest,
                     int64_t largest) const;
  double positive_of(const nlohmann::json& value, std::string_view key) const;

  [[noreturn]] void fail(std::string_view key, std::string_view came, std::string_view expected,
                         std::string_view remedy) const;

 private:
  const nlohmann::json& object_;
  std::string function_;
  std::string source_;
  std::string where_;
};

// A value as it looks in a message: the JSON text, cut when long.
std::string json_excerpt(const nlohmann::json& value);

}  // namespace capillary
