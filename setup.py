"""What pyproject.toml cannot say: the engine's CPU kernels. Where they do not compile they are left out, and
torch's serve."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "shared.engine.backends._native",
            ["shared/engine/backends/native.c"],
            depends=["shared/engine/backends/native_kernels.h"],
            extra_compile_args=["-O3", "-fopenmp"],
            extra_link_args=["-fopenmp"],
            optional=True,
        )
    ]
)
