"""Who may open the app: the form, its limits, and that nothing is drawn behind it."""

import os
from collections.abc import Callable, Iterator

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from ui import access, pages
from ui.services import live

Open = Callable[..., AppTest]
PASSWORD = "a long enough password"
NAMES = [name for listed in pages.PAGES.values() for name, *_ in listed]


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No failures so far, and an environment that is put back."""
    for name in (access.PASSWORD, access.HASH, access.REMOTE):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    access.forget()
    yield
    access.forget()


@pytest.fixture
def locked(monkeypatch: pytest.MonkeyPatch, fresh: None) -> None:
    monkeypatch.setenv(access.PASSWORD, PASSWORD)


def log_in(page: AppTest, password: str) -> AppTest:
    page.text_input[0].set_value(password)
    return page.button[0].click().run()


def is_closed(page: AppTest) -> bool:
    """Nothing but the form."""
    return (
        [each.label for each in page.text_input] == ["Password"]
        and len(page.button) == 1
        and not any((page.title, page.sidebar.text_area, page.dataframe, page.get("vega_lite_chart"), page.code))
    )


def test_on_this_machine_nothing_is_asked(open_page: Open) -> None:
    page = open_page("help")
    assert not page.exception
    assert page.title[0].value == "Help"


@pytest.mark.parametrize("name", NAMES)
def test_no_page_shows_anything_without_the_password(
    open_page: Open, locked: None, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reached(*_: object) -> None:
        raise AssertionError("a service was asked")

    monkeypatch.setattr(live, "engine", reached)
    monkeypatch.setattr("ui.frame.sidebar", reached)
    page = open_page(name, query={"layer": "1", "head": "2"}, prompt="secret prompt")
    assert not page.exception
    assert is_closed(page)


def test_the_right_password_opens_this_session_alone(open_page: Open, locked: None) -> None:
    page = log_in(open_page("help"), PASSWORD)
    assert not page.exception
    assert page.title[0].value == "Help"
    assert page.run().title[0].value == "Help"
    assert PASSWORD not in str(page.query_params)
    assert PASSWORD not in str(page.session_state)
    assert is_closed(open_page("help"))


def test_the_password_leaves_the_environment(open_page: Open, locked: None) -> None:
    open_page("help")
    assert access.PASSWORD not in os.environ
    assert PASSWORD not in os.environ[access.HASH]
    assert set(access.SECRET_VARIABLES) == {access.PASSWORD, access.HASH}


def test_a_wrong_password_says_only_that(open_page: Open, locked: None, caplog: pytest.LogCaptureFixture) -> None:
    page = open_page("help")
    for wrong in ("", PASSWORD[:-1], PASSWORD + "x", PASSWORD.upper(), "x" * 256):
        access.forget()
        page = log_in(page, wrong)
        assert is_closed(page)
        assert [each.value for each in page.error] == ["That is not the password."]
    assert PASSWORD[:-1] not in caplog.text


def test_after_five_failures_the_server_waits(
    open_page: Open, locked: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [100.0]
    monkeypatch.setattr(access.time, "monotonic", lambda: now[0])
    page = open_page("help")
    for _ in range(access.MAX_FAILURES):
        page = log_in(page, "wrong")
    assert "wrong passwords in a row" in caplog.text
    page = log_in(page, PASSWORD)
    assert is_closed(page)
    assert "wait 30 s" in page.error[0].value
    other = log_in(open_page("help"), PASSWORD)  # of all sessions together
    assert is_closed(other)
    now[0] += access.WAIT_S + 1
    assert log_in(page, PASSWORD).title[0].value == "Help"


def test_another_password_ends_the_sessions(open_page: Open, locked: None) -> None:
    page = log_in(open_page("help"), PASSWORD)
    os.environ[access.PASSWORD] = "a wholly other password"
    assert is_closed(page.run())


def test_logging_out(open_page: Open, locked: None) -> None:
    page = open_page("stores", query={"stores_show": "system"})
    page = log_in(page, PASSWORD)
    assert not page.exception
    assert is_closed(page.button(key="access_out").click().run())


def test_a_server_for_others_without_any_login_shows_nothing(open_page: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(access.REMOTE, "1")
    page = open_page("help")
    assert not page.title
    assert "shows nothing" in page.text[0].value


def test_an_address_beyond_this_machine_needs_a_login(open_page: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    found = st.get_option
    monkeypatch.setattr(access.st, "get_option", lambda name: "0.0.0.0" if name == "server.address" else found(name))
    assert not open_page("help").title


def test_a_provider_lets_in_those_who_are_named(open_page: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "_allowed", lambda: ())
    assert "names nobody" in open_page("help").text[0].value
    monkeypatch.setattr(access, "_allowed", lambda: ("@lab.org",))
    page = open_page("help")
    assert not page.title
    assert page.button[0].label == "Log in with your account"


@pytest.mark.parametrize(
    ("user", "enters"),
    [
        ({"email": "Ada@Lab.org"}, True),
        ({"email": "bob@other.org"}, True),
        ({"email": "ada@lab.org", "email_verified": True}, True),
        ({"email": "ada@lab.org", "email_verified": False}, False),
        ({"email": "ada@lab.org", "email_verified": "false"}, False),
        ({"email": "eve@other.org"}, False),
        ({"email": "eve@lab.org.evil.org"}, False),
        ({"email": "@lab.org"}, False),
        ({"email": ""}, False),
        ({"email": None}, False),
        ({}, False),
    ],
)
def test_named_addresses(user: dict[str, object], enters: bool) -> None:
    assert access.may_enter(user, ("@lab.org", "bob@other.org")) is enters
