// SPDX-License-Identifier: MIT
// A thin writer of inline SVG: rectangles with tooltips, text, lines. Colours are classes, so that the page's
// style sheet gives them for light and dark.
#pragma once

#include <string>
#include <string_view>

namespace capillary::cli {

enum class Anchor { kStart, kMiddle, kEnd };

class Svg {
 public:
  // Widths are in the units of the view box, which is this wide everywhere: one unit is about one pixel.
  static constexpr double kWidth = 1160;

  // title: an empty one means no tooltip.
  void rect(double x, double y, double width, double height, std::string_view css_class,
            std::string_view title = "");
  void circle(double x, double y, double radius, std::string_view css_class,
              std::string_view title = "");
  void text(double x, double y, std::string_view css_class, std::string_view content,
            Anchor anchor = Anchor::kStart);
  // Text in the middle of a box, if it fits; of several wordings the first that does.
  void label(double x, double y, double width, double height, std::string_view css_class,
             std::initializer_list<std::string> wordings);
  void line(double x1, double y1, double x2, double y2, std::string_view css_class);

  // The whole element; label tells people who cannot see it what it shows.
  std::string str(double height, std::string_view aria_label) const;
  // A file of its own, with the pages' style sheet.
  std::string file(double height, std::string_view aria_label) const;

 private:
  std::string body_;
};

}  // namespace capillary::cli
