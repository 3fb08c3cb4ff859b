// SPDX-License-Identifier: MIT
// The body of an attend kernel, for kLanes floats a vector. Included once by each attend_<isa>.cpp inside its
// own namespace, which defines kLanes, load_half() and the block sizes that suit its register file. Only
// compiler vectors are used, so the same text serves every instruction set.
//
// This file must not call inline functions of the standard library: the linker keeps one copy of those, and
// it might keep the one compiled for instructions that the processor does not have.
//
// Two ways to multiply Q and K, by the number of rows:
//   narrow  (few rows, kMaxNarrow): lanes run over head_dim, one dot product a (row, token), summed across lanes
//   wide                        : lanes run over rows (Q is packed transposed), K elements are broadcast
// P times V is the same for both: lanes run over head_dim_v, P is broadcast.

typedef float Vec __attribute__((vector_size(kLanes * 4)));
typedef int32_t IntVec __attribute__((vector_size(kLanes * 4)));
typedef uint32_t UIntVec __attribute__((vector_size(kLanes * 4)));
typedef uint16_t HalfVec __attribute__((vector_size(kLanes * 2)));

#define CAPILLARY_INLINE inline __attribute__((always_inline))
#if defined(__clang__)
#define CAPILLARY_UNROLL _Pragma("unroll")
#else
#define CAPILLARY_UNROLL _Pragma("GCC unroll 16")
#endif

constexpr int kPanelVecs = 2;  // vectors of rows that a wide Q panel holds
constexpr int kPanelRows = kPanelVecs * kLanes;
constexpr int kMaxNarrow = kLanes > 8 ? kLanes / 2 : 4;
constexpr float kMinusInfinity = -__builtin_inff();

template <class T>
CAPILLARY_INLINE T load(const void* from) {
  T value;
  __builtin_memcpy(&value, from, sizeof(T));
  return value;
}
template <class T>
CAPILLARY_INLINE void store(void* to, T value) {
  __builtin_memcpy(to, &value, sizeof(T));
}
CAPILLARY_INLINE Vec broadcast(float value) {
  return value - Vec{};
}
// May lose a NaN; the weight of a NaN score is NaN all the same.
CAPILLARY_INLINE Vec max_of(Vec a, Vec b) {
  return a > b ? a : b;
}

// 2^x for x <= 0, relative error below 2e-7; exactly 0 for x < -126, NaN for NaN.
CAPILLARY_INLINE Vec exp2_of(Vec x) {
  const Vec floor_at = broadcast(-126.0f);
  const Vec clamped = x < floor_at ? floor_at : x;
  // Adding 1.5 * 2^23 rounds to the nearest integer, which is then in the low bits.
  const Vec magic = broadcast(12582912.0f);
  const Vec shifted = clamped + magic;
  const Vec fraction = clamped - (shifted - magic);  // in [-0.5, 0.5]
  Vec power = broadcast(1.5403530393381608e-4f);
  power = power * fraction + broadcast(1.3333558146428443e-3f);
  power = power * fraction + broadcast(9.6181291076284772e-3f);
  power = power * fraction + broadcast(5.5504108664821580e-2f);
  power = power * fraction + broadcast(2.4022650695910072e-1f);
  power = power * fraction + broadcast(6.9314718055994531e-1f);
  power = power * fraction + broadcast(1.0f);
  const IntVec exponent = (IntVec)shifted << 23;
  const Vec result = (Vec)((IntVec)power + exponent);
  const Vec finite = x < floor_at ? Vec{} : result;
  return x != x ? x : finite;
}

CAPILLARY_INLINE Vec load_bf16(const std::byte* from) {
  const UIntVec wide = __builtin_convertvector(load<HalfVec>(from), UIntVec);
  return (Vec)(wide << 16);
}

