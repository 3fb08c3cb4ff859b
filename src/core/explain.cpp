// SPDX-License-Identifier: MIT
// A plan's summary in words. Every figure is the summary's; nothing is computed here beyond ratios of these.
#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <iterator>
#include <string>

#include "capillary/plan.h"

namespace capillary {
namespace {

[[gnu::format(printf, 1, 2)]] std::string text_of(const char* format, ...) {
  char text[320];
  va_list arguments;
  va_start(arguments, format);
  const int used = std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return {text, static_cast<size_t>(std::clamp(used, 0, static_cast<int>(sizeof text) - 1))};
}

// "33.8 MB", decimal units.
std::string bytes_text(int64_t count) {
  const char* const units[] = {"B", "kB", "MB", "GB", "TB"};
  auto value = static_cast<double>(count);
  size_t unit = 0;
  while (value >= 999.95 && unit + 1 < std::size(units)) {
    value /= 1000;
    ++unit;
  }
  return text_of("%.*f %s", unit == 0 ? 0 : value < 9.995 ? 2 : 1, value, units[unit]);
}

std::string counted(int64_t count, const char* noun) {
  return text_of("%lld %s%s", static_cast<long long>(count), noun, count == 1 ? "" : "s");
}

double ratio(double a, double b) {
  return b > 0 ? a / b : 1;
}

const char* path_text(const PlanSummary& summary) {
  switch (summary.mode) {
    case Mode::kFlat:
      return "flat: every request is planned as if alone";
    case Mode::kSharedL2:
      return "shared-l2: shared nodes are read for many requests, partials meet in global memory";
    case Mode::kAuto:
      break;
  }
  if (summary.fallback == Fallback::kNothingShared)
    return "even: work is cut evenly, partials meet in the cluster";
  return summary.cluster_size == 1
             ? "shared: shared nodes are read for many requests, one CTA a cluster"
             : "shared: shared nodes are read for many requests, partials meet in the cluster";
}

}  // namespace

const char* fallback_reason(Fallback fallback) {
  switch (fallback) {
    case Fallback::kNone:
      break;
    case Fallback::kAsked:
      return "this mode was asked for";
    case Fallback::kNothingShared:
      return "no two requests have a page in common";
    case Fallback::kNotWorthIt:
      return "sharing is predicted to be slower than plain decode";
  }
  return "";
}

std::string explain(const PlanSummary& summary) {
  std::string text;
  const auto line = [&](const char* label, const std::string& words) {
    text += text_of("%-11s", label) + words + "\n";
  };
  line("path", path_text(summary));
  if (summary.fallback != Fallback::kNone) line("fallback", fallback_reason(summary.fallback));
  line("reason", summary.reason);
  line("sharing",
       text_of("%.2fx: unique %s, flat %s; %s, %s",
               ratio(static_cast<double>(summary.flat_bytes),
                     static_cast<double>(summary.unique_bytes)),
               bytes_text(summary.unique_bytes).c_str(), bytes_text(summary.flat_bytes).c_str(),
               counted(summary.num_requests, "request").c_str(),
               counted(summary.num_nodes, "node").c_str()));
  const int64_t saved = summary.flat_bytes - summary.planned_bytes;
  std::string reads = text_of(
      "%s planned, %.2fx unique", bytes_text(summary.planned_bytes).c_str(),
      ratio(static_cast<double>(summary.planned_bytes), static_cast<double>(summary.unique_bytes)));
  if (saved > 0)
    reads +=
        text_of("; saves %s (%.1f%%) against flat", bytes_text(saved).c_str(),
                100 * ratio(static_cast<double>(saved), static_cast<double>(summary.flat_bytes)));
  line("reads", reads);
  line("partials", bytes_text(summary.exchange_bytes) + " through distributed shared memory, " +
                       bytes_text(summary.split_bytes) + " through L2");
  line("launch", counted(summary.num_clusters, "cluster") + " of " +
                     counted(summary.cluster_size, "CTA") + "; " +
                     counted(summary.num_jobs, "job") + " in " +
                     counted(summary.num_groups, "query group") + " a KV head");
  const int32_t resident = std::min(summary.num_clusters, summary.resident_clusters);
  line("resident", text_of("%d CTAs at a time; the card holds %d clusters of %d, %d CTAs",
                           resident * summary.cluster_size, summary.resident_clusters,
                           summary.cluster_size, summary.resident_clusters * summary.cluster_size));
  line("predicted",
       text_of("%.1f us; floor %.1f us (%s), efficiency %.2f", summary.predicted_us,
               summary.floor_us, summary.hbm_us >= summary.compute_us ? "memory" : "compute",
               summary.predicted_us > 0 ? summary.floor_us / summary.predicted_us : 0));
  line("  terms",
       text_of("HBM %.1f us, L2 %.1f us, compute %.1f us, exchange %.1f us, launch %.1f us, "
               "job starts %.1f us",
               summary.hbm_us, summary.l2_us, summary.compute_us, summary.exchange_us,
               summary.launch_us, summary.job_start_us));
  return text;
}

}  // namespace capillary
