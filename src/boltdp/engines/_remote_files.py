"""Files at an address, such as s3://bucket/visits/*.parquet or https://host/rows.csv, by the package fsspec.

They are fetched once, before a row is read, so that they cannot change meanwhile; who opened them removes them.
"""

from __future__ import annotations

import glob
import logging
import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from boltdp.engines._file_patterns import Files, format_of, found
from boltdp.errors import DataError

T = TypeVar("T")

_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]+::)*[a-z][a-z0-9+.-]+://", re.IGNORECASE)
#: Protocols whose address is that of one file: they have no directories, and a question mark is no pattern.
_SINGLE = ("http", "https")
#: Bytes that are fetched at a time.
_PART = 1 << 22
#: Takes what these libraries log where nobody asked for logs: on stderr it might quote headers.
_SILENCE = logging.NullHandler()
_CREDENTIALS = "credentials are taken from where s3fs and gcsfs look for them: the environment, or their own files"


def is_remote(source: str) -> bool:
    """Whether a source is an address, and not a path.

    >>> is_remote("s3://bucket/rows.parquet"), is_remote("rows.parquet")
    (True, False)
    """
    return _ADDRESS.match(source) is not None


def plain_address(address: str) -> str:
    """An address without what may be a secret in it: passwords, and signatures after a question mark.

    A password may have any character, and an address may have others inside it: where it is not clear, less is shown.

    >>> plain_address("https://me:secret@host/rows.csv?signature=secret")
    'https://host/rows.csv'
    >>> plain_address("zip://rows.csv::https://me:sec/ret@host/rows.zip")
    'zip://rows.csv::https://host/rows.zip'
    """
    return "::".join(map(_plain, address.split("::")))


def _plain(address: str) -> str:
    protocol, separator, rest = address.partition("://")
    before, _, after = rest.rpartition("@")
    shown = after if ":" in before or "/" not in before else rest
    return protocol + separator + re.split("[?#;]", shown)[0]


def fetch(address: str, folder: Path) -> Files:
    """The files at an address, copied to a directory."""
    name, protocol = plain_address(address), _protocol(address)
    filesystem, path = _open(address, name)
    single = protocol in _SINGLE
    paths = [path] if single else _attempt(lambda: _find(filesystem, path), name)
    if not paths:
        raise DataError(f"no file is at {name!r}, or matches it")
    if not single and any(".." in one.split("/") for one in paths):
        # Whoever may write there could have it copied to anywhere here.
        raise DataError(f"no file at {name!r} may have '..' in its path")
    shared = os.path.dirname(path) if single else os.path.commonpath([os.path.dirname(one) for one in paths])
    inside = [os.path.basename(_path(one)) if single else os.path.relpath(one, shared) for one in paths]
    if len(set(inside)) < len(inside):
        # The rows of one would stand for those of another, and be read twice.
        raise DataError(f"the files at {name!r} must have different paths; to a store, a//b and a/b are two")
    copies = [folder / one for one in inside]
    for one, copy in zip(paths, copies, strict=True):
        _attempt(partial(_copy, filesystem, one, copy), name)
    return found(name, [str(copy) for copy in copies], root=str(folder), what="address")


def _protocol(address: str) -> str:
    return address.partition(":")[0].lower()


def _path(address: str) -> str:
    """The path on a web server; the standard library's errors about an address quote it."""
    return re.split("[?#]", address.partition("://")[2].partition("/")[2])[0]


def _open(address: str, name: str) -> tuple[Any, str]:
    protocol = _protocol(address)
    reason: str | None = None
    hint: str | None = "pip install 'boltdp[remote]'"
    try:
        import fsspec

        for library in ("fsspec", "gcsfs", "s3fs", "aiohttp", "aiobotocore", "google"):
            logging.getLogger(library).addHandler(_SILENCE)
        if address[len(protocol) :].startswith("::"):  # such as simplecache::https://..., which keep their own copies
            raise ValueError
        filesystem, path = fsspec.core.url_to_fs(address)
        return filesystem, path
    except ImportError:
        reason = f"reading from {protocol}:// needs the package fsspec and what it needs for it"
    except ValueError:
        reason, hint = f"{protocol}:// is no kind of address that can be read", "such are s3://, gs:// and https://"
    except Exception as fault:  # of a library for the protocol, which may quote a password
        reason, hint = f"{name!r} cannot be opened ({type(fault).__name__})", None
    raise DataError(reason, hint=hint)


def _find(filesystem: Any, path: str) -> list[str]:
    if glob.has_magic(path):
        return sorted(one for one in filesystem.glob(path) if filesystem.isfile(one))
    if format_of(path) is not None:
        return [path]
    return sorted(one for one in filesystem.find(path) if not os.path.basename(one).startswith((".", "_")))


def _copy(filesystem: Any, path: str, copy: Path) -> None:
    copy.parent.mkdir(parents=True, exist_ok=True)
    with filesystem.open(path, "rb") as source, copy.open("xb") as target:
        while part := source.read(_PART):
            target.write(part)


def _attempt(action: Callable[[], T], name: str) -> T:
    """Do something with the library of a protocol, whose own errors may quote a password or rows."""
    try:
        return action()
    except Exception as error:
        # fsspec makes "no such file" of a server that does not answer, and names the cause; one that answers has a
        # `response`, and then the error says what the answer was.
        cause = error.__cause__
        fault: BaseException = error if cause is None or hasattr(cause, "response") else cause
    status = getattr(fault, "status", None) or getattr(fault, "code", None)
    if isinstance(fault, FileNotFoundError) or status == 404:
        raise DataError(f"{name!r} cannot be read: there is no such file")
    if isinstance(fault, PermissionError) or status in (401, 403):
        raise DataError(f"{name!r} cannot be read: access is denied", hint=_CREDENTIALS)
    if "Credentials" in type(fault).__name__:
        raise DataError(f"{name!r} cannot be read: no credentials were found", hint=_CREDENTIALS)
    raise DataError(
        f"{name!r} cannot be read: it cannot be reached ({type(fault).__name__})",
        hint="is there a network, and is the address right?",
    )
