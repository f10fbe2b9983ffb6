"""Build the C kernel as a plain shared library.

The library does not know Python: it needs a C compiler, no Python headers, and is loaded with ctypes.
"""

from glob import glob

from setuptools import Extension, setup

KERNEL = "src/boltdp/kernel/"

setup(
    ext_modules=[
        Extension(
            "boltdp.kernel._kernel",
            sources=[
                KERNEL + name
                for name in (
                    "sgd.c",
                    "losses.c",
                    "rows.c",
                    "reading.c",
                    "objective.c",
                    "errors.c",
                    "moments.c",
                    "draws.c",
                    "exact.c",
                )
            ],
            depends=sorted(glob(KERNEL + "*.h")),
            # ISO mode and -ffp-contract=off keep every build to the same bits; never add -ffast-math.
            extra_compile_args=["-std=c99", "-O3", "-ffp-contract=off", "-fno-math-errno", "-Wall", "-Wextra"],
        )
    ]
)
