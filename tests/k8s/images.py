"""The images of the tests: built here unless one is given, and brought to the nodes.

IMAGE        one that exists already; else ``cluster/Dockerfile`` is built
BASE         its base image
BUILDER      docker, podman or buildah; else the first of them that works here
BUILD_FLAGS  of the builder, instead of those that suit it
IMAGE_LOAD   a command that brings images, named as its last arguments, to the nodes; else `kind load docker-image` for a kind
             cluster; else the nodes are taken to pull what they need
MINIO_IMAGE  for the trial store; else the chart's
REDIS_IMAGE  with `redis-server`, for the book-keeping of Ray's head; else a Redis of Docker Hub's
EARLIER      a tag or a commit of this project: a release of it is upgraded to this one and back; else that is skipped
"""  # noqa: E501

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from cluster.paths import PROJECT_ROOT
from tests.k8s.shell import run, tell, works

_PROBES = {"docker": ("docker", "info"), "podman": ("podman", "info"), "buildah": ("buildah", "info")}
# Without an engine that isolates builds, they see this machine's network and the authorities that it trusts.
_AS_ROOT = "--isolation chroot --network host --volume /etc/ssl/certs:/etc/ssl/certs:ro"
_BUILD_TIMEOUT_S = 2400.0
_LOAD_TIMEOUT_S = 1800.0
_EARLIER_TREES = PROJECT_ROOT / "build" / "earlier"


@dataclass(frozen=True)
class Earlier:
    """A state of the project before this one."""

    image: str
    tree: Path


@dataclass(frozen=True)
class Images:
    """``minio`` empty: the chart's; ``redis`` empty: Docker Hub's; ``earlier`` None: none is asked for."""

    kvquilt: str
    minio: str
    redis: str
    earlier: Earlier | None = None


def prepare(environ: Mapping[str, str]) -> Images:
    images = Images(
        environ.get("IMAGE") or build(environ, "dev", PROJECT_ROOT, "cluster/Dockerfile", "BASE"),
        environ.get("MINIO_IMAGE", ""),
        environ.get("REDIS_IMAGE", ""),
    )
    if revision := environ.get("EARLIER", ""):
        images = replace(images, earlier=build_earlier(environ, images.kvquilt, revision))
    names = (images.kvquilt, images.minio, images.redis, images.earlier.image if images.earlier else "")
    load([name for name in names if name], environ)
    return images


def build_earlier(environ: Mapping[str, str], kvquilt: str, revision: str) -> Earlier:
    """Its code, and the packages of ``kvquilt``, which must be enough for it: a small layer on that image."""
    commit = run("git", "-C", str(PROJECT_ROOT), "rev-parse", "--verify", f"{revision}^{{commit}}").strip()
    tree = _EARLIER_TREES / commit
    if not tree.is_dir():
        tree.mkdir(parents=True)
        archive = _EARLIER_TREES / f"{commit}.tar"
        run("git", "-C", str(PROJECT_ROOT), "archive", f"--output={archive}", commit)
        run("tar", "--extract", f"--file={archive}", f"--directory={tree}")
        archive.unlink()
    file = str(PROJECT_ROOT / "tests" / "k8s" / "earlier.Dockerfile")
    return Earlier(build(environ | {"NEXT": kvquilt}, "earlier", tree, file, "NEXT"), tree)


def build(environ: Mapping[str, str], tag: str, context: Path, file: str, base: str) -> str:
    """Name of the image; ``base``: the variable, and the build's argument, with the image it begins with."""
    builder = environ.get("BUILDER") or next((name for name, probe in _PROBES.items() if works(*probe)), "")
    if not builder:
        raise AssertionError("no docker, podman or buildah works here; name an image that exists by IMAGE=…")
    image = f"{'' if builder == 'docker' else 'localhost/'}kvquilt:{tag}"
    flags = environ.get("BUILD_FLAGS", _AS_ROOT if builder == "buildah" and os.getuid() == 0 else "")
    argument = ["--build-arg", f"{base}={environ[base]}"] if environ.get(base) else []
    command = [
        builder,
        "build",
        *shlex.split(flags),
        *argument,
        "--tag",
        image,
        "--file",
        file,
        ".",
    ]
    tell("building the image, several minutes the first time: " + shlex.join(command))
    began_s = time.monotonic()
    run("env", "--chdir", str(context), *command, timeout_s=_BUILD_TIMEOUT_S)
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
