// SPDX-License-Identifier: MIT
// Building a PrefixForest from a block table, in time linear in the ids that are read.
//
// A group of rows that share their first pages is worked off along its first row, the reference:
// every other row is compared with it once, as far as the two agree. The lengths of these
// agreements are the places where the reference's path branches; rows that leave at the same place
// are grouped by the page they go on with and wait on a stack, and are later compared with their
// own reference from that page on. So no id is compared twice with the same outcome, and a shared
// page is read once a row and checked once. Groups keep their rows in ascending order, so a group's
// first row is its smallest request index: that row names the node's place in the table, and the
// order of siblings falls out of the order of first rows.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "capillary/prefix_forest.h"
#include "core/forest_sort.h"

namespace capillary {

// Checks what every entry point that takes a block table checks; throws InvalidArgument.
void check_block_table(std::string_view function, const BlockTableView& table,
                       std::span<const int32_t> seq_lens, int32_t page_size);

// Throws InvalidArgument where entries [first_page, end_page) of a row hold a negative id.
void check_page_ids(std::string_view function, const BlockTableView& table, int32_t row,
                    int64_t first_page, int64_t end_page);

class ForestBuilder {
 public:
  // The arrays of a forest, for the other sources of this folder that fill one.
  struct Parts {
    std::vector<ForestNode>& nodes;
    std::vector<int32_t>& leaf_order;
    std::vector<int32_t>& request_node;
    std::vector<int32_t>& seq_lens;
    std::vector<int32_t>& page_ids;
    bool& owns_page_ids;
    int32_t& page_size;
    int64_t& unique_tokens;
    int64_t& flat_tokens;
  };
  static Parts parts(PrefixForest& forest);

  // Fills `out`, reusing its memory. `function` names the caller in error messages; after a throw
  // `out` holds no forest of use. share = false gives every request a node of its own.
  void build(std::string_view function, const BlockTableView& table,
             std::span<const int32_t> seq_lens, int32_t page_size, bool share, PrefixForest& out);

 private:
  struct Group {
    int32_t begin;  // rows order_[begin, end), ascending, all with the same ids before `page` ...
    int32_t end;
    int32_t page;    // ... and, where there are several, at `page` too
    int32_t parent;  // node above
  };

  struct Member {
    int32_t group;
    int32_t row;
  };

  void add_leaf(int32_t row, int32_t page, int32_t parent);
  void end_request(int32_t row, int32_t node);
  void follow_reference(const Group& group);
  void branch(int32_t begin, int32_t end, int32_t page, int32_t parent);
  void check_ids(int32_t row, int64_t first_page, int64_t end_page) const {
    check_page_ids(function_, table_, row, first_page, end_page);
  }
  const int32_t* row_ids(int32_t row) const { return table_.data + row * table_.row_stride; }

  std::string_view function_;
  BlockTableView table_;
  std::span<const int32_t> lens_;
  int32_t page_size_ = 1;
  Parts* out_ = nullptr;

  std::vector<int32_t> order_;
  std::vector<int32_t> whole_;  // by row: pages that the length covers whole
  KeySorter sorter_;
  std::vector<uint64_t> keys_;  // (page at which a row leaves the reference, row)
  IdGrouper grouper_;
  std::vector<Group> groups_;  // of one branch
  std::vector<Member> members_;
  std::vector<Group> stack_;
};

// Sets subtree_end of every node from the parents; nodes are in preorder.
void close_subtrees(std::span<ForestNode> nodes);

}  // namespace capillary
