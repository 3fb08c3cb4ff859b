#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Measures what the host side promises and records it: record_cpu.py [TRACE]

Builds the benchmarks, runs them on a machine that should do nothing else, and writes
  bench/results/cpu.json   every benchmark: minimum, median and maximum over the repetitions, and its counters
  bench/results/cpu.md     the promises, each with its figure
TRACE is a serving trace to replay, by default $CAPILLARY_TRACE_DIR/mooncake_conversation.jsonl; without one that
line is left out. A promise is held against the minimum, since whatever else runs on the machine or its host can
only add; the median shows how much it did. The exit code is 1 where a promise is missed.
"""
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "cpu-release"
RESULTS = ROOT / "bench" / "results"
COMMAND = "CAPILLARY_TRACE_DIR=folder-of-traces python3 bench/record_cpu.py"
REPETITIONS = 30
# Every benchmark that a promise below is about, and its neighbours.
FILTER = ("forest_(build|append|replace_one)/|plan/(256|1024)_.*/auto|plan_(lengthen|append)/|decode_step/|"
          "stream_flat_bytes")
SHAPES = ("flat", "one_prefix_2k", "groups_of_16", "levels", "all_but_tail")
PLANS_256 = ("256_in_16_groups", "256_in_16_groups_ragged", "256_one_prefix", "256_flat")  # 32/8 heads
PAT_14 = ("1024_in_7_levels", "1024_in_7_levels_32_32", "1024_in_7_levels_16_8", "1024_in_7_levels_64_8")


def build():
    for command in (["cmake", "--preset", "cpu-release"],
                    ["cmake", "--build", "--preset", "cpu-release", "--target", "capillary_bench",
                     "capillary_bench_memory", "capillary_cli"]):
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def run_benchmark(program, arguments):
    """Google Benchmark's own JSON."""
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        subprocess.run([BUILD / "bench" / program, f"--benchmark_out={out.name}", *arguments], check=True,
                       stdout=subprocess.DEVNULL)
        return json.load(open(out.name, encoding="utf-8"))


def summarize(report):
    """{name: {unit, time, min, median, max, repetitions, counters...}} of a Google Benchmark report.

    Wall time where the benchmark asks for it, which those with threads do; else the thread's own time, which a
    neighbour on the machine disturbs less.
    """
    known = {"name", "run_name", "run_type", "family_index", "per_family_instance_index", "repetitions",
             "repetition_index", "threads", "iterations", "real_time", "cpu_time", "time_unit"}
    runs = {}
    for run in report["benchmarks"]:
        if run["run_type"] != "iteration":
            continue
        if run.get("error_occurred"):
            sys.exit(f"record_cpu: {run['name']}: {run['error_message']}")
        runs.setdefault(run["run_name"].removesuffix("/real_time").removesuffix("/iterations:1"), []).append(run)
    rows = {}
    for name, repeats in runs.items():
        kind = "real_time" if repeats[0]["run_name"].endswith("/real_time") else "cpu_time"
        times = [run[kind] for run in repeats]
        rows[name] = {"unit": repeats[0]["time_unit"], "time": kind, "min": min(times), "median": statistics.median(times),
                      "max": max(times), "repetitions": len(times)}
        rows[name].update({key: value for key, value in repeats[0].items() if key not in known})
    return rows


