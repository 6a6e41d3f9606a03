"""The S3 client against a real server that goes away, is slow, fails, cuts bodies off or refuses us."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import itertools
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import urllib3
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from minio import Minio

from load_tests.servers.faulty_s3 import FaultyS3, Plan, Request, S3Answer, S3Fault
from load_tests.servers.s3 import S3Server
from services.kv_store.blobs.protocol import Blobs, Last
from services.kv_store.documents.documents import Documents
from services.kv_store.s3.bucket import ObjectBlobs
from shared.errors import ConfigError, FailedPrecondition, KvquiltError, NotFound, StorageFull, Unavailable
from shared.kv_types import Manifest, ManifestChunk
from tests.dict_blobs import fill_by_sink
from tests.kv_chunks import chunk_id_of
from tests.minio_server import impatient, new_bucket, settings_for

DATA = bytes(range(256)) * 40_000
NO_PORT = "127.0.0.1:1"


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[FaultyS3]:
    with FaultyS3(s3_server.endpoint) as it:
        yield it


def whole(blobs: Blobs, name: str) -> bytes:
    return b"".join(blobs.read(name))


def loaded(blobs: Blobs, name: str) -> bytes:
    out = bytearray(len(DATA))
    fill_by_sink(blobs, name, 0, memoryview(out))
    return bytes(out)


def of(method: str, fault: S3Fault, number_of_times: int = 1_000_000) -> Plan:
    left = [number_of_times]

    def plan(request: Request) -> S3Fault | None:
        if request.method != method or left[0] == 0:
            return None
        left[0] -= 1
        return fault

    return plan


def assert_no_secret_in(error: KvquiltError, server: S3Server, proxy_endpoint: str = NO_PORT) -> None:
    for secret in (server.access_key, server.secret_key, server.endpoint, proxy_endpoint, "127.0.0.1"):
        assert secret not in error.detail


# ---- down


def test_a_server_that_is_down_at_the_start_is_used_once_it_is_there(own_server: S3Server) -> None:
    own_server.stop()
    blobs = impatient(own_server.endpoint)
    calls = (
        lambda: blobs.check(),
        lambda: blobs.stat("a"),
        lambda: whole(blobs, "a"),
        lambda: loaded(blobs, "a"),
        lambda: blobs.put("a", b"x"),
        lambda: blobs.delete("a"),
        lambda: blobs.list(),
    )
    for call in calls:
        with pytest.raises(Unavailable, match="cannot be reached") as raised:
            call()
        assert_no_secret_in(raised.value, own_server)
    own_server.start()
    blobs.check()
    blobs.put("a", DATA)
    assert loaded(blobs, "a") == DATA


def test_a_server_that_goes_down_in_between_keeps_what_was_acknowledged(own_server: S3Server) -> None:
    blobs = impatient(own_server.endpoint)
    blobs.put("a", DATA)
    own_server.stop()
    with pytest.raises(Unavailable):
        blobs.put("b", DATA)
    with pytest.raises(Unavailable):
        loaded(blobs, "a")
    own_server.start()
    assert loaded(blobs, "a") == whole(blobs, "a") == DATA
    blobs.put("b", DATA)
    assert whole(blobs, "b") == DATA


def test_a_server_that_comes_back_while_a_call_is_repeated_ends_it_well(own_server: S3Server) -> None:
    blobs = ObjectBlobs(settings_for(own_server.endpoint, retry_s=60.0))
    blobs.put("a", DATA)
    own_server.stop()
    starter = threading.Timer(0.3, own_server.start)
    starter.start()
    assert loaded(blobs, "a") == DATA
    starter.join()


def test_a_call_that_gave_up_spares_the_next_ones_the_wait(own_server: S3Server) -> None:
    own_server.stop()
    slept: list[float] = []
    blobs = impatient(own_server.endpoint, slept=slept)
    with pytest.raises(Unavailable):
        blobs.stat("a")
    assert sum(slept) > 1
    slept.clear()
    with pytest.raises(Unavailable):
        blobs.stat("a")
    assert slept == []
    own_server.start()
    assert blobs.stat("a") is None


# ---- failing and slow


@pytest.mark.parametrize(
    "fault",
    [
        S3Fault(status=503, code="SlowDown"),
        S3Fault(status=503, code="SlowDownRead"),
        S3Fault(status=500, code="InternalError"),
        S3Fault(status=502, code=""),
        S3Fault(status=429, code="TooManyRequests"),
        S3Fault(status=400, code="RequestTimeout"),
        S3Fault(reset=True),
        S3Fault(lost_answer=True),
    ],
    ids=str,
)
def test_failures_that_go_away_are_not_noticed(proxy: FaultyS3, fault: S3Fault) -> None:
    blobs = impatient(proxy.endpoint)
    dice = random.Random(4)
    proxy.plan = lambda request: fault if dice.random() < 0.4 else None
    blobs.put("a", DATA)
    assert loaded(blobs, "a") == whole(blobs, "a") == DATA
    assert b"".join(blobs.read("a", Last(5))) == DATA[-5:]
    stat = blobs.stat("a")
    assert stat is not None
    assert stat.size_bytes == len(DATA)
    assert [b.name for b in blobs.list().blobs] == ["a"]
    blobs.delete("a")
    assert blobs.list().blobs == ()


@pytest.mark.parametrize("fault", [S3Fault(status=503, code="SlowDown"), S3Fault(reset=True)], ids=str)
def test_failures_that_stay_end_with_unavailable(
    proxy: FaultyS3, s3_server: S3Server, fault: S3Fault
) -> None:
    blobs = impatient(proxy.endpoint)
    blobs.put("a", DATA)
    proxy.plan = lambda request: fault
    for call in (
        lambda: blobs.put("b", b"x"),
        lambda: whole(blobs, "a"),
        lambda: loaded(blobs, "a"),
        lambda: blobs.list(),
    ):
        with pytest.raises(Unavailable) as raised:
            call()
        assert_no_secret_in(raised.value, s3_server, proxy.endpoint)


def test_a_slow_server_is_waited_for(proxy: FaultyS3) -> None:
    blobs = impatient(proxy.endpoint)
    proxy.plan = lambda request: S3Fault(delay_s=0.1)
    blobs.put("a", DATA)
    assert loaded(blobs, "a") == whole(blobs, "a") == DATA


def test_what_comes_by_a_link_is_whole(s3_server: S3Server) -> None:
    with FaultyS3(s3_server.endpoint, bytes_per_s=200e6) as link:
        blobs = impatient(link.endpoint)
        blobs.put("a", DATA)
        assert loaded(blobs, "a") == whole(blobs, "a") == DATA


def test_a_server_that_hangs_is_given_up(proxy: FaultyS3) -> None:
    blobs = ObjectBlobs(settings_for(proxy.endpoint, read_timeout_s=0.2, retry_s=0.3))
    blobs.put("a", DATA)
    proxy.plan = of("GET", S3Fault(delay_s=1.0))
    with pytest.raises(Unavailable):
        loaded(blobs, "a")
    proxy.plan = lambda request: None
    assert loaded(blobs, "a") == DATA


# ---- bodies that end early


@pytest.mark.parametrize("keep_bytes", [0, 1, 1000, len(DATA) - 1])
@pytest.mark.parametrize("reset", [False, True])
def test_a_body_that_is_cut_off_is_continued_where_it_broke(
    proxy: FaultyS3, keep_bytes: int, reset: bool
) -> None:
    blobs = impatient(proxy.endpoint)
    blobs.put("a", DATA)
    for read in (loaded, whole):
        proxy.plan = of("GET", S3Fault(keep_bytes=keep_bytes, reset=reset), 3)
        assert read(blobs, "a") == DATA


def test_what_arrived_is_not_asked_for_again(proxy: FaultyS3) -> None:
    blobs = impatient(proxy.endpoint)
    blobs.put("a", DATA)
    proxy.plan = of("GET", S3Fault(keep_bytes=1_000_000))
    assert loaded(blobs, "a") == whole(blobs, "a") == DATA
    assert len([r for r in proxy.requests if r.method == "GET"]) == 2 * (len(DATA) // 1_000_000 + 1)


def test_a_body_that_is_always_empty_ends_with_unavailable(proxy: FaultyS3) -> None:
    blobs = impatient(proxy.endpoint)
    blobs.put("a", DATA)
    proxy.plan = of("GET", S3Fault(keep_bytes=0))
    for read in (loaded, whole):
        with pytest.raises(Unavailable, match="early"):
            read(blobs, "a")


def test_a_listing_that_is_cut_off_is_asked_for_again(proxy: FaultyS3) -> None:
    blobs = impatient(proxy.endpoint)
    for i in range(20):
        blobs.put(str(i), b"x")
    proxy.plan = of("GET", S3Fault(keep_bytes=700), 2)
    assert len(blobs.list().blobs) == 20


def test_an_object_that_is_replaced_while_it_is_read_is_not_mixed_with_the_other(proxy: FaultyS3) -> None:
    bucket = new_bucket()
    blobs, direct = impatient(proxy.endpoint, bucket=bucket), impatient(proxy.upstream, bucket=bucket)
    for read in (whole, loaded):
        direct.put("a", DATA)
        gets: list[Request] = []

        def plan(request: Request, gets: list[Request] = gets) -> S3Fault | None:
            gets.append(request)
            if len(gets) == 2:
                direct.put("a", bytes(len(DATA)))
            return S3Fault(keep_bytes=5000) if len(gets) == 1 else None

        blobs.check()
        proxy.plan = plan
        with pytest.raises(Unavailable, match="replaced"):
            read(blobs, "a")
        assert read(blobs, "a") == bytes(len(DATA))


# ---- refused


def test_wrong_keys_are_refused_with_what_to_set(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "somethingelse")
            blobs = impatient(s3_server.endpoint)
            for call in (
                lambda b=blobs: b.check(),
                lambda b=blobs: b.put("a", b"x"),
                lambda b=blobs: b.list(),
            ):
                with pytest.raises(FailedPrecondition, match="AWS_ACCESS_KEY_ID") as raised:
                    call()
                assert_no_secret_in(raised.value, s3_server)


def test_no_keys_at_all_are_noticed_with_the_first_call(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(FailedPrecondition, match="AWS_ACCESS_KEY_ID"):
        impatient(s3_server.endpoint).check()


def test_keys_that_are_changed_in_their_file_are_used_without_a_restart(
    s3_server: S3Server, tmp_path: Path
) -> None:
    path = tmp_path / "keys.json"
    path.write_text('{"access_key": "wrong", "secret_key": "wrongwrong"}')
    blobs = impatient(s3_server.endpoint, credentials_file=str(path))
    with pytest.raises(FailedPrecondition):
        blobs.check()
    path.write_text(f'{{"access_key": "{s3_server.access_key}", "secret_key": "{s3_server.secret_key}"}}')
    blobs.put("a", b"x")
    assert whole(blobs, "a") == b"x"


def test_a_missing_bucket_is_created(s3_server: S3Server) -> None:
    settings = settings_for(s3_server.endpoint)
    ObjectBlobs(settings).put("a", b"x")
    assert whole(ObjectBlobs(settings), "a") == b"x"


def test_a_missing_bucket_that_may_not_be_created_is_a_clear_error(
    proxy: FaultyS3, s3_server: S3Server
) -> None:
    blobs = impatient(s3_server.endpoint, create_bucket=False)
    with pytest.raises(FailedPrecondition, match=r"objects\.bucket.*objects\.create_bucket"):
        blobs.put("a", b"x")
    proxy.plan = of("PUT", S3Fault(status=403, code="AccessDenied"))
    blobs = impatient(proxy.endpoint)
    with pytest.raises(FailedPrecondition, match=r"objects\.bucket.*may not create it"):
        blobs.put("a", b"x")


def test_several_nodes_create_the_bucket_at_once(s3_server: S3Server) -> None:
    settings = settings_for(s3_server.endpoint)
    failures: list[BaseException] = []

    def put(number: int) -> None:
        try:
            ObjectBlobs(settings).put(str(number), b"x")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=put, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(ObjectBlobs(settings).list().blobs) == 8


def test_a_bucket_that_is_removed_meanwhile_is_reported_and_then_created_again(s3_server: S3Server) -> None:
    settings = settings_for(s3_server.endpoint)
    blobs = ObjectBlobs(settings)
    blobs.put("a", b"x")
    blobs.delete("a")
    Minio(s3_server.endpoint, s3_server.access_key, s3_server.secret_key, secure=False).remove_bucket(
        settings.bucket
    )
    with pytest.raises((FailedPrecondition, NotFound)):
        whole(blobs, "a")
    blobs.check()
    blobs.put("a", b"y")
    assert whole(blobs, "a") == b"y"


@pytest.mark.parametrize(
    "fault",
    [
        S3Fault(status=507, code="XMinioStorageFull"),
        S3Fault(status=400, code="XMinioAdminBucketQuotaExceeded"),
    ],
    ids=str,
)
def test_a_full_server_is_said_to_be_full(proxy: FaultyS3, fault: S3Fault) -> None:
    blobs = impatient(proxy.endpoint)
    blobs.put("a", b"x")
    proxy.plan = of("PUT", fault)
    with pytest.raises(StorageFull):
        blobs.put("b", b"x")
    assert whole(blobs, "a") == b"x"


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (S3Fault(status=403, code="RequestTimeTooSkewed"), "clocks"),
        (S3Fault(status=400, code="AuthorizationHeaderMalformed"), r"objects\.region"),
        (S3Fault(status=301, code="PermanentRedirect"), r"objects\.region"),
        (S3Fault(status=403, code="AccessDenied"), "AWS_ACCESS_KEY_ID"),
    ],
    ids=str,
)
def test_other_refusals_say_what_to_do(proxy: FaultyS3, fault: S3Fault, said: str) -> None:
    blobs = impatient(proxy.endpoint)
    blobs.check()
    proxy.plan = of("PUT", fault)
    with pytest.raises(FailedPrecondition, match=said):
        blobs.put("a", b"x")


# ---- another time than the server's


@pytest.fixture
def step(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the clock by which requests are signed that many seconds ahead."""

    def step(ahead_s: float) -> None:
        ahead = datetime.timedelta(seconds=ahead_s)
        monkeypatch.setattr("minio.time.utcnow", lambda: datetime.datetime.now(datetime.UTC) + ahead)

    return step


