from __future__ import annotations

import pytest

from tests.minio_server import S3ServerPlugin, s3_server

__all__ = ["s3_server"]


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(S3ServerPlugin(), "kvquilt-s3-server")
