"""Rows in object stores: real requests of s3fs and gcsfs to stores of this machine, seen as a user of the command."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest

from tests.engines.test_duckdb import SECRET

SCHEMA = 'label = "sick"\nclasses = ["no", "yes"]\n[numeric]\nage = [0, 110]\n[categorical]\nyear = ["2024", "2025"]\n'
LINES = [f"{i % 97},{'yes' if i % 3 else 'no'}\n" for i in range(800)]
FILES = {f"visits/year={year}/part.csv": "".join(["age,sick\n", *LINES]) for year in (2024, 2025)}
BUCKET = "rows"


@dataclass(frozen=True)
class Store:
    """An object store, and what makes the libraries look for it here."""

    protocol: str
    environment: dict[str, str]

    def boltdp(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command of a user who has access to the store."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "GOOGLE_"))}
        return subprocess.run(
            [sys.executable, "-m", "boltdp", *words],
            env=inherited | self.environment | environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture(scope="module", params=["s3", "gs"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    port, home = _free_port(), tmp_path_factory.mktemp("home")
    address = f"http://127.0.0.1:{port}"
    # No credentials but these, and none of a machine in a cloud.
    environment = {"HOME": str(home), "AWS_EC2_METADATA_DISABLED": "true", "NO_GCE_CHECK": "true"}
    if request.param == "s3":
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        environment |= {"AWS_ENDPOINT_URL": address, "AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": SECRET}
    else:
        command = [sys.executable, "-m", "gcp_storage_emulator", "start", "--host", "127.0.0.1", "--port", str(port)]
        command += ["--in-memory", "--default-bucket", BUCKET]
        environment |= {"STORAGE_EMULATOR_HOST": address}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=home) as server:
        try:
            _await(port)
            _fill(request.param, address)
            yield Store(request.param, environment)
        finally:
            server.terminate()


def _await(port: int) -> None:
    for _ in range(600):
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise TimeoutError


def _fill(protocol: str, address: str) -> None:
    if protocol == "s3":
        _send("PUT", f"{address}/{BUCKET}")
    for name, text in FILES.items():
        if protocol == "s3":
            _send("PUT", f"{address}/{BUCKET}/{quote(name)}", text)
        else:
            _send("POST", f"{address}/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name={quote(name)}", text)


def _send(method: str, address: str, text: str = "") -> None:
    with urlopen(Request(address, text.encode(), {"Content-Type": "text/csv"}, method=method)) as answer:
        assert answer.status == 200


@pytest.fixture
def schema(tmp_path: Path) -> Path:
    path = tmp_path / "schema.toml"
    path.write_text(SCHEMA)
    return path


def train(source: str, schema: Path, model: Path = Path("unused.json")) -> list[str]:
    return ["train", source, "--schema", str(schema), "--epsilon", "1", "-o", str(model)]


@pytest.mark.parametrize("place", ["visits", "visits/*/part.csv"])
def test_a_model_of_a_bucket_is_that_of_the_same_files_here(
    store: Store, place: str, schema: Path, tmp_path: Path
) -> None:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    models: list[bytes] = []
    for source in (f"{store.protocol}://{BUCKET}/{place}", f"{tmp_path}/{place}"):
        model = tmp_path / f"model-{len(models)}.json"
        words = train(source, schema, model)
        done = store.boltdp(*words, "--noise-seed", "7", "--spool", str(tmp_path))
        assert done.returncode == 0, done.stderr
        models.append(model.read_bytes())
    assert models[0] == models[1]
    shutil.rmtree(tmp_path / "visits")
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".toml"}  # nothing is left of what was fetched


def test_what_is_not_there_is_told_in_one_line_and_without_a_traceback(store: Store, schema: Path) -> None:
    for place in (f"{BUCKET}/none.csv", "no-such-bucket/rows.csv"):
        address = f"{store.protocol}://{place}"
        done = store.boltdp(*train(address, schema))
        assert done.stderr == f"error: {address!r} cannot be read: there is no such file\n"


def test_missing_credentials_are_told(schema: Path, tmp_path: Path) -> None:
    nobody = Store("s3", {"HOME": str(tmp_path), "AWS_EC2_METADATA_DISABLED": "true"})
    done = nobody.boltdp(*train(f"s3://{BUCKET}/visits", schema))
    assert done.stderr.startswith(f"error: 's3://{BUCKET}/visits' cannot be read: no credentials were found\nhint: ")


@pytest.mark.parametrize("protocol", ["s3", pytest.param("gs", marks=pytest.mark.slow)])
def test_a_store_that_does_not_answer_is_told(protocol: str, schema: Path) -> None:
    nowhere = "http://127.0.0.1:1"
    environment = {"AWS_ENDPOINT_URL": nowhere, "AWS_MAX_ATTEMPTS": "1", "STORAGE_EMULATOR_HOST": nowhere}
    environment |= {"AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": SECRET}
    done = Store(protocol, environment).boltdp(*train(f"{protocol}://{BUCKET}/visits", schema))
    first, second = done.stderr.splitlines()
    assert first.startswith(f"error: '{protocol}://{BUCKET}/visits' cannot be read: it cannot be reached (")
    assert second == "hint: is there a network, and is the address right?"
