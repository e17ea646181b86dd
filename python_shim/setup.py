# SPDX-License-Identifier: Apache-2.0
"""A wheel with the C library inside: copied if it is built, else built with CMake.

Looked for in MSDU_LIBRARY_DIR, in ../build/lib, where the linker looks. The wheel fits any Python 3
of this platform: nothing in it is linked against Python.
"""

from __future__ import annotations

import ctypes.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Optional

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # before setuptools 70.1
    from wheel.bdist_wheel import bdist_wheel

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent


def _system_folder() -> Optional[Path]:
    name = ctypes.util.find_library("msdu")
    if not name:
        return None
    for folder in ("/usr/local/lib", "/usr/lib", f"/usr/lib/{os.uname().machine}-linux-gnu"):
        if (Path(folder) / name).exists():
            return Path(folder)
    return None


def _built_by_cmake() -> Optional[Path]:
    """Build the library of the source tree around this folder; None: there is none."""
    if not (ROOT / "CMakeLists.txt").exists():
        return None
    build = HERE / "build" / "library"
    options = ["-DMSDU_WITH_GLOO=ON", "-DMSDU_BUILD_TESTS=OFF", "-DMSDU_BUILD_COMMAND=OFF"]
    try:
        subprocess.run(
            ["cmake", "-S", ROOT, "-B", build, "-DCMAKE_BUILD_TYPE=Release", *options], check=True
        )
        subprocess.run(["cmake", "--build", build, "--target", "msdu", "msdu_gloo"], check=True)
    except (OSError, subprocess.CalledProcessError) as problem:
        raise SystemExit(
            f"msdu: libmsdu.so is not built and CMake cannot build it: {problem}"
        ) from None
    return build / "lib"


def find_library() -> Path:
    """The folder that holds libmsdu.so, and its modules there or in its folder msdu/."""
    named = os.environ.get("MSDU_LIBRARY_DIR")
    places = [Path(named)] if named else [ROOT / "build" / "lib", _system_folder()]
    for place in places:
        if place is not None and (place / "libmsdu.so").exists():
            return place
    built = None if named else _built_by_cmake()
    if built is None:
        raise SystemExit(
            f"msdu: no libmsdu.so in {' or '.join(str(p) for p in places if p)}: build libmsdu "
            "first, or set MSDU_LIBRARY_DIR to the folder that holds it"
        )
    return built


class BuildWithLibrary(build_py):
    """Copy libmsdu.so and its modules into msdu/lib of what is being built."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return  # a source tree finds its library by MSDU_LIBRARY
        source = find_library()
        target = Path(self.build_lib) / "msdu" / "lib"
        target.mkdir(parents=True, exist_ok=True)
        modules = [*source.glob("libmsdu_*.so"), *source.glob("msdu/libmsdu_*.so")]
        for file in [source / "libmsdu.so", *modules]:
            shutil.copyfile(file, target / file.name)
        print(f"msdu: {len(modules) + 1} libraries from {source}", file=sys.stderr)


class PlatformWheel(bdist_wheel):
    """Any Python 3, this platform."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self) -> tuple[str, str, str]:
        return ("py3", "none", super().get_tag()[2])


class BinaryDistribution(Distribution):
    """Has files that depend on the platform."""

    def has_ext_modules(self) -> bool:
        return True


setup(
    cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": PlatformWheel},
    distclass=BinaryDistribution,
)
