// SPDX-License-Identifier: MIT
#include "device/chrome_trace.h"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <limits>
#include <vector>

namespace capillary::device {

namespace {

using Track = std::span<const TraceRecord>;

// One CTA's clock against the card's: the first pair of kGlobal and kClock, and the last.
struct ClockPair {
  double first_ns, last_ns;
  int64_t first_clock, last_clock;
};

ClockPair clocks_of(Track track) {
  ClockPair pair{0, 0, 0, 0};
  bool any = false;
  for (size_t i = 0; i + 1 < track.size(); ++i) {
    if (track[i].event != TraceEvent::kGlobal) continue;
    pair.last_ns = static_cast<double>(track[i].time);
    pair.last_clock = track[i + 1].time;
    if (!any) pair.first_ns = pair.last_ns, pair.first_clock = pair.last_clock;
    any = true;
  }
  return pair;
}

class Writer {
 public:
  Writer(double start_ns, double ns_a_clock) : start_ns_(start_ns), ns_a_clock_(ns_a_clock) {}

  void add_cta(int cta, Track compute, Track load, const ClockPair& clock) {
    cta_ = cta, clock_ = clock;
    char line[160];
    std::snprintf(line, sizeof line,
                  R"({"ph":"M","pid":%d,"name":"process_name","args":{"name":"CTA %d on SM %u"}})",
                  cta, cta, compute[0].arg);
    append(line);
    add_compute(compute);
    add_load(load);
  }
  std::string finish() { return text_ + "\n]}\n"; }

 private:
  double us(int64_t clock) const {
    return (clock_.first_ns - start_ns_ +
            static_cast<double>(clock - clock_.first_clock) * ns_a_clock_) /
           1e3;
  }
  void append(const char* line) {
    text_ += first_ ? "\n" : ",\n";
    text_ += line;
    first_ = false;
  }
  void span(const char* name, int thread, int64_t begin, int64_t end, const char* key,
            double value) {
    char line[200];
    std::snprintf(
        line, sizeof line,
        R"({"ph":"X","pid":%d,"tid":%d,"ts":%.3f,"dur":%.3f,"name":"%s","args":{"%s":%.3f}})", cta_,
        thread, us(begin), static_cast<double>(end - begin) * ns_a_clock_ / 1e3, name, key, value);
    append(line);
  }
  void add_compute(Track track) {
    const TraceRecord *job = nullptr, *phase = nullptr, *item = nullptr;
    int64_t last = 0;
    const auto close_item = [&](int64_t time) {
      if (item != nullptr) span("item", 0, item->time, time, "tiles", item->arg);
      item = nullptr;
    };
    double waited_us = 0;
    for (const TraceRecord& record : track) {
      if (record.event == TraceEvent::kNone) break;
      const int64_t time = record.time;
      switch (record.event) {
        case TraceEvent::kJob:
          job = &record;
          break;
        case TraceEvent::kWide:
        case TraceEvent::kNarrow:
          phase = &record;
          break;
        case TraceEvent::kItem:
          close_item(time);
          item = &record;
          break;
        case TraceEvent::kWaited:
          close_item(time);
          waited_us = record.arg * ns_a_clock_ / 1e3;
          break;
        case TraceEvent::kPhaseEnd:
          if (phase != nullptr)
            span(phase->event == TraceEvent::kWide ? "wide" : "narrow", 0, phase->time, time,
                 "waited_us", waited_us);
          break;
        case TraceEvent::kPeersReady:
          span("wait for peers", 0, last, time, "us", 0);
          break;
        case TraceEvent::kMerged:
          span("merge", 0, last, time, "us", 0);
          if (job != nullptr) span("job", 0, job->time, time, "kv_head", job->arg);
          break;
        default:
          break;
      }
      if (record.event != TraceEvent::kGlobal) last = time;
    }
  }
  void add_load(Track track) {
    const TraceRecord* phase = nullptr;
    for (const TraceRecord& record : track) {
      if (record.event == TraceEvent::kNone) break;
      if (phase != nullptr) span("load", 1, phase->time, record.time, "tiles", phase->arg);
      phase = record.event == TraceEvent::kLoadPhase ? &record : nullptr;
    }
  }

  double start_ns_, ns_a_clock_;
  int cta_ = 0;
  ClockPair clock_{};
  bool first_ = true;
  std::string text_ = R"({"displayTimeUnit":"ns","traceEvents":[)";
};

}  // namespace

std::string chrome_trace(std::span<const TraceRecord> records, int num_ctas) {
  const auto track = [&](int cta, TraceTrack which) {
    return records.subspan(
        (static_cast<size_t>(cta) * kTraceTracks + static_cast<size_t>(which)) * kTraceRecords,
        kTraceRecords);
  };
  double start_ns = std::numeric_limits<double>::max();
  std::vector<ClockPair> clocks;
  std::vector<double> rates;
  for (int cta = 0; cta < num_ctas; ++cta) {
    clocks.push_back(clocks_of(track(cta, TraceTrack::kCompute)));
    const ClockPair& pair = clocks.back();
    start_ns = std::min(start_ns, pair.first_ns);
    if (pair.last_clock > pair.first_clock)
      rates.push_back((pair.last_ns - pair.first_ns) /
                      static_cast<double>(pair.last_clock - pair.first_clock));
  }
  // %globaltimer is coarse on some cards; the SMs share one clock rate.
  double rate = 1;
  if (!rates.empty()) {
    std::nth_element(rates.begin(), rates.begin() + static_cast<ptrdiff_t>(rates.size() / 2),
                     rates.end());
    rate = rates[rates.size() / 2];
  }
  Writer writer(start_ns, rate);
  for (int cta = 0; cta < num_ctas; ++cta)
    writer.add_cta(cta, track(cta, TraceTrack::kCompute), track(cta, TraceTrack::kLoad),
                   clocks[static_cast<size_t>(cta)]);
  return writer.finish();
}

}  // namespace capillary::device
