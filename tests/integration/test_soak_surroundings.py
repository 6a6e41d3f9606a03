"""What faults of a soak strike with does what it says, to whom it says, and is gone afterwards."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from load_tests.servers.faulty_s3 import FaultyS3, Request, S3Fault
from load_tests.servers.memory_limit import LEFT_BYTES, MemoryLimit, NoMemoryLimit
from load_tests.servers.s3 import S3Server
from load_tests.servers.s3_lies import OtherObjects, half, object_of
from load_tests.servers.small_disk import NoSmallDisk, SmallDisk
from load_tests.servers.stepped_clock import NoSteppedClock, SteppedClock
from services.kv_store.blobs.protocol import Span
from shared.errors import KvquiltError
from tests.minio_server import impatient, new_bucket

HOUR_S = 3600.0


def test_a_read_is_answered_with_another_object_of_its_kind(s3_server: S3Server) -> None:
    bucket = new_bucket()
    with FaultyS3(s3_server.endpoint) as proxy:
        blobs = impatient(proxy.endpoint, bucket=bucket)
        for name, data in (
            ("chunks/a", b"of a" * 9),
            ("chunks/b", b"these are chunks/b"),
            ("manifests/c", b"of c" * 9),
        ):
            blobs.put(name, data)
        lie = OtherObjects(s3_server, random.Random(1))
        proxy.plan = lambda request: S3Fault(altered=lambda answer: lie(request, answer))
        assert b"".join(blobs.read("chunks/a")) == b"these are chunks/b"
        assert b"".join(blobs.read("manifests/c")) == b"of c" * 9, "there is no other of its kind"


def test_half_of_an_object_is_not_taken_for_the_whole_span(s3_server: S3Server) -> None:
    with FaultyS3(s3_server.endpoint) as proxy:
        blobs = impatient(proxy.endpoint, bucket=new_bucket())
        blobs.put("chunks/a", bytes(1000))

        def plan(request: Request) -> S3Fault | None:
            return S3Fault(altered=half) if object_of(request) else None

        proxy.plan = plan
        got = bytearray()
        with pytest.raises(KvquiltError):
            blobs.read_to("chunks/a", Span(0, 1000), lambda at, piece: got.extend(piece))
        assert len(got) == 500


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    try:
        small = SmallDisk(tmp_path / "disk", 4 << 20)
    except NoSmallDisk as reason:
        pytest.skip(str(reason))
    with closing(small):
        yield small
    assert list((tmp_path / "disk").iterdir()) == [], "it is mounted still"


def test_a_small_disk_is_full_to_the_last_byte_and_then_has_room_again(disk: SmallDisk) -> None:
    kept = disk.path / "kept"
    kept.write_bytes(b"there before")
    disk.fill()
    with pytest.raises(OSError, match="No space left"):
        (disk.path / "more").write_bytes(b"x")
    disk.free()
    (disk.path / "more").write_bytes(bytes(1 << 20))
    assert kept.read_bytes() == b"there before"


@pytest.fixture
def clock(tmp_path: Path) -> Iterator[SteppedClock]:
    try:
        made = SteppedClock(tmp_path / "clock")
    except NoSteppedClock as reason:
        pytest.skip(str(reason))
    with closing(made):
        yield made


TELLS_TIME = """
import sys, threading, time
for line in sys.stdin:
    before = time.monotonic()
    with (waiting := threading.Condition()):
        waiting.wait(0.05)
    print(time.time(), time.monotonic() - before, flush=True)
"""


def test_a_process_sees_its_clock_step_and_waits_as_long_as_ever(clock: SteppedClock) -> None:
    command = [sys.executable, "-c", TELLS_TIME]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=clock.environment
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for ahead_s in (0.0, HOUR_S, -HOUR_S, 0.0):
            clock.set(ahead_s)
            began_s = time.time()
            process.stdin.write("\n")
            process.stdin.flush()
            told_s, waited_s = map(float, process.stdout.readline().split())
            assert began_s <= told_s - ahead_s <= time.time()
            assert 0.04 < waited_s < HOUR_S / 2
        process.stdin.close()


WAITS_UNTIL = """
import ctypes, sys, time
class Timespec(ctypes.Structure):
    _fields_ = [("s", ctypes.c_long), ("ns", ctypes.c_long)]
libc = ctypes.CDLL(None, use_errno=True)
semaphore = ctypes.create_string_buffer(64)
libc.sem_init(semaphore, 0, 0)
until = Timespec(int(time.time()) + 1800, 0)
print("waits", flush=True)
print(libc.sem_timedwait(semaphore, ctypes.byref(until)), flush=True)
"""


def test_a_wait_until_a_time_of_the_day_ends_when_the_clock_steps_over_it(clock: SteppedClock) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WAITS_UNTIL], stdout=subprocess.PIPE, text=True, env=clock.environment
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waits\n"
        clock.set(HOUR_S)
        assert process.stdout.readline() == "-1\n"


GROWS = """
import sys, time
had = bytearray(64 << 20)
print("has", flush=True)
sys.stdin.readline()
more = [bytearray(1 << 20) for _ in range(int(sys.argv[1]) >> 20)]
print("lives", flush=True)
"""


@pytest.mark.parametrize(("more_bytes", "killed"), [(LEFT_BYTES // 4, False), (LEFT_BYTES * 2, True)])
def test_who_wants_more_memory_than_is_left_is_killed(more_bytes: int, killed: bool) -> None:
    try:
        limit = MemoryLimit()
    except NoMemoryLimit as reason:
        pytest.skip(str(reason))
    with (
        closing(limit),
        subprocess.Popen(
            [sys.executable, "-c", GROWS, str(more_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        assert process.stdout.readline() == "has\n"
        limit.put(process.pid)
        told, _ = process.communicate("\n")
        assert told == ("" if killed else "lives\n")
        assert process.returncode == (-signal.SIGKILL if killed else 0)
        assert limit.num_killed == killed
