// SPDX-License-Identifier: MIT
// Inline SVG writer (svg.h).
#include "cli/svg.h"

#include "cli/html_page.h"
#include "fmt/format.h"
#include "workload/words.h"

namespace capillary::cli {
namespace {

// Average advance of the page's 11 px sans-serif, a little generous so that labels stay in their boxes.
constexpr double kCharacterWidth = 6.3;
constexpr double kLineHeight = 12;

const char* anchor_name(Anchor anchor) {
  switch (anchor) {
    case Anchor::kStart:
      return "start";
    case Anchor::kMiddle:
      return "middle";
    case Anchor::kEnd:
      return "end";
  }
  return "start";
}

// Two decimals at most, without trailing zeros: thousands of numbers make most of the page.
std::string number(double value) {
  std::string text = fmt::format("{:.2f}", value);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

std::string tag_end(const char* name, std::string_view title) {
  return title.empty() ? "/>\n"
                       : fmt::format("><title>{}</title></{}>\n", escape_html(title), name);
}

}  // namespace

void Svg::rect(double x, double y, double width, double height, std::string_view css_class,
               std::string_view title) {
  body_ += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" class=\"{}\"", number(x),
                       number(y), number(width), number(height), css_class);
  body_ += tag_end("rect", title);
}

void Svg::circle(double x, double y, double radius, std::string_view css_class,
                 std::string_view title) {
  body_ += fmt::format("<circle cx=\"{}\" cy=\"{}\" r=\"{}\" class=\"{}\"", number(x), number(y),
                       number(radius), css_class);
  body_ += tag_end("circle", title);
}

void Svg::text(double x, double y, std::string_view css_class, std::string_view content,
               Anchor anchor) {
  body_ += fmt::format("<text x=\"{}\" y=\"{}\" class=\"{}\" text-anchor=\"{}\">{}</text>\n",
                       number(x), number(y), css_class, anchor_name(anchor), escape_html(content));
}

void Svg::label(double x, double y, double width, double height, std::string_view css_class,
                std::initializer_list<std::string> wordings) {
  if (height < kLineHeight) return;
  for (const std::string& wording : wordings) {
    if (static_cast<double>(wording.size()) * kCharacterWidth + 6 <= width) {
      text(x + width / 2, y + height / 2 + 4, css_class, wording, Anchor::kMiddle);
      return;
    }
  }
}

void Svg::line(double x1, double y1, double x2, double y2, std::string_view css_class) {
  body_ += fmt::format("<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" class=\"{}\"/>\n", number(x1),
                       number(y1), number(x2), number(y2), css_class);
}

std::string Svg::str(double height, std::string_view aria_label) const {
  return fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n{}</svg>\n",
                     number(kWidth), number(height), escape_html(aria_label), body_);
}

std::string Svg::file(double height, std::string_view aria_label) const {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" role=\"img\" "
      "aria-label=\"{2}\">\n<style>{3}</style>\n<rect width=\"{0}\" height=\"{1}\" "
      "class=\"page\"/>\n{4}</svg>\n",
      number(kWidth), number(height), escape_html(aria_label), page_style(), body_);
}

}  // namespace capillary::cli
