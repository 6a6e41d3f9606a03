"""Checks what is installed: Python, packages, torch, the engine's kernels, Ray."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import sys
from functools import cache

from cluster.doctor.diagnosis import Examined, Outcome, ok
from cluster.paths import PROJECT_ROOT

LEAST_PYTHON = (3, 11)
_LEAST_TORCH = (2, 11)
_REINSTALL = "install anew: make venv, or pip install -c constraints.txt -e ."
_MOST_NAMED = 5


def check_python(installation: Examined) -> tuple[Outcome, str, str]:
    told = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if sys.version_info < LEAST_PYTHON:
        return "fail", told, f"use Python {'.'.join(map(str, LEAST_PYTHON))} or newer"
    if platform.system() != "Linux":
        return "warn", told, "Linux is what is tested"
    return ok(told)


def check_packages(installation: Examined) -> tuple[Outcome, str, str]:
    """By the pins of the checkout, where it is one."""
    versions = installed_versions()
    missing = [name for name in requirements() if name not in versions]
    if missing:
        return "fail", f"not installed: {', '.join(missing[:_MOST_NAMED])}", _REINSTALL
    pins = pinned_versions()
    others = [f"{name} {versions[name]}" for name, pin in pins.items() if versions.get(name, pin) != pin]
    if others:
        told = f"{len(others)} of other versions than are tested: {', '.join(others[:_MOST_NAMED])}"
        return "warn", told, _REINSTALL
    return ok(f"{len(versions)} installed" + (", of the versions that are tested" if pins else ""))


def check_torch(installation: Examined) -> tuple[Outcome, str, str]:
    import torch

    numbers = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])
    device = installation.config.generator.engine.device
    told = f"{torch.__version__}, {torch.get_num_threads()} threads, device {device}"
    if numbers < _LEAST_TORCH:
        return "fail", told, f"torch {'.'.join(map(str, _LEAST_TORCH))} or newer is needed; {_REINSTALL}"
    if installation.config.generator.engine.on_gpu and not torch.cuda.is_available():
        return (
            "fail",
            f"{told}, but torch sees no GPU",
            "set generator.engine.device to cpu, or install a driver",
        )
    return ok(told)


def check_kernels(installation: Examined) -> tuple[Outcome, str, str]:
    from shared.engine.backends.native import LEVELS, best_level, library

    if installation.config.generator.engine.on_gpu:
        return ok("of the GPU, tried when the generator starts")
    if library() is None:
        return "warn", "the CPU kernels are not built: torch serves in their place, slower", _REINSTALL
    found = best_level()
    if found not in LEVELS:
        return (
            "warn",
            "this processor has no AVX2: torch serves in place of the CPU kernels",
            "use another machine",
        )
    return ok(f"CPU kernels for {LEVELS[found]}")


def check_ray(installation: Examined) -> tuple[Outcome, str, str]:
    version, pin = importlib.metadata.version("ray"), pinned_versions().get("ray", "")
    if pin and version != pin:
        return "warn", version, f"{pin} is what is tested; {_REINSTALL}"
    return ok(version)


def installed_versions() -> dict[str, str]:
    """Of all packages, by their normalised names."""
    found = {}
    for package in importlib.metadata.distributions():
        if name := package.metadata["Name"]:
            found[_normalised(name)] = package.version
    return dict(sorted(found.items()))


@cache
def pinned_versions() -> dict[str, str]:
    """Of ``constraints.txt`` in the checkout; empty where there is none."""
    path = PROJECT_ROOT / "constraints.txt"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    pins = (re.match(r"([\w.-]+)==([^\s;\\]+)", line) for line in lines)
    return {_normalised(pin[1]): pin[2] for pin in pins if pin}


def requirements() -> list[str]:
    """Lists what kvquilt itself needs, extras left out."""
    found = importlib.metadata.requires("kvquilt") or []
    plain = (line for line in found if "extra ==" not in line)
    return [_normalised(re.split(r"[\s\[;<>=!~]", line, maxsplit=1)[0]) for line in plain]


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