@pytest.mark.parametrize("ahead_s", [3600.0, -3600.0, 40 * 365 * 86400.0])
def test_every_call_is_signed_by_the_servers_clock_when_ours_is_wrong(
    s3_server: S3Server, step: Callable[[float], None], ahead_s: float
) -> None:
    settings = settings_for(s3_server.endpoint)
    known = ObjectBlobs(settings)
    known.put("a", DATA)
    calls: tuple[Callable[[Blobs], object], ...] = (
        lambda blobs: blobs.stat("a") is not None,
        lambda blobs: whole(blobs, "a") == loaded(blobs, "a") == DATA,
        lambda blobs: next(found.name for found in blobs.list().blobs) == "a",
        lambda blobs: blobs.put("b", b"b") or (whole(blobs, "b") == b"b" and blobs.delete("b")),
        lambda blobs: ObjectBlobs(settings).check() is None,
    )
    for call in calls:
        step(0.0)
        known.check()  # signed rightly until now
        step(ahead_s)
        assert call(known)
        assert call(ObjectBlobs(settings))


def test_a_client_follows_a_clock_that_jumps_and_is_refused_once_for_each_jump(
    proxy: FaultyS3, step: Callable[[float], None]
) -> None:
    blobs = impatient(proxy.endpoint)
    blobs.check()
    for ahead_s in (3600.0, 0.0, -3600.0, 86400.0):
        step(ahead_s)
        before = len(proxy.requests)
        for number in range(5):
            blobs.put("a", bytes([number]))
        assert whole(blobs, "a") == bytes([4])
        assert len(proxy.requests) - before == 7


