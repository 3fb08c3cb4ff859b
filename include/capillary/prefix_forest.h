// SPDX-License-Identifier: MIT
// PrefixForest: which requests of a batch share which runs of KV tokens.
//
// A node is a run of tokens shared by exactly the requests below it: whole pages, except at a leaf's end.
// Path root to node concatenated is a request's KV. Leaf order is depth first, so every node covers a
// contiguous range of positions in it; a request that ends at an inner node comes before that node's
// children. The form is canonical: the same batch gives the same forest whatever it was built from.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace capillary {

struct ForestNode {
  int32_t parent;         // index of the parent node, -1 for a root; parents come before children
  int32_t token_begin;    // logical position of the first token; a multiple of page_size
  int32_t num_tokens;     // > 0
  int32_t request_begin;  // positions in leaf order [request_begin, request_end) share this node
  int32_t request_end;
  int32_t subtree_end;  // nodes [own index, subtree_end) are this node and all below it (preorder)
  int64_t page_offset;  // entry of the page id array with this node's first page
};

// Per request page ids, row-major int32 [num_requests, row_stride]; only the first
// ceil(seq_len / page_size) entries of a row are read.
struct BlockTableView {
  const int32_t* data = nullptr;
  int64_t num_requests = 0;
  int64_t num_columns = 0;
  int64_t row_stride = 0;  // elements between rows
};

class PrefixForest {
 public:
  PrefixForest() = default;

  // The same page id at the same logical position, and both lengths covering that page whole, is sharing.
  // Page ids equal under other positions, or equal content under other ids, are not.
  // Throws InvalidArgument: negative length, page_size < 1, a row too narrow for its length, negative page id.
  static PrefixForest from_block_table(const BlockTableView& table,
                                       std::span<const int32_t> seq_lens, int32_t page_size);

  // CSR: node i has parent[i] (-1: root), num_tokens[i] tokens in pages page_ids[page_indptr[i] ..
  // page_indptr[i+1]); request r ends at node request_node[r] (-1: empty request). Inner nodes must hold
  // whole pages. Throws InvalidArgument on a cycle, a range outside page_ids, pages that do not fit tokens.
  static PrefixForest from_csr(std::span<const int32_t> parent, std::span<const int32_t> num_tokens,
                               std::span<const int32_t> page_indptr,
                               std::span<const int32_t> page_ids,
                               std::span<const int32_t> request_node, int32_t page_size);

  // levels[l][r]: page ids of request r on level l are level_pages[l][level_indptr[l][g] ..) where
  // g = level_group[l][r]; requests with the same group on a level share it (FlashInfer's cascade form).
  struct Level {
    std::span<const int32_t>
        group;  // [num_requests]: which entry run of this level; -1: nothing here
    std::span<const int32_t> indptr;  // [num_groups + 1] into page_ids
    std::span<const int32_t> page_ids;
    std::span<const int32_t> num_tokens;  // [num_groups]
  };
  static PrefixForest from_levels(std::span<const Level> levels, int32_t num_requests,
                                  int32_t page_size);

  // Shape only: node i hangs under parent[i], has num_tokens[i] tokens; every childless node is one request.
  // Pages are numbered in order of first use; a shared node's partial last page moves to its children.
  static PrefixForest from_parents(std::span<const int32_t> parent,
                                   std::span<const int32_t> num_tokens, int32_t page_size);

  // Nothing shared: every request alone, whatever the table says.
  static PrefixForest flat(const BlockTableView& table, std::span<const int32_t> seq_lens,
                           int32_t page_size);

  // Nodes in preorder.
  std::span<const ForestNode> nodes() const { return nodes_; }
  // leaf_order()[position] = request index.
  std::span<const int32_t> leaf_order() const { return leaf_order_; }
  // By position in leaf order: deepest node of the request, -1 for an empty request; and its length.
  std::span<const int32_t> request_node() const { return request_node_; }
  std::span<const int32_t> seq_lens() const { return seq_lens_; }

  // The page id array that page_offset points into. Built from a block table it is the table itself
  // (offset = row * row_stride + column; page_ids() is empty and the caller passes the table to decode);
  // built from anything else the forest owns it.
  std::span<const int32_t> page_ids() const { return page_ids_; }
  bool owns_page_ids() const { return owns_page_ids_; }

  int32_t num_requests() const { return static_cast<int32_t>(leaf_order_.size()); }
  int32_t page_size() const { return page_size_; }
  int64_t unique_tokens() const { return unique_tokens_; }
  int64_t flat_tokens() const { return flat_tokens_; }

 private:
  friend class ForestBuilder;
  std::vector<ForestNode> nodes_;
  std::vector<int32_t> leaf_order_;
  std::vector<int32_t> request_node_;
  std::vector<int32_t> seq_lens_;
  std::vector<int32_t> page_ids_;
  bool owns_page_ids_ = false;
  int32_t page_size_ = 1;
  int64_t unique_tokens_ = 0;
  int64_t flat_tokens_ = 0;
};

// The forest of a batch that is decoded step by step. Every update gives exactly what from_block_table would
// give for the same table and lengths, at a cost that follows what changed: a step that only appends tokens
// reads the ids of new pages alone; joining requests are compared along their path; leaving, growing apart and
// moving rows read one id a node.
class ForestTracker {
 public:
  // Throws InvalidArgument: page_size < 1.
  explicit ForestTracker(int32_t page_size);
  ~ForestTracker();
  ForestTracker(ForestTracker&&) noexcept;
  ForestTracker& operator=(ForestTracker&&) noexcept;

  // previous_row[r]: the row that request r had in the update before; -1: it is new, or has other pages (it
  // comes back after a preemption). Rows that nobody names have left. Empty: every request has kept its row,
  // and rows beyond those of the update before are new.
  // A kept request has the ids it had in all pages that its old and its new length cover whole. Its length may
  // go up or down, its partial page may be replaced, the table may lie elsewhere with another stride.
  // Throws InvalidArgument as from_block_table does (ids that were there before are not checked again), and
  // for a previous row out of range or named twice. The tracker then stands as before.
  // The reference stays valid until the next call; page offsets point into this table.
  const PrefixForest& update(const BlockTableView& table, std::span<const int32_t> seq_lens,
                             std::span<const int32_t> previous_row = {});

  const PrefixForest& forest() const;

  // False: the last update changed nothing but lengths (num_tokens of nodes that one request has alone, and
  // page offsets where the stride changed).
  bool restructured() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace capillary
