"""Build the C kernel as a plain shared library.

The library does not know Python: it needs a C compiler, no Python headers, and is loaded with ctypes.
"""

from setuptools import Extension, setup

KERNEL = "src/boltdp/kernel/"

setup(
    ext_modules=[
        Extension(
            "boltdp.kernel._kernel",
            sources=[KERNEL + "sgd.c", KERNEL + "rows.c", KERNEL + "objective.c"],
            depends=[
                KERNEL + name
                for name in ("sgd.h", "loops.h", "chacha.h", "noise.h", "ziggurat.h", "rows.h", "objective.h")
            ],
            # ISO mode and -ffp-contract=off keep every build to the same bits; never add -ffast-math.
            extra_compile_args=["-std=c99", "-O3", "-ffp-contract=off", "-fno-math-errno", "-Wall", "-Wextra"],
        )
    ]
)
