"""Who may open the app. `gate()` runs before anything else, on every run of the script and so on every deep link.

1. On this machine alone, with no password set, everybody who can reach the server may: nothing is asked.
2. With $INTERP_APP_PASSWORD a form asks for it. The password itself leaves the environment at once, and a salted hash
   (scrypt) takes its place: jobs and other children of the server inherit no secret, and no log or URL sees one.
3. With an `[auth]` section in secrets.toml, `st.login` asks the provider who it is. That alone lets in everybody who has an
   account there, so `[interp] allowed` must name the addresses (`ada@lab.org`, or `@lab.org` for all of a domain).
4. A server that others can reach and that has neither lets nobody in.
"""

import hashlib
import hmac
import logging
import os
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import streamlit as st

from ui import states, text

logger = logging.getLogger("interp.app")

PASSWORD = "INTERP_APP_PASSWORD"
HASH = "INTERP_APP_LOGIN"
REMOTE = "INTERP_APP_REMOTE"
SECRET_VARIABLES = (PASSWORD, HASH)
"""What no child process may inherit."""
MAX_CHARS = 256
MAX_FAILURES = 5
"""Wrong passwords in a row, of all sessions together, before the server waits ..."""
WAIT_S = 30.0
"""... so many seconds; nothing is compared meanwhile."""
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_FLAG = "_entered"


def gate() -> None:
    """Stop the script, with a form or a reason, unless this session may see the app."""
    allowed = _allowed()
    held = _held()
    if allowed is None and held is None:
        if _others_can_come():
            _refuse(
                "This server asks nobody who they are",
                "It listens beyond this machine and has no password, so it shows nothing. Start it by `interp app "
                f"--allow-remote` with ${PASSWORD} set, or with `st.login` configured.",
            )
        return
    if allowed is not None:
        _ask_provider(allowed)
    if held is not None:
        _ask_password(held)


def way_out() -> None:
    """A button that ends the session, where there is something to log in to."""
    if (_allowed() is not None or _held() is not None) and st.button(
        "Log out", icon=":material/logout:", key="access_out"
    ):
        st.session_state.clear()
        if _allowed() is not None:
            st.logout()
        st.rerun()


# ------------------------------------------------------------------------------------------------------------ password

_lock = threading.Lock()
_failures = 0
_closed_until = 0.0


def forget() -> None:
    """No failures so far, as after a start."""
    global _failures, _closed_until
    with _lock:
        _failures, _closed_until = 0, 0.0


def _held() -> str | None:
    """The hash of the password, `salt:hash`; None where there is no password.

    It stands in the environment, not in a variable of this module: a module that is imported anew would let everybody in.
    """
    with _lock:
        password = os.environ.get(PASSWORD)
        if password is not None:
            os.environ[HASH] = _hashed(password, secrets.token_bytes(16))
            del os.environ[PASSWORD]
        return os.environ.get(HASH)


def _hashed(password: str, salt: bytes) -> str:
    derived = hashlib.scrypt(password.encode("utf-8", "surrogatepass"), salt=salt, n=2**14, r=8, p=1)
    return f"{salt.hex()}:{derived.hex()}"


def _ask_password(held: str) -> None:
    # The flag is the hash: another password, and every session has to log in again.
    if hmac.compare_digest(str(st.session_state.get(_FLAG, "")), held):
        return
    with (
        st.container(horizontal_alignment="center"),
        st.form("access_form", clear_on_submit=True, width=420),
    ):
        st.header("Log in", anchor=False)
        typed = st.text_input(
            "Password", type="password", max_chars=MAX_CHARS, autocomplete="current-password", key="access_password"
        )
        sent = st.form_submit_button("Log in", type="primary", icon=":material/login:")
    if sent:
        wait = _wait()
        if wait > 0:
            st.error(f"Too many wrong passwords: wait {wait:.0f} s.", icon=":material/timer:")
        elif _right(typed, held):
            st.session_state[_FLAG] = held
            st.rerun()
        else:
            st.error("That is not the password.", icon=":material/block:")
    st.stop()


def _wait() -> float:
    with _lock:
        return max(0.0, _closed_until - time.monotonic())


def _right(typed: str, held: str) -> bool:
    global _failures, _closed_until
    salt = bytes.fromhex(held.partition(":")[0])
    right = len(typed) <= MAX_CHARS and hmac.compare_digest(_hashed(typed, salt), held)
    with _lock:
        _failures = 0 if right else _failures + 1
        if _failures >= MAX_FAILURES:
            _failures, _closed_until = 0, time.monotonic() + WAIT_S
            logger.warning("%d wrong passwords in a row: nobody can log in for %.0f s", MAX_FAILURES, WAIT_S)
    return right


# ------------------------------------------------------------------------------------------------------------ provider


def _allowed() -> tuple[str, ...] | None:
    """Addresses that may come in by `st.login`; None where it is not configured, empty where nobody is named."""
    if not st.secrets.load_if_toml_exists() or "auth" not in st.secrets:
        return None
    section = st.secrets.get("interp", {})
    listed = section.get("allowed", ()) if isinstance(section, Mapping) else ()
    listed = [listed] if isinstance(listed, str) else listed
    return tuple(str(each).strip().lower() for each in listed if str(each).strip())


def _ask_provider(allowed: Sequence[str]) -> None:
    if not allowed:
        _refuse(
            "Nobody is allowed in",
            'secrets.toml has [auth] and names nobody. Add [interp] with allowed = ["ada@lab.org", "@lab.org"].',
        )
    if not st.user.get("is_logged_in", False):
        with st.container(border=True, width=420):
            st.header("Log in", anchor=False)
            st.button("Log in with your account", on_click=st.login, type="primary", key="access_login")
        st.stop()
    if not may_enter(st.user.to_dict(), allowed):
        st.button("Log out", on_click=st.logout, key="access_other")
        _refuse("This account may not come in", "It is not among those that the server names. Ask who runs it.")


def may_enter(user: Mapping[str, Any], allowed: Sequence[str]) -> bool:
    """Whether the provider's account is named, by its address or by its domain; an unverified address never is."""
    address = str(user.get("email") or "").strip().lower()
    name, at, domain = address.rpartition("@")
    if not (name and at and domain) or str(user.get("email_verified", True)).lower() in ("false", "0"):
        return False
    return address in allowed or f"@{domain}" in allowed


# -------------------------------------------------------------------------------------------------------------- others


def _others_can_come() -> bool:
    """Whether the server listens beyond this machine, or was started to."""
    address = st.get_option("server.address")
    # An address that is not set means all of them; there is none at all where no server runs.
    return bool(os.environ.get(REMOTE)) or (address is not None and address not in LOOPBACK)


def _refuse(title: str, why: str) -> NoReturn:
    states.empty(title, text.printable(why))
    st.stop()
