"""`triton-lb check FILE`: is this configuration good?"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec

from lb.cli.loading import load_settings, name_of_file, print_problems, read_file
from lb.domain.errors import LoadBalancerError
from lb.net.files import answer_of, check_appendable, read_text
from lb.settings.backends import BackendSettings
from lb.settings.listed import read_backends
from lb.settings.listening import RelayListenerSettings
from lb.settings.model import Settings
from lb.settings.problems import SettingsError, shown
from lb.settings.relations import own_addresses
from lb.settings.reporting import AccessLogMode
from lb.settings.warnings import warnings_of


def check(path: str, *, syntax_only: bool = False, quiet: bool = False) -> int:
    """Print every problem of a configuration file and of the files that it names, or one line that
    says OK. Warnings come before that line.

    Args:
        path: of the file; `-` is standard input.
        syntax_only: open no other file, as this machine may not have them.
        quiet: print problems only.

    Returns:
        The exit code: 0 when there is no problem, 1 otherwise.
    """
    name = name_of_file(path)
    try:
        settings = load_settings(path, {})
    except SettingsError as error:
        print_problems(name, error, sys.stdout)
        return 1
    backends, is_good = list(settings.backends), True
    for file in () if syntax_only else settings.discovery.files:
        found = _read_backends(file, settings)
        is_good = is_good and found is not None
        backends += found or ()
    if not syntax_only:
        for problem in _unusable_files(settings.model_copy(update={"backends": tuple(backends)})):
            print(f"{name}: {problem}")
            is_good = False
    if not is_good:
        return 1
    if not quiet:
        # Without the backends of other files, some warnings would be wrong.
        is_whole = not (syntax_only and settings.discovery.files)
        for warning in warnings_of(settings, backends) if is_whole else ():
            print(f"{name}: warning: {warning}")
        if _lacks_numpy(settings):
            print(
                f"{name}: warning: shadow.compare needs the extra: pip install triton-lb[compare]"
            )
        print(f"OK: {name}")
    return 0


def _lacks_numpy(settings: Settings) -> bool:
    """Whether answers are to be compared, and nothing is installed that does it."""
    compares = any(
        own.shadow is not None and own.shadow.compare for own in settings.models.values()
    )
    return compares and find_spec("numpy") is None


def _unusable_files(settings: Settings) -> list[str]:
    """Open what the process would open at its start, and say what cannot be used."""
    from lb.runtime.access import make_access
    from lb.runtime.security import make_security

    found = []
    for path, use in _uses_of_files(settings):
        try:
            use()
        except LoadBalancerError as error:
            found.append(f"{path}: {error}")
        except OSError as error:
            found.append(f"{path}: {shown(error.filename)}: {error.strerror}")
    if not found:  # each file is good, and so should be all together
        try:
            make_security(settings)
            make_access(settings)
        except LoadBalancerError as error:
            found.append(str(error))
    return found


def _uses_of_files(settings: Settings) -> Iterator[tuple[str, Callable[[], object]]]:
    """Each setting that names a file, and what is done with the file."""
    from lb.net.tls.contexts import load_pair, make_client_context, make_server_context, trust
    from lb.runtime.access import TokenKeeper

    for name in ("http", "grpc", "https", "grpcs"):
        listener: RelayListenerSettings | None = getattr(settings.listen, name)
        if listener is None or listener.tls is None:
            continue
        for index, pair in enumerate(listener.tls.certificates):
            load = partial(load_pair, make_server_context(()), pair.certificate, pair.key)
            yield f"listen.{name}.tls.certificates[{index}]", load
        if listener.tls.client_ca:
            use = partial(trust, make_server_context(()), listener.tls.client_ca)
            yield f"listen.{name}.tls.client_ca", use
    for backend in settings.backends:
        if backend.tls is None:
            continue
        path = f"backends[{backend.known_as}].tls"
        if backend.tls.ca:
            yield f"{path}.ca", partial(trust, make_client_context(()), backend.tls.ca)
        if backend.tls.certificate and backend.tls.key:
            load = partial(
                load_pair, make_client_context(()), backend.tls.certificate, backend.tls.key
            )
            yield f"{path}.certificate", load
    for token in settings.access.tokens:
        if token.file is not None:
            yield f"access.tokens[{token.name}].file", partial(TokenKeeper, (token,))
    if settings.access_log.mode is not AccessLogMode.OFF and settings.access_log.path != "-":
        yield "access_log.path", partial(check_appendable, settings.access_log.path)
    if settings.payload_log.is_on and settings.payload_log.path is not None:
        yield "payload_log.path", partial(check_appendable, settings.payload_log.path)
    if settings.state is not None:
        yield "state", partial(_read_state, settings.state)


def _read_state(path: str) -> None:
    """Read the file that shares of variants are kept in, if there is one.

    Raises:
        OSError: it cannot be read.
    """
    try:
        answer_of(lambda: read_text(path), path)
    except FileNotFoundError:
        pass  # nothing was changed yet


def _read_backends(path: str, settings: Settings) -> tuple[BackendSettings, ...] | None:
    """The backends of a file; None where it has problems, which are printed."""
    try:
        text = read_file(path)
        ours, most = own_addresses(settings), settings.discovery.max_entries
        return read_backends(text, ours, most)
    except SettingsError as error:
        print_problems(shown(path), error, sys.stdout)
        return None
