#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Adds up a CTest JUnit report: count_tests.py REPORT GTEST_XML_DIR

CTest knows most GoogleTest cases one by one. Binaries registered whole (their CTest name starts with
"whole.") are counted from the XML that GoogleTest itself wrote. Prints "counts PASSED FAILED SKIPPED", then
a line for each failed case and for each group of skipped ones. What the first failed tests said goes to
standard error.
"""
import collections
import pathlib
import sys
import xml.etree.ElementTree as ElementTree

MAX_SHOWN = 10
MAX_LINES_SHOWN = 25


def is_skip(element):
    """A test that chose to be skipped; CTest writes <skipped> for one whose binary is missing as well."""
    return element is not None and element.get("message", "").startswith("SKIP_")


def ctest_cases(report):
    """Yields (name, status) of every CTest test; status is passed, failed or skipped."""
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        status = case.get("status")
        if status == "run":
            yield case.get("name"), "passed"
        elif status == "disabled" or is_skip(case.find("skipped")):
            yield case.get("name"), "skipped"
        else:
            yield case.get("name"), "failed"


def show_output(report):
    """The end of what the first few failed tests printed."""
    cases = ElementTree.parse(report).getroot().iter("testcase")
    failed = [case for case in cases if case.find("failure") is not None]
    for case in failed[:MAX_SHOWN]:
        lines = (case.findtext("system-out") or "").rstrip().splitlines()[-MAX_LINES_SHOWN:]
        print(f"-- {case.get('name')}", *lines, sep="\n", file=sys.stderr)


def gtest_cases(path):
    """Yields (name, status) of every case in a GoogleTest XML file."""
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        name = f"{case.get('classname')}.{case.get('name')}"
        if case.find("failure") is not None or case.find("error") is not None:
            yield name, "failed"
        elif case.get("result") == "skipped" or case.get("status") == "notrun":
            yield name, "skipped"
        else:
            yield name, "passed"


def main():
    report, xml_dir = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    if not report.is_file():
        sys.exit(f"count_tests: no report {report}")
    results = []
    for name, status in ctest_cases(report):
        xml = xml_dir / f"{name.removeprefix('whole.')}.xml"
        if name.startswith("whole.") and xml.is_file():
            cases = list(gtest_cases(xml))
            results += cases
            # The binary can fail where no case does: a sanitizer report at exit.
            if status == "failed" and all(case_status != "failed" for _, case_status in cases):
                results.append((name, "failed"))
        else:
            results.append((name, status))

    show_output(report)
    totals = collections.Counter(status for _, status in results)
    print("counts", totals["passed"], totals["failed"], totals["skipped"])
    for name, status in results:
        if status == "failed":
            print("failed", name)
    groups = collections.Counter(name.split(".")[0] for name, status in results if status == "skipped")
    for group, count in sorted(groups.items()):
        print("skipped", f"{group} ({count})")


if __name__ == "__main__":
    main()
