#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes docs/python-api.md from the docstrings of the installed package; with --check only says whether it is so."""

import ast
import inspect
import sys
from pathlib import Path

import capillary

PAGE = Path(__file__).parents[1] / "docs" / "python-api.md"
HEADER = """# Python reference

Written by `python/reference.py` from the docstrings. What the words mean is in the [glossary](glossary.md); how the
pieces go together in [python.md](python.md). Arrays are anything that offers DLPack or the buffer protocol.
"""
# What imports a framework is read without being imported: (module, file of what it documents, names).
SOURCES = Path(__file__).parent / "src" / "capillary"
FRAMEWORK_MODULES = [
    ("capillary.torch_ops", [("torch_ops.py", ["TorchPlanner"])]),
    ("capillary.integrations.transformers", [
        ("integrations/transformers.py", ["register", "explain"]),
        ("integrations/_paged_cache.py", ["PagedCache", "PagedCache.explain", "PagedCache.block_table"])]),
]


class Bare(str):
    """An annotation as it was written, without the quotes of a string."""

    __repr__ = str.__str__


def signature_of(name, thing):
    found = inspect.signature(thing)
    def bare(annotation):
        return annotation if annotation is found.empty else Bare(getattr(annotation, "__forward_arg__", annotation))

    parameters = [parameter.replace(annotation=bare(parameter.annotation)) for parameter in found.parameters.values()]
    return f"{name}{found.replace(parameters=parameters, return_annotation=bare(found.return_annotation))}"


def signature_and_text(name, thing):
    """Bindings write their signature into the first line of their docstring; Python's own are asked for it."""
    text = inspect.getdoc(thing) or ""
    first, _, rest = text.partition("\n")
    if first.startswith((f"{name}(", "(self")):
        return first, rest.strip()
    constructor = (getattr(thing, "__init__", None).__doc__ or "") if inspect.isclass(thing) else ""
    if constructor.startswith("__init__(self"):
        return constructor.partition("\n")[0].replace("__init__(self, ", f"{name}(").removesuffix(" -> None"), text
    try:
        return signature_of(name, thing), text
    except (TypeError, ValueError):
        return None, text


def entry(title, thing, level):
    name = title.rpartition(".")[2]
    signature, text = signature_and_text(name, thing)
    lines = [f"{'#' * level} `{title}`", ""]
    if signature:
        lines += ["```python", signature, "```", ""]
    if text:
        lines += ["```text", text, "```", ""]
    return lines


def properties(cls, title):
    """A list: one line a property."""
    lines = []
    for name, value in members(cls):
        if isinstance(value, property):
            text = " ".join(signature_and_text(name, value)[1].split())
            lines.append(f"- `{title}.{name}`" + (f": {text}" if text else ""))
    return [*lines, ""] if lines else []


def source_fields(cls):
    """What a class of Python declares, as dataclasses and named tuples do: {name: the text below it, or ""}."""
    if cls.__module__ == "capillary._core":
        return {}
    body = [*ast.parse(inspect.getsource(cls)).body[0].body, None]
    return {field.target.id: " ".join(ast.literal_eval(text.value).split()) if isinstance(text, ast.Expr) else ""
            for field, text in zip(body, body[1:]) if isinstance(field, ast.AnnAssign)}


def fields(cls, title):
    """A list: one line a declared field."""
    lines = [f"- `{title}.{name}`" + (f": {text}" if text else "") for name, text in source_fields(cls).items()]
    return [*lines, ""] if lines else []


def members(cls):
    """Documented methods and properties, inherited ones of the bindings included."""
    for name in dir(cls):
        if name.startswith("_") or name in dir(object) or (issubclass(cls, tuple) and name in dir(tuple)):
            continue
        value = inspect.getattr_static(cls, name)
        if isinstance(value, (staticmethod, classmethod)):
            value = value.__func__
        if callable(value) or isinstance(value, property):
            yield name, value


def module_entries(module, files):
    """A section of a module: its docstring, then the names."""
    first = ast.parse((SOURCES / files[0][0]).read_text())
    lines = [f"## Module `{module}`", "", "```text", ast.get_docstring(first) or "", "```", ""]
    for file, names in files:
        for name in names:
            node = ast.parse((SOURCES / file).read_text())
            for part in name.split("."):
                node = next(inner for inner in node.body if getattr(inner, "name", None) == part)
            lines += source_entry(node, f"{module.rpartition('.')[2]}.{name}")
    return lines


def source_entry(node, title):
    """What `entry` writes, of a class or function that is only read."""
    is_class = isinstance(node, ast.ClassDef)
    function = next(inner for inner in node.body if getattr(inner, "name", "") == "__init__") if is_class else node
    arguments = ast.unparse(function.args).removeprefix("self, ").removeprefix("self")
    returns = "" if is_class else f" -> {ast.unparse(function.returns)}"
    return [f"{'#' * (title.count('.') + 2)} `{title}`", "", "```python", f"{node.name}({arguments}){returns}", "```",
            "", "```text", ast.get_docstring(node), "```", ""]


def page():
    lines = [HEADER]
    for name in sorted(capillary.__all__, key=lambda name: (not name[0].islower(), name.lower())):
        thing = getattr(capillary, name)
        if not callable(thing):
            continue
        is_error = inspect.isclass(thing) and issubclass(thing, BaseException)
        if is_error:
            continue
        lines += entry(name, thing, 2)
        if inspect.isclass(thing):
            lines += fields(thing, name)
            lines += properties(thing, name)
            for member, value in members(thing):
                if not isinstance(value, property):
                    lines += entry(f"{name}.{member}", value, 3)
    lines += ["## Errors", "", "| class | also a | when |", "|---|---|---|"]
    for name in capillary.__all__:
        thing = getattr(capillary, name)
        if inspect.isclass(thing) and issubclass(thing, BaseException):
            bases = ", ".join(f"`{base.__name__}`" for base in thing.__bases__ if base.__module__ == "builtins")
            lines.append(f"| `{name}` | {bases} | {' '.join((inspect.getdoc(thing) or '').split())} |")
    lines.append("")
    for module, files in FRAMEWORK_MODULES:
        lines += module_entries(module, files)
    return "\n".join(lines)


def main():
    made = page()
    if sys.argv[1:] != ["--check"]:
        PAGE.write_text(made)
    elif not PAGE.exists() or PAGE.read_text() != made:
        sys.exit(f"{PAGE.name} is not what the docstrings say; run python3 python/reference.py")


if __name__ == "__main__":
    main()