def replay_seconds(trace):
    begin = time.monotonic()
    done = subprocess.run([BUILD / "bin" / "capillary", "replay", trace, "--json", "-", "--quiet"], check=True,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    seconds = time.monotonic() - begin
    report = json.loads(done.stdout)
    return {"seconds": seconds, "requests": report["requests"]["finished"], "steps": report["steps"],
            "plan_us": report["plan_us"], "forest_us": report["forest_us"], "sharing": report["sharing"],
            "hit_rate": report["cache"]["hit_rate"]}


def promises(rows, memory, replay):
    """Yields (what, of which benchmark, minimum as text, median as text, promise as text, kept)."""
    def slowest(names, limit, unit, scale=1):
        name = max(names, key=lambda each: rows[each]["min"])
        fastest, median = rows[name]["min"] * scale, rows[name]["median"] * scale
        return name, f"{fastest:.3g} {unit}", f"{median:.3g}", f"at most {limit:g} {unit}", fastest <= limit

    def ratio(above, below):
        return tuple(rows[above][kind] / rows[below][kind] for kind in ("min", "median"))

    yield "Forest from a block table, 256 requests x 4k tokens", *slowest(
        [f"forest_build/{shape}/256" for shape in SHAPES], 150, "us")
    yield "Forest from a block table, 1024 requests x 4k tokens", *slowest(
        [f"forest_build/{shape}/1024" for shape in SHAPES], 1, "ms", 1e-3)
    yield "Forest update, 256 requests, nothing restructured", *slowest(
        [f"forest_append/{shape}/256" for shape in SHAPES], 10, "us")
    yield "Plan, 256 requests, 32/8 heads", *slowest([f"plan/{name}/auto" for name in PLANS_256], 50, "us")
    yield "Plan, 256 requests, 8/1 heads", *slowest(["plan/256_in_16_groups_1_head/auto"], 50, "us")
    yield "Plan lengthened, 256 requests, 32/8 heads", *slowest([f"plan_lengthen/{name}" for name in PLANS_256], 5, "us")
    yield "Plan, 1024 requests in 7 levels (pat-14)", *slowest([f"plan/{name}/auto" for name in PAT_14], 300, "us")
    for layout in ("nhd", "hnd"):
        auto, flat = f"decode_step/auto_{layout}", f"decode_step/flat_{layout}"
        fastest, median = ratio(flat, auto)
        yield (f"CPU interpreter, pat-01 32/8 {layout.upper()}: flat / auto", auto, f"{fastest:.2f}", f"{median:.2f}",
               "at least 3", fastest >= 3)
        fastest, median = ratio(flat, "stream_flat_bytes")
        yield (f"CPU interpreter, pat-01 32/8 {layout.upper()}: flat / plain read", flat, f"{fastest:.2f}",
               f"{median:.2f}", "at most 4", fastest <= 4)
    for family in ("radix_cache_pages", "forest_and_plan_pages_each_of_256"):
        sizes = [row for name, row in memory.items() if family in name]
        first, last = sizes[0]["bytes_per_page"], sizes[-1]["bytes_per_page"]
        yield (f"Host memory, {family.split('_pages')[0].replace('_', ' ')}: bytes a page, 64 times the pages",
               f"memory/{family}", f"{last:.1f} ({first:.1f})", "", "no more than at first", last <= first * 1.05)
    if replay:
        yield (f"Replay of {replay['requests']:,} requests, {replay['steps']:,} steps, execution off",
               "capillary replay", f"{replay['seconds']:.1f} s", "", "under 120 s", replay["seconds"] < 120)


def text_of(record, lines):
    context = record["context"]
    text = ["# Host speed and memory", "",
            f"Commit {record['commit']}, {record['date']}, {record['cpu']}, {context['num_cpus']} cores, "
            f"{record['compiler']}; load before the run {context['load_avg'][0]:.2f}. Written by", "",
            "```sh", COMMAND, "```", "",
            f"Minimum and median of {REPETITIONS} repetitions in random order; where several batches are measured, the "
            "slowest. A promise is held", "against the minimum, since what else runs on a machine or its host only adds. "
            "Forest, update and plan run on one thread and are", "its CPU time; the interpreter and the plain read use "
            "all cores and are wall time. Results of plan and forest are checked before", "they are timed, those of the "
            "interpreter by the check table. Everything measured is in [cpu.json](cpu.json).", "",
            "| promise | benchmark | limit | minimum | median | kept |", "|---|---|---|---|---|---|"]
    for what, name, fastest, median, limit, kept in lines:
        text.append(f"| {what} | `{name}` | {limit} | {fastest} | {median} | {'yes' if kept else '**no**'} |")
    return "\n".join(text) + "\n"


def processor():
    for line in open("/proc/cpuinfo", encoding="utf-8"):
        if line.startswith("model name"):
            return line.split(": ")[1].strip()
    return "unknown processor"


def main():
    folder = os.environ.get("CAPILLARY_TRACE_DIR")
    trace = sys.argv[1] if len(sys.argv) > 1 else folder and f"{folder}/mooncake_conversation.jsonl"
    build()
    info = json.loads(subprocess.run([BUILD / "bin" / "capillary", "info", "--json"], check=True,
                                     stdout=subprocess.PIPE).stdout)
    speed = run_benchmark("capillary_bench", [
        f"--benchmark_filter={FILTER}", f"--benchmark_repetitions={REPETITIONS}", "--benchmark_min_time=0.05",
        "--benchmark_enable_random_interleaving=true"])
    rows = summarize(speed)
    memory = summarize(run_benchmark("capillary_bench_memory", []))
    replay = replay_seconds(trace) if trace else None
    context = {key: speed["context"][key] for key in ("num_cpus", "mhz_per_cpu", "caches", "load_avg",
                                                      "library_build_type")}
    record = {"schema_version": 1, "commit": info["commit"], "date": str(datetime.date.today()),
              "cpu": processor(), "compiler": info["compiler"], "command": COMMAND, "context": context,
              "benchmarks": rows, "memory": memory, "replay": replay}
    lines = list(promises(rows, memory, replay))
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "cpu.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    (RESULTS / "cpu.md").write_text(text_of(record, lines), encoding="utf-8")
    print(text_of(record, lines), end="")
    sys.exit(0 if all(line[-1] for line in lines) else 1)


if __name__ == "__main__":
    main()
