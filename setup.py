"""Build the C kernel as a plain shared library.

The library does not know Python: it needs a C compiler, no Python headers, and is loaded with ctypes. So it has a name
without a version of Python, and one wheel serves them all.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from glob import glob
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

KERNEL = "src/boltdp/kernel/"


class PlainName(build_ext):  # type: ignore[misc]
    """The library is `_kernel.so`, as `boltdp._native` looks for it, whichever Python builds it."""

    def get_ext_filename(self, fullname: str) -> str:
        """Where it is put, without the suffix of extension modules."""
        return str(Path(*fullname.split(".")).with_suffix(".so"))

    def build_extensions(self) -> None:
        """Compile the sources of the library at the same time, which takes half as long on two cores."""
        compile_list = self.compiler.compile

        def compile_each(sources: list[str], **options: Any) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                return [made for one in pool.map(lambda name: compile_list([name], **options), sources) for made in one]

        self.compiler.compile = compile_each
        super().build_extensions()


class EveryPython(bdist_wheel):  # type: ignore[misc]
    """The wheel depends on the platform, and not on the version of Python."""

    def get_tag(self) -> tuple[str, str, str]:
        """Of the three parts of its name, only the platform is that of this machine."""
        return "py3", "none", super().get_tag()[2]


setup(
    cmdclass={"build_ext": PlainName, "bdist_wheel": EveryPython},
    ext_modules=[
        Extension(
            "boltdp.kernel._kernel",
            sources=[
                KERNEL + name
                for name in (
                    "sgd.c",
                    "losses_for_python.c",
                    "hash_sampling.c",
                    "row_permutation.c",
                    "row_projection.c",
                    "columns_to_cells.c",
                    "feature_map.c",
                    "sum_state.c",
                    "loss_derivatives.c",
                    "misclassification.c",
                    "number_errors.c",
                    "feature_sums.c",
                    "unusable_label_count.c",
                    "label_histogram.c",
                    "row_sampling.c",
                    "exact_noise.c",
                    "sensitivity_recursion.c",
                )
            ],
            depends=sorted(glob(KERNEL + "*.h")),
            # ISO mode and -ffp-contract=off keep every build to the same bits; never add -ffast-math.
            extra_compile_args=["-std=c99", "-O3", "-ffp-contract=off", "-fno-math-errno", "-Wall", "-Wextra"],
        )
    ],
)
