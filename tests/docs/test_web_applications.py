"""docs/web-applications.md: the applications accept orders, and the workers handle them."""

import importlib.util
from pathlib import Path

import pytest

from pumpline.testing import LocalNsqd
from tests.kit.programs import end, namespace_of, programs, run, running, with_ports

FASTAPI, FASTAPI_WORKER, *DJANGO = programs("web-applications.md")
DJANGO_SETTINGS = """
SECRET_KEY = "for tests"
ALLOWED_HOSTS = ["*"]
INSTALLED_APPS = ["shop"]
ROOT_URLCONF = "urls"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.sqlite"}}
"""
DJANGO_URLS = """
from django.urls import path
from shop.views import create_order

urlpatterns = [path("orders", create_order)]
"""
DJANGO_REQUEST = """
import os
os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
import django
django.setup()
from django.test import Client

response = Client().post("/orders", {"number": 7}, content_type="application/json")
print(response.status_code, response.content.decode())
"""


def needs(*packages: str) -> pytest.MarkDecorator:
    missing = [each for each in packages if importlib.util.find_spec(each) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


@needs("fastapi", "httpx")
def test_fastapi_publishes_and_its_worker_handles(nsqd: LocalNsqd) -> None:
    from fastapi.testclient import TestClient

    with TestClient(namespace_of(FASTAPI, nsqd).app) as client:
        reply = client.post("/orders", json={"number": 7})
    assert (reply.status_code, reply.json()) == (202, {"accepted": 7})
    assert nsqd.messages("orders") == [b'{"number":7}']
    with running("-c", with_ports(FASTAPI_WORKER, nsqd)) as worker:
        nsqd.wait_until_done("orders", "billing", timeout_s=60)
        assert end(worker) == "billed order 7\n"


@needs("fastapi", "httpx")
def test_fastapi_starts_without_nsqd_and_says_that_it_cannot_publish(nsqd: LocalNsqd) -> None:
    from fastapi.testclient import TestClient

    app = namespace_of(FASTAPI, nsqd).app
    nsqd.stop()
    with TestClient(app) as client:
        assert client.post("/orders", json={"number": 7}).status_code == 503


@pytest.fixture
def django_project(nsqd: LocalNsqd, tmp_path: Path) -> Path:
    """The files of the page, and what `django-admin startproject` makes."""
    for program in DJANGO:
        name = program.splitlines()[0].removeprefix("# ")
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(with_ports(program, nsqd))
    for directory in ("shop", "shop/management", "shop/management/commands"):
        (tmp_path / directory / "__init__.py").touch()
    (tmp_path / "settings.py").write_text(DJANGO_SETTINGS)
    (tmp_path / "urls.py").write_text(DJANGO_URLS)
    return tmp_path


@needs("django")
def test_django_publishes_and_its_command_handles(nsqd: LocalNsqd, django_project: Path) -> None:
    printed = run("-c", DJANGO_REQUEST, cwd=django_project)
    assert printed == '202 {"accepted": 7}\n'
    assert nsqd.messages("orders") == [b'{"number":7}']
    words = ["-m", "django", "bill_orders", "--settings=settings", "--pythonpath=."]
    with running(*words, cwd=django_project) as worker:
        nsqd.wait_until_done("orders", "billing", timeout_s=60)
        assert end(worker) == "billed order 7\n"


@needs("django")
def test_django_says_that_it_cannot_publish(nsqd: LocalNsqd, django_project: Path) -> None:
    nsqd.stop()
    assert run("-c", DJANGO_REQUEST, cwd=django_project).endswith(
        '503 {"error": "try again later"}\n'
    )
