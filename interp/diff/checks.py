"""Which two models can be compared, and how deeply."""

from interp.model import HookedTransformer
from interp.model.inputs import refuse_encoder


def refuse_unlike(a: HookedTransformer, b: HookedTransformer) -> None:
    """ValueError unless both models give probabilities to the same tokens."""
    for model in (a, b):
        refuse_encoder(model.cfg, "a difference of next-token predictions")
    if a.cfg.d_vocab != b.cfg.d_vocab:
        raise ValueError(
            f"{a.cfg.name} has a vocabulary of {a.cfg.d_vocab} and {b.cfg.name} one of {b.cfg.d_vocab}: their predictions "
            "are not over the same tokens"
        )
    if a.tokenizer is None or b.tokenizer is None:
        return
    first, second = (model.tokenizer.backend for model in (a, b) if model.tokenizer is not None)
    for token in range(a.cfg.d_vocab):
        pieces = first.id_to_token(token), second.id_to_token(token)
        if pieces[0] != pieces[1]:
            raise ValueError(
                f"the tokenizers differ: token {token} is {pieces[0]!r} in {a.cfg.name} and {pieces[1]!r} in "
                f"{b.cfg.name}; only models of one tokenizer can be compared token by token"
            )


def refuse_other_tokens(
    a: HookedTransformer, b: HookedTransformer, rows: list[list[int]], others: list[list[int]]
) -> None:
    """ValueError where one vocabulary is applied by two rules: merges, normalisation or a BOS."""
    for index, (row, other) in enumerate(zip(rows, others)):
        if row != other:
            at = next((i for i, (x, y) in enumerate(zip(row, other)) if x != y), min(len(row), len(other)))
            raise ValueError(
                f"the tokenizers of {a.cfg.name} and {b.cfg.name} cut text {index} differently from token {at} on "
                f"({row[at : at + 3]} and {other[at : at + 3]}): pass token ids to compare on the same tokens"
            )


def why_not_layers(a: HookedTransformer, b: HookedTransformer) -> str:
    """Why the layers of two models cannot be compared; empty where they can."""
    for field in ("n_layers", "d_model", "n_heads", "norm_placement", "parallel"):
        values = getattr(a.cfg, field), getattr(b.cfg, field)
        if values[0] != values[1]:
            return f"{field} is {values[0]} in {a.cfg.name} and {values[1]} in {b.cfg.name}"
    return ""