def test_a_difference_that_servers_tolerate_costs_no_request(
    proxy: FaultyS3, step: Callable[[float], None]
) -> None:
    blobs = impatient(proxy.endpoint)
    blobs.check()
    step(240.0)
    before = len(proxy.requests)
    blobs.put("a", b"x")
    assert len(proxy.requests) - before == 1


def test_threads_go_on_while_the_clock_jumps(s3_server: S3Server, step: Callable[[float], None]) -> None:
    blobs = impatient(s3_server.endpoint)
    blobs.check()
    failures: list[BaseException] = []
    ended = threading.Event()

    def work(name: str) -> None:
        try:
            while not ended.is_set():
                blobs.put(name, name.encode())
                assert whole(blobs, name) == name.encode()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(f"t{number}",)) for number in range(6)]
    for thread in threads:
        thread.start()
    for number in range(12):
        step(3600.0 * (number % 3 - 1))
        for _ in range(10):
            assert blobs.stat("nobody's") is None
    ended.set()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_link_is_signed_by_the_servers_clock(s3_server: S3Server, step: Callable[[float], None]) -> None:
    blobs = impatient(s3_server.endpoint)
    step(-3600.0)  # a link of then would have expired
    blobs.put("a", DATA)
    answer = urllib3.request("GET", blobs.link("a").url)
    assert (answer.status, answer.data) == (200, DATA)


