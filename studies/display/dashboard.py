"""Optuna's own dashboard on the copies of studies, for this machine and its own pages only.

The dashboard asks no one who they are. It listens on this machine, and any page that is open in a browser on this
machine could still send requests to it, so each request must name the address that is served, and one that changes
something must come from a page of that address.
"""

from __future__ import annotations

import importlib
import logging
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from socketserver import ThreadingMixIn
from typing import Any
from urllib.parse import urlsplit
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import optuna
from optuna.storages import BaseStorage, InMemoryStorage

from tunebench.db.connection.database import open_database
from tunebench.db.upkeep.optuna_mirror import optuna_storage, publish_all
from tunebench.tuner.errors import DatabaseError, UserError

HOST = "127.0.0.1"

_READING_METHODS = ("GET", "HEAD", "OPTIONS")

StartResponse = Callable[..., Any]
Application = Callable[[dict[str, Any], StartResponse], Iterable[bytes]]


@dataclass(frozen=True)
class Serving:
    """A dashboard that is being served.

    Attributes:
        studies: how many it shows.
        not_kept: why what is changed there is lost in the end; empty where the database keeps it.
    """

    address: str
    studies: int
    not_kept: str


def load_dashboard() -> Callable[..., Application]:
    """The function that makes the dashboard's WSGI application from a storage.

    Raises:
        UserError: it is not installed.
    """
    try:
        module = importlib.import_module("optuna_dashboard")
    except ModuleNotFoundError as error:
        raise UserError(
            f"the dashboard needs the Python package '{error.name}': pip install 'tunebench[dashboard]'"
        ) from error
    make_application: Callable[..., Application] = module.wsgi
    return make_application


@contextmanager
def serving(make_application: Callable[..., Application], database: str | None, port: int) -> Iterator[Serving]:
    """Publish every study's copy and serve the dashboard on this machine while the block runs.

    The copies are kept in the database. Where that cannot be written, they are made in memory.
    The requests are served on other threads: Ctrl-C in the middle of one would be taken for that request's failure.

    Args:
        database: a path or a URL; None for the default.

    Raises:
        DatabaseError: the database is not there, or cannot be read.
        UserError: the port is taken or not allowed.
    """
    # Optuna announces every study that it creates, and the dashboard every plot that it has too few trials for.
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    logging.getLogger("optuna_dashboard").setLevel(logging.ERROR)
    # Only a database that is there: opening for writing would create one.
    with open_database(database, read_only=True):
        pass
    with ExitStack() as stack:
        try:
            storage, studies = stack.enter_context(_copies_in(database))
            not_kept = ""
        except DatabaseError as error:
            storage, not_kept = InMemoryStorage(), str(error)
            with open_database(database, read_only=True) as opened:
                studies = publish_all(opened, storage)
        application = only_for(f"{HOST}:{port}", make_application(storage))
        try:
            server = stack.enter_context(make_server(HOST, port, application, _Server, _QuietHandler))
        except OSError as error:
            raise UserError(f"cannot listen on {HOST}:{port}: {error.strerror}; choose another with --port") from error
        threading.Thread(target=server.serve_forever, daemon=True).start()
        stack.callback(server.shutdown)
        yield Serving(f"http://{HOST}:{port}/", studies, not_kept)


@contextmanager
def _copies_in(database: str | None) -> Iterator[tuple[BaseStorage, int]]:
    """Optuna's storage in the database itself with every study published to it, and how many there are."""
    with open_database(database) as opened:
        studies = publish_all(opened)
        storage = optuna_storage(opened)
        try:
            yield storage, studies
        finally:
            storage.remove_session()
            storage.engine.dispose()


def only_for(address: str, application: Application) -> Application:
    """The application, which refuses requests that are for another address, or that another page sent.

    Args:
        address: host and port.
    """

    def answer(request: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        if reason := refusal(request, address):
            status = HTTPStatus.FORBIDDEN
            start_response(f"{status.value} {status.phrase}", [("Content-Type", "text/plain; charset=utf-8")])
            return [f"{reason}\n".encode()]

        def start_unframed(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            # A page that shows this one in a frame could have its reader click on what it does not show.
            return start_response(status, [*headers, ("X-Frame-Options", "DENY")], *rest)

        return application(request, start_unframed)

    return answer


def refusal(request: Mapping[str, Any], address: str) -> str:
    """Why a request is not answered; empty where it is.

    Args:
        request: the WSGI environment.
        address: the host and port that are served.
    """
    host, port = address.rsplit(":", 1)
    served = {f"{name}:{port}" for name in (host, "localhost")}
    if port == "80":
        served |= {host, "localhost"}
    asked = request.get("HTTP_HOST", "")
    # A foreign name that has been made to point to this machine is a foreign page's own address to its browser.
    if asked not in served:
        return f"this dashboard answers at http://{address}/ only"
    if request["REQUEST_METHOD"] in _READING_METHODS:
        return ""
    site, origin, page = (request.get(f"HTTP_{name}", "") for name in ("SEC_FETCH_SITE", "ORIGIN", "REFERER"))
    from_here = [site == "same-origin"] if site else []
    from_here += [_origin_of(text) == f"http://{asked}" for text in (origin, page) if text]
    if not from_here:
        return "a request that changes something must say which page sent it (Origin)"
    return "" if all(from_here) else "another page sent this request, and only the dashboard's own may change anything"


def _origin_of(text: str) -> str:
    """Scheme, host and port of an address; empty where it has none, such as the origin `null`."""
    try:
        parts = urlsplit(text)
    except ValueError:
        return ""
    return f"{parts.scheme}://{parts.netloc}"


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of a browser that closes a connection early."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _QuietHandler(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        """No line for each request: a terminal is for what its reader asked."""
