// SPDX-License-Identifier: MIT
#include "capillary/error.h"

namespace capillary {

std::string five_parts(std::string_view function, std::string_view argument, std::string_view came,
                       std::string_view expected, std::string_view remedy) {
  std::string message;
  message.reserve(function.size() + argument.size() + came.size() + expected.size() +
                  remedy.size() + 16);
  message.append(function).append(": ").append(argument).append(" ").append(came);
  message.append("; must ").append(expected).append("; ").append(remedy);
  return message;
}

}  // namespace capillary