// One token's K or V row as fp32.
template <CacheType kType>
CAPILLARY_INLINE void convert_row(const std::byte* from, int count, float* to) {
  if constexpr (kType == CacheType::kFloat32) {
    __builtin_memcpy(to, from, static_cast<size_t>(count) * 4);
    return;
  }
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const std::byte* at = from + i * 2;
    store(to + i, kType == CacheType::kBFloat16 ? load_bf16(at) : load_fp16(at));
  }
  if (i == count) return;
  // The row's end, without reading past it.
  alignas(64) std::byte tail[kLanes * 2] = {};
  __builtin_memcpy(tail, from + i * 2, static_cast<size_t>(count - i) * 2);
  const Vec last = kType == CacheType::kBFloat16 ? load_bf16(tail) : load_fp16(tail);
  __builtin_memcpy(to + i, &last, static_cast<size_t>(count - i) * 4);
}

CAPILLARY_INLINE void prefetch_row(const std::byte* row, int bytes) {
  for (int i = 0; i < bytes; i += 64) __builtin_prefetch(row + i, 0, 3);
}

template <CacheType kType>
void convert_block(const std::byte* const* tokens, int num_tokens, const std::byte* const* next,
                   int num_next, int dim, float* to) {
  const int stride = static_cast<int>(padded_floats(dim));
  const int bytes = dim * (kType == CacheType::kFloat32 ? 4 : 2);
  for (int t = 0; t < num_tokens; ++t) {
    if (t < num_next) prefetch_row(next[t], bytes);
    convert_row<kType>(tokens[t], dim, to + t * stride);
  }
}

// Sums of the lanes of four vectors, as four floats.
CAPILLARY_INLINE void store_lane_sums(Vec a, Vec b, Vec c, Vec d, float* to) {
  typedef float Vec4 __attribute__((vector_size(16)));
  alignas(64) float lanes[4][kLanes];
  Vec4 sums[4];
  store(lanes[0], a);
  store(lanes[1], b);
  store(lanes[2], c);
  store(lanes[3], d);
  CAPILLARY_UNROLL
  for (int i = 0; i < 4; ++i) {
    Vec4 sum = load<Vec4>(lanes[i]);
    for (int j = 4; j < kLanes; j += 4) sum += load<Vec4>(lanes[i] + j);
    sums[i] = sum;
  }
  const Vec4 ab = __builtin_shufflevector(sums[0], sums[1], 0, 2, 4, 6) +
                  __builtin_shufflevector(sums[0], sums[1], 1, 3, 5, 7);
  const Vec4 cd = __builtin_shufflevector(sums[2], sums[3], 0, 2, 4, 6) +
                  __builtin_shufflevector(sums[2], sums[3], 1, 3, 5, 7);
  store(to,
        __builtin_shufflevector(ab, cd, 0, 2, 4, 6) + __builtin_shufflevector(ab, cd, 1, 3, 5, 7));
}

// ---- Q K^T ----

// scores [kRows][kBlockTokens] of kRows rows; four tokens at a time (past num_tokens: ignored later).
template <int kRows>
void narrow_scores(const float* q, const float* keys, int stride, int num_tokens, float* scores) {
  for (int t = 0; t < num_tokens; t += 4) {
    Vec acc[kRows][4] = {};
    const float* key = keys + t * stride;
    for (int i = 0; i < stride; i += kLanes) {
      Vec k[4];
      CAPILLARY_UNROLL
      for (int j = 0; j < 4; ++j) k[j] = load<Vec>(key + j * stride + i);
      CAPILLARY_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const Vec q_vec = load<Vec>(q + r * stride + i);
        CAPILLARY_UNROLL
        for (int j = 0; j < 4; ++j) acc[r][j] += q_vec * k[j];
      }
    }
    CAPILLARY_UNROLL
    for (int r = 0; r < kRows; ++r) {
      store_lane_sums(acc[r][0], acc[r][1], acc[r][2], acc[r][3], scores + r * kBlockTokens + t);
    }
  }
}

