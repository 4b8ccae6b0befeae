"""Access to a server: the API key, and TLS if the address begins with `https://`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import grpc

TOKEN = "TREERING_TOKEN"
CA = "TREERING_CA"


def sendable(value: str, name: str) -> str:
    """Returns the value. Raises if a header cannot contain it."""
    if not (value.isascii() and value.isprintable()):
        # The value may be an API key, and errors are logged: the message has no part of it.
        raise ValueError(
            f"{name} has a character that cannot be sent, such as a non-ASCII letter or line end: "
            "use it exactly as it was created"
        )
    return value


@dataclass(frozen=True)
class Entry:
    """The API key for a server, and the CA of the server's certificate."""

    is_secure: bool = False
    token: str = ""
    ca: str = ""

    @classmethod
    def of(cls, address: str, token: str | None, ca: str | os.PathLike[str] | None) -> Entry:
        """Takes arguments that are None from the environment."""
        key, origin = (os.environ.get(TOKEN, ""), TOKEN) if token is None else (token, "`token`")
        return cls(
            is_secure=address.startswith("https://"),
            token=sendable(key, origin),
            ca=os.environ.get(CA, "") if ca is None else os.fspath(ca),
        )

    def __repr__(self) -> str:
        # The API key must not be logged.
        return f"Entry({'https' if self.is_secure else 'http'})"

    def credentials(self) -> grpc.ChannelCredentials | None:
        """Credentials of the channel; None for an unencrypted channel."""
        if not self.is_secure:
            return None
        return grpc.ssl_channel_credentials(Path(self.ca).read_bytes() if self.ca else None)

    def metadata(self) -> list[tuple[str, str]]:
        """Metadata of each call."""
        return [("authorization", f"Bearer {self.token}")] if self.token else []

    def url(self, address: str) -> str:
        """The address as a URL, for a command."""
        return f"{'https' if self.is_secure else 'http'}://{address}"

    def environment(self) -> Mapping[str, str]:
        """The environment of a command."""
        given = {TOKEN: self.token, CA: self.ca if self.is_secure else ""}
        kept = {name: value for name, value in os.environ.items() if name not in given}
        kept.pop("TREERING_DATA", None)
        return kept | {name: value for name, value in given.items() if value}