def test_wrong_keys_are_still_refused_when_the_clock_is_wrong(
    s3_server: S3Server, step: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "somethingelse")
    step(3600.0)
    with pytest.raises(FailedPrecondition, match="AWS_ACCESS_KEY_ID"):
        impatient(s3_server.endpoint).check()


@pytest.mark.parametrize(
    "date", ["", "yesterday", "Sun, 29 Nov 2026 25:61:00 GMT", "Sun, 29 Nov 2026 12:00:00"]
)
def test_a_server_that_does_not_say_its_time_is_refused_with_what_to_do(
    proxy: FaultyS3, step: Callable[[float], None], date: str
) -> None:
    blobs = impatient(proxy.endpoint)
    blobs.check()
    step(3600.0)
    proxy.plan = of("PUT", S3Fault(altered=dated(lambda: date)))
    with pytest.raises(FailedPrecondition, match="clocks"):
        blobs.put("a", b"x")


def test_a_server_that_refuses_its_own_time_is_not_asked_for_ever(
    proxy: FaultyS3, step: Callable[[float], None]
) -> None:
    blobs = impatient(proxy.endpoint)
    blobs.check()
    step(3600.0)
    days = itertools.count(1)
    proxy.plan = of("PUT", S3Fault(altered=dated(lambda: f"Sun, {next(days)} Nov 2026 12:00:00 GMT")))
    before = len(proxy.requests)
    with pytest.raises(FailedPrecondition, match="clocks"):
        blobs.put("a", b"x")
    assert len(proxy.requests) - before == 4
    proxy.plan = of("PUT", S3Fault(), 0)
    blobs.put("a", b"x")
    assert whole(blobs, "a") == b"x"