// scores [kBlockTokens][row_stride] of the kVecs * kLanes rows of a panel.
template <int kVecs>
void wide_scores(const float* panel, const float* keys, int dim, int stride, int num_tokens,
                 float* scores, int row_stride) {
  for (int t = 0; t < num_tokens; t += kWideTokens) {
    Vec acc[kWideTokens][kVecs] = {};
    const float* key = keys + t * stride;
    for (int i = 0; i < dim; ++i) {
      Vec q[kVecs];
      CAPILLARY_UNROLL
      for (int v = 0; v < kVecs; ++v) q[v] = load<Vec>(panel + i * kPanelRows + v * kLanes);
      CAPILLARY_UNROLL
      for (int j = 0; j < kWideTokens; ++j) {
        const Vec k = broadcast(key[j * stride + i]);
        CAPILLARY_UNROLL
        for (int v = 0; v < kVecs; ++v) acc[j][v] += q[v] * k;
      }
    }
    CAPILLARY_UNROLL
    for (int j = 0; j < kWideTokens; ++j) {
      CAPILLARY_UNROLL
      for (int v = 0; v < kVecs; ++v) store(scores + (t + j) * row_stride + v * kLanes, acc[j][v]);
    }
  }
}

// ---- softmax: scores become weights, the state's max and sum move on, rescale is what its output needs ----

void narrow_softmax(float* scores, int num_tokens, float scale, float* max, float* sum,
                    float* rescale) {
  for (int t = num_tokens; t < kBlockTokens; ++t) scores[t] = kMinusInfinity;
  Vec top = broadcast(kMinusInfinity);
  for (int t = 0; t < kBlockTokens; t += kLanes) {
    const Vec scaled = load<Vec>(scores + t) * scale;
    store(scores + t, scaled);
    top = max_of(top, scaled);
  }
  float new_max = *max;
  for (int i = 0; i < kLanes; ++i) new_max = top[i] > new_max ? top[i] : new_max;
  Vec total = {};
  for (int t = 0; t < kBlockTokens; t += kLanes) {
    const Vec weight = exp2_of(load<Vec>(scores + t) - broadcast(new_max));
    store(scores + t, weight);
    total += weight;
  }
  *rescale = exp2_of(broadcast(*max - new_max))[0];
  float block_sum = 0.0f;
  for (int i = 0; i < kLanes; ++i) block_sum += total[i];
  *sum = *sum * *rescale + block_sum;
  *max = new_max;
}

// kLanes rows at once; scores of token t at t * row_stride.
CAPILLARY_INLINE void wide_softmax(float* scores, int row_stride, int num_tokens, float scale,
                                   float* max, float* sum, float* rescale) {
  const Vec old_max = load<Vec>(max);
  Vec new_max = old_max;
  for (int t = 0; t < num_tokens; ++t) {
    const Vec scaled = load<Vec>(scores + t * row_stride) * scale;
    store(scores + t * row_stride, scaled);
    new_max = max_of(new_max, scaled);
  }
  Vec total = {};
  for (int t = 0; t < num_tokens; ++t) {
    const Vec weight = exp2_of(load<Vec>(scores + t * row_stride) - new_max);
    store(scores + t * row_stride, weight);
    total += weight;
  }
  const Vec factor = exp2_of(old_max - new_max);
  store(rescale, factor);
  store(sum, load<Vec>(sum) * factor + total);
  store(max, new_max);
}

// ---- P V ----

