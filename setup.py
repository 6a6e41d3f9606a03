"""What pyproject.toml cannot say: the engine's CPU kernels. Where they do not compile they are left out;
torch attends and multiplies in their place, and int8 weights are refused."""

from setuptools import Extension, setup

ENGINE = "shared/engine"
setup(
    ext_modules=[
        Extension(
            "shared.engine._kernels",
            [
                f"{ENGINE}/threads.c",
                f"{ENGINE}/backends/native.c",
                f"{ENGINE}/model/linear_kernels.c",
                f"{ENGINE}/model/layers.c",
            ],
            depends=[
                f"{ENGINE}/threads.h",
                f"{ENGINE}/matrix_units.h",
                f"{ENGINE}/backends/native.h",
                f"{ENGINE}/backends/native_kernels.h",
                f"{ENGINE}/model/linear_kernels.h",
                f"{ENGINE}/model/linear_singles.h",
                f"{ENGINE}/model/linear_exact.h",
                f"{ENGINE}/model/linear_rows_avx2.h",
                f"{ENGINE}/model/linear_amx.h",
            ],
            extra_compile_args=["-O3", "-pthread"],
            extra_link_args=["-pthread"],
            optional=True,
        )
    ]
)
