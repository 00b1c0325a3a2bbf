"""Places after a marker: found however tokens are cut, in prompts, in what the model writes, and in joined texts."""

from typing import Any

import pytest
import tokenizers
import torch
from tiny import tiny_model
from tokenizers import decoders, models, pre_tokenizers
from torch import Tensor
from touched import ablation, touched

from interp.hooks import HookContext
from interp.intervene.place import Where, chosen_tokens
from interp.model import HookedTransformer
from interp.tokens import Tokenizer, Tokens


def merging_tokenizer() -> Tokenizer:
    """Bytes, and some longer tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", ":"), ("t:", "x"), ("e", "n"), ("d", "_")]
    longer = ["".join(pair) for pair in merges]
    vocab = {piece: index for index, piece in enumerate([*alphabet, *longer])} | {"<|end|>": 260, "<|im|>": 261}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|end|>", "<|im|>"])
    return Tokenizer(backend, eos_id=260, special_ids=[260, 261], name="merges")


@pytest.mark.parametrize(
    ("text", "marker", "first"),
    [
        # a s s i s t:x y e s: the marker ends inside the token "t:x".
        ("assist:xyes", "assist:", 5),
        ("assist:yes", "assist:", 5),
        ("assist:yes", "sist", 5),
        ("q<|im|>assist: a", "<|im|>assist:", 7),
        ("<|im|>", "im", 0),
        ("end_it", "nd_", 1),
        # é is two tokens; the later one ends it.
        ("café au lait", "é", 4),
        ("日本:語", "本:", 6),
    ],
)
def test_a_marker_is_found_however_tokens_are_cut(text: str, marker: str, first: int) -> None:
    model = tiny_model("llama", d_vocab=264)
    model.tokenizer = merging_tokenizer()
    ids = model.tokenizer.encode(text)
    assert touched(model, text, Where(after=marker)) == [list(range(first, len(ids)))]
    by_bytes = [i for character in text for i in model.tokenizer.encode(character)]
    end = text.encode().index(marker.encode()) + len(marker.encode())
    assert touched(model, by_bytes, Where(after=marker)) == [list(range(end - 1, len(by_bytes)))]


def test_packed_texts_and_trees_are_searched_one_by_one(tiny: HookedTransformer) -> None:
    ids = torch.tensor([tiny.tokenizer.encode("a:bcd:e")])
    real = torch.ones_like(ids, dtype=torch.bool)
    packed = Tokens(ids, real, documents=torch.tensor([[0, 0, 0, 1, 1, 1, 1]]))
    assert touched(tiny, packed, Where(after=":")) == [[1, 2, 5, 6]]
    with pytest.raises(ValueError, match="a text of row 0 does not hold"):
        touched(tiny, packed, Where(after="b"))
    assert touched(tiny, packed, Where(after="b", missing="skip")) == [[2]]
    with pytest.raises(ValueError, match="several texts"):
        touched(tiny, packed, Where(positions=[-1]))
    # a : b with the ends c d and : e
    tree = Tokens(ids, real, parents=torch.tensor([[-1, 0, 1, 2, 3, 2, 5]]))
    assert touched(tiny, tree, Where(after=":")) == [[1, 2, 3, 4, 5, 6]]
    assert touched(tiny, tree, Where(after="c", missing="skip")) == [[3, 4]]
    assert touched(tiny, tree, Where(after="b:", missing="skip")) == [[5, 6]]
    assert touched(tiny, tree, Where(after=":", occurrence="last"), prompt_len=3) == [[1, 2, 3, 4, 5, 6]]
    assert touched(tiny, tree, Where(positions=[-1]), prompt_len=3) == [[2]]
    with pytest.raises(ValueError, match="each text of a tree"):
        touched(tiny, tree, Where(after=":", occurrence="last"))


def test_a_missing_marker_is_an_error_unless_it_may_be_missing(tiny: HookedTransformer) -> None:
    with pytest.raises(ValueError, match=r"text 1 does not hold the marker ':', it ends 'no marker'.*missing='skip'"):
        touched(tiny, ["a:b", "no marker"], Where(after=":"))
    assert touched(tiny, ["a:b", "no marker"], Where(after=":", missing="skip")) == [[1, 2], []]
    assert touched(tiny, ["no", "nor"], Where(after=":", missing="skip")) == [[], []]
    # A marker in what follows the prompt is none of the prompt's: the same in one pass and in a generation.
    with pytest.raises(ValueError, match="the prompt of text 0"):
        touched(tiny, "ab:c", Where(after=":"), prompt_len=2)
    with pytest.raises(ValueError, match="the prompt of text 0"), tiny.intervene(ablation(Where(after=":"))):
        tiny.generate("ab", 1)
    with pytest.raises(ValueError, match="found no token"):
        touched(tiny, ["a:b"], Where(after=":", rows=[3]))


def test_a_stream_and_a_model_without_a_tokenizer_know_no_marker(tiny: HookedTransformer) -> None:
    _, cache = tiny.run_with_cache("a:b", sites="resid_pre:0")
    stream, where = cache["resid_pre", 0], Where(after=":")
    with pytest.raises(ValueError, match="began from a stream"):
        touched(tiny, stream, where, start_at_layer=0)
    assert touched(tiny, stream, where, start_at_layer=0, tokens=tiny.tokenize("a:b")) == [[1, 2]]
    assert touched(tiny, stream, Where(positions=[-1]), start_at_layer=0) == [[2]]
    tiny.tokenizer = None
    with pytest.raises(ValueError, match="needs a tokenizer"):
        touched(tiny, [[97, 58]], where)


def test_two_generations_read_in_turns_keep_apart(tiny: HookedTransformer) -> None:
    where = Where(after=":")
    texts = ["ab:cd", "a longer one:x"]
    alone = []
    with tiny.intervene(ablation(where)):
        alone = [tiny.generate(text, 6, stop_at_eos=False).tokens for text in texts]
        streams = [tiny.generate_stream(text, 6, stop_at_eos=False) for text in texts]
        for _ in range(3):
            for stream in streams:
                next(stream)
        assert [stream.finish().tokens for stream in streams] == alone


def test_the_prompt_is_searched_once_for_all_sites(tiny: HookedTransformer, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    own = Tokenizer.token_bytes
    monkeypatch.setattr(Tokenizer, "token_bytes", lambda self, i: asked.append(i) or own(self, i))

    class Look:
        def __init__(self, where: Any) -> None:
            self.where, self.same = where, []

        def hook_functions(self, model: HookedTransformer) -> list[Any]:
            return [(f"blocks.{layer}.hook_resid_pre", self.look) for layer in (0, 1)]

        def look(self, value: Tensor, ctx: HookContext) -> None:
            self.same.append((ctx.step, ctx.mask, chosen_tokens(ctx, self.where)))

    tokens = torch.tensor([tiny.tokenizer.encode("ab:cd")])
    for where, n_asked in ((Where(after=":"), 5), (Where(after="never", missing="skip"), 5 + 3), ("all", 0)):
        look = Look(where)
        asked.clear()
        with tiny.intervene(look), torch.inference_mode():
            stream = tiny.generate_stream(tokens, 4, stop_at_eos=False)
            for _ in stream:
                pass
        # Generation itself asks for each new token.
        assert len(asked) - 4 == n_asked, where
        for (_, mask, first), (_, _, second) in zip(look.same[::2], look.same[1::2], strict=True):
            assert first is second
            assert (first is mask) is (where == "all")