def dated(date: Callable[[], str]) -> Callable[[S3Answer], S3Answer]:
    """Says that time instead of the server's; empty: says none."""

    def altered(answer: S3Answer) -> S3Answer:
        others = tuple((name, value) for name, value in answer.headers if name.lower() != "date")
        told = date()
        return replace(answer, headers=(*others, ("Date", told)) if told else others)

    return altered


# ---- large objects, TLS, documents


def test_large_objects_travel_in_parts_and_are_repeated(proxy: FaultyS3, tmp_path: Path) -> None:
    blobs = impatient(proxy.endpoint, part_bytes=5 << 20)
    data = DATA * 2
    path = tmp_path / "file"
    path.write_bytes(data)
    blobs.check()
    proxy.plan = of("PUT", S3Fault(status=503, code="SlowDown"), 2)
    blobs.put_file("a", path)
    assert whole(blobs, "a") == data
    assert len([r for r in proxy.requests if "partNumber=" in r.path]) > 4


def test_a_server_with_tls_is_used_when_its_authority_is_known(s3_server: S3Server, tmp_path: Path) -> None:
    certs = self_signed(tmp_path / "certs")
    server = S3Server(tmp_path / "tls" / "data", s3_server.program, certs)
    keys = tmp_path / "keys.json"
    keys.write_text(f'{{"access_key": "{server.access_key}", "secret_key": "{server.secret_key}"}}')
    try:
        chosen = {"bucket": new_bucket(), "credentials_file": str(keys)}
        blobs = impatient(server.endpoint, secure=True, ca_file=str(certs / "public.crt"), **chosen)
        blobs.put("a", DATA)
        assert loaded(blobs, "a") == whole(blobs, "a") == DATA
        for settings, said in (
            ({"secure": True}, r"objects\.ca_file"),
            ({"secure": False}, r"objects\.secure"),
        ):
            with pytest.raises(FailedPrecondition, match=said):
                impatient(server.endpoint, **settings, **chosen).check()
    finally:
        server.close()
    with pytest.raises(FailedPrecondition, match=r"objects\.secure"):
        impatient(s3_server.endpoint, secure=True).check()
    with pytest.raises(ConfigError, match=r"objects\.ca_file"):
        impatient(s3_server.endpoint, secure=True, ca_file=str(tmp_path / "no such file"))


