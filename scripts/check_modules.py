#!/usr/bin/env python3
"""Checks the order of crates and modules. It refuses circles between the modules of a crate, crates that link libtorch
without being listed here, crates that use a crate of a lower row in the table of docs/ARCHITECTURE.md, and files of
test binaries that no `mod` declares, because their tests would never run.

A module is a file or folder directly in `src`. It uses another module if its code, without tests, contains a path to
it: `crate::other`, or `super::other` with `super` repeated up to the crate. Cargo refuses circles between crates.
"""
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# the packages that link libtorch; all other packages build without it
WITH_LIBTORCH = {"stagecoach", "stagecoach-bench", "stagecoach-dashboard", "stagecoach-engine", "stagecoach-kernels",
                 "stagecoach-model", "stagecoach-planner", "stagecoach-replay", "stagecoach-tests", "stagecoach-transport"}
PATH = re.compile(r"\b(crate|super(?:::super)*)::(?:\{([^;]*?)\}|(\w+))", re.S)
# a module in a separate file, and the path of the file if an attribute names it
MOD = re.compile(r'(?:#\[path = "([^"]+)"\]\s*)?^\s*(?:pub(?:\([^)]*\))? )?mod (\w+);', re.M)


def code(file):
    """Returns a file's code without comments, string literals and tests."""
    text = re.sub(r"//[^\n]*|\"(?:[^\"\\]|\\.)*\"", "", file.read_text())
    return text.split("#[cfg(test)]\nmod tests", 1)[0].split("#[cfg(test)]\npub(super) mod tests", 1)[0]


def first_names(group):
    """Returns the first names of the paths in `a::{b, c}, d`."""
    names, depth = [], 0
    for part in re.split(r"([{},])", group):
        depth += (part == "{") - (part == "}")
        if depth == 0 and part not in "{},":
            names.append(part.strip().split("::")[0])
    return names


def uses(source):
    """Returns for each module of a crate the modules that it uses, each with a file that uses it."""
    modules = {path.stem for path in source.iterdir() if path.suffix == ".rs" or path.is_dir()} - {"lib", "main", "bin"}
    found = {module: {} for module in sorted(modules)}
    for file in sorted(source.rglob("*.rs")):
        inner = file.relative_to(source)
        module = inner.parts[0].removesuffix(".rs")
        if module not in modules or "tests" in inner.with_suffix("").parts:
            continue
        # the number of names in the path of the file's module
        depth = len(inner.parts) - (file.name == "mod.rs")
        for start, group, name in PATH.findall(code(file)):
            if start == "crate" or start.count("super") == depth:
                for other in first_names(group) if group else [name]:
                    if other in modules and other != module:
                        found[module].setdefault(other, file.relative_to(ROOT))
    return found


def circle(graph):
    """Returns a circle of the graph, or None."""
    state, stack = {}, []

    def visit(node):
        state[node] = "open"
        stack.append(node)
        for other in graph[node]:
            if state.get(other) == "open":
                return stack[stack.index(other):] + [other]
            if other not in state and (found := visit(other)):
                return found
        state[node] = "done"
        stack.pop()

    return next((found for node in graph if node not in state and (found := visit(node))), None)


def undeclared(root):
    """Returns the files beside a test binary's main.rs that no `mod` declares, directly or through other modules."""
    declared, open_files = {root}, [root]
    while open_files:
        file = open_files.pop()
        folder = file.parent if file.name in ("main.rs", "mod.rs") else file.with_suffix("")
        for path, name in MOD.findall(file.read_text()):
            others = [file.parent / path] if path else [folder / f"{name}.rs", folder / name / "mod.rs"]
            found = [other for other in others if other.is_file() and other not in declared]
            declared.update(found)
            open_files += found
    return sorted(set(root.parent.rglob("*.rs")) - declared)


def rows():
    """Returns the packages in the table of docs/ARCHITECTURE.md, with the numbers of their rows."""
    table = (ROOT / "docs/ARCHITECTURE.md").read_text().split("Modules of", 1)[0]
    crates = re.findall(r"^\| `(?:crates/)?([\w-]+)` \|", table, re.M)
    return {"stagecoach" if crate == "trainer" else f"stagecoach-{crate}": row for row, crate in enumerate(crates)}


def main():
    wrong, order = [], rows()
    metadata = json.loads(subprocess.check_output(["cargo", "metadata", "--format-version=1", "--locked",
                                                   "--filter-platform=x86_64-unknown-linux-gnu"], cwd=ROOT))
    packages = {package["id"]: package for package in metadata["packages"]}
    resolved = {node["id"]: node for node in metadata["resolve"]["nodes"]}

    def is_normal(dependency):
        return any(kind["kind"] in (None, "build") for kind in dependency["dep_kinds"])

    def links_libtorch(identifier, seen):
        if packages[identifier]["name"] == "torch-sys":
            return True
        others = [d["pkg"] for d in resolved[identifier]["deps"] if is_normal(d) and d["pkg"] not in seen]
        seen.update(others)
        return any(links_libtorch(other, seen) for other in others)

    for identifier in metadata["workspace_members"]:
        name = packages[identifier]["name"]
        if links_libtorch(identifier, set()) != (name in WITH_LIBTORCH):
            wrong.append(f"{name}: whether it links libtorch differs from the list in {pathlib.Path(__file__).name}")
        normal = [packages[d["pkg"]]["name"] for d in resolved[identifier]["deps"] if is_normal(d)]
        below = [other for other in normal if order.get(other, -1) >= order.get(name, len(order))]
        manifest = pathlib.Path(packages[identifier]["manifest_path"])
        if below:
            wrong.append(f"{name} is above {', '.join(below)} in docs/ARCHITECTURE.md, and uses them")
        if name not in order and "crates" in manifest.parts:
            wrong.append(f"{name} is in no row of docs/ARCHITECTURE.md")
        for root in sorted(manifest.parent.glob("tests/*/main.rs")):
            names = [str(file.relative_to(ROOT)) for file in undeclared(root)]
            wrong += [f"{file}: no `mod` of its test binary declares it, so that its tests never run" for file in names]
        source = manifest.parent / "src"
        graph = uses(source) if source.is_dir() else {}
        if found := circle(graph):
            steps = [f"{a} uses {b} ({graph[a][b]})" for a, b in zip(found, found[1:])]
            wrong.append(f"{name}: modules use each other in a circle: {', '.join(steps)}")
    sys.exit("\n".join(wrong) or 0)


main()
