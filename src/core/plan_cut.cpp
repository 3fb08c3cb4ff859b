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
// The limit is found to one of so many steps of the interval that it lies in.
constexpr int kLimitSteps = 64;
constexpr uint32_t kNoPhase = UINT32_MAX;
}  // namespace

// Calls on_part(element, tile_begin, tile_end) and on_close(tiles_us, busy_us) in order; returns how many runs
// there are. The last of num_runs takes whatever is left unless it `counts`: then it stops as soon as they do
// not suffice.
template <bool counts, class OnPart, class OnClose>
int32_t PlanBuilder::fill_runs(double limit_us, int32_t num_runs, const OnPart& on_part,
                               const OnClose& on_close) {
  double tiles_us = 0, busy_us = 0;
  bool has_work = false;
  int32_t run = 0;
  int64_t stamp = ++phase_stamp_;
  uint32_t phase = kNoPhase;  // the last that the run went on to
  const auto close_run = [&] {
    on_close(tiles_us, busy_us);
    tiles_us = busy_us = 0;
    has_work = false;
    phase = kNoPhase;
    stamp = ++phase_stamp_;
    ++run;
  };
  const auto start_us_of = [&](const ElementTimes& all) {
    const bool has_phase = all.phase == phase || phase_stamps_[all.phase] == stamp;
    return has_phase ? all.start_us : all.begins_us;
  };
  const auto go_on_to = [&](uint32_t next) {
    has_work = true;
    if (next == phase) return;
    phase = next;
    phase_stamps_[next] = stamp;
  };
  const auto num_elements = elements_.size();
  for (uint32_t index = 0; index < num_elements; ++index) {
    const ElementTimes& all = element_times_[index];
    // Most elements fit whole.
    const double all_start_us = start_us_of(all);
    if ((!counts && run + 1 >= num_runs) || (tiles_us + all.tiles_us <= limit_us &&
                                             busy_us + all_start_us + all.compute_us <= limit_us)) {
      go_on_to(all.phase);
      on_part(index, 0, elements_[index].tiles);
      tiles_us += all.tiles_us;
      busy_us += all_start_us + all.compute_us;
      continue;
    }
    const Element& element = elements_[index];
    const int32_t grain = element.wide ? kWideTiles : 1;  // a power of two
    for (int32_t tile = 0; tile < element.tiles;) {
      const double start_us = start_us_of(all);
      int32_t take = element.tiles - tile;
      if ((counts || run + 1 < num_runs) &&
          !(tiles_us + take * element.tile_us <= limit_us &&
            busy_us + start_us + take * element.compute_us <= limit_us)) {
        const double room = std::min((limit_us - tiles_us) / element.tile_us,
                                     (limit_us - busy_us - start_us) / element.compute_us);
        if (take > room + kSnap * limit_us / element.tile_us) {
          const auto fits = static_cast<int32_t>(std::max(room, 0.0)) & -grain;
          if (fits == 0 && has_work) {
            close_run();
            if (counts && run >= num_runs) return run + 1;
            continue;
          }
          take = std::min(take, std::max(fits, grain));
        }
      }
      go_on_to(all.phase);
      on_part(index, tile, tile + take);
      tiles_us += take * element.tile_us;
      busy_us += start_us + take * element.compute_us;
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

// What a limit that is too low leaves over says how much is missing, less what runs take beyond the limit: that
// is where the search begins.
double PlanBuilder::run_limit(int32_t num_runs) {
  double tiles_us = 0, busy_us = 0;
  for (const ElementTimes& all : element_times_) {
    tiles_us += all.tiles_us;
    busy_us += all.compute_us + all.start_us;
  }
  const double phase_us =
      std::min(model_.profile().item_start_us, model_.profile().stream_start_us);
  double low =
      std::max(tiles_us / num_runs, busy_us / num_runs + (elements_.empty() ? 0 : phase_us));
  double left_us = 0;
  const auto suffices = [&](double limit_us) {
    double tiles_left_us = tiles_us, busy_left_us = busy_us;
    const int32_t runs = fill_runs<true>(
        limit_us, num_runs, [](uint32_t, int32_t, int32_t) {},
        [&](double run_tiles_us, double run_busy_us) {
          tiles_left_us -= run_tiles_us, busy_left_us -= run_busy_us;
        });
    left_us = std::max(tiles_left_us, busy_left_us);
    return runs <= num_runs;
  };
  if (suffices(low)) return low;
  double step = std::max(phase_us, 0.1 * low);
  const double missing_us = std::max(left_us / num_runs - kSnap / 2 * low, 0.0);
  int guess = static_cast<int>(std::min(missing_us / step, 1.0) * kLimitSteps);
  for (;; low += step, step *= 2) {
    const double high = low + step;
    // As halving the interval comes by it.
    const auto limit_at = [&](int index) {
      double from = low, to = high;
      for (int half = kLimitSteps / 2; half > 0; half /= 2) {
        const double middle = (from + to) / 2;
        if (index > half)
          from = middle, index -= half;
        else
          to = middle;
      }
      return to;
    };
    // The last that is known to fail, the first that suffices; away from the guess in doubling steps until
    // there are both, then by halves.
    int fails = 0, fits = kLimitSteps + 1;
    int index = std::max(guess, 1);
    for (int away = 2; fits - fails > 1; away *= 2) {
      const bool is_enough = suffices(limit_at(index));
      (is_enough ? fits : fails) = index;
      if (fails > 0 && fits <= kLimitSteps)
        index = (fails + fits) / 2;
      else
        index = is_enough ? std::max(index - away, 1) : std::min(index + away, kLimitSteps);
    }
    if (fits <= kLimitSteps) return limit_at(fits);
    guess = 1;
  }
}

void PlanBuilder::cut_into_runs(const QueryGroup& group) {
  const int32_t num_runs = num_group_jobs_ * cluster_size_;
  parts_.clear(), run_us_.clear();
  run_begin_.assign(1, 0);
  const DeviceProfile& profile = model_.profile();
  uint32_t num_phases = 1;
  element_times_.clear();
  for (const Element& element : elements_) {
    const uint32_t phase = element.wide ? static_cast<uint32_t>(element.wide_above) + 1 : 0;
    const double phase_us = element.wide ? profile.item_start_us : profile.stream_start_us;
    element_times_.push_back({element.tiles * element.tile_us, element.tiles * element.compute_us,
                              element.start_us, element.start_us + phase_us, phase});
    num_phases = std::max(num_phases, phase + 1);
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
  const auto close_run = [&](double tiles_us, double busy_us) {
    run_begin_.push_back(parts_.size());
    run_us_.push_back(std::max(tiles_us, busy_us));
  };
  fill_runs<false>(limit_us, num_runs, add_part, close_run);
  while (run_us_.size() < static_cast<size_t>(num_runs)) close_run(0, 0);
}

}  // namespace capillary
