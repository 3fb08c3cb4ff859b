// SPDX-License-Identifier: MIT
// Frame and style sheet of the tool's pages (html_page.h). Colours are variables: the dark scheme replaces them
// and nothing else.
#include "cli/html_page.h"

#include "cli/svg.h"
#include "fmt/format.h"
#include "workload/words.h"

namespace capillary::cli {
namespace {

constexpr const char* kStyle = R"css(
:root { color-scheme: light dark;
  --bg: #ffffff; --ink: #1b2430; --soft: #5a6676; --line: #c9d1db; --card: #f4f6f9; --track: #eef1f5;
  --n0: #dfe5ec; --n1: #bcd7ef; --n2: #8dbde6; --n3: #3f83c4; --n4: #1d5a9a;
  --g0: #f2c48d; --g1: #e3d9a0; --w: #8dbde6; --n: #a9d8b8; --m: #d9b8e6;
  --h0: #fdeedd; --h1: #fad2a5; --h2: #f3ab66; --h3: #d9772e; --h4: #a94e12; --mark: #c0392b;
  --on-dark: #ffffff; --hatch: rgba(20, 30, 45, 0.22); }
@media (prefers-color-scheme: dark) { :root {
  --bg: #12161c; --ink: #e6ebf1; --soft: #9aa6b4; --line: #3a4552; --card: #1b212a; --track: #1f2630;
  --n0: #35404d; --n1: #2b4d6e; --n2: #2f6599; --n3: #4a90d0; --n4: #86bdf0;
  --g0: #8a5a22; --g1: #6d6428; --w: #2f6599; --n: #2f6b48; --m: #6b4580;
  --h0: #33271b; --h1: #593b1d; --h2: #8a5521; --h3: #d07f33; --h4: #f5b06a; --mark: #ff7a6b;
  --on-dark: #0d1116; --hatch: rgba(230, 240, 250, 0.20); } }
body { margin: 0 auto; max-width: 1240px; padding: 20px 16px 60px; background: var(--bg);
  color: var(--ink); font: 14px/1.5 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
h1 { font-size: 22px; margin: 4px 0 2px; overflow-wrap: anywhere; } h2 { font-size: 16px; margin: 30px 0 4px; }
p { margin: 2px 0 10px; max-width: 1100px; } .soft { color: var(--soft); }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(126px, 1fr)); gap: 8px;
  margin: 14px 0; }
.card { background: var(--card); border-radius: 6px; padding: 8px 12px; }
.card b { display: block; font-size: 18px; } .card span { color: var(--soft); font-size: 12px; }
.plot { overflow-x: auto; } svg { width: 100%; min-width: 820px; height: auto; display: block; }
table { border-collapse: collapse; margin: 6px 0; } td, th { padding: 3px 14px 3px 0; text-align: left; }
td.r, th.r { text-align: right; font-variant-numeric: tabular-nums; }
tr + tr td { border-top: 1px solid var(--line); } th { color: var(--soft); font-weight: normal; }
svg text { font: 11px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
.t { fill: var(--soft); } .l { fill: var(--ink); pointer-events: none; }
.li { fill: var(--on-dark); pointer-events: none; }
.ax { stroke: var(--line); } .mark { stroke: var(--mark); stroke-dasharray: 4 3; }
.ph { stroke: var(--ink); stroke-width: 1.5; } .track { fill: var(--track); }
.e { stroke: var(--bg); stroke-width: 0.7; } rect:hover { opacity: 0.75; } .hatch { fill: url(#hatch); }
.o { stroke: var(--soft); stroke-width: 0.7; } .page { fill: var(--bg); } circle:hover { opacity: 0.6; }
.n0 { fill: var(--n0); } .n1 { fill: var(--n1); } .n2 { fill: var(--n2); } .n3 { fill: var(--n3); }
.n4 { fill: var(--n4); } .g0 { fill: var(--g0); } .g1 { fill: var(--g1); } .w { fill: var(--w); }
.n { fill: var(--n); } .m { fill: var(--m); } .h0 { fill: var(--h0); } .h1 { fill: var(--h1); }
.h2 { fill: var(--h2); } .h3 { fill: var(--h3); } .h4 { fill: var(--h4); }
.keys { white-space: nowrap; }
.key { display: inline-block; width: 11px; height: 11px; border-radius: 2px; margin: 0 4px 0 12px; }
)css";

// One definition serves every drawing of the page.
constexpr const char* kHatch =
    "<svg width=\"0\" height=\"0\" style=\"position:absolute;min-width:0;width:0\" "
    "aria-hidden=\"true\"><defs><pattern id=\"hatch\" width=\"5\" height=\"5\" "
    "patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\"><rect width=\"1.6\" "
    "height=\"5\" "
    "style=\"fill:var(--hatch)\"/></pattern></defs></svg>\n";

}  // namespace

std::string html_page_begin(const std::string& title) {
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta "
      "name=\"viewport\" "
      "content=\"width=device-width, initial-scale=1\">\n<title>{0}</title>\n"
      "<style>{1}</style>\n</head>\n<body>\n{2}<h1>{0}</h1>\n",
      escape_html(title), kStyle, kHatch);
}

const char* page_style() {
  return kStyle;
}

std::string html_page_end() {
  return "</body>\n</html>\n";
}

std::string html_key(const char* color, const char* text) {
  return fmt::format(
      "<span class=\"keys\"><span class=\"key\" style=\"background:var(--{})\"></span>{}</span> ",
      color, text);
}

std::string html_section(const char* title, const std::string& words, const std::string& drawing) {
  return fmt::format("<h2>{}</h2>\n<p class=\"soft\">{}</p>\n<div class=\"plot\">{}</div>\n", title,
                     words, drawing);
}

}  // namespace capillary::cli
