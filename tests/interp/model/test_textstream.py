"""Streaming text: pieces are whole characters, are never taken back, and join to the text before the first stop."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from interp.model.textstream import TextStream

TOKENS = st.lists(
    st.one_of(
        st.sampled_from(
            [b"a", b"b", b"ab", b"aab", b"", b"\xe2", b"\x9c", b"\x93", b"\xe2\x9c", b"\xc3", b"\xa9", b"\xff"]
        ),
        st.binary(max_size=3),
    ),
    max_size=25,
)
STOPS = st.lists(st.sampled_from(["ab", "aab", "b", "aba", "✓", "é", "a✓", "zz"]), max_size=3)


def run(tokens: list[bytes], stops: list[str]) -> tuple[list[tuple[str, int]], str, str | None]:
    """(pieces as (text, tokens so far), the text, the stop) of a stream that is asked after every token."""
    stream, pieces, stop = TextStream(stops), [], None
    for data in tokens:
        stop = stream.push(data)
        text, chosen = stream.take()
        pieces.append((text, chosen.stop))
        if stop is not None:
            break
    stream.close()
    text, chosen = stream.take()
    return [*pieces, (text, chosen.stop)], stream.text, stop


@given(tokens=TOKENS, stops=STOPS)
@example(tokens=[b"a", b"", b"ab"], stops=["ab"])
@example(tokens=[b"\xe2\x9c", b"", b"\x93b"], stops=["✓"])
@example(tokens=[b"a", b"a", b"b"], stops=["aab"])
@settings(max_examples=400, deadline=None)
def test_pieces_join_to_the_text_before_the_first_stop(tokens: list[bytes], stops: list[str]) -> None:
    pieces, text, stop = run(tokens, stops)
    whole = b"".join(tokens).decode("utf-8", "replace")
    assert "".join(piece for piece, _ in pieces) == text
    assert whole.startswith(text)
    counts = [count for _, count in pieces]
    assert counts == sorted(counts)
    if stop is None:
        assert text == whole
        assert counts[-1] == len(tokens)
    else:
        assert whole.startswith(text + stop)
        assert not any(found in text for found in stops)
        kept = b"".join(tokens[: counts[-1]])
        assert kept.decode("utf-8", "replace").startswith(text)
        assert not counts[-1] or len(b"".join(tokens[: counts[-1] - 1]).decode("utf-8", "ignore")) <= len(text)


@given(text=st.text(max_size=20), size=st.integers(1, 4))
@settings(max_examples=200, deadline=None)
def test_a_piece_never_holds_half_a_character(text: str, size: int) -> None:
    data = text.encode("utf-8", "ignore")
    pieces, whole, _ = run([data[at : at + size] for at in range(0, len(data), size)], [])
    assert whole == data.decode()
    assert all("\ufffd" not in piece for piece, _ in pieces) or "\ufffd" in whole


def test_what_could_begin_a_stop_waits() -> None:
    stream = TextStream(["END"])
    given: list[tuple[str, int]] = []
    for data in (b"the E", b"N", b"emy", b" E", b"N", b"D!"):
        stop = stream.push(data)
        text, chosen = stream.take()
        given.append((text, chosen.stop))
    assert given == [("the ", 1), ("", 1), ("ENemy", 3), (" ", 4), ("", 4), ("", 4)]
    assert (stop, stream.text) == ("END", "the ENemy ")


def test_a_character_in_three_tokens_comes_with_all_of_them() -> None:
    stream = TextStream()
    found = []
    for data in (b"a", b"\xe2", b"\x9c", b"\x93", b"\xe2"):
        stream.push(data)
        text, chosen = stream.take()
        found.append((text, chosen.start, chosen.stop))
    assert found == [("a", 0, 1), ("", 1, 1), ("", 1, 1), ("✓", 1, 4), ("", 4, 4)]
    stream.close()
    assert stream.take() == ("\ufffd", slice(4, 5))
