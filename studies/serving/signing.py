"""Signed verdicts: a JSON object with a member `signature`, which whoever has the judge's key can verify.

The signature is HMAC-SHA256 over the UTF-8 of the object without that member, its keys sorted and nothing between the
parts: `json.dumps(content, sort_keys=True, separators=(",", ":"))`. A key is known by the beginning of its digest.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from platformdirs import user_data_dir

from tunebench.tuner.errors import UserError

ALGORITHM = "HMAC-SHA256"
SIGNATURE = "signature"

_KEY_BYTES = 32


def key_file(named: str | Path | None) -> Path:
    """Return the file of a key: the one that is named, or else the user's own."""
    return Path(user_data_dir("tunebench")) / "judge.key" if named is None else Path(named)


@dataclass(frozen=True)
class Key:
    """A judge's key.

    Attributes:
        secret: whoever has it can sign verdicts, not only verify them.
    """

    secret: bytes = field(repr=False)

    @classmethod
    def read(cls, path: Path) -> Key:
        """Read a key's file: 64 hexadecimal digits.

        Raises:
            UserError: it cannot be read, or holds no key.
        """
        try:
            text = path.read_text(encoding="ascii")
            secret = bytes.fromhex(text)
        except OSError as error:
            raise UserError(f"{path}: cannot read the key: {error.strerror}") from error
        except ValueError as error:
            raise UserError(f"{path}: not a key: give a file of {2 * _KEY_BYTES} hexadecimal digits") from error
        if len(secret) != _KEY_BYTES:
            raise UserError(f"{path}: not a key: it has {len(secret)} bytes in place of {_KEY_BYTES}")
        return cls(secret)

    @classmethod
    def read_or_make(cls, path: Path) -> Key:
        """Read a key's file, or make one that only this user can read.

        Raises:
            UserError: it cannot be read, written, or holds no key.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return cls.read(path)
        except OSError as error:
            raise UserError(f"{path}: cannot write the key: {error.strerror}") from error
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(_KEY_BYTES) + "\n")
        return cls.read(path)

    @property
    def name(self) -> str:
        """The first digits of the key's digest, which say nothing of the key."""
        return hashlib.sha256(self.secret).hexdigest()[:16]

    def signed(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """Return the content with its signature."""
        signature = {"algorithm": ALGORITHM, "key": self.name, "value": self._value(content)}
        return {**content, SIGNATURE: signature}

    def verifies(self, verdict: Mapping[str, Any]) -> bool:
        """Return whether a verdict is as this key has signed it."""
        content, signature = dict(verdict), verdict.get(SIGNATURE)
        content.pop(SIGNATURE, None)
        if not isinstance(signature, Mapping) or signature.get("algorithm") != ALGORITHM:
            return False
        value = signature.get("value")
        try:
            return isinstance(value, str) and hmac.compare_digest(value.encode(), self._value(content).encode())
        except ValueError:  # what JSON cannot say was never signed
            return False

    def _value(self, content: Mapping[str, Any]) -> str:
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hmac.new(self.secret, text.encode(), hashlib.sha256).hexdigest()