def self_signed(directory: Path) -> Path:
    directory.mkdir()
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kvquilt test")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    (directory / "public.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (directory / "private.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return directory


def test_documents_wait_for_a_server_that_is_down_and_come_back_with_it(
    own_server: S3Server, tmp_path: Path
) -> None:
    blobs = impatient(own_server.endpoint)
    manifest = Manifest("acme", "books", "1", chunks=(ManifestChunk(chunk_id_of(1), (1, 2)),))
    Documents(tmp_path / "old", objects=blobs).put(manifest)
    own_server.stop()
    moved = Documents(tmp_path / "new", objects=blobs)
    with pytest.raises(Unavailable):
        moved.get("acme", "books", "1")
    own_server.start()
    assert moved.get("acme", "books", "1") == manifest
    own_server.stop()
    assert moved.get("acme", "books", "1") == manifest
    with pytest.raises(Unavailable):
        moved.remove("acme", "books", "1")
    own_server.start()
    moved.remove("acme", "books", "1")
    with pytest.raises(NotFound):
        Documents(tmp_path / "newer", objects=blobs).get("acme", "books", "1")
    moved.check_invariants()


# ---- encryption at rest


@pytest.mark.parametrize("size", [100, 6 << 20], ids=["one request", "in parts"])
def test_every_object_is_written_with_the_encryption_that_was_asked_for(
    s3_server: S3Server, proxy: FaultyS3, tmp_path: Path, size: int
) -> None:
    """The request is what counts: the server of these tests has no keys, and may refuse it."""
    blobs = impatient(proxy.endpoint, encryption="s3", part_bytes=5 << 20)
    path = tmp_path / "file"
    path.write_bytes(bytes(size))
    for write in (lambda: blobs.put_file("a", path), lambda: blobs.put("b", b"manifest")):
        with contextlib.suppress(KvquiltError):
            write()
    begun = [
        r
        for r in proxy.requests
        if r.method in ("PUT", "POST") and r.path.count("/") > 1 and "uploadId" not in r.path
    ]
    assert len({r.path.partition("?")[0] for r in begun}) == 2
    assert {r.headers.get("x-amz-server-side-encryption") for r in begun} == {"AES256"}
