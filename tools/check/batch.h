// SPDX-License-Identifier: MIT
// HostBatch: the tensors of one decode step in host memory, fenced in on all sides. Whatever the step has no
// business reading is NaN or a wild page id: unused pages, slots past a length, other layers, padding, table
// entries past a row's pages, guard bands around every buffer. Outputs start as NaN.
//
// Tensors are (buffer, element offset, shape, strides), so a backend may copy whole buffers to its device
// and rebuild the views there.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "capillary/decode.h"
#include "capillary/plan.h"
#include "check/trees.h"

namespace capillary::check {

enum class CacheLayout {
  kNhd,         // [pages, page_size, heads, dim], K and V apart
  kHnd,         // [pages, heads, page_size, dim]
  kPackedPage,  // [pages, 2, page_size, heads, dim] in one buffer (dims equal) or K then V a page
  kPackedDim,   // [pages, page_size, heads, dim_k + dim_v] in one buffer
  kCrossLayer,  // [pages, 3 layers, K then V], the middle layer
  kMixed,       // K as HND, V as NHD with padded rows
};
const char* layout_name(CacheLayout layout);

enum class ValuePattern {
  kNormal,        // q, K, V of variance 1
  kPeaked,        // scores so wide that a few keys have all the weight
  kFarBelowZero,  // every score about -6e4
  kConstantV,     // every V is 1.5
  kEqualKeys,     // every key the same: the mean of V
  kSteep,         // scores from 0 to some 500: here and there a key that outweighs all before it
};
const char* pattern_name(ValuePattern pattern);

struct HostBuffer {
  std::string name;
  std::vector<std::byte> bytes;  // guard bands included
};

struct HostTensor {
  size_t buffer = 0;
  int64_t offset = 0;  // elements
  DType dtype = DType::kFloat32;
  int32_t ndim = 0;
  std::array<int64_t, 5> shape{};
  std::array<int64_t, 5> strides{};

  // base: where the buffer lies on the device.
  TensorView view(void* base, DeviceType device = DeviceType::kCpu, int32_t device_index = 0) const;
};

struct BatchSpec {
  ModelShape shape;
  CacheLayout layout = CacheLayout::kNhd;
  ValuePattern values = ValuePattern::kNormal;
  Table table;
};

struct HostBatch {
  std::vector<HostBuffer> buffers;
  HostTensor q, k_cache, v_cache, page_ids, out, lse;
  HostTensor block_table;  // what page_ids is too, unless use_page_list replaced it
  std::vector<int32_t> seq_lens;

  DecodeTensors tensors();  // on the host
  BlockTableView block_table_view() const;
  OracleInput oracle_input();
  // Makes page_ids a list of its own (of a forest that owns its page ids), fenced like the rest.
  void use_page_list(std::span<const int32_t> ids);
  void poison_outputs();
  // Hash of every byte but those of the outputs' elements: unchanged by a well-behaved step.
  uint64_t fence_hash() const;
};

HostBatch make_batch(const BatchSpec& spec);

}  // namespace capillary::check
