# SPDX-License-Identifier: MIT
"""Tests of what needs no card and no torch: page tables of trees, options, the join. `python3 -m unittest` here."""
import contextlib
import io
import json
import pathlib
import sys
import tempfile
import types
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import join  # pylint: disable=wrong-import-position
import measure  # pylint: disable=wrong-import-position
import trees  # pylint: disable=wrong-import-position

PAGE = 16


def workload(nodes, tokens, **more):
    return {"name": "w", "nodes": nodes, "tokens": tokens, "heads": ["8/2"], "page": PAGE, **more}


class Trees(unittest.TestCase):
    def check(self, tree):
        """Rows share exactly the pages of common nodes, every page has one place, none is left over."""
        rows, places = tree.rows(), {}
        for row in rows:
            self.assertEqual(len(row), -(-tree.seq_len // tree.page_size))
            for column, page in enumerate(row):
                self.assertEqual(places.setdefault(page, column), column)
        self.assertEqual(sorted(places), list(range(tree.num_pages)))
        for level in tree.levels:
            self.assertEqual(level.requests[0], 0)
            self.assertEqual(level.requests[-1], len(rows))
            self.assertEqual(level.requests, sorted(level.requests))

    def test_two_levels(self):
        tree = trees.make_tree(workload([1, 10], [64, 40]), "8/2")
        self.check(tree)
        self.assertEqual((tree.num_requests, tree.seq_len, tree.num_pages), (10, 104, 4 + 10 * 3))
        self.assertEqual(tree.unique_tokens, 64 + 10 * 40)
        self.assertEqual(tree.root_tokens, 64)
        self.assertEqual(tree.flops, 4 * 10 * 104 * 8 * 128)

    def test_a_node_that_ends_inside_a_page_hands_it_down(self):
        tree = trees.make_tree(workload([1, 3], [20, 5]), "8/2")
        self.check(tree)
        # One whole page is shared; the other four tokens of the root and the leaf's five are each request's own.
        self.assertEqual([len(level.pages[0]) for level in tree.levels], [1, 1])
        self.assertEqual(tree.unique_tokens, 16 + 3 * 9)

    def test_uneven_fan_out_and_empty_levels(self):
        for nodes, tokens in (([2, 3, 7], [30, 0, 9]), ([5], [90]), ([1, 2, 2, 9], [5, 5, 70, 1]), ([1, 4], [32, 0])):
            with self.subTest(nodes=nodes):
                self.check(trees.make_tree(workload(nodes, tokens), "8/2"))
        tree = trees.make_tree(workload([2, 3, 7], [32, 16, 16]), "8/2")
        # Seven under three: 0 0 0 1 1 2 2; three under two: 0 0 1.
        self.assertEqual(tree.levels[1].requests, [0, 3, 5, 7])
        self.assertEqual(tree.levels[0].requests, [0, 5, 7])
        self.assertEqual(tree.root_tokens, 0)

    def test_ragged_is_refused(self):
        with self.assertRaisesRegex(ValueError, "workload 'w': has 'ragged'"):
            trees.make_tree(workload([1], [16], ragged=0.5), "8/2")

    def test_files(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "w.json"
            path.write_text(json.dumps({"workloads": [workload([1], [16]), dict(workload([2], [16]), name="v")]}))
            self.assertEqual(len(trees.load_trees(path)), 2)
            self.assertEqual(trees.load_trees(path, "v", head_dim=64)[0]().head_dim, 64)
            with self.assertRaisesRegex(ValueError, "no workload is named 'x'"):
                trees.load_trees(path, "x")


class Options(unittest.TestCase):
    def test_arms(self):
        options = measure.parse(["--file", "f", "--out", "o", "--arms", "sdpa_cudnn,flashinfer_decode"])
        self.assertEqual(options.arms, ("sdpa_cudnn", "flashinfer_decode"))
        message = io.StringIO()
        with contextlib.redirect_stderr(message), self.assertRaises(SystemExit):
            measure.parse(["--file", "f", "--out", "o", "--arms", "triton"])
        self.assertIn("'triton' is none of flashinfer_decode", message.getvalue())


class Rows(unittest.TestCase):
    def options(self, folder, *more):
        path = pathlib.Path(folder) / "w.json"
        names = ("flat", "tp8-small", "tree")
        path.write_text(json.dumps({"workloads": [dict(workload([2], [16]), name=name, heads=["8/2", "2/2"]) for name in names]}))
        return measure.parse(["--file", str(path), "--out", "o", *more])

    def names(self, options):
        return [(tree.name, tree.heads) for tree in measure.rows_to_measure(options)]

    def test_those_of_a_record_alone_and_the_named_ones_first(self):
        with tempfile.TemporaryDirectory() as folder:
            record = pathlib.Path(folder) / "r.jsonl"
            lines = [{"about": "x"}, {"workload": "tree", "heads": "2/2"}, {"workload": "tp8-small", "heads": "8/2", "head_dim": 128}]
            record.write_text("".join(json.dumps(line) + "\n" for line in lines))
            self.assertEqual(self.names(self.options(folder))[:2], [("tp8-small", "8/2"), ("tp8-small", "2/2")])
            self.assertEqual(self.names(self.options(folder, "--rows", str(record))), [("tp8-small", "8/2"), ("tree", "2/2")])
            with self.assertRaisesRegex(ValueError, "--rows .*none of its workloads x heads"):
                self.names(self.options(folder, "--rows", str(record), "--head-dim", "64"))

    def run_rows(self, measured, budget_s=0, lost=lambda: None):
        """Runs rows a, b, c; measured(tree) -> record. Returns (records, lines of progress)."""
        rows = [types.SimpleNamespace(name=name, heads="8/2", head_dim=128) for name in "abc"]
        progress, written = io.StringIO(), []
        with contextlib.redirect_stderr(progress):
            records = measure.measure_rows(rows, types.SimpleNamespace(budget_s=budget_s), measured, lost, written.append)
        self.assertEqual(records, written)
        self.assertEqual([record["workload"] for record in records], ["a", "b", "c"])
        return records, progress.getvalue()

    def test_a_row_that_fails_ends_no_other(self):
        def measured(tree):
            if tree.name == "b":
                raise KeyError("no such thing")
            return measure.row_of(tree, absent={}, sdpa_cudnn_us=7.0, sdpa_cudnn_eager_us=9.0)

        records, progress = self.run_rows(measured)
        self.assertEqual(records[1]["absent"], {"all": "KeyError: 'no such thing'"})
        self.assertEqual(records[2]["sdpa_cudnn_us"], 7.0)
        self.assertIn("3/3 0 s c 8/2 head_dim 128: sdpa_cudnn 7.0\n", progress)
        text = measure.summary(records, ("sdpa_cudnn",), 2, "FILE")
        self.assertIn("2 of 3 rows in 2 s; FILE", text)
        self.assertIn("sdpa_cudnn: 2 rows, 2 of them in a graph", text)
        self.assertIn("absent: all: KeyError: 'no such thing' (1 row, first b 8/2)", text)

    def test_nothing_is_begun_on_a_card_that_failed_or_past_the_budget(self):
        begun = []

        def measured(tree):
            begun.append(tree.name)
            return measure.row_of(tree, absent={})

        records, _ = self.run_rows(measured, lost=lambda: "RuntimeError: illegal access" if begun == ["a", "b"] else None)
        self.assertEqual(begun, ["a", "b"])
        self.assertEqual(records[2]["absent"], {"all": "not begun: the card failed in b 8/2: RuntimeError: illegal access"})
        begun.clear()
        records, _ = self.run_rows(measured, budget_s=1e-9)
        self.assertEqual(begun, [])
        self.assertEqual(records[0]["absent"], {"all": "not begun within 1e-09 s"})


def ours(name, us, heads="8/2", **more):
    return {"workload": name, "heads": heads, "head_dim": 128, "mode": "auto", "forced_cluster_size": 0,
            "time_us_graph_cold": us, "flat_bytes": 4e6, "unique_bytes": 1e6, "gpu": "card", "date": "d",
            "commit": "c", "device": "card", **more}


class Join(unittest.TestCase):
    def files(self, folder, **records):
        paths = []
        for name, lines in records.items():
            paths.append(str(pathlib.Path(folder) / f"{name}.jsonl"))
            pathlib.Path(paths[-1]).write_text("".join(json.dumps(line) + "\n" for line in lines))
        return paths

    def test_later_files_win_and_the_best_peer_counts(self):
        with tempfile.TemporaryDirectory() as folder:
            old, new = self.files(
                folder,
                old=[{"about": "published"}, {"workload": "a", "heads": "8/2", "flashinfer_decode_us": 50, "pat_kernels_us": 30},
                     {"workload": "b", "heads": "8/2", "fasttree_warm_us": 5, "fasttree_wrong": True,
                      "flashinfer_decode_us": 20}],
                new=[{"about": "again", "torch": "2", "flashinfer": None},
                     {"workload": "a", "heads": "8/2", "head_dim": 128, "flashinfer_decode_us": 40,
                      "sdpa_cudnn_prefix_tflops": 100, "absent": {"flashinfer_cascade": "not here"}}])
            peers, sources = join.read_peers([old, new])
            own = join.ours_by_key([ours("a", 20), ours("a", 999, mode="flat"), ours("a", 998, arm="dsm-2"), ours("b", 40),
                                    {"workload": "a", "heads": "8/2", "arm": "dsm-16", "skipped": "too few SMs"},
                                    ours("c", 1)])
            joined = join.join(own, peers)
            self.assertEqual([(row[0][0], row[1], row[3]) for row in joined], [("a", 20, 30), ("b", 40, 20)])
            text = join.document(own, peers, sources)
            self.assertIn("all rows: geomean 0.87 over 2 rows, worst 0.50 (b 8/2), 1 below 0.98.", text)
            self.assertIn("The better of FlashInfer's / ours: geomean 1.00 over 2 rows", text)
            self.assertIn("| a | 8/2 | 128 | 4.00 | 20.0 | 1.50 | 40.0 | 30.0 |", text)
            self.assertIn("again (torch 2, flashinfer absent)", text)
            self.assertIn("- flashinfer_cascade: not here (1 row: a 8/2)", text)
            # 4e6 flat bytes / 2 KV heads * 8 query heads FLOPs in 20 us: 0.8 TFLOP/s.
            self.assertIn("| a | 8/2 | 128 | 1 | 0.01 | 100 | - |", text)

    def test_what_is_measured_at_last_is_not_absent(self):
        with tempfile.TemporaryDirectory() as folder:
            row = {"workload": "a", "heads": "8/2"}
            files = self.files(folder, old=[dict(row, absent={"sdpa_flash": "no room", "sdpa_cudnn": "no room", "all": "late"})],
                               new=[dict(row, absent={}, sdpa_flash_us=3)])
            peers, _ = join.read_peers(files)
            self.assertEqual(peers["a", "8/2", 128]["absent"], {"sdpa_cudnn": "no room"})

    def test_nothing_in_common(self):
        with self.assertRaisesRegex(SystemExit, "no row is in both"):
            join.document(join.ours_by_key([ours("a", 20)]), {}, [])

    def test_a_torn_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "torn.jsonl"
            path.write_text('{"workload": "a"')
            with self.assertRaisesRegex(SystemExit, "torn.jsonl, line 1"):
                join.read_lines(path)


if __name__ == "__main__":
    unittest.main()
