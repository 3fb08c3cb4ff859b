# SPDX-License-Identifier: MIT
"""Workload files as the page tables that other libraries take. The standard library alone."""
import dataclasses
import fnmatch
import json
import random


@dataclasses.dataclass
class Level:
    """Nodes of one level: node n serves requests[n] to requests[n + 1] and owns pages[n], whole pages but for a leaf's
    last. Nodes without a page are there too."""
    requests: list  # [nodes + 1], first 0, last the number of requests
    pages: list  # [nodes][pages of the node], ids


@dataclasses.dataclass
class Tree:
    name: str
    q_heads: int
    kv_heads: int
    head_dim: int
    page_size: int
    seq_len: int  # of every request, in tokens
    levels: list
    num_pages: int

    @property
    def heads(self):
        return f"{self.q_heads}/{self.kv_heads}"

    @property
    def num_requests(self):
        return self.levels[0].requests[-1]

    @property
    def group(self):
        return self.q_heads // self.kv_heads

    def rows(self):
        """Page ids of every request, in order: [requests][pages]."""
        rows = [[] for _ in range(self.num_requests)]
        for level in self.levels:
            for node, pages in enumerate(level.pages):
                for request in range(level.requests[node], level.requests[node + 1]):
                    rows[request].extend(pages)
        return rows

    @property
    def token_bytes(self):
        return 2 * 2 * self.kv_heads * self.head_dim  # K and V, two bytes an element

    @property
    def unique_tokens(self):
        """Tokens counted once: of a leaf's last page only those that are there."""
        short = -self.seq_len % self.page_size
        return self.num_pages * self.page_size - self.num_requests * short

    @property
    def flat_tokens(self):
        return self.num_requests * self.seq_len

    @property
    def flops(self):
        return 4 * self.flat_tokens * self.q_heads * self.head_dim

    @property
    def root_tokens(self):
        """Tokens that all requests share in whole pages; 0 where there are several trees."""
        level = self.levels[0]
        if len(level.pages) != 1 or len(self.levels) == 1:
            return 0
        return len(level.pages[0]) * self.page_size


def make_tree(workload, heads, head_dim=None, seed=1):
    """A page belongs to the deepest node that holds its last token, as in `capillary`; ids are scattered at random."""
    if "ragged" in workload:
        raise ValueError(f"workload '{workload['name']}': has 'ragged' lengths; the peers bench takes even ones")
    nodes, tokens, page_size = workload["nodes"], workload["tokens"], workload["page"]
    q_heads, kv_heads = (int(count) for count in heads.split("/"))
    num_requests = nodes[-1]
    levels, begin, next_page = [], 0, 0
    leaf_parent = list(range(num_requests))  # the request's ancestor on the level at hand
    ancestors = [leaf_parent]
    for level in range(len(nodes) - 1, 0, -1):
        leaf_parent = [node * nodes[level - 1] // nodes[level] for node in leaf_parent]
        ancestors.insert(0, leaf_parent)
    for level, (count, length) in enumerate(zip(nodes, tokens)):
        end = begin + length
        last = level == len(nodes) - 1
        width = (-(-end // page_size) if last else end // page_size) - begin // page_size
        requests = [0] * (count + 1)
        for node in ancestors[level]:
            requests[node + 1] += 1
        for node in range(count):
            requests[node + 1] += requests[node]
        pages = [list(range(next_page + node * width, next_page + (node + 1) * width)) for node in range(count)]
        next_page += width * count
        levels.append(Level(requests, pages))
        begin = end
    ids = list(range(next_page))
    random.Random(seed).shuffle(ids)
    for level in levels:
        level.pages = [[ids[page] for page in pages] for pages in level.pages]
    dim = head_dim or workload.get("head_dim", 128)
    return Tree(workload["name"], q_heads, kv_heads, dim, page_size, begin, levels, next_page)


def load_trees(path, pattern="*", heads=None, head_dim=None):
    """Every (workload, heads) of a workload file that the pattern names."""
    with open(path, encoding="utf-8") as file:
        workloads = json.load(file)["workloads"]
    chosen = [(workload, count) for workload in workloads if fnmatch.fnmatch(workload["name"], pattern)
              for count in workload["heads"] if heads in (None, count)]
    if not chosen:
        raise ValueError(f"{path}: no workload is named '{pattern}'" + (f" with heads {heads}" if heads else ""))
    return [(lambda w=workload, c=count: make_tree(w, c, head_dim)) for workload, count in chosen]
