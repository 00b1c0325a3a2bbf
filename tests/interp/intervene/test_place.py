"""Which tokens are touched: the same ones in every kind of pass, alone and in a batch, counted by hand."""

import json
from functools import partial
from typing import Any

import pytest
import torch
from tiny import tiny_model
from torch import Tensor
from touched import touched

from interp.hooks import HookContext
from interp.intervene import Ablate, Erase, Noise, Patch, Steer
from interp.intervene.place import Where, check_place, describe_place
from interp.model import HookedTransformer
from interp.model.generate import Generation
from interp.sae import SAE
from interp.sae.edit import SteerLatent
from interp.steering import SteeringVector

PROMPTS = ["ab:cd", "x:y:zw1"]
TEXTS = ["ab:cde:fg", "x:y:zw1h:ij"]
"""Prompts, and what the scripted model makes of them; a byte is a token, so a character's place is its position."""
N_NEW = 4


def span(start: int, stop: int) -> set[int]:
    return set(range(start, stop))


PLACES: list[tuple[Any, set[int], set[int]]] = [
    # The last token of a text is chosen and not fed, so positions end at 7 and at 9.
    ("all", span(0, 8), span(0, 10)),
    ("prompt", span(0, 5), span(0, 7)),
    ("generated", span(4, 8), span(6, 10)),
    (Where("generated", positions=range(6)), {4, 5}, set()),
    (Where(positions=[0, 6]), {0, 6}, {0, 6}),
    (Where(positions=[-1]), {4}, {6}),
    (Where(positions=[-6, 2]), {2}, {1, 2}),
    (Where("generated", positions=[-1, 7]), {4, 7}, {6, 7}),
    (Where(rows=[1]), set(), span(0, 10)),
    (Where(rows=[0], positions=[-1]), {4}, set()),
    (Where(after=":"), span(2, 8), span(1, 10)),
    (Where(after=":", occurrence="last"), span(2, 8), span(3, 10)),
    (Where("prompt", after=":"), span(2, 5), span(1, 7)),
    (Where(after=":", positions=[3, -1, 7]), {3, 4, 7}, {3, 6, 7}),
    # What the model writes, and what begins in the prompt and ends in what it writes.
    (Where(after="e:", missing="skip"), {6, 7}, set()),
    (Where(after="1h", missing="skip"), set(), span(7, 10)),
    (Where(after="h", missing="skip"), set(), span(7, 10)),
    (Where(after="e:", occurrence="last", missing="skip", positions=[5]), set(), set()),
    (Where(after="y:", missing="skip"), set(), span(3, 10)),
    (Where(after="y:", rows=[1]), set(), span(3, 10)),
]


