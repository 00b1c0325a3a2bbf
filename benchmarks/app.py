"""What the dashboard costs the server, on the real model: pages, selections, long prompts, messages, memory, four users.

No peer has a page for most of this, so these are figures against a budget and not ratios. Pages run by Streamlit's own test
runner, without a browser: the time is that of the script, the messages are those that a browser would get.

1. Each page on a finished run: the first visit, then visits of new sessions with the results at hand, then another token or
   head chosen in one session.
2. A prompt of 1,000 tokens on the overview, and another head of 1,024 x 1,024 on the attention page.
3. Fifty prompts one after the other: resident memory before and after.
4. Four threads with a prompt each: every answer is bit for bit the one that a single user gets.

make demo && python benchmarks/app.py [--run runs/demo]
"""

import argparse
import gc
import logging
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from measure import report

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "app"))
BUDGET = {"at_hand_s": 1.0, "selection_s": 0.15, "long_s": 0.3, "message_mb": 8.0, "memory_growth": 0.05}
HEADS = ("heads", "head", "attention")
ROUNDS, PROMPTS = 5, 50


def main() -> None:
    """All four parts."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--run", type=Path, default=ROOT / "runs" / "demo")
    run = arguments.parse_args().run.resolve()
    if not (run / "demo.json").is_file():
        raise SystemExit(f"{run} holds no finished run: make demo, or give --run")
    os.environ |= {"INTERP_RUN": str(run), "INTERP_WORKSPACE": str(run.parent)}
    logging.getLogger("streamlit").setLevel(logging.ERROR)
    from ui import pages, services

    services.engine()
    names = [name for listed in pages.PAGES.values() for name, _, _ in listed]
    rows = [page_row(name) for name in names]
    rows += [long_strip(), long_attention(), memory(), four_users()]
    report("app", rows)


# ------------------------------------------------------------------------------------------------------------ a session


def session(name: str, **state: Any) -> Any:
    """A new session on a page, not run yet; `state` as the URL has it."""
    from streamlit.testing.v1 import AppTest

    test = AppTest.from_file(str(ROOT / "app" / "main.py"), default_timeout=600)
    test.switch_page(f"views/{name}.py")
    for key, value in state.items():
        test.query_params[key] = value
    return test


def timed(test: Any) -> tuple[float, float]:
    """Seconds of a run, and megabytes of its messages."""
    from streamlit.testing.v1 import local_script_runner

    sizes: list[int] = []
    own = local_script_runner.LocalScriptRunner.forward_msgs

    def counted(runner: Any) -> Any:
        found = own(runner)
        sizes.append(sum(message.ByteSize() for message in found))
        return found

    vars_of: Any = local_script_runner.LocalScriptRunner
    vars_of.forward_msgs = counted
    try:
        start = time.perf_counter()
        test.run()
        seconds = time.perf_counter() - start
    finally:
        vars_of.forward_msgs = own
    if test.exception:
        raise SystemExit(f"a page failed: {test.exception[0].value}")
    return seconds, max(sizes, default=0) / 2**20


def page_row(name: str) -> dict[str, Any]:
    """One page: first visit, results at hand, a selection."""
    first, size = timed(session(name))
    at_hand = [timed(session(name))[0] for _ in range(ROUNDS)]
    test = session(name)
    test.run()
    chosen = [("_head", str(i % 3)) if name in HEADS else ("_pos", str(2 + i % 3)) for i in range(3 + ROUNDS)]
    if name in HEADS:
        test.session_state["_layer"] = "3"
    selection = []
    for number, (key, value) in enumerate(chosen):
        test.session_state[key] = value
        seconds, sent = timed(test)
        size = max(size, sent)
        if number >= 3:  # each value was chosen once: its results are at hand
            selection.append(seconds)
    return {
        "what": name,
        "first_s": first,
        "at_hand_s": statistics.median(at_hand),
        "selection_s": statistics.median(selection),
        "message_mb": size,
        "within": statistics.median(at_hand) < BUDGET["at_hand_s"]
        and statistics.median(selection) < BUDGET["selection_s"]
        and size < BUDGET["message_mb"],
    }


def long_prompt(n_tokens: int) -> str:
    """Bundled text of so many tokens."""
    import interp
    from ui import services

    tokenizer = services.engine().model.tokenizer
    text = "\n".join(interp.load_corpus("books").texts)[:20_000]
    ids = tokenizer.encode(text)[:n_tokens]
    cut = tokenizer.decode(ids, skip_special=True)
    return cut[:10_000]


def long_strip() -> dict[str, Any]:
    """The overview of a prompt of 1,000 tokens, another token chosen."""
    from ui import services, state

    prompt = long_prompt(1000)
    view = state.save_view(prompt)
    test = session("overview", view=view)
    first, size = timed(test)
    seconds = []
    for number in range(ROUNDS + 2):
        test.session_state["_pos"] = str(500 + number % 2)
        took, sent = timed(test)
        size = max(size, sent)
        seconds += [took] if number >= 2 else []
    median = statistics.median(seconds)
    return {
        "what": f"overview of {len(services.token_ids(prompt)):,} tokens",
        "first_s": first,
        "selection_s": median,
        "message_mb": size,
        "within": median < BUDGET["long_s"] and size < BUDGET["message_mb"],
    }


def long_attention() -> dict[str, Any]:
    """Another head of a prompt of 1,024 tokens."""
    from ui import services, state

    prompt = long_prompt(1024)
    test = session("attention", view=state.save_view(prompt), layer="12", head="0")
    first, size = timed(test)
    seconds = []
    for head in range(1, 1 + ROUNDS):  # each for the first time: the layer is at hand, the head is not
        test.session_state["_head"] = str(head)
        took, sent = timed(test)
        seconds.append(took)
        size = max(size, sent)
    median = statistics.median(seconds)
    n = len(services.token_ids(prompt))
    return {
        "what": f"another head at {n:,} x {n:,}",
        "first_s": first,
        "selection_s": median,
        "message_mb": size,
        "within": median < BUDGET["long_s"] and size < BUDGET["message_mb"],
    }


def resident() -> int:
    """Resident memory of this process, bytes."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def memory() -> dict[str, Any]:
    """Fifty prompts after as many that filled the caches."""
    import interp

    texts = [text[:200] for text in interp.load_corpus("books").texts]

    def visit(number: int) -> None:
        for name in ("overview", "lens", "attention"):
            session(name, prompt=f"{number}: {texts[number % len(texts)]}").run()

    for number in range(PROMPTS):
        visit(number)
    before = resident()
    for number in range(PROMPTS, 2 * PROMPTS):
        visit(number)
    after = resident()
    growth = after / before - 1
    return {
        "what": f"memory over {PROMPTS} prompts",
        "before_mb": before / 2**20,
        "after_mb": after / 2**20,
        "growth": growth,
        "within": growth < BUDGET["memory_growth"],
    }


