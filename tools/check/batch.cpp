// SPDX-License-Identifier: MIT
#include "check/batch.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstring>

#include "check/rng.h"
#include "shared/half.h"

namespace capillary::check {
namespace {

// 16-byte aligned, as a cache is at least, but no more than that.
constexpr int64_t kGuardBytes = 4096 + 16;
// NaN as float16, as bfloat16, and (twice) as float32.
constexpr uint16_t kPoisonHalf = 0x7fff;
constexpr std::array<int32_t, 4> kWildIds = {INT_MAX, -1, 0x7fff7fff, INT_MIN};
constexpr int64_t kRowPadding = 8;    // elements: keeps rows 16-byte aligned
constexpr int32_t kTablePadding = 3;  // columns

std::vector<std::byte> poisoned_bytes(int64_t num_bytes) {
  std::vector<std::byte> bytes(static_cast<size_t>(num_bytes + 2 * kGuardBytes));
  for (size_t i = 0; i + 1 < bytes.size(); i += 2) std::memcpy(&bytes[i], &kPoisonHalf, 2);
  return bytes;
}

std::vector<std::byte> wild_id_bytes(int64_t num_ids) {
  std::vector<std::byte> bytes(static_cast<size_t>(num_ids * 4 + 2 * kGuardBytes));
  for (size_t i = 0; i + 3 < bytes.size(); i += 4)
    std::memcpy(&bytes[i], &kWildIds[i / 4 % kWildIds.size()], 4);
  return bytes;
}

void store(HostBuffer& buffer, DType dtype, int64_t element, float value) {
  std::byte* at = buffer.bytes.data() + element * dtype_bytes(dtype);
  if (dtype == DType::kFloat32) {
    std::memcpy(at, &value, 4);
    return;
  }
  const uint16_t bits = dtype == DType::kBFloat16 ? float_to_bf16(value) : float_to_fp16(value);
  std::memcpy(at, &bits, 2);
}

// Four numbers of variance 1, uniform in +-sqrt(3).
std::array<float, 4> four_values(uint64_t key) {
  const uint64_t bits = mix64(key);
  std::array<float, 4> values{};
  for (size_t i = 0; i < 4; ++i) {
    const auto lane = static_cast<int16_t>(bits >> (16 * i));
    values[i] = static_cast<float>(lane) * (1.7320508f / 32768.0f);
  }
  return values;
}

enum class Role : uint64_t { kQuery = 1, kKey = 2, kValue = 3 };

float shaped(ValuePattern pattern, Role role, float value) {
  switch (pattern) {
    case ValuePattern::kPeaked:
      return role == Role::kQuery ? value * 6.0f : value;
    case ValuePattern::kFarBelowZero:
      // Powers of two and small multiples, so that every order of summation gives the same score.
      if (role == Role::kQuery) return 64.0f;
      return role == Role::kKey ? -80.0f : value;
    case ValuePattern::kConstantV:
      return role == Role::kValue ? 1.5f : value;
    case ValuePattern::kSteep:
      if (role == Role::kQuery) return 4.0f;
      return role == Role::kKey ? 2.0f * std::abs(value) : value;
    case ValuePattern::kNormal:
    case ValuePattern::kEqualKeys:
      break;
  }
  return value;
}

void fill_row(HostBuffer& buffer, DType dtype, int64_t element, int64_t dim, uint64_t key,
              int64_t head, Role role, ValuePattern pattern) {
  if (pattern == ValuePattern::kEqualKeys && role == Role::kKey) key = 1;
  const uint64_t row_key =
      mix64(key ^ mix64((static_cast<uint64_t>(role) << 32) + static_cast<uint64_t>(head)));
  const bool constant = pattern == ValuePattern::kSteep && role == Role::kKey;
  for (int64_t i = 0; i < dim; i += 4) {
    const auto values = four_values(row_key + static_cast<uint64_t>(constant ? 0 : i));
    for (int64_t j = 0; j < std::min<int64_t>(4, dim - i); ++j)
      store(buffer, dtype, element + i + j,
            shaped(pattern, role, values[static_cast<size_t>(constant ? 0 : j)]));
  }
}

// A tensor in a buffer of its own: size_elems elements between the guard bands.
HostTensor add_tensor(HostBatch& batch, const char* name, DType dtype, int64_t size_elems,
                      std::initializer_list<int64_t> shape,
                      std::initializer_list<int64_t> strides) {
  const int64_t item_bytes = dtype_bytes(dtype);
  HostTensor tensor;
  tensor.buffer = batch.buffers.size();
  tensor.offset = kGuardBytes / item_bytes;
  tensor.dtype = dtype;
  tensor.ndim = static_cast<int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), tensor.shape.begin());
  std::copy(strides.begin(), strides.end(), tensor.strides.begin());
  batch.buffers.push_back({name, dtype == DType::kInt32 ? wild_id_bytes(size_elems)
                                                        : poisoned_bytes(size_elems * item_bytes)});
  return tensor;
}