class Script:
    """Makes a model write TEXTS, whatever is done to its stream, and notes the tokens that an ablation made zero."""

    def __init__(self, model: HookedTransformer, row: int | None = None) -> None:
        self.model = model
        texts = TEXTS if row is None else [TEXTS[row]]
        longest = max(map(len, texts))
        rows = torch.tensor([model.tokenizer.encode(text.ljust(longest)) for text in texts])
        wanted = model.embed.weight[rows]
        self.ids, self.wanted = rows, 50 * wanted / wanted.norm(dim=-1, keepdim=True)
        self.zeros: dict[str, list[set[int]]] = {}

    def note(self, value: Tensor, ctx: HookContext) -> None:
        rows = self.zeros.setdefault(ctx.phase, [set() for _ in value])
        zero = (value == 0).all(-1)
        assert not bool((zero & ~ctx.mask).any()), "a pad was touched"
        for row, column in zero.nonzero().tolist():
            rows[row].add(int(ctx.positions[row, column]))

    def write(self, value: Tensor, ctx: HookContext) -> Tensor:
        """Point each token at the one that the script has next."""
        rows = torch.arange(len(value))[:, None] // (len(value) // len(self.ids))
        return self.wanted[rows, (ctx.positions + 1).clamp(max=self.ids.shape[1] - 1)]

    def touched(self, run: Any, where: Any) -> list[set[int]]:
        """Positions by row; with several samples, each has those of its prompt too."""
        self.zeros = {}
        hooks = {"resid_pre:1": self.note, "ln_final.normalized": self.write}
        with self.model.intervene(Ablate(sites="resid_post:0", kind="zero", where=where)), self.model.hooks(hooks):
            out = run()
        if isinstance(out, Generation):
            assert {row.text for row in out.rows} <= {text[-N_NEW:] for text in TEXTS}
        phases = list(self.zeros.values())
        n = max(map(len, phases))
        return [set().union(*(rows[row * len(rows) // n] for rows in phases)) for row in range(n)]


def steps(model: HookedTransformer, ids: list[int], prompt_len: int) -> None:
    """A generation without a cache: every pass runs over the whole text."""
    for n in range(prompt_len, len(ids)):
        model(ids[:n], prompt_len=prompt_len)


def test_the_same_tokens_in_every_kind_of_pass() -> None:
    """One pass, prefill and decode (of a model that forgets old keys), without a cache; alone, padded, sampled."""
    model = tiny_model("mistral")
    script, alone = Script(model), [Script(model, row) for row in (0, 1)]
    fed, lengths = [text[:-1] for text in TEXTS], [len(prompt) for prompt in PROMPTS]
    padded = [model.tokenizer.tokenize(fed, pad=pad) for pad in ("right", "left")]
    for index, (where, *expected) in enumerate(PLACES):
        for tokens in padded:
            assert script.touched(partial(model, tokens, prompt_len=lengths), where) == expected, where
        assert script.touched(partial(model.generate, PROMPTS, N_NEW), where) == expected, where
        sampled = script.touched(partial(model.generate, PROMPTS, N_NEW, n_samples=3, temperature=1.0), where)
        assert sampled == [expected[0]] * 3 + [expected[1]] * 3, where
        row = index % 2
        if (isinstance(where, Where) and where.rows) or not expected[row]:
            continue
        runs = (
            partial(model, fed[row], prompt_len=lengths[row]),
            partial(model.generate, PROMPTS[row], N_NEW),
            partial(steps, model, alone[row].ids[0].tolist(), lengths[row]),
        )
        for run in runs:
            assert alone[row].touched(run, where) == [expected[row]], (where, run)


def test_the_same_tokens_where_a_growing_text_is_run_again() -> None:
    """The rotations of this model hang on the text's length, so decode passes run over all tokens."""
    model = tiny_model("dynamic")
    script = Script(model)
    for where, *expected in PLACES:
        assert script.touched(partial(model.generate, PROMPTS, N_NEW), where) == expected, where


@pytest.mark.parametrize("family", ["llama", "dynamic"])
def test_phases_part_the_tokens_of_a_generation(family: str) -> None:
    model = tiny_model(family)
    script = Script(model)
    run = partial(model.generate, PROMPTS, N_NEW)
    assert script.touched(run, Where(phase="prefill")) == [span(0, 5), span(0, 7)]
    assert script.touched(run, Where(phase="decode")) == [span(5, 8), span(7, 10)]
    assert script.touched(run, Where(phase="decode", after=":")) == [span(5, 8), span(7, 10)]
    assert script.touched(run, Where(phase="decode", after="e:", missing="skip")) == [{6, 7}, set()]
    assert script.touched(run, Where(phase="prefill", positions=[-1])) == [{4}, {6}]
    with pytest.raises(ValueError, match="found no token"):
        script.touched(run, Where(phase="forward"))


def test_a_text_without_a_prompt_ends_where_it_ends(tiny: HookedTransformer) -> None:
    assert touched(tiny, ["abc", "abcdef"], Where(positions=[-1, -5])) == [[2], [1, 5]]
    assert touched(tiny, ["a:c:e", ":bcdef"], Where(after=":", occurrence="last")) == [[3, 4], [0, 1, 2, 3, 4, 5]]
    left = tiny.tokenizer.tokenize(["abc", "abcdef"], pad="left")
    assert touched(tiny, left, Where(positions=[-1, -5])) == [[5], [1, 5]]
    assert touched(tiny, left, Where(after="bc")) == [[5], [2, 3, 4, 5]]
    with pytest.raises(ValueError, match="prompt_len"):
        touched(tiny, "abc", Where("prompt", positions=[-1]))


def test_a_hook_knows_the_texts_so_far(tiny: HookedTransformer) -> None:
    seen: list[list[list[int]]] = []

    def note(value: Tensor, ctx: HookContext) -> None:
        assert ctx.ids is not None
        assert ctx.real is not None
        assert ctx.ids.shape == ctx.real.shape
        seen.append([ids[real].tolist() for ids, real in zip(ctx.ids, ctx.real, strict=True)])

    with tiny.hooks({"embed": note}):
        out = tiny.generate(PROMPTS, 4, n_samples=2, temperature=1.0, stop_at_eos=False)
    assert seen[0] == [tiny.tokenizer.encode(prompt) for prompt in PROMPTS]
    for step, rows in enumerate(seen[1:], 1):
        assert rows == [row.all_tokens[: len(row.prompt_tokens) + step] for row in out.rows]
    with tiny.hooks({"resid_pre:1": lambda value, ctx: seen.append(ctx.ids)}):
        tiny(torch.zeros(1, 3, 32), start_at_layer=1)
    assert seen[-1] is None


class Halve:
    """A map of rows, as an eraser is."""

    site, rank, kind = "blocks.0.hook_resid_post", 1, "halve"

    def __call__(self, X: Tensor) -> Tensor:
        return X / 2


@pytest.mark.parametrize(
    "make",
    [
        lambda **place: Ablate(sites="resid_post:0", kind="zero", **place),
        lambda **place: Ablate(mlps=[0], kind="resample", reference=["a longer text"], seed=1, **place),
        lambda **place: Patch("resid_post:0", torch.ones(1, 8, 32), **place),
        lambda **place: Patch("pattern:0", torch.eye(8).expand(1, 4, 8, 8), **place),
        lambda **place: Erase(Halve(), **place),
        lambda **place: Noise("resid_post:0", **place),
        lambda **place: SteerLatent(an_sae(), 3, value=2.0, **place),
        lambda **place: Steer(SteeringVector(torch.ones(32) / 32**0.5, "blocks.0.hook_resid_post", 5.0), 1.0, **place),
    ],
)
def test_every_intervention_takes_a_place(tiny: HookedTransformer, make: Any) -> None:
    text = "some:abc"

    def run(**place: Any) -> Tensor:
        with tiny.intervene(make(**place)):
            return tiny(text)

    expected = run(positions=[4, 5, 6, 7])
    assert not torch.equal(expected, tiny(text))
    for place in (
        {"where": Where(after=":")},
        {"where": Where(positions=range(4, 8))},
        {"where": Where(positions=[-1, -2, -3, -4])},
        {"positions": [-1, -2, -3, -4]},
    ):
        assert torch.equal(run(**place), expected), place
    with pytest.raises(ValueError, match="say positions and phase in it"):
        make(where=Where(after=":"), positions=[1])
    with pytest.raises(ValueError, match="'answer' is unknown"):
        make(where="answer")
    edit = make(where=Where(after=":", positions=[-1]))
    if not isinstance(edit, Patch):
        described = json.loads(json.dumps(edit.describe()))
        assert Where(**described["where"]) == edit.where
        assert (described["positions"], described["phase"]) == (None, None)
        assert json.loads(json.dumps(make(where="prompt", positions=[0]).describe()))["positions"] == [0]


def an_sae() -> SAE:
    draw = torch.Generator().manual_seed(0)
    W_dec = torch.randn(40, 32, generator=draw)
    card = {"sites": ["blocks.0.hook_resid_post"], "typical_norm": 5.0}
    return SAE(W_dec.T.contiguous(), torch.zeros(40), W_dec, torch.zeros(32), card=card, k=5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Where("answer"), "all, prompt, generated"),
        (lambda: Where(phase="decoding"), "forward, prefill, decode"),
        (lambda: Where(positions=[]), "names no token"),
        (lambda: Where(positions=[1.5]), "whole numbers"),
        (lambda: Where(positions=[True]), "whole numbers"),
        (lambda: Where(positions="12"), "whole numbers"),
        (lambda: Where(positions=3), "whole numbers"),
        (lambda: Where(positions=[float("nan")]), "whole numbers"),
        (lambda: Where(rows=[-1]), "rows count from 0"),
        (lambda: Where(rows=[]), "names no"),
        (lambda: Where(after=""), "text of a marker"),
        (lambda: Where(after=7), "text of a marker"),
        (lambda: Where(after=":", occurrence="second"), "first, last"),
        (lambda: Where(after=":", missing="ignore"), "error, skip"),
        (lambda: Where(missing="skip"), "give after="),
        (lambda: Where(occurrence="last"), "give after="),
        (lambda: check_place(Where(), [1]), "say positions"),
        (lambda: check_place("all", None, "train"), "train"),
        (lambda: check_place(None), "unknown"),
    ],
)
def test_refusals(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_place_is_a_value_and_json() -> None:
    where = Where("generated", positions=[-1, 2], after="x", occurrence="last", missing="skip", rows=range(2))
    again = Where(**json.loads(json.dumps(where.describe())))
    assert again == where
    assert hash(again) == hash(where)
    assert where.positions == (-1, 2)
    assert describe_place(where) == {"where": where.describe(), "positions": None, "phase": None}
    assert describe_place("prompt", range(2), "forward") == {"where": "prompt", "positions": [0, 1], "phase": "forward"}


def test_on_the_real_model(smollm: HookedTransformer) -> None:
    """A chat's marker, in one pass, in a generation and in a batch."""
    tokenizer, marker = smollm.tokenizer, "<|im_start|>assistant\n"
    chats = [
        f"<|im_start|>user\n{question}<|im_end|>\n{marker}" for question in ("Hi!", "What is the capital of France?")
    ]
    prompts = [tokenizer.encode(chat) for chat in chats]
    with smollm.intervene(Ablate(sites="resid_post:4", kind="zero", where=Where(after=marker))):
        out = smollm.generate(chats, 4, stop_at_eos=False)
    for prompt, ids in zip(prompts, out.all_tokens, strict=True):
        by_hand = Ablate(sites="resid_post:4", kind="zero", positions=range(len(prompt) - 1, len(ids)))
        with smollm.intervene(by_hand), torch.no_grad():
            expected = smollm(ids)
        edit = Ablate(sites="resid_post:4", kind="zero", where=Where(after=marker))
        with smollm.intervene(edit), torch.no_grad():
            assert torch.equal(smollm(ids, prompt_len=len(prompt)), expected)
        chosen = expected[0, len(prompt) - 1 : -1].argmax(-1).tolist()
        assert chosen == ids[len(prompt) :]
