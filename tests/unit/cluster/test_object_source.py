"""Which objects `kvquilt sync s3://…` takes, what it calls them, and where it looks for them."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from cluster.cli.object_source import ObjectPrefix, in_these_words, object_prefix, settings_of
from services.kv_store.blobs.protocol import BlobPage
from services.kv_store.s3 import errors as s3_errors
from services.kv_store.s3.credentials import ENVIRONMENT, EnvironmentCredentials
from shared.errors import ConfigError, FailedPrecondition, InvalidRequest, Unavailable, UnreadableDocument
from tests.dict_blobs import DictBlobs


@pytest.fixture
def blobs() -> DictBlobs:
    blobs = DictBlobs()
    for name in (
        *("team/a.md", "team/b/ä c.PDF", "team/b/", "team/image.png", "team/.git/x.md", "team/~$a.docx"),
        *("teamwork/no.md", "no.md"),
    ):
        blobs.data[name] = name.encode()
    return blobs


def prefix(blobs: DictBlobs, name: str = "team", label: str = "") -> ObjectPrefix:
    return ObjectPrefix(blobs, "s3.example:9000", "bucket", name, label)


@pytest.mark.parametrize("name", ["team", "team/", "/team/"])
def test_a_prefix_is_a_folder_whose_documents_are_named_by_the_rest_of_their_keys(
    blobs: DictBlobs, name: str
) -> None:
    source = prefix(blobs, name)
    found = source.find()
    assert [file.document_id for file in found.files] == ["a.md", "b/ä c.PDF"]
    assert {file.source for file in found.files} == {source.name} == {"s3://s3.example:9000/bucket/team/"}
    assert [file.read() for file in found.files] == [b"team/a.md", "team/b/ä c.PDF".encode()]
    assert found.skipped.keys() == {"s3://team/image.png", "s3://team/~$a.docx"}


def test_a_whole_bucket_is_a_source_as_well(blobs: DictBlobs) -> None:
    source = prefix(blobs, "")
    assert len(source.find().files) == 4
    assert source.name == "s3://s3.example:9000/bucket/"


def test_a_name_stands_for_server_bucket_and_prefix(blobs: DictBlobs) -> None:
    source = prefix(blobs, label="team-x")
    assert source.name == "name:team-x"
    assert [file.document_id for file in source.find().files] == ["team-x/a.md", "team-x/b/ä c.PDF"]
    assert source.has("team-x/a.md")


def test_there_is_what_was_listed_last_documents_or_not(blobs: DictBlobs) -> None:
    source = prefix(blobs)
    source.find()
    assert (source.has("a.md"), source.has("image.png"), source.has("no.md")) == (True, True, False)
    del blobs.data["team/a.md"]
    source.find()
    assert not source.has("a.md")


def test_an_object_that_was_removed_meanwhile_is_one_failed_document(blobs: DictBlobs) -> None:
    (first, *_) = prefix(blobs).find().files
    del blobs.data["team/a.md"]
    with pytest.raises(UnreadableDocument, match="removed meanwhile"):
        first.read()


def test_a_prefix_without_documents_is_an_error(blobs: DictBlobs) -> None:
    with pytest.raises(InvalidRequest, match="no documents in s3://bucket/elsewhere/"):
        prefix(blobs, "elsewhere").find()


def test_a_listing_that_breaks_off_is_no_listing(blobs: DictBlobs) -> None:
    class Breaking(DictBlobs):
        def list(self, prefix: str = "", start_after: str = "", limit: int = 1000) -> BlobPage:
            if start_after:
                raise Unavailable("the object store cannot be reached; retry")
            return BlobPage(super().list(prefix, start_after, 1).blobs, truncated=True)

    breaking = Breaking()
    breaking.data = blobs.data
    with pytest.raises(Unavailable, match="s3://bucket/team/: the object store cannot be reached"):
        prefix(breaking).find()


@pytest.mark.parametrize(
    ("endpoint", "environ", "server", "secure"),
    [
        ("", {}, "s3.amazonaws.com", True),
        ("http://127.0.0.1:9000", {"AWS_ENDPOINT_URL": "https://other"}, "127.0.0.1:9000", False),
        ("minio.example:9000/", {}, "minio.example:9000", True),
        ("", {"AWS_ENDPOINT_URL": "http://a:1", "AWS_ENDPOINT_URL_S3": "https://b:2"}, "b:2", True),
    ],
)
def test_the_server_is_named_by_option_or_environment(
    endpoint: str, environ: dict[str, str], server: str, secure: bool
) -> None:
    settings = settings_of(endpoint, None, environ)
    assert (settings.endpoint, settings.secure, settings.create_bucket) == (server, secure, False)


def test_a_configuration_says_how_the_server_is_reached_but_not_what_is_read(tmp_path: Path) -> None:
    config = tmp_path / "quilt.yaml"
    config.write_text(
        "kv_store: {objects: {endpoint: 'store:9000', bucket: kv, prefix: x, secure: false, region: eu-1, "
        "credentials_file: /etc/keys}}",
        encoding="utf-8",
    )
    settings = settings_of("", config, {"AWS_ENDPOINT_URL": "https://other", "AWS_REGION": "us-2"})
    assert (settings.endpoint, settings.secure, settings.region) == ("store:9000", False, "eu-1")
    assert (settings.prefix, settings.credentials_file) == ("", "/etc/keys")
    assert settings_of("https://b:1", config, {}).endpoint == "b:1"
    assert object_prefix("s3://team-docs/a/", "", config, "", {}).name == "s3://store:9000/team-docs/a/"
    config.write_text("kv_store: {objects: {endpoind: x}}", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"kv_store\.objects\.endpoind"):
        settings_of("", config, {})


@pytest.mark.parametrize("endpoint", ["ftp://x", "https://x/path", "https://u:p@x", "a b"])
def test_what_is_no_server_is_refused(endpoint: str) -> None:
    with pytest.raises(InvalidRequest, match="--endpoint: must be http"):
        settings_of(endpoint, None, {})


@pytest.mark.parametrize("uri", ["s3://", "s3:///x", "s3://No/x"])
def test_what_is_no_bucket_is_refused(uri: str) -> None:
    with pytest.raises(InvalidRequest, match=f"{uri}: bucket"):
        object_prefix(uri, "", None, "", {})


def test_errors_name_options_not_settings_of_the_systems_own_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(FailedPrecondition) as no_keys:
        EnvironmentCredentials().retrieve()
    not_tls = ssl.SSLError()
    not_tls.reason = "WRONG_VERSION_NUMBER"
    told = [
        no_keys.value.detail,
        *(error.detail for error in s3_errors._BY_CODE.values()),
        *(s3_errors.translate(error).detail for error in (not_tls, ssl.SSLCertVerificationError())),
        s3_errors._of_answer(s3_errors.ErrorResponse("", 400)).detail,
    ]
    assert not [detail for detail in told if "objects." in in_these_words(detail)]
