"""Builds the compiled kernels, and installs without them where they cannot be built.

PUMPLINE_BUILD_KERNELS: `auto` (default), `require` (a failed build is an error), `no` (skip).
All else about the package is in pyproject.toml.
"""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

MODULE = "pumpline.core.messages._kernels"
SOURCE = "src/pumpline/core/messages/_kernels.pyx"
INCLUDED = "src/pumpline/core/messages/_kernel_bytes.pxi"
CHOICES = ("auto", "require", "no")

choice = os.environ.get("PUMPLINE_BUILD_KERNELS") or "auto"
if choice not in CHOICES:
    sys.exit(f"PUMPLINE_BUILD_KERNELS={choice}: expected one of {', '.join(CHOICES)}")


class BuildKernels(build_ext):
    """setuptools translates the .pyx when Cython is there; here a failure is survived."""

    def build_extension(self, ext: Extension) -> None:
        try:
            if find_spec("Cython") is None:
                raise RuntimeError("Cython is not installed")
            super().build_extension(ext)
        except Exception as error:
            if choice == "require":
                raise
            cause = " ".join(str(error).split()) or type(error).__name__
            print(
                f"pumpline: the kernels could not be compiled ({cause}); their plain-Python twin "
                "will be used, which is slower and otherwise the same.",
                file=sys.stderr,
            )


def extensions() -> list[Extension]:
    if choice == "no" or not Path(SOURCE).exists():
        return []
    flags = ["/O2"] if sys.platform == "win32" else ["-O3"]
    # `optional` lets the editable install, too, go on without the file.
    return [
        Extension(
            MODULE,
            [SOURCE],
            depends=[INCLUDED],
            extra_compile_args=flags,
            optional=choice != "require",
        ),
    ]


setup(ext_modules=extensions(), cmdclass={"build_ext": BuildKernels})