// out [kRows][kVecs * kLanes] = out * rescale + weights * values.
template <int kRows, int kVecs>
void accumulate(const float* weights, int weight_row, int weight_token, const float* rescale,
                const float* values, int value_stride, int num_tokens, float* out,
                int64_t out_stride) {
  Vec acc[kRows][kVecs];
  CAPILLARY_UNROLL
  for (int r = 0; r < kRows; ++r) {
    CAPILLARY_UNROLL
    for (int v = 0; v < kVecs; ++v)
      acc[r][v] = load<Vec>(out + r * out_stride + v * kLanes) * rescale[r];
  }
  for (int t = 0; t < num_tokens; ++t) {
    Vec value[kVecs];
    CAPILLARY_UNROLL
    for (int v = 0; v < kVecs; ++v) value[v] = load<Vec>(values + t * value_stride + v * kLanes);
    CAPILLARY_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const Vec weight = broadcast(weights[r * weight_row + t * weight_token]);
      CAPILLARY_UNROLL
      for (int v = 0; v < kVecs; ++v) acc[r][v] += value[v] * weight;
    }
  }
  CAPILLARY_UNROLL
  for (int r = 0; r < kRows; ++r) {
    CAPILLARY_UNROLL
    for (int v = 0; v < kVecs; ++v) store(out + r * out_stride + v * kLanes, acc[r][v]);
  }
}

template <int kRows>
void accumulate_rows(const float* weights, int weight_row, int weight_token, const float* rescale,
                     const float* values, int num_vecs, int num_tokens, float* out) {
  const int stride = static_cast<int>(padded_floats(num_vecs * kLanes));
  int v = 0;
  for (; v + kOutVecs <= num_vecs; v += kOutVecs) {
    accumulate<kRows, kOutVecs>(weights, weight_row, weight_token, rescale, values + v * kLanes,
                                stride, num_tokens, out + v * kLanes, stride);
  }
  for (; v < num_vecs; ++v) {
    accumulate<kRows, 1>(weights, weight_row, weight_token, rescale, values + v * kLanes, stride,
                         num_tokens, out + v * kLanes, stride);
  }
}

void accumulate_all(const AttendRows& rows, const float* weights, int weight_row, int weight_token,
                    const float* rescale, const float* values, int num_tokens) {
  const int num_vecs = (rows.head_dim_v + kLanes - 1) / kLanes;
  const int64_t stride = padded_floats(rows.head_dim_v);
  int r = 0;
  for (; r + kOutRows <= rows.num_rows; r += kOutRows) {
    accumulate_rows<kOutRows>(weights + r * weight_row, weight_row, weight_token, rescale + r,
                              values, num_vecs, num_tokens, rows.out + r * stride);
  }
  for (; r < rows.num_rows; ++r) {
    accumulate_rows<1>(weights + r * weight_row, weight_row, weight_token, rescale + r, values,
                       num_vecs, num_tokens, rows.out + r * stride);
  }
}

// ---- the kernel's functions ----

int padded_rows(int num_rows) {
  return (num_rows + kPanelRows - 1) / kPanelRows * kPanelRows;
}

int64_t packed_floats(int max_rows, int head_dim) {
  return padded_rows(max_rows) * padded_floats(head_dim);
}

// keys, values, scores, then max, sum and rescale of padded rows.
int64_t scratch_floats(int max_rows, int head_dim, int head_dim_v) {
  return kBlockTokens * (padded_floats(head_dim) + padded_floats(head_dim_v)) +
         (kBlockTokens + 3) * static_cast<int64_t>(padded_rows(max_rows));
}

void pack_queries(int num_rows, int head_dim, const float* q, float* packed) {
  const int64_t stride = padded_floats(head_dim);
  if (num_rows <= kMaxNarrow) {
    for (int r = 0; r < num_rows; ++r) {
      for (int i = 0; i < stride; ++i)
        packed[r * stride + i] = i < head_dim ? q[static_cast<int64_t>(r) * head_dim + i] : 0.0f;
    }
    return;
  }
  for (int first = 0; first < num_rows; first += kPanelRows) {
    float* panel = packed + static_cast<int64_t>(first) * head_dim;
    for (int r = 0; r < kPanelRows; ++r) {
      const float* row = q + static_cast<int64_t>(first + r) * head_dim;
      for (int i = 0; i < head_dim; ++i)
        panel[i * kPanelRows + r] = first + r < num_rows ? row[i] : 0.0f;
    }
  }
}