// The same buffer seen as another tensor.
HostTensor seen_as(const HostTensor& tensor, int64_t extra_offset,
                   std::initializer_list<int64_t> shape, std::initializer_list<int64_t> strides) {
  HostTensor other = tensor;
  other.offset += extra_offset;
  other.ndim = static_cast<int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), other.shape.begin());
  std::copy(strides.begin(), strides.end(), other.strides.begin());
  return other;
}

HostTensor add_nhd(HostBatch& batch, const char* name, DType dtype, int64_t pages,
                   int64_t page_size, int64_t heads, int64_t dim, int64_t row) {
  return add_tensor(batch, name, dtype, pages * page_size * heads * row,
                    {pages, page_size, heads, dim}, {page_size * heads * row, heads * row, row, 1});
}

HostTensor add_hnd(HostBatch& batch, const char* name, DType dtype, int64_t pages,
                   int64_t page_size, int64_t heads, int64_t dim) {
  return add_tensor(batch, name, dtype, pages * page_size * heads * dim,
                    {pages, page_size, heads, dim},
                    {page_size * heads * dim, dim, page_size * dim, 1});
}

void add_caches(HostBatch& batch, const BatchSpec& spec) {
  const DType dtype = spec.shape.dtype;
  const int64_t pages = spec.table.num_pages;
  const int64_t page_size = spec.table.page_size;
  const int64_t heads = spec.shape.num_kv_heads;
  const int64_t dim_k = spec.shape.head_dim;
  const int64_t dim_v = spec.shape.v_dim();
  const int64_t k_page = page_size * heads * dim_k;
  const int64_t both = page_size * heads * (dim_k + dim_v);
  switch (spec.layout) {
    case CacheLayout::kNhd:
      batch.k_cache = add_nhd(batch, "k_cache", dtype, pages, page_size, heads, dim_k, dim_k);
      batch.v_cache = add_nhd(batch, "v_cache", dtype, pages, page_size, heads, dim_v, dim_v);
      return;
    case CacheLayout::kHnd:
      batch.k_cache = add_hnd(batch, "k_cache", dtype, pages, page_size, heads, dim_k);
      batch.v_cache = add_hnd(batch, "v_cache", dtype, pages, page_size, heads, dim_v);
      return;
    case CacheLayout::kMixed:
      batch.k_cache = add_hnd(batch, "k_cache", dtype, pages, page_size, heads, dim_k);
      batch.v_cache =
          add_nhd(batch, "v_cache", dtype, pages, page_size, heads, dim_v, dim_v + kRowPadding);
      return;
    case CacheLayout::kPackedDim: {
      const int64_t row = dim_k + dim_v;
      batch.k_cache = add_nhd(batch, "kv_cache", dtype, pages, page_size, heads, dim_k, row);
      batch.v_cache = seen_as(batch.k_cache, dim_k, {pages, page_size, heads, dim_v},
                              {page_size * heads * row, heads * row, row, 1});
      return;
    }
    case CacheLayout::kPackedPage:
    case CacheLayout::kCrossLayer: {
      const int64_t layers = spec.layout == CacheLayout::kCrossLayer ? 3 : 1;
      const int64_t first = layers / 2 * both;
      const HostTensor whole =
          add_tensor(batch, "kv_cache", dtype, pages * layers * both, {pages * layers * both}, {1});
      batch.k_cache = seen_as(whole, first, {pages, page_size, heads, dim_k},
                              {layers * both, heads * dim_k, dim_k, 1});
      batch.v_cache = seen_as(whole, first + k_page, {pages, page_size, heads, dim_v},
                              {layers * both, heads * dim_v, dim_v, 1});
      return;
    }
  }
}

