"""Call sites of the kind that tutorials use, part 1: passes, losses, text, generation, utils.

A case is a function of the library `tl` (TransformerLens, or our module under its name) and a model of it, here called on both
with the same weights. What it returns must be the same.
"""

from typing import Any

import pytest
import torch
from torch import Tensor


def ids(seed: int = 0, batch: int = 2, length: int = 9) -> Tensor:
    return torch.randint(0, 256, (batch, length), generator=torch.Generator().manual_seed(seed))


TEXT = "The cat sat on the mat."


# ---------------------------------------------------------------------------------------------------- passes and losses


def logits_of_ids(tl, model):
    return model(ids())


def logits_of_text(tl, model):
    return model(TEXT)


def logits_without_bos(tl, model):
    return model(TEXT, prepend_bos=False)


def loss_of_text(tl, model):
    return model(TEXT, return_type="loss")


def loss_per_token(tl, model):
    return model(ids(), return_type="loss", loss_per_token=True)


def logits_and_loss(tl, model):
    logits, loss = model(ids(), return_type="both")
    return logits, loss


def nothing_returned(tl, model):
    return model(ids(), return_type=None)


def one_row_of_ids(tl, model):
    return model(ids()[0])


def stream_before_a_layer(tl, model):
    return model(ids(), stop_at_layer=1), model(ids(), stop_at_layer=-1), model(ids(), stop_at_layer=0)


def from_a_layer_on(tl, model):
    stream = model(ids(), stop_at_layer=1)
    return model(stream, start_at_layer=1), model(stream, start_at_layer=-1, tokens=ids(), return_type="loss")


def texts_right_padded(tl, model):
    logits = model(["A cat", "A longer text"])
    return logits[0, :6], logits[1]


def given_attention_mask(tl, model):
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[1, :4] = 0
    return model(ids(), attention_mask=mask)[:, 4:], model(ids(), return_type="loss", attention_mask=mask)


def loss_function(tl, model):
    return model.loss_fn(model(ids()), ids()), model.loss_fn(model(ids()), ids(), per_token=True)


# ----------------------------------------------------------------------------------------------------------------- text


def text_to_tokens(tl, model):
    return model.to_tokens(TEXT), model.to_tokens(TEXT, prepend_bos=False), model.to_tokens(["a", "bcd"])


def text_to_tokens_left_padded(tl, model):
    return model.to_tokens(["a", "bcd"], padding_side="left")


def tokens_to_text(tl, model):
    tokens = model.to_tokens(TEXT)
    return model.to_string(tokens), model.to_string(tokens[0]), model.to_string([84, 104])


def text_to_str_tokens(tl, model):
    return model.to_str_tokens(TEXT), model.to_str_tokens(TEXT, prepend_bos=False), model.to_str_tokens(ids()[0])


def single_tokens(tl, model):
    return model.to_single_token("a"), model.to_single_str_token(70)


def token_positions(tl, model):
    first = model.get_token_position("t", TEXT)
    return (
        first,
        model.get_token_position("t", TEXT, mode="last"),
        model.get_token_position("t", TEXT, prepend_bos=False),
    )


def residual_directions(tl, model):
    one = model.tokens_to_residual_directions("a")
    return one, model.tokens_to_residual_directions(7), model.tokens_to_residual_directions(ids())


def tokenizer_attributes(tl, model):
    tokenizer = model.tokenizer
    numbers = tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.bos_token
    return numbers, tokenizer.decode([84, 104]), tokenizer.padding_side, len(tokenizer)


# ----------------------------------------------------------------------------------------------------------- generation


def greedy_text(tl, model):
    return model.generate(TEXT, max_new_tokens=6, do_sample=False, verbose=False, stop_at_eos=False)


def greedy_ids(tl, model):
    return model.generate(ids(2, 2, 4), max_new_tokens=6, temperature=0, verbose=False, stop_at_eos=False)


def greedy_texts(tl, model):
    return model.generate(
        ["A cat", "The dog ran"], max_new_tokens=5, do_sample=False, verbose=False, return_type="tokens"
    )


def greedy_until_a_token(tl, model):
    free = model.generate(ids(2, 2, 4), max_new_tokens=6, do_sample=False, verbose=False, stop_at_eos=False)
    return model.generate(ids(2, 2, 4), max_new_tokens=6, do_sample=False, verbose=False, eos_token_id=int(free[0, 6]))


def steered_generation(tl, model):
    vector = torch.linspace(-3, 3, model.cfg.d_model)
    with model.hooks(fwd_hooks=[("blocks.0.hook_resid_post", lambda value, hook: value + vector)]):
        return model.generate(TEXT, max_new_tokens=6, do_sample=False, verbose=False, stop_at_eos=False)


# ---------------------------------------------------------------------------------------------------------------- utils


def site_names(tl, model):
    name = tl.utils.get_act_name
    given = [
        ("k", 6, "a"),
        ("pre", 2),
        ("embed",),
        ("normalized", 27, "ln2"),
        ("k6",),
        ("scale4ln1",),
        ("pre5",),
        ("attn", 3),
    ]
    return [name(*each) for each in given]


def arrays(tl, model):
    x = torch.arange(24.0).view(2, 3, 4)
    utils = tl.utils
    small = (
        utils.get_corner(x, 2),
        utils.remove_batch_dim(x[:1]),
        utils.transpose(x),
        utils.to_numpy(x),
        utils.to_numpy([1, 2]),
    )
    return (
        small,
        utils.is_lower_triangular(torch.ones(3, 3).tril()),
        utils.is_square(x),
        utils.get_cumsum_along_dim(x, 1, True),
    )


def activations(tl, model):
    x = torch.linspace(-3, 3, 12).view(1, 2, 6)
    return tl.utils.gelu_new(x), tl.utils.gelu_fast(x), tl.utils.solu(x)


def losses(tl, model):
    logits = model(ids())
    loss = tl.utils.lm_cross_entropy_loss
    right = tl.utils.lm_accuracy(logits, ids()), tl.utils.lm_accuracy(logits, ids(), per_token=True)
    return loss(logits, ids()), loss(logits, ids(), per_token=True), right


def slices(tl, model):
    x = torch.arange(24.0).view(2, 3, 4)
    made = [tl.utils.Slice(each) for each in (1, (0, 2), [0, 2], None)]
    return [each.apply(x, 1) for each in made], [each.indices(3) for each in made]


def sampling(tl, model):
    logits = model(ids())[:, -1]
    torch.manual_seed(0)
    drawn = [tl.utils.sample_logits(logits, top_k=1), tl.utils.sample_logits(logits, temperature=0.0)]
    return drawn, tl.utils.sample_logits(logits, freq_penalty=1e4, tokens=ids()) == logits.argmax(-1)


CASES = [
    logits_of_ids,
    logits_of_text,
    logits_without_bos,
    loss_of_text,
    loss_per_token,
    logits_and_loss,
    nothing_returned,
    one_row_of_ids,
    stream_before_a_layer,
    from_a_layer_on,
    texts_right_padded,
    given_attention_mask,
    loss_function,
    text_to_tokens,
    text_to_tokens_left_padded,
    tokens_to_text,
    text_to_str_tokens,
    single_tokens,
    token_positions,
    residual_directions,
    tokenizer_attributes,
    greedy_text,
    greedy_ids,
    greedy_texts,
    greedy_until_a_token,
    steered_generation,
    site_names,
    arrays,
    activations,
    losses,
    slices,
    sampling,
]


@pytest.mark.parametrize("call", CASES, ids=lambda call: call.__name__)
def test_call_site(call: Any, same: Any) -> None:
    same(call)
