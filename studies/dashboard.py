"""Optuna's own dashboard on the copies of studies in the results database."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from tunebench.db.connection.database import Database
from tunebench.db.upkeep.optuna_mirror import optuna_storage
from tunebench.tuner.errors import UserError

HOST = "127.0.0.1"
"""The dashboard asks no one who they are, so only this machine may reach it."""

MakeApplication = Callable[..., Any]


def load_dashboard() -> MakeApplication:
    """What makes the dashboard's WSGI application of a storage.

    Raises:
        UserError: it is not installed.
    """
    try:
        module = importlib.import_module("optuna_dashboard")
    except ModuleNotFoundError as error:
        raise UserError(
            f"the dashboard needs the Python package '{error.name}': pip install 'tunebench[dashboard]'"
        ) from error
    make_application: MakeApplication = module.wsgi
    return make_application


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _QuietHandler(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        """The pages that a reader opens are nobody's business."""


@contextmanager
def serving(make_application: MakeApplication, database: Database, port: int) -> Iterator[str]:
    """Serve the dashboard on this machine while the block runs; gives its address.

    The requests are served on other threads: Ctrl-C in the middle of one would be taken for that request's failure.

    Raises:
        UserError: the port is taken or not allowed.
    """
    storage = optuna_storage(database)
    try:
        application = make_application(storage)
        try:
            server = make_server(HOST, port, application, _Server, _QuietHandler)
        except OSError as error:
            raise UserError(f"cannot listen on {HOST}:{port}: {error.strerror}; choose another with --port") from error
        with server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield f"http://{HOST}:{server.server_port}/"
            server.shutdown()
    finally:
        storage.remove_session()
        storage.engine.dispose()
