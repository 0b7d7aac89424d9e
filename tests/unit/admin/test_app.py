from __future__ import annotations

from lb.admin.app import make_admin_app
from lb.admin.life import LifeApi, cannot
from lb.admin.openapi import openapi_document
from lb.admin.queue import QueueApi
from lb.control.membership import Membership
from lb.telemetry.queue import QueueStatus
from tests.fakes.pool import make_pool


def test_the_document_describes_every_route_and_no_other() -> None:
    directory = make_pool()
    app = make_admin_app(directory, Membership(directory), version="1.2.3")
    LifeApi(cannot, cannot).install(app)
    QueueApi(QueueStatus).install(app)
    routes = {
        (route.method.lower(), route.resource.canonical)
        for route in app.router.routes()
        if route.method != "HEAD" and route.resource is not None
    }
    documented = {
        (method, path)
        for path, methods in openapi_document("1.2.3")["paths"].items()
        for method in methods
    }
    assert routes == documented | {("get", "/")}
