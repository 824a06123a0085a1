#!/usr/bin/env python3
"""Writes the list of an image's components as CycloneDX: `sbom.py PACKAGE FILE [REQUIREMENTS...]`.

The list has the crates from which the package's binary is linked on Linux, with the checksums of Cargo.lock. It also
has the wheels in REQUIREMENTS, which are files for pip, with their hashes. It has no components of the base image. The
same sources give the same bytes.
"""

import json
import pathlib
import re
import subprocess
import sys
import tomllib
import uuid

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = "x86_64-unknown-linux-gnu"


def fail(sentence):
    sys.exit(f"sbom: {sentence}")


def component(ecosystem, name, version, digest=None, licence=None):
    purl = f"pkg:{ecosystem}/{name}@{version}"
    made = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
    if digest:
        made["hashes"] = [{"alg": "SHA-256", "content": digest}]
    if licence:
        # Cargo's older form of licences has `/` between alternatives
        made["licenses"] = [{"expression": licence.replace("/", " OR ")}]
    return made


def cargo(package):
    """Returns the components from which `package` is linked, itself first, and the dependencies of each."""
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", TARGET]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if result.returncode:
        fail(f"cargo metadata failed:\n{result.stderr.strip()}")
    metadata = json.loads(result.stdout)
    packages = {found["id"]: found for found in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    first = next((id for id in metadata["workspace_members"] if packages[id]["name"] == package), None)
    if first is None:
        fail(f"there is no package {package} in {ROOT / 'Cargo.toml'}")

    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())
    checksums = {(locked["name"], locked["version"]): locked.get("checksum") for locked in lock["package"]}
    linked = lambda dependency: any(kind["kind"] is None for kind in dependency["dep_kinds"])
    below = lambda id: [dependency["pkg"] for dependency in nodes[id]["deps"] if linked(dependency)]
    order, waiting = {}, [first]
    while waiting:
        id = waiting.pop()
        if id in order:
            continue
        name, version = packages[id]["name"], packages[id]["version"]
        order[id] = component("cargo", name, version, checksums.get((name, version)), packages[id]["license"])
        waiting.extend(below(id))
    edges = {made["bom-ref"]: sorted(order[other]["bom-ref"] for other in below(id)) for id, made in order.items()}
    return list(order.values()), edges


def wheels(requirements):
    lines = pathlib.Path(requirements).read_text().splitlines()
    pinned = [line for line in lines if line and not line.startswith("#")]
    for line in pinned:
        found = re.fullmatch(r"([A-Za-z0-9_.-]+)==([^ ]+) --hash=sha256:([0-9a-f]{64})", line)
        if not found:
            fail(f"{requirements} has the line `{line}`, expected NAME==VERSION --hash=sha256:DIGEST")
        yield component("pypi", *found.groups())


def main():
    if len(sys.argv) < 3:
        fail("usage: sbom.py PACKAGE FILE [REQUIREMENTS...]")
    package, file, *requirements = sys.argv[1:]
    (itself, *components), edges = cargo(package)
    fetched = [made for each in requirements for made in wheels(each)]
    edges[itself["bom-ref"]] += [made["bom-ref"] for made in fetched]
    components = sorted(components + fetched, key=lambda made: made["bom-ref"])
    contents = {
        "metadata": {"component": {**itself, "type": "application"}},
        "components": components,
        "dependencies": [{"ref": ref, "dependsOn": sorted(edges[ref])} for ref in sorted(edges)],
    }
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(contents, sort_keys=True))
    head = {"bomFormat": "CycloneDX", "specVersion": "1.6", "serialNumber": f"urn:uuid:{serial}", "version": 1}
    pathlib.Path(file).write_text(json.dumps({**head, **contents}, indent=1) + "\n")


main()
