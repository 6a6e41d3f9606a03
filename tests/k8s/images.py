"""The images of the tests: built here unless one is given, and brought to the nodes.

IMAGE        one that exists already; else ``cluster/Dockerfile`` is built
BASE         its base image
BUILDER      docker, podman or buildah; else the first of them that works here
BUILD_FLAGS  of the builder, instead of those that suit it
IMAGE_LOAD   a command that brings images, named as its last arguments, to the nodes; else `kind load docker-image` for a kind
             cluster; else the nodes are taken to pull what they need
MINIO_IMAGE  for the trial store; else the chart's
REDIS_IMAGE  with `redis-server`, for the book-keeping of Ray's head; else a Redis of Docker Hub's
"""  # noqa: E501

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass

from cluster.paths import PROJECT_ROOT
from tests.k8s.shell import run, tell, works

_PROBES = {"docker": ("docker", "info"), "podman": ("podman", "info"), "buildah": ("buildah", "info")}
# Without an engine that isolates builds, they see this machine's network and the authorities that it trusts.
_AS_ROOT = "--isolation chroot --network host --volume /etc/ssl/certs:/etc/ssl/certs:ro"
_BUILD_TIMEOUT_S = 2400.0
_LOAD_TIMEOUT_S = 1800.0


@dataclass(frozen=True)
class Images:
    """``minio`` empty: the chart's; ``redis`` empty: Docker Hub's."""

    kvquilt: str
    minio: str
    redis: str


def prepare(environ: Mapping[str, str]) -> Images:
    given = (environ.get(name, "") for name in ("MINIO_IMAGE", "REDIS_IMAGE"))
    images = Images(environ.get("IMAGE") or build(environ), *given)
    load([image for image in (images.kvquilt, images.minio, images.redis) if image], environ)
    return images


def build(environ: Mapping[str, str]) -> str:
    """Name of the image."""
    builder = environ.get("BUILDER") or next((name for name, probe in _PROBES.items() if works(*probe)), "")
    if not builder:
        raise AssertionError("no docker, podman or buildah works here; name an image that exists by IMAGE=…")
    image = "kvquilt:dev" if builder == "docker" else "localhost/kvquilt:dev"
    flags = environ.get("BUILD_FLAGS", _AS_ROOT if builder == "buildah" and os.getuid() == 0 else "")
    base = ["--build-arg", f"BASE={environ['BASE']}"] if environ.get("BASE") else []
    command = [
        builder,
        "build",
        *shlex.split(flags),
        *base,
        "--tag",
        image,
        "--file",
        "cluster/Dockerfile",
        ".",
    ]
    tell("building the image, several minutes the first time: " + shlex.join(command))
    began_s = time.monotonic()
    run("env", "--chdir", str(PROJECT_ROOT), *command, timeout_s=_BUILD_TIMEOUT_S)
    tell(f"{image} is built after {time.monotonic() - began_s:.0f} s")
    return image


def load(images: list[str], environ: Mapping[str, str]) -> None:
    command = shlex.split(environ.get("IMAGE_LOAD", "")) or _kind_load()
    if command:
        tell(f"bringing {', '.join(images)} to the nodes")
        began_s = time.monotonic()
        run(*command, *images, timeout_s=_LOAD_TIMEOUT_S)
        tell(f"they are there after {time.monotonic() - began_s:.0f} s")


def _kind_load() -> list[str]:
    context = run("kubectl", "config", "current-context").strip()
    return (
        ["kind", "load", "docker-image", "--name", context.removeprefix("kind-")]
        if context.startswith("kind-")
        else []
    )
