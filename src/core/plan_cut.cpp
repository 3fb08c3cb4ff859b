// SPDX-License-Identifier: MIT
// PlanBuilder: cutting a group's line of elements into runs that take equally long. A run streams its tiles and
// works on them at the same time, and every phase that it begins holds the work up; so the runs are filled
// front to back up to a limit, and the limit is the least with which they suffice.
#include <algorithm>

#include "core/plan_builder.h"

namespace capillary {

namespace {
// A run may be this much too long if that saves cutting an element.
constexpr double kSnap = 0.04;
// Halvings of the interval that the limit lies in.
constexpr int kSearchSteps = 6;
}  // namespace

// Calls on_part(element, tile_begin, tile_end) and on_close(us) in order; returns how many runs there are. The
// last of num_runs takes whatever is left unless `counts`: then it stops as soon as they do not suffice.
template <class OnPart, class OnClose>
int32_t PlanBuilder::fill_runs(double limit_us, int32_t num_runs, bool counts,
                               const OnPart& on_part, const OnClose& on_close) {
  const DeviceProfile& profile = model_.profile();
  double tiles_us = 0, busy_us = 0;
  bool has_work = false;
  int32_t run = 0;
  ++phase_stamp_;
  const auto close_run = [&] {
    on_close(std::max(tiles_us, busy_us));
    tiles_us = busy_us = 0;
    has_work = false;
    ++phase_stamp_;
    ++run;
  };
  for (uint32_t index = 0; index < elements_.size(); ++index) {
    const Element& element = elements_[index];
    const int32_t grain = element.wide ? kWideTiles : 1;
    for (int32_t tile = 0; tile < element.tiles;) {
      int64_t& stamp = phase_stamps_[phase_index(element)];
      const double phase_us = element.wide ? profile.item_start_us : profile.stream_start_us;
      const double start_us = element.start_us + (stamp == phase_stamp_ ? 0 : phase_us);
      int32_t take = element.tiles - tile;
      if (counts || run + 1 < num_runs) {
        // Most elements fit whole, which is seen without a division.
        const bool fits_whole = tiles_us + take * element.tile_us <= limit_us &&
                                busy_us + start_us + take * element.compute_us <= limit_us;
        const double room = fits_whole
                                ? take
                                : std::min((limit_us - tiles_us) / element.tile_us,
                                           (limit_us - busy_us - start_us) / element.compute_us);
        if (!fits_whole && take > room + kSnap * limit_us / element.tile_us) {
          const auto fits = static_cast<int32_t>(std::max(room, 0.0)) / grain * grain;
          if (fits == 0 && has_work) {
            close_run();
            if (counts && run >= num_runs) return run + 1;
            continue;
          }
          take = std::min(take, std::max(fits, grain));
        }
      }
      stamp = phase_stamp_;
      on_part(index, tile, tile + take);
      tiles_us += take * element.tile_us;
      busy_us += start_us + take * element.compute_us;
      has_work = true;
      tile += take;
      // What is left of a cut element is the next run's: a run has one part of an element at most.
      if (tile < element.tiles) {
        close_run();
        if (counts && run >= num_runs) return run + 1;
      }
    }
  }
  if (has_work) close_run();
  return run;
}

double PlanBuilder::run_limit(int32_t num_runs) {
  double tiles_us = 0, busy_us = 0;
  for (const Element& element : elements_) {
    tiles_us += element.tiles * element.tile_us;
    busy_us += element.tiles * element.compute_us + element.start_us;
  }
  const double phase_us =
      std::min(model_.profile().item_start_us, model_.profile().stream_start_us);
  double low =
      std::max(tiles_us / num_runs, busy_us / num_runs + (elements_.empty() ? 0 : phase_us));
  const auto suffices = [&](double limit_us) {
    return fill_runs(
               limit_us, num_runs, true, [](uint32_t, int32_t, int32_t) {}, [](double) {}) <=
           num_runs;
  };
  if (suffices(low)) return low;
  double step = std::max(phase_us, 0.1 * low);
  double high = low + step;
  while (!suffices(high)) {
    low = high;
    step *= 2;
    high += step;
  }
  for (int i = 0; i < kSearchSteps; ++i) {
    const double middle = (low + high) / 2;
    (suffices(middle) ? high : low) = middle;
  }
  return high;
}

void PlanBuilder::cut_into_runs(const QueryGroup& group) {
  const int32_t num_runs = num_group_jobs_ * cluster_size_;
  parts_.clear(), run_us_.clear();
  run_begin_.assign(1, 0);
  size_t num_phases = 1;
  for (const Element& element : elements_) {
    num_phases = std::max(num_phases, phase_index(element) + 1);
    planned_tiles_ += int64_t{element.tiles} * element.reads;
  }
  phase_stamps_.assign(num_phases, -1);
  phase_stamp_ = 0;
  const double limit_us = num_runs == 1 ? 0 : run_limit(num_runs);
  for (int32_t query = group.query_begin; query < group.query_end; ++query)
    query_state(query).num_runs = num_runs == 1 ? 1 : 0;
  const auto add_part = [&](uint32_t index, int32_t tile_begin, int32_t tile_end) {
    parts_.push_back({index, tile_begin, tile_end});
    const auto run = static_cast<int32_t>(run_us_.size());
    if (num_runs == 1) return;
    const Element& element = elements_[index];
    for (int32_t query = element.query_begin; query < element.query_end; ++query) {
      // Marks of an earlier group do not disturb: that had other queries.
      QueryState& state = query_state(query);
      if (state.last_run == run) continue;
      state.last_run = run;
      state.num_runs += 1;
    }
  };
  const auto close_run = [&](double us) {
    run_begin_.push_back(parts_.size());
    run_us_.push_back(us);
  };
  fill_runs(limit_us, num_runs, false, add_part, close_run);
  while (run_us_.size() < static_cast<size_t>(num_runs)) close_run(0);
}

}  // namespace capillary
