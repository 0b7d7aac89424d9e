"""A TLS 1.3 client that seals its records itself, since Python's `ssl` sends no key updates.

The library does the handshake and reads. From then on the client's records are made here, with the
keys of RFC 8446 7.1 and 7.3 from the secret that the library writes to its key log.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from tests.fakes.tls import World

_ALERT, _HANDSHAKE, _DATA = 21, 22, 23
_KEY_UPDATE = bytes((24, 0, 0, 1))


class RecordWriter:
    """Seals the records of one direction with AES-256-GCM and SHA-384."""

    def __init__(self, secret: bytes) -> None:
        self._use(secret)

    def _use(self, secret: bytes) -> None:
        self._secret = secret
        self._aead = AESGCM(self._expand(b"key", 32))
        self._iv = int.from_bytes(self._expand(b"iv", 12))
        self._sequence = 0

    def _expand(self, label: bytes, size: int) -> bytes:
        """HKDF-Expand-Label with an empty context."""
        label = b"tls13 " + label
        info = size.to_bytes(2) + bytes((len(label),)) + label + b"\0"
        return HKDFExpand(hashes.SHA384(), size, info).derive(self._secret)

    def _seal(self, kind: int, content: bytes) -> bytes:
        header = bytes((_DATA, 3, 3)) + (len(content) + 17).to_bytes(2)
        nonce = (self._iv ^ self._sequence).to_bytes(12)
        self._sequence += 1
        return header + self._aead.encrypt(nonce, content + bytes((kind,)), header)

    def data(self, content: bytes) -> bytes:
        """A record of data, of 16 KiB at most."""
        return self._seal(_DATA, content)

    def key_update(self, *, asks: bool = True) -> bytes:
        """A key update; `asks`: the peer is to update its keys, too."""
        record = self._seal(_HANDSHAKE, _KEY_UPDATE + bytes((asks,)))
        self._use(self._expand(b"traffic upd", 48))
        return record

    def goodbye(self) -> bytes:
        """The alert close_notify."""
        return self._seal(_ALERT, bytes((1, 0)))


def logging_context(world: World) -> ssl.SSLContext:
    """A client's context for `writer_of`, each for one connection."""
    context = world.client_context()
    context.keylog_filename = str(world.folder / "keys")
    return context


def writer_of(context: ssl.SSLContext) -> RecordWriter:
    """Go on in place of a client whose handshake is complete, and that has sent nothing yet."""
    log = Path(context.keylog_filename).read_text()
    secrets = [line.split()[2] for line in log.splitlines() if line.startswith("CLIENT_TRAFFIC")]
    return RecordWriter(bytes.fromhex(secrets[-1]))


def trickle(writer: RecordWriter, content: bytes) -> bytes:
    """Records of one byte each, and a key update before each of them."""
    return b"".join(
        record for byte in content for record in (writer.key_update(), writer.data(bytes((byte,))))
    )