void fill_caches(HostBatch& batch, const BatchSpec& spec) {
  const int64_t page_size = spec.table.page_size;
  for (const auto& [cache, role] :
       {std::pair{&batch.k_cache, Role::kKey}, std::pair{&batch.v_cache, Role::kValue}}) {
    HostBuffer& buffer = batch.buffers[cache->buffer];
    for (size_t token = 0; token < spec.table.token_keys.size(); ++token) {
      const uint64_t key = spec.table.token_keys[token];
      if (key == 0) continue;
      const int64_t page = static_cast<int64_t>(token) / page_size;
      const int64_t slot = static_cast<int64_t>(token) % page_size;
      for (int64_t head = 0; head < cache->shape[2]; ++head) {
        const int64_t element = cache->offset + page * cache->strides[0] +
                                slot * cache->strides[1] + head * cache->strides[2];
        fill_row(buffer, cache->dtype, element, cache->shape[3], key, head, role, spec.values);
      }
    }
  }
}

void add_queries_and_outputs(HostBatch& batch, const BatchSpec& spec) {
  const auto num_queries = static_cast<int64_t>(spec.table.seq_lens.size());
  const int64_t heads = spec.shape.num_q_heads;
  const int64_t dim_k = spec.shape.head_dim;
  const int64_t dim_v = spec.shape.v_dim();
  const bool dense = spec.layout == CacheLayout::kNhd;
  // Elsewhere the query is a slice of a fused QKV projection and output rows have room between them.
  const int64_t q_row = heads * dim_k + (dense ? 0 : 2 * spec.shape.num_kv_heads * dim_k);
  const int64_t out_head = dim_v + (dense ? 0 : kRowPadding);
  batch.q = add_tensor(batch, "q", spec.shape.dtype, num_queries * q_row,
                       {num_queries, heads, dim_k}, {q_row, dim_k, 1});
  batch.out = add_tensor(batch, "out", spec.shape.dtype, num_queries * heads * out_head,
                         {num_queries, heads, dim_v}, {heads * out_head, out_head, 1});
  if (spec.layout == CacheLayout::kMixed) {  // [num_q_heads, num_queries] in memory
    batch.lse = add_tensor(batch, "lse", DType::kFloat32, num_queries * heads, {num_queries, heads},
                           {1, num_queries});
  } else {
    batch.lse = add_tensor(batch, "lse", DType::kFloat32, num_queries * heads, {num_queries, heads},
                           {heads, 1});
  }
  for (int64_t query = 0; query < num_queries; ++query) {
    for (int64_t head = 0; head < heads; ++head) {
      fill_row(batch.buffers[batch.q.buffer], batch.q.dtype,
               batch.q.offset + query * q_row + head * dim_k, dim_k,
               spec.table.request_keys[static_cast<size_t>(query)], head, Role::kQuery,
               spec.values);
    }
  }
}

void add_block_table(HostBatch& batch, const Table& table) {
  const auto num_requests = static_cast<int64_t>(table.rows.size());
  size_t widest = 0;
  for (const auto& row : table.rows) widest = std::max(widest, row.size());
  const auto columns = static_cast<int64_t>(widest) + 1;
  const int64_t stride = columns + kTablePadding;
  batch.block_table = add_tensor(batch, "block_table", DType::kInt32, num_requests * stride,
                                 {num_requests, columns}, {stride, 1});
  for (int64_t request = 0; request < num_requests; ++request) {
    const auto& row = table.rows[static_cast<size_t>(request)];
    if (row.empty()) continue;
    std::memcpy(batch.buffers[batch.block_table.buffer].bytes.data() +
                    (batch.block_table.offset + request * stride) * 4,
                row.data(), row.size() * 4);
  }
}

uint64_t hash_bytes(const std::vector<std::byte>& bytes, uint64_t hash) {
  size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, &bytes[i], 8);
    hash = (hash ^ word) * 0x100000001b3ull;
    hash ^= hash >> 29;
  }
  for (; i < bytes.size(); ++i) hash = (hash ^ static_cast<uint64_t>(bytes[i])) * 0x100000001b3ull;
  return hash;
}

