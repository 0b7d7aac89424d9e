"""Contexts of the TLS library with our rules: versions, ciphers, no compression, no renegotiation.

TLS 1.3 has only good ciphers. Of TLS 1.2 we take those with forward secrecy and authenticated
encryption (RFC 9325 4.2); the sizes of keys are OpenSSL's security level 2 (RSA from 2048 bits).
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import Final

from lb.domain.errors import LoadBalancerError
from lb.net import files
from lb.settings.problems import shown
from lb.wire.tls.certificate import Certificate, CertificateError, read_certificate

_CIPHERS: Final = "@SECLEVEL=2:ECDHE+AESGCM:ECDHE+CHACHA20"
_MAX_FILE: Final = 4 << 20
"""Bytes of a file with certificates; the CAs of a whole system are 250 KiB."""
_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_END: Final = "-----END CERTIFICATE-----"


class TlsError(LoadBalancerError):
    """Certificates or keys that cannot be used; the message names the file."""


def make_server_context(protocols: Sequence[str]) -> ssl.SSLContext:
    """A context for clients' connections, without a certificate yet.

    Args:
        protocols: that are spoken here, for ALPN; the first that a client knows too is taken.
    """
    return _make_context(ssl.PROTOCOL_TLS_SERVER, protocols)


def make_client_context(protocols: Sequence[str]) -> ssl.SSLContext:
    """A context for connections to backends, which verifies them; it trusts nobody yet."""
    return _make_context(ssl.PROTOCOL_TLS_CLIENT, protocols)


def _make_context(role: ssl._SSLMethod, protocols: Sequence[str]) -> ssl.SSLContext:
    context = ssl.SSLContext(role)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    context.set_ciphers(_CIPHERS)
    context.set_alpn_protocols(list(protocols))
    return context


def load_pair(context: ssl.SSLContext, certificate: str, key: str) -> None:
    """Have a context show a certificate, with its chain, and use its key.

    Raises:
        TlsError: a file cannot be read, the key is another one's, or both are no good.
    """
    # The library does not say which of the two is missing, and would wait for a FIFO.
    read_text(certificate)
    read_text(key)
    try:
        with files.touching(certificate):
            context.load_cert_chain(certificate, key, _refuse_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise TlsError(f"{shown(key)} is not the key of {shown(certificate)}") from error
        raise TlsError(
            f"cannot use {shown(certificate)} with {shown(key)}: {describe(error)}"
        ) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise TlsError(f"cannot use {shown(certificate)} with {shown(key)}: {reason}") from error


def trust(context: ssl.SSLContext, ca: str) -> None:
    """Have a context accept certificates of the authorities in a file.

    Raises:
        TlsError: it cannot be read or holds none.
    """
    text = read_text(ca)
    try:
        context.load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError) as error:
        raise TlsError(f"{shown(ca)} holds no certificates of authorities") from error


def read_leaf(path: str) -> Certificate:
    """Read the first certificate of a file: the one that is shown, its chain follows.

    Raises:
        TlsError: there is none that can be read.
    """
    text = read_text(path)
    begin = text.find(_BEGIN)
    end = text.find(_END, begin)
    if begin < 0 or end < 0:
        raise TlsError(f"{shown(path)} holds no certificate")
    try:
        return read_certificate(ssl.PEM_cert_to_DER_cert(text[begin : end + len(_END)]))
    except (CertificateError, ValueError) as error:
        raise TlsError(f"the certificate in {shown(path)} cannot be read") from error


def read_text(path: str) -> str:
    """The text of a file.

    Raises:
        TlsError: it cannot be read.
    """
    try:
        return files.read_text(path, _MAX_FILE, encoding="ascii", errors="replace")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise TlsError(f"cannot read {shown(path)}: {reason}") from error


def describe(error: ssl.SSLError) -> str:
    """What went wrong, in the library's words but without its file names and codes."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate verify failed: {error.verify_message}"
    return (getattr(error, "reason", None) or str(error)).replace("_", " ").lower()


def _refuse_password() -> str:
    # Without this the library would ask for it on the terminal.
    raise ValueError("the key is encrypted")
