from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.fakeregistry import FakeRegistry, Fault
from torchproof.errors import InputError, IntegrityError, RegistryError
from torchproof.model.digests import sha256_digest
from torchproof.registry import OCI_EMPTY, OCI_MANIFEST, Reference, Registry
from torchproof.registry.auth import Credentials
from torchproof.registry.transport import Patience

QUICK = Patience(attempts=4, first=0.01, longest=0.1)
BLOB = [bytes([number]) * 50_000 for number in range(40)]
DIGEST = sha256_digest(b"".join(BLOB))


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with FakeRegistry().running() as registry:
        yield registry


@pytest.fixture
def client(fake: FakeRegistry) -> Iterator[Registry]:
    with Registry(fake.host, patience=QUICK) as registry:
        yield registry


def source() -> Iterator[bytes]:
    return iter(BLOB)


def test_the_digest_of_a_stream_is_known_at_its_end(fake: FakeRegistry, client: Registry) -> None:
    assert client.push_stream("a/b", source) == (DIGEST, 2_000_000)
    assert fake.blobs["a/b", DIGEST] == b"".join(BLOB)


@pytest.mark.parametrize("method", ["POST", "PATCH", "PUT"])
@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_temporary_faults_are_retried(
    fake: FakeRegistry, client: Registry, method: str, status: int
) -> None:
    fake.faults.append(Fault(method, "uploads", status=status, times=2))
    assert client.push_stream("a/b", source)[0] == DIGEST
    assert fake.blobs["a/b", DIGEST] == b"".join(BLOB)


def test_retry_after_is_obeyed(fake: FakeRegistry, client: Registry) -> None:
    client._transport.patience = Patience(attempts=2, first=0.001, longest=5)
    fake.faults.append(Fault("HEAD", "blobs", status=429, headers={"Retry_After": "1"}))
    started = time.monotonic()
    assert client.blob_size("a", DIGEST) is None
    assert time.monotonic() - started >= 1


def test_tries_are_bounded(fake: FakeRegistry, client: Registry) -> None:
    fake.faults.append(Fault("PATCH", "uploads", status=500, times=99))
    with pytest.raises(RegistryError, match=r"4 times.*HTTP 500"):
        client.push_stream("a/b", source)
    assert not fake.blobs


def test_a_refusal_is_not_repeated(fake: FakeRegistry, client: Registry) -> None:
    fake.faults.append(Fault("POST", "uploads", status=403, times=99))
    with pytest.raises(RegistryError, match="403") as error:
        client.push_stream("a/b", source)
    assert "permission to push" in error.value.fix
    assert sum(count for name, count in fake.requests.items() if "POST" in name) == 1


@pytest.mark.parametrize("cut", [1, 300_001, 1_999_999])
def test_an_interrupted_upload_resumes_where_it_stopped(
    fake: FakeRegistry, client: Registry, cut: int
) -> None:
    fake.faults.append(Fault("PATCH", "uploads", cut_after=cut))
    assert client.push_stream("a/b", source)[0] == DIGEST
    assert fake.blobs["a/b", DIGEST] == b"".join(BLOB)
    assert fake.received <= 2_000_000 + 50_000


def test_bytes_with_a_wrong_digest_never_become_a_blob(
    fake: FakeRegistry, client: Registry
) -> None:
    with pytest.raises(IntegrityError, match="recorded"):
        client.push_stream("a/b", source, digest="sha256:" + "1" * 64)
    assert not fake.blobs


@pytest.mark.parametrize("wrong", [-1, 1])
def test_bytes_of_a_wrong_size_never_become_a_blob(
    fake: FakeRegistry, client: Registry, wrong: int
) -> None:
    size = sum(map(len, source()))
    with pytest.raises(IntegrityError, match=f"the record says {DIGEST} and {size + wrong} bytes"):
        client.push_stream("a/b", source, digest=DIGEST, size=size + wrong)
    assert not fake.blobs
    # The client gave up in the middle of the request: the server may still be about to count it.
    deadline = time.monotonic() + 5
    while not fake.requests["PATCH uploads"] and time.monotonic() < deadline:
        time.sleep(0.01)
    assert fake.requests["PATCH uploads"] == 1


def test_a_wrong_digest_from_a_registry_is_detected(fake: FakeRegistry, client: Registry) -> None:
    fake.lie_about_digest = True
    with pytest.raises(IntegrityError, match="says it stored"):
        client.push_stream("a/b", source)


def test_a_corrupt_blob_is_detected(fake: FakeRegistry, client: Registry) -> None:
    client.push_stream("a/b", source)
    fake.corrupt_blobs = True
    with pytest.raises(IntegrityError):
        list(client.read_blob("a/b", DIGEST))


def test_a_blob_of_another_repository_is_mounted(fake: FakeRegistry, client: Registry) -> None:
    client.push_stream("a/b", source)
    received = fake.received
    assert client.mount("c/d", DIGEST, "a/b")
    assert client.blob_size("c/d", DIGEST) == 2_000_000
    assert not client.mount("c/d", "sha256:" + "0" * 64, "a/b")
    assert fake.received == received