void attend_narrow(const AttendRows& rows, int num_tokens, const float* keys, const float* values,
                   float* scores) {
  const int stride = static_cast<int>(padded_floats(rows.head_dim));
  float rescale[kMaxNarrow];
  int r = 0;
  for (; r + kDotRows <= rows.num_rows; r += kDotRows) {
    narrow_scores<kDotRows>(rows.packed_q + r * stride, keys, stride, num_tokens,
                            scores + r * kBlockTokens);
  }
  for (; r < rows.num_rows; ++r)
    narrow_scores<1>(rows.packed_q + r * stride, keys, stride, num_tokens,
                     scores + r * kBlockTokens);
  for (r = 0; r < rows.num_rows; ++r) {
    narrow_softmax(scores + r * kBlockTokens, num_tokens, rows.score_scale, rows.max + r,
                   rows.sum + r, rescale + r);
  }
  accumulate_all(rows, scores, kBlockTokens, 1, rescale, values, num_tokens);
}

void attend_wide(const AttendRows& rows, int num_tokens, const float* keys, const float* values,
                 float* scores) {
  const int stride = static_cast<int>(padded_floats(rows.head_dim));
  const int row_stride = padded_rows(rows.num_rows);
  float* max = scores + kBlockTokens * row_stride;
  float* sum = max + row_stride;
  float* rescale = sum + row_stride;
  for (int first = 0; first < rows.num_rows; first += kPanelRows) {
    const float* panel = rows.packed_q + static_cast<int64_t>(first) * rows.head_dim;
    if (rows.num_rows - first > kLanes) {
      wide_scores<kPanelVecs>(panel, keys, rows.head_dim, stride, num_tokens, scores + first,
                              row_stride);
    } else {
      wide_scores<1>(panel, keys, rows.head_dim, stride, num_tokens, scores + first, row_stride);
    }
  }
  const auto state_bytes = static_cast<size_t>(rows.num_rows) * 4;
  __builtin_memcpy(max, rows.max, state_bytes);
  __builtin_memcpy(sum, rows.sum, state_bytes);
  for (int first = 0; first < rows.num_rows; first += kLanes) {
    wide_softmax(scores + first, row_stride, num_tokens, rows.score_scale, max + first, sum + first,
                 rescale + first);
  }
  __builtin_memcpy(rows.max, max, state_bytes);
  __builtin_memcpy(rows.sum, sum, state_bytes);
  accumulate_all(rows, scores, 1, row_stride, rescale, values, num_tokens);
}

template <CacheType kType>
void attend_typed(const AttendRows& rows, const TokenBlock& block, const TokenBlock& next) {
  float* keys = rows.scratch;
  float* values = keys + kBlockTokens * padded_floats(rows.head_dim);
  float* scores = values + kBlockTokens * padded_floats(rows.head_dim_v);
  convert_block<kType>(block.k, block.num_tokens, next.k, next.num_tokens, rows.head_dim, keys);
  convert_block<kType>(block.v, block.num_tokens, next.v, next.num_tokens, rows.head_dim_v, values);
  if (rows.num_rows <= kMaxNarrow)
    attend_narrow(rows, block.num_tokens, keys, values, scores);
  else
    attend_wide(rows, block.num_tokens, keys, values, scores);
}

void attend(const AttendRows& rows, const TokenBlock& block, const TokenBlock& next) {
  switch (rows.type) {
    case CacheType::kFloat16:
      return attend_typed<CacheType::kFloat16>(rows, block, next);
    case CacheType::kBFloat16:
      return attend_typed<CacheType::kBFloat16>(rows, block, next);
    case CacheType::kFloat32:
      return attend_typed<CacheType::kFloat32>(rows, block, next);
  }
}
