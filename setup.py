"""What pyproject.toml cannot say: the engine's CPU kernels. Where they do not compile they are left out;
torch attends and multiplies in their place, and int8 weights are refused."""

from setuptools import Extension, setup


def kernels(name: str, source: str, *headers: str) -> Extension:
    return Extension(
        name,
        [source],
        depends=list(headers),
        extra_compile_args=["-O3", "-fopenmp"],
        extra_link_args=["-fopenmp"],
        optional=True,
    )


BACKENDS, MODEL = "shared/engine/backends", "shared/engine/model"
setup(
    ext_modules=[
        kernels("shared.engine.backends._native", f"{BACKENDS}/native.c", f"{BACKENDS}/native_kernels.h"),
        kernels(
            "shared.engine.model._linear",
            f"{MODEL}/linear_kernels.c",
            f"{MODEL}/linear_singles.h",
            f"{MODEL}/linear_exact.h",
        ),
    ]
)
