"""Remote files, such as s3://bucket/visits/*.parquet or https://host/rows.csv, read with fsspec.

Files are downloaded once, before any row is read, so that they cannot change in between. The caller removes the copies.
"""

from __future__ import annotations

import glob
import logging
import os
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from boltdp.engines._file_patterns import Files, collect_files, find_format
from boltdp.errors import DataError

T = TypeVar("T")

_ADDRESS_PATTERN = re.compile(r"([a-z][a-z0-9+.-]+::)*[a-z][a-z0-9+.-]+://", re.IGNORECASE)
#: Protocols without directories and patterns: an address is one file.
_SINGLE_FILE_PROTOCOLS = ("http", "https")
#: Bytes per read.
_CHUNK_BYTES = 1 << 22
#: Keeps log records of these libraries, which may quote headers, off stderr unless logging is configured.
_NULL_HANDLER = logging.NullHandler()
_CREDENTIALS_HINT = "credentials are taken from where s3fs and gcsfs look for them: the environment, or their own files"


def is_remote(source: str) -> bool:
    """Return whether a data source is a remote address rather than a path."""
    return _ADDRESS_PATTERN.match(source) is not None


def remove_secrets(address: str) -> str:
    """Remove possible secrets from an address: passwords, and signatures after a question mark.

    Passwords may contain any character and addresses may be nested; in doubtful cases more is removed.

    >>> remove_secrets("https://me:secret@host/rows.csv?signature=secret")
    'https://host/rows.csv'
    """
    return "::".join(map(_strip_credentials, address.split("::")))


def _strip_credentials(address: str) -> str:
    protocol, separator, rest = address.partition("://")
    before, _, after = rest.rpartition("@")
    shown = after if ":" in before or "/" not in before else rest
    return protocol + separator + re.split("[?#;]", shown)[0]


def fetch_files(address: str, folder: Path) -> Files:
    """Download the data files at a remote address to a directory."""
    name, protocol = remove_secrets(address), address.partition(":")[0].lower()
    filesystem, path = _open_filesystem(address, protocol, name)
    if protocol in _SINGLE_FILE_PROTOCOLS:
        # Without urllib, whose errors quote the address.
        copies = {path: os.path.basename(re.split("[?#]", path.partition("://")[2].partition("/")[2])[0])}
    else:
        paths = _call_fsspec(lambda: _list_files(filesystem, path), name)
        if not paths:
            raise DataError(f"no file is at {name!r}, or matches it")
        if any(".." in file.split("/") for file in paths):
            # Path traversal: the copy could be written anywhere on this machine.
            raise DataError(f"no file at {name!r} may have '..' in its path")
        shared = os.path.commonpath([os.path.dirname(file) for file in paths])
        copies = {file: os.path.relpath(file, shared) for file in paths}
        if len(set(copies.values())) < len(copies):
            # One copy would overwrite another, whose rows would be read twice.
            raise DataError(f"the files at {name!r} must have different paths; to a store, a//b and a/b are two")
    for file, copy in copies.items():
        _call_fsspec(partial(_copy_file, filesystem, file, folder / copy), name)
    return collect_files(name, [str(folder / copy) for copy in copies.values()], root=str(folder), what="address")


def _open_filesystem(address: str, protocol: str, name: str) -> tuple[Any, str]:
    """Return the fsspec file system of an address, and the path in it."""
    hint: str | None = "pip install 'boltdp[remote]'"
    try:
        import fsspec

        for library in ("fsspec", "gcsfs", "s3fs", "aiohttp", "aiobotocore", "google"):
            logging.getLogger(library).addHandler(_NULL_HANDLER)
        if address[len(protocol) :].startswith("::"):  # such as simplecache::https://..., which keeps copies of its own
            raise ValueError
        filesystem, path = fsspec.core.url_to_fs(address)
        return filesystem, path
    except ImportError:
        reason = f"reading from {protocol}:// needs the package fsspec and what it needs for it"
    except ValueError:
        reason, hint = f"{protocol}:// is no kind of address that can be read", "such are s3://, gs:// and https://"
    except Exception as fault:  # the message may quote a password
        reason, hint = f"{name!r} cannot be opened ({type(fault).__name__})", None
    raise DataError(reason, hint=hint)


def _list_files(filesystem: Any, path: str) -> list[str]:
    if glob.has_magic(path):
        return sorted(file for file in filesystem.glob(path) if filesystem.isfile(file))
    if find_format(path) is not None:
        return [path]
    return sorted(file for file in filesystem.find(path) if not os.path.basename(file).startswith((".", "_")))


def _copy_file(filesystem: Any, path: str, copy: Path) -> None:
    copy.parent.mkdir(parents=True, exist_ok=True)
    with filesystem.open(path, "rb") as source, copy.open("xb") as target:
        shutil.copyfileobj(source, target, _CHUNK_BYTES)


def _call_fsspec(action: Callable[[], T], name: str) -> T:
    """Call fsspec, and replace its errors, which may quote a password or rows."""
    try:
        return action()
    except Exception as error:
        # fsspec raises FileNotFoundError for an unreachable server, with the real error as the cause. If the server
        # answered, the cause has a `response`, and the error itself describes the answer.
        cause = error.__cause__
        fault: BaseException = error if cause is None or hasattr(cause, "response") else cause
    status = getattr(fault, "status", None) or getattr(fault, "code", None)
    hint: str | None = "is there a network, and is the address right?"
    reason = f"it cannot be reached ({type(fault).__name__})"
    if isinstance(fault, FileNotFoundError) or status == 404:
        reason, hint = "there is no such file", None
    elif isinstance(fault, PermissionError) or status in (401, 403):
        reason, hint = "access is denied", _CREDENTIALS_HINT
    elif "Credentials" in type(fault).__name__:
        reason, hint = "no credentials were found", _CREDENTIALS_HINT
    raise DataError(f"{name!r} cannot be read: {reason}", hint=hint)