void poison_elements(const HostTensor& tensor, std::vector<std::byte>& bytes) {
  const int64_t width = dtype_bytes(tensor.dtype);
  const int64_t depth = tensor.ndim == 3 ? tensor.shape[2] : 1;
  for (int64_t i = 0; i < tensor.shape[0]; ++i) {
    for (int64_t j = 0; j < tensor.shape[1]; ++j) {
      std::byte* run =
          bytes.data() + (tensor.offset + i * tensor.strides[0] + j * tensor.strides[1]) * width;
      for (int64_t half = 0; half < depth * width / 2; ++half)
        std::memcpy(run + half * 2, &kPoisonHalf, 2);
    }
  }
}

}  // namespace

const char* layout_name(CacheLayout layout) {
  switch (layout) {
    case CacheLayout::kNhd:
      return "nhd";
    case CacheLayout::kHnd:
      return "hnd";
    case CacheLayout::kPackedPage:
      return "packed-page";
    case CacheLayout::kPackedDim:
      return "packed-dim";
    case CacheLayout::kCrossLayer:
      return "cross-layer";
    case CacheLayout::kMixed:
      return "mixed";
  }
  return "unknown";
}

const char* pattern_name(ValuePattern pattern) {
  switch (pattern) {
    case ValuePattern::kNormal:
      return "normal";
    case ValuePattern::kPeaked:
      return "peaked";
    case ValuePattern::kFarBelowZero:
      return "far-below-zero";
    case ValuePattern::kConstantV:
      return "constant-v";
    case ValuePattern::kEqualKeys:
      return "equal-keys";
    case ValuePattern::kSteep:
      return "steep";
  }
  return "unknown";
}

TensorView HostTensor::view(void* base, DeviceType device, int32_t device_index) const {
  return {.data = static_cast<std::byte*>(base) + offset * dtype_bytes(dtype),
          .dtype = dtype,
          .device = device,
          .device_index = device_index,
          .ndim = ndim,
          .shape = shape,
          .strides = strides};
}

DecodeTensors HostBatch::tensors() {
  const auto on_host = [this](const HostTensor& tensor) {
    return tensor.view(buffers[tensor.buffer].bytes.data());
  };
  return {.q = on_host(q),
          .k_cache = on_host(k_cache),
          .v_cache = on_host(v_cache),
          .page_ids = on_host(page_ids),
          .out = on_host(out),
          .lse = on_host(lse)};
}

BlockTableView HostBatch::block_table_view() const {
  const std::byte* ids = buffers[block_table.buffer].bytes.data() + block_table.offset * 4;
  return {reinterpret_cast<const int32_t*>(ids), block_table.shape[0], block_table.shape[1],
          block_table.strides[0]};
}

OracleInput HostBatch::oracle_input() {
  const DecodeTensors views = tensors();
  OracleInput input;
  input.q = views.q;
  input.k_cache = views.k_cache;
  input.v_cache = views.v_cache;
  input.block_table = block_table_view();
  input.seq_lens = seq_lens;
  return input;
}

void HostBatch::use_page_list(std::span<const int32_t> ids) {
  const auto count = static_cast<int64_t>(ids.size());
  page_ids = add_tensor(*this, "page_ids", DType::kInt32, count, {count}, {1});
  if (count > 0) {
    std::memcpy(buffers[page_ids.buffer].bytes.data() + page_ids.offset * 4, ids.data(),
                ids.size() * 4);
  }
}

void HostBatch::poison_outputs() {
  poison_elements(out, buffers[out.buffer].bytes);
  poison_elements(lse, buffers[lse.buffer].bytes);
}

uint64_t HostBatch::fence_hash() const {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (i != out.buffer && i != lse.buffer) {
      hash = hash_bytes(buffers[i].bytes, hash);
      continue;
    }
    std::vector<std::byte> copy = buffers[i].bytes;
    poison_elements(i == out.buffer ? out : lse, copy);
    hash = hash_bytes(copy, hash);
  }
  return hash;
}

HostBatch make_batch(const BatchSpec& spec) {
  HostBatch batch;
  batch.seq_lens = spec.table.seq_lens;
  add_caches(batch, spec);
  fill_caches(batch, spec);
  add_queries_and_outputs(batch, spec);
  add_block_table(batch, spec.table);
  batch.page_ids = batch.block_table;
  return batch;
}

}  // namespace capillary::check