def test_a_manifest_reads_back(fake: FakeRegistry, client: Registry) -> None:
    data = b'{"schemaVersion": 2}'
    digest = client.put_manifest("a/b", "v1", data)
    found = client.manifest("a/b", "v1")
    assert found is not None
    assert (found.data, found.digest, found.media_type) == (data, digest, OCI_MANIFEST)
    assert client.manifest_digest("a/b", "v1") == digest
    assert client.manifest("a/b", "none") is None


def test_referrers_fall_back_to_a_tag(fake: FakeRegistry, client: Registry) -> None:
    config = client.push_blob("a/b", b"{}", media_type=OCI_EMPTY)
    subject = client.put_manifest("a/b", "v1", b"{}")
    for kind in ("x/one", "x/two"):
        document = {
            "artifactType": kind,
            "mediaType": OCI_MANIFEST,
            "config": config.as_json(),
            "subject": {"digest": subject},
        }
        data = json.dumps(document).encode()
        client.put_manifest("a/b", sha256_digest(data), data)
    assert [one.artifact_type for one in client.referrers("a/b", subject)] == ["x/one", "x/two"]
    assert len(client.referrers("a/b", subject, "x/two")) == 1


def test_tokens_are_requested_by_scope(fake: FakeRegistry) -> None:
    fake.token = "secret"
    known = Credentials(username="u", password="p")
    with Registry(fake.host, patience=QUICK, credentials=known) as client:
        client.push_stream("a/b", source)
        client.mount("c/d", DIGEST, "a/b")
    assert ["repository:a/b:pull,push"] in fake.scopes
    assert ["repository:a/b:pull", "repository:c/d:pull,push"] in fake.scopes


def test_basic_credentials_are_sent_when_asked_for(fake: FakeRegistry) -> None:
    fake.basic = "u:p"
    known = Credentials(username="u", password="p")
    with Registry(fake.host, patience=QUICK, credentials=known) as client:
        assert client.push_stream("a/b", source)[0] == DIGEST


@pytest.fixture
def failing_helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A credential helper that is configured and cannot be run."""
    (tmp_path / "config.json").write_text('{"credsStore": "no-such-helper"}')
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))


@pytest.mark.usefixtures("failing_helper")
def test_credentials_are_not_sent_unasked(fake: FakeRegistry) -> None:
    with Registry(fake.host, patience=QUICK) as client:
        assert client.push_stream("a/b", source)[0] == DIGEST


@pytest.mark.filterwarnings("ignore:docker-credential")
@pytest.mark.usefixtures("failing_helper")
def test_a_credential_helper_that_fails_is_named_when_it_is_needed(fake: FakeRegistry) -> None:
    fake.basic = "u:p"
    with (
        Registry(fake.host, patience=QUICK) as client,
        pytest.raises(RegistryError, match="cannot read the stored credentials"),
    ):
        client.ping()


def test_wrong_credentials_are_named_and_not_printed(fake: FakeRegistry) -> None:
    fake.basic = "u:p"
    known = Credentials(username="u", password="hunter2")
    with (
        Registry(fake.host, patience=QUICK, credentials=known) as client,
        pytest.raises(RegistryError) as error,
    ):
        client.ping()
    assert "docker login" in str(error.value)
    assert "hunter2" not in str(error.value) + repr(known)


def test_an_unreachable_registry_is_named() -> None:
    with (
        Registry("127.0.0.1:9", patience=QUICK) as client,
        pytest.raises(RegistryError, match=r"127\.0\.0\.1:9"),
    ):
        client.ping()


@pytest.mark.parametrize(
    ("text", "registry", "repository", "tag"),
    [
        ("localhost/a:1", "localhost", "a", "1"),
        ("r.example.org:5000/a/b-c", "r.example.org:5000", "a/b-c", None),
        ("127.0.0.1:5/x.y_z:T-1", "127.0.0.1:5", "x.y_z", "T-1"),
    ],
)
def test_references_are_parsed(text: str, registry: str, repository: str, tag: str | None) -> None:
    found = Reference.parse(text)
    assert (found.registry, found.repository, found.tag) == (registry, repository, tag)
    assert str(found) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "torch",
        "a/b",
        "r.io/",
        "r.io/A",
        "r.io/a:b:c",
        "r.io/a@sha256:12",
        "r.io/a//b",
        "r.io/a:",
    ],
)
def test_wrong_references_are_refused(text: str) -> None:
    with pytest.raises(InputError):
        Reference.parse(text)


def test_short_names_mean_docker_hub() -> None:
    assert str(Reference.familiar("debian:12")) == "docker.io/library/debian:12"
    assert str(Reference.familiar("a/b")) == "docker.io/a/b"
    assert str(Reference.familiar("quay.io/a/b")) == "quay.io/a/b"