def four_users() -> dict[str, Any]:
    """Four prompts at once, each asked in another order, against one user alone."""
    import streamlit as st

    from ui import services

    prompts = [f"The number {number} is followed by the number" for number in ("one", "two", "three", "four")]
    asks: list[Callable[[str], Any]] = [
        lambda prompt: services.tokens(prompt)[0],
        lambda prompt: services.lens(prompt)[0],
        lambda prompt: services.attention(prompt, 7),
        lambda prompt: services.next_tokens(prompt, 3),
    ]
    st.cache_data.clear()
    alone = [[ask(prompt) for ask in asks] for prompt in prompts]
    st.cache_data.clear()
    found: list[list[Any]] = [[] for _ in prompts]

    def user(number: int) -> None:
        answers = {k: asks[k](prompts[number]) for k in np.roll(np.arange(len(asks)), number).tolist()}
        found[number] = [answers[k] for k in range(len(asks))]

    threads = [threading.Thread(target=user, args=(number,)) for number in range(len(prompts))]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - start
    same = all(
        (one == other).all() if isinstance(one, np.ndarray) else one.equals(other)
        for ours, theirs in zip(alone, found, strict=True)
        for one, other in zip(ours, theirs, strict=True)
    )
    return {"what": "four users at once", "seconds": seconds, "same_bits": bool(same), "within": bool(same)}


if __name__ == "__main__":
    main()
