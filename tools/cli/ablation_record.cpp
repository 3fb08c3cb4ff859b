// SPDX-License-Identifier: MIT
// Rows of an ablation out of its JSON lines (ablation_record.h).
#include "cli/ablation_record.h"

#include "cli/common.h"
#include "fmt/format.h"

namespace capillary::cli {
namespace {

using nlohmann::ordered_json;

int32_t arm_index(const std::string& name) {
  const std::vector<Arm>& arms = ablation_arms();
  for (size_t i = 0; i < arms.size(); ++i) {
    if (arms[i].name == name) return static_cast<int32_t>(i);
  }
  return -1;
}

ArmResult arm_result(const ordered_json& record) {
  ArmResult arm;
  arm.measured = arm_index(record.at("arm").get<std::string>());
  if (record.contains("skipped")) {
    arm.skipped = record.at("skipped").get<std::string>();
    return arm;
  }
  arm.measured = arm_index(record.at("measured_as").get<std::string>());
  const ordered_json& cold = record.at("time_us_graph_cold");
  arm.time_us = (cold.is_null() ? record.at("time_us_eager") : cold).get<double>();
  arm.path = parse_mode("bench", record.at("path").get<std::string>());
  arm.cluster_size = record.at("cluster_size").get<int32_t>();
  arm.predicted_us = record.at("predicted_us").get<double>();
  arm.passed = record.at("passed").get<bool>();
  return arm;
}

}  // namespace

AblationRow ablation_row(std::span<const ordered_json> records) {
  AblationRow row;
  for (const ordered_json& record : records) row.arms.push_back(arm_result(record));
  const ordered_json& planner = records.back();
  row.workload = planner.at("workload").get<std::string>();
  row.heads = planner.at("heads").get<std::string>();
  row.one_kv_head = row.heads.ends_with("/1");
  row.floor_us = planner.at("floor_us").get<double>();
  row.partial_traffic = planner.at("partial_traffic").get<double>();
  const double unique = planner.at("unique_bytes").get<double>();
  if (unique > 0) row.sharing = planner.at("flat_bytes").get<double>() / unique;
  return row;
}

std::string ablation_source(const ordered_json& record) {
  return fmt::format(
      "{}, {}, commit {}; {}, head_dim {}; {}, median of {}; {}",
      record.at("device").get<std::string>(), record.at("date").get<std::string>(),
      record.at("commit").get<std::string>(), record.at("dtype").get<std::string>(),
      record.at("head_dim").get<int>(),
      record.at("time_us_graph_cold").is_null() ? "eager" : "in a CUDA graph, L2 cold",
      record.at("repeats").get<int>(),
      record.at("checked").get<bool>() ? "every plan checked" : "not checked");
}

AblationRecord ablation_from_lines(std::string_view text, const std::string& path) {
  AblationRecord result;
  std::vector<ordered_json> records;
  ordered_json first;  // of those measured
  size_t number = 0;
  const auto fail = [&](const std::string& came) {
    throw InvalidArgument(five_parts("bench", fmt::format("--from {}, line {}", path, number), came,
                                     "be a line of bench --ablate --out, all arms of a row in turn",
                                     "give a file that it wrote"));
  };
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    ++number;
    try {
      records.push_back(ordered_json::parse(text.substr(begin, end - begin)));
      const Arm& expected = ablation_arms()[records.size() - 1];
      if (records.back().at("arm").get<std::string>() != expected.name) {
        fail(fmt::format("is of arm {} where {} comes next", records.back().at("arm").dump(),
                         expected.name));
      }
      // Lines of two runs under one another are told apart: one table, one source.
      const auto agree = [&](const ordered_json& earlier, const char* field) {
        const ordered_json& came = records.back().at(field);
        if (came != earlier.at(field))
          fail(fmt::format("has {} {} where {} came before", field, came.dump(),
                           earlier.at(field).dump()));
      };
      for (const char* field : {"workload", "heads"}) agree(records.front(), field);
      if (!records.back().contains("skipped")) {
        if (first.is_null()) first = records.back();
        for (const char* field : {"device", "commit", "dtype", "head_dim"}) agree(first, field);
        if (arm_index(records.back().at("measured_as").get<std::string>()) < 0)
          fail(fmt::format("is measured_as {}", records.back().at("measured_as").dump()));
      }
      if (records.size() == ablation_arms().size()) {
        result.rows.push_back(ablation_row(records));
        if (result.source.empty()) result.source = ablation_source(records.back());
        records.clear();
      }
    } catch (const nlohmann::json::exception& error) {
      fail(error.what());
    }
    begin = end + 1;
  }
  if (!records.empty()) fail("ends before the row is whole");
  if (result.rows.empty()) fail("is not there: the file is empty");
  return result;
}

}  // namespace capillary::cli
