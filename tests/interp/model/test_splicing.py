"""SAEs in the model: their latents are sites, and a splice that nobody edits leaves no trace."""

import warnings
from typing import Any

import pytest
import torch
from tiny import shaken_model, tiny_model
from torch import Tensor

from interp.hooks import HookContext
from interp.intervene import Ablate, Patch
from interp.model import HookedTransformer
from interp.sae import SAE

TEXTS = ["hello there", "a longer text than that one"]
SITE = "blocks.0.hook_resid_post"
ACTS = f"{SITE}.hook_sae_acts_post"
PARTS = ["sae_input", "sae_acts_post", "sae_recons", "sae_error", "sae_output"]


def sae_of(
    d_in: int, d_out: int, sites: list[str], targets: list[str] | None = None, *, seed: int = 0, **options: Any
) -> SAE:
    """An SAE with random weights, in the style of a trained one."""
    generator = torch.Generator().manual_seed(seed)
    W_dec = torch.randn(48, d_out, generator=generator)
    W_dec = W_dec / W_dec.norm(dim=1, keepdim=True)
    W_enc = W_dec.T.contiguous() if d_in == d_out else torch.randn(d_in, 48, generator=generator) / d_in**0.5
    biases = 0.1 * torch.randn(48, generator=generator), 0.1 * torch.randn(d_out, generator=generator)
    card = {"sites": sites, "targets": targets or sites}
    return SAE(W_enc, biases[0], W_dec, biases[1], card=card, **(options or {"k": 6}))


ARCHITECTURES: dict[str, dict[str, Any]] = {
    "topk": {"k": 6},
    "relu": {"architecture": "relu"},
    "jumprelu": {"threshold": torch.full((48,), 0.5)},
    "gated": {"b_mag": torch.full((48,), 0.2), "r_mag": torch.full((48,), -0.3)},
}
PLACES: dict[str, tuple[int, int, list[str], list[str]]] = {
    "stream": (32, 32, [SITE], [SITE]),
    "heads": (32, 32, ["blocks.1.attn.hook_z"], ["blocks.1.attn.hook_z"]),
    "neurons": (64, 64, ["blocks.0.mlp.hook_post"], ["blocks.0.mlp.hook_post"]),
    "transcoder": (32, 32, ["blocks.1.ln2.hook_normalized"], ["blocks.1.hook_mlp_out"]),
    "from a copy": (32, 32, ["blocks.1.hook_mlp_in"], ["blocks.1.hook_mlp_out"]),
    "to several": (32, 64, [SITE], ["blocks.0.hook_resid_post", "blocks.1.hook_mlp_out"]),
    "from several": (64, 32, ["blocks.0.hook_mlp_out", "blocks.1.hook_resid_mid"], ["blocks.1.hook_mlp_out"]),
}


@pytest.fixture(params=["llama", "gpt2"])
def tiny(request: pytest.FixtureRequest) -> HookedTransformer:
    """A frozen tiny model."""
    return shaken_model(request.param).requires_grad_(False)


@pytest.fixture
def llama() -> HookedTransformer:
    """One of them, where the family does not matter."""
    return tiny_model("llama").requires_grad_(False)


@pytest.fixture
def sae() -> SAE:
    return sae_of(32, 32, [SITE])


def test_logits_are_bit_identical_with_the_error(tiny: HookedTransformer) -> None:
    """Whoever listens, with and without gradients, at every kind of place and for every architecture."""
    bare = tiny(TEXTS)
    cases = [sae_of(*place) for place in PLACES.values()]
    cases += [sae_of(32, 32, [SITE], **options) for options in ARCHITECTURES.values()]
    for case in cases:
        with tiny.splice(case):
            assert torch.equal(tiny(TEXTS), bare)
            logits, cache = tiny.run_with_cache(TEXTS, sites=tiny.site_names)
            assert torch.equal(logits, bare)
            with tiny.hooks({f"{case.targets[0]}.hook_{part}": lambda value, ctx: value.clone() for part in PARTS}):
                assert torch.equal(tiny(TEXTS), bare)
            number, _ = tiny.grad(lambda logits: logits[0, -1, 5], TEXTS, "*.hook_sae_*")
            assert number == bare[0, -1, 5]
        rows = torch.cat([cache[site].flatten(2) for site in case.sites], -1)
        assert torch.equal(cache[f"{case.targets[0]}.hook_sae_acts_post"], case.encode(rows))
        recons = torch.cat([cache[f"{target}.hook_sae_recons"] for target in case.targets], -1)
        assert torch.allclose(recons, case(rows), atol=1e-5)
    assert torch.equal(tiny(TEXTS), bare)


def test_an_edit_of_latents_changes_the_value_by_its_decoding(tiny: HookedTransformer) -> None:
    """The same logits as a hand-made hook on the place itself."""
    for place in PLACES.values():
        case = sae_of(*place)
        _, cache = tiny.run_with_cache(TEXTS, sites=[*case.sites, *case.targets])
        old = case.encode(torch.cat([cache[site].flatten(2) for site in case.sites], -1))
        new = old.clone()
        new[:, 2:, 3] += 4.0
        change = (case.decode(new) - case.decode(old)).split(case.d_out // len(case.targets), -1)
        by_target = dict(zip(case.targets, change))

        def by_hand(value: Tensor, ctx: HookContext, by_target: dict[str, Tensor] = by_target) -> Tensor:
            return value + by_target[ctx.name].view_as(value)

        with tiny.hooks(dict.fromkeys(case.targets, by_hand)):
            expected = tiny(TEXTS)
        with (
            tiny.splice(case),
            tiny.hooks({f"{case.targets[0]}.hook_sae_acts_post": lambda value, ctx, new=new: new}),
        ):
            assert torch.allclose(tiny(TEXTS), expected, atol=1e-4)
        assert not torch.allclose(tiny(TEXTS), expected, atol=1e-2)


def test_without_the_error_the_reconstruction_stands_in(tiny: HookedTransformer) -> None:
    for name in ("stream", "heads", "transcoder"):
        case = sae_of(*PLACES[name])
        _, cache = tiny.run_with_cache(TEXTS, sites=case.sites)
        recons = case(cache[case.sites[0]].flatten(2))
        with tiny.hooks({case.targets[0]: lambda value, ctx, recons=recons: recons.view_as(value)}):
            expected = tiny(TEXTS)
        with tiny.splice(case, error=False):
            assert not any("sae_error" in site for site in tiny.site_names)
            logits, cache = tiny.run_with_cache(TEXTS, sites=f"{case.targets[0]}.hook_sae_output")
        assert torch.allclose(logits, expected, atol=1e-5)
        assert torch.allclose(cache[f"{case.targets[0]}.hook_sae_output"].flatten(2), recons, atol=1e-6)


def test_the_sae_stands_at_some_tokens_only(llama: HookedTransformer) -> None:
    """The others keep their value, with the error and without; so does a head's output, which has an axis more."""
    for name in ("stream", "heads"):
        case = sae_of(*PLACES[name])
        site = case.sites[0]
        _, cache = llama.run_with_cache(TEXTS, sites=site)
        value = cache[site].flatten(2)
        for error in (True, False):
            with llama.splice(case, error=error, only=lambda ctx: ctx.positions > 0):
                acts = f"{site}.hook_sae_acts_post"
                with llama.hooks({acts: lambda value, ctx: 2 * value}):
                    _, found = llama.run_with_cache(TEXTS, sites=[acts, f"{site}.hook_sae_output"])
            new = case.decode(2 * case.encode(value)) + (value - case(value) if error else 0)
            out = found[f"{site}.hook_sae_output"].flatten(2)
            assert torch.equal(out[:, 0], value[:, 0])
            assert torch.allclose(out[:, 1:], new[:, 1:], atol=1e-4)
            assert torch.equal(found[acts], 2 * case.encode(value))


def test_gradients_are_those_of_a_computation_by_hand(llama: HookedTransformer) -> None:
    """At latents, error, output and before the SAE; gradients run through the reconstruction and not the error."""

    def metric(logits: Tensor) -> Tensor:
        return logits[0, 8, 5] - logits[1, -1, 7]

    for architecture in ARCHITECTURES.values():
        case = sae_of(32, 32, [SITE], **architecture)
        for error in (True, False):
            wanted = [ACTS, f"{SITE}.hook_sae_recons", f"{SITE}.hook_sae_output", SITE, "blocks.0.hook_resid_pre"]
            with llama.splice(case, error=error):
                number, found = llama.grad(metric, TEXTS, wanted + [f"{SITE}.hook_sae_error"] * error)
            start = llama.run_with_cache(TEXTS, sites="resid_pre:0")[1]["resid_pre", 0].requires_grad_()
            tokens = llama.tokenize(TEXTS)
            x = llama(start, start_at_layer=0, stop_at_layer=1, tokens=tokens)
            acts = case.encode(x)
            recons = case.decode(acts)
            rest = (x - recons).detach().requires_grad_()
            out = recons + rest if error else recons
            by_hand = metric(llama(out, start_at_layer=1, tokens=tokens))
            grads = torch.autograd.grad(by_hand, [acts, recons, out, x, start])
            assert number.item() == pytest.approx(by_hand.item(), abs=1e-4)
            for name, expected in zip(wanted, grads, strict=True):
                assert expected.abs().max() > 1e-3
                assert torch.allclose(found[name], expected, atol=1e-4, rtol=1e-3), (name, architecture, error)
            if error:
                assert torch.equal(found[f"{SITE}.hook_sae_error"], found[f"{SITE}.hook_sae_output"])


def test_with_error_grad_gradients_before_the_saes_are_the_bare_ones(llama: HookedTransformer, sae: SAE) -> None:
    wanted, cases = ["resid_pre:0", "z:0"], [sae, sae_of(*PLACES["transcoder"])]
    latents = [f"{case.targets[0]}.hook_sae_acts_post" for case in cases]
    number, bare = llama.grad(lambda logits: logits[0, 8, 5], TEXTS, [*wanted, *cases[1].targets])
    with llama.splice(cases):
        _, through_latents = llama.grad(lambda logits: logits[0, 8, 5], TEXTS, [*wanted, *latents])
    with llama.splice(cases, error_grad=True):
        again, found = llama.grad(lambda logits: logits[0, 8, 5], TEXTS, [*wanted, *latents])
        _, alone = llama.grad(lambda logits: logits[0, 8, 5], TEXTS, wanted)
    assert again == number
    for site in wanted:
        assert torch.allclose(found[site], bare[site], atol=1e-4)
        assert torch.equal(alone[site], bare[site])
        assert not torch.allclose(through_latents[site], bare[site], atol=1e-2)
    assert torch.allclose(found[latents[1]], bare[cases[1].targets[0]] @ cases[1].W_dec.T, atol=1e-4)
    assert torch.allclose(found[latents[1]], through_latents[latents[1]], atol=1e-4)
    with (
        pytest.raises(ValueError, match="which error=False leaves out"),
        llama.splice(sae, error=False, error_grad=True),
    ):
        pass


def test_gradients_pass_a_transcoder_and_not_the_mlp_it_stands_for(llama: HookedTransformer) -> None:
    case = sae_of(*PLACES["transcoder"])
    with llama.splice(case):
        _, found = llama.grad(lambda logits: logits[0, -1, 5], TEXTS[0], ["post:1", "ln2.normalized:1"])
    assert not found["post", 1].any()
    assert found["ln2.normalized:1"].any()


def test_functions_on_the_place_come_first(llama: HookedTransformer, sae: SAE) -> None:
    """Also those that are attached later: the SAE reads what they leave."""
    with llama.splice(sae), llama.hooks({SITE: lambda value, ctx: 2 * value}):
        logits, cache = llama.run_with_cache(TEXTS, sites=[SITE, "*.hook_sae_*"])
    with llama.hooks({SITE: lambda value, ctx: 2 * value}):
        assert torch.equal(logits, llama(TEXTS))
    _, bare = llama.run_with_cache(TEXTS, sites=SITE)
    assert torch.equal(cache[SITE], 2 * bare[SITE])
    assert torch.equal(cache[ACTS], sae.encode(2 * bare[SITE]))
    assert torch.equal(cache[f"{SITE}.hook_sae_output"], cache[SITE])


def test_names_shorthand_and_the_table(llama: HookedTransformer, sae: SAE) -> None:
    before = llama.sites()
    with llama.splice(sae):
        assert llama.expand_sites("resid_post.sae_acts_post:*") == [ACTS]
        assert llama.site_names[llama.site_names.index(SITE) + 2] == ACTS
        table = llama.sites().set_index("site")
        assert table.loc[ACTS, ["shorthand", "layer", "shape", "size"]].tolist() == [
            "resid_post.sae_acts_post:0", 0, "batch pos latent", "batch pos 48",
        ]  # fmt: skip
        assert table.loc[f"{SITE}.hook_sae_recons", "size"] == "batch pos 32"
        _, cache = llama.run_with_cache(TEXTS)
        with pytest.raises(ValueError, match=r"did you mean resid_post\.sae_acts_post:0"):
            llama.expand_sites("resid_post.sae_act_post:0")
    assert [name for name in cache if "sae" in name] == [f"{SITE}.hook_{part}" for part in PARTS[1:]]
    assert torch.equal(cache["resid_post.sae_acts_post:0.7"], cache["resid_post.sae_acts_post", 0][..., 7])
    assert llama.sites().equals(before)
    with pytest.raises(ValueError, match=r"no SAE stands there; inside `with model.splice\(sae\):`"):
        llama.run_with_cache(TEXTS, sites="resid_post.sae_acts_post:0")


def test_interventions_act_on_latents(llama: HookedTransformer, sae: SAE) -> None:
    _, cache = llama.run_with_cache(TEXTS, sites=SITE)
    old = sae.encode(cache[SITE])
    latent = int(old.sum((0, 1)).argmax())
    with llama.hooks({SITE: lambda value, ctx: value - old[..., latent, None] * sae.W_dec[latent]}):
        expected = llama(TEXTS)
    name = "resid_post.sae_acts_post:0"
    with llama.splice(sae):
        with llama.intervene(Ablate(sites=f"{name}.{latent}", kind="zero")):
            ablated = llama(TEXTS)
        _, other = llama.run_with_cache(TEXTS[::-1], sites=name)
        flipped = other[name].flip(0)
        assert torch.equal(flipped, old)
        with llama.intervene(Ablate(sites=f"{name}.{latent}", kind="mean", reference=TEXTS)):
            assert not torch.equal(llama(TEXTS), llama(TEXTS[::-1]))
        with llama.intervene(Patch(name, torch.zeros_like(old))):
            emptied, seen = llama.run_with_cache(TEXTS, sites="resid_post.sae_recons:0")
    real = llama.tokenize(TEXTS).mask
    assert torch.allclose(ablated[real], expected[real], atol=1e-4)
    assert torch.allclose(seen["resid_post.sae_recons", 0][real], sae.b_dec.expand(int(real.sum()), -1))
    assert not torch.allclose(emptied[real], ablated[real], atol=1e-2)


def test_generation_equals_one_pass_and_says_where_it_is(llama: HookedTransformer, sae: SAE) -> None:
    seen: list[tuple[str, int]] = []

    def steer(value: Tensor, ctx: HookContext) -> Tensor:
        seen.append((ctx.phase, int(ctx.positions.max())))
        return value + 2.0 * (ctx.positions >= 3)[..., None]

    bare = llama.generate(TEXTS, max_new_tokens=5)
    for case in (sae, sae_of(*PLACES["transcoder"])):
        name = f"{case.targets[0]}.hook_sae_acts_post"
        with llama.splice(case):
            assert llama.generate(TEXTS, max_new_tokens=5).tokens == bare.tokens
            with llama.hooks({name: steer}):
                out = llama.generate(TEXTS[0], max_new_tokens=5, sites=name)
                _, cache = llama.run_with_cache(torch.tensor([out.all_tokens[: len(out.cache[name])]]), sites=name)
        assert torch.allclose(out.cache[name], cache[name][0], atol=1e-4)
    assert ("prefill", 10) in seen
    assert ("decode", 11) in seen


def test_padding_changes_no_latent(llama: HookedTransformer, sae: SAE) -> None:
    with llama.splice(sae):
        _, batch = llama.run_with_cache(llama.tokenizer.tokenize(TEXTS, pad="left"), sites=ACTS)
        for row, text in enumerate(TEXTS):
            _, alone = llama.run_with_cache(text, sites=ACTS)
            n = alone[ACTS].shape[1]
            assert torch.allclose(batch[ACTS][row, -n:], alone[ACTS][0], atol=1e-4)


def test_several_saes_and_nested_blocks(llama: HookedTransformer, sae: SAE) -> None:
    other = sae_of(32, 32, ["blocks.1.hook_mlp_out"], seed=1)
    with llama.splice([sae, other]):
        _, together = llama.run_with_cache(TEXTS, sites="*.hook_sae_acts_post")
    with llama.splice(sae), llama.splice(other):
        _, nested = llama.run_with_cache(TEXTS, sites="*.hook_sae_acts_post")
        with pytest.raises(ValueError, match=r"stands at blocks\.1\.hook_mlp_out already"), llama.splice(other):
            pass
        llama(TEXTS)
    assert list(together) == [ACTS, "blocks.1.hook_mlp_out.hook_sae_acts_post"]
    assert all(torch.equal(together[name], nested[name]) for name in together)


def test_the_model_is_restored_also_after_an_error(llama: HookedTransformer, sae: SAE) -> None:
    names = llama.site_names
    with pytest.raises(RuntimeError, match="mine"), llama.splice([sae, sae_of(*PLACES["transcoder"])]):
        raise RuntimeError("mine")
    assert llama.site_names == names
    assert not any(point.handles for point in llama.hook_dict.values())


def test_sites_and_targets_given_by_hand(llama: HookedTransformer) -> None:
    nameless = sae_of(32, 32, [], [])
    with llama.splice(nameless, site="resid_post:0"):
        _, cache = llama.run_with_cache(TEXTS, sites=ACTS)
    assert cache[ACTS].any()
    with llama.splice(nameless, site="mlp_in:1", target="mlp_out:1"):
        _, cache = llama.run_with_cache(TEXTS, sites=["mlp_in:1", "mlp_out.sae_acts_post:1"])
    assert torch.equal(cache["mlp_out.sae_acts_post:1"], nameless.encode(cache["mlp_in:1"]))


def test_a_skip_path_belongs_to_the_reconstruction(llama: HookedTransformer) -> None:
    skip = 0.1 * torch.randn(32, 32, generator=torch.Generator().manual_seed(3))
    case = sae_of(*PLACES["transcoder"], k=6, W_skip=skip)
    with llama.splice(case, error=False):
        _, cache = llama.run_with_cache(TEXTS, sites=["ln2.normalized:1", "mlp_out.sae_recons:1"])
    assert torch.allclose(cache["mlp_out.sae_recons:1"], case(cache["ln2.normalized:1"]), atol=1e-5)


def test_what_cannot_be_spliced_is_refused(llama: HookedTransformer, sae: SAE) -> None:
    foreign = sae_of(32, 32, [SITE])
    foreign.card["model"] = "0" * 32
    crosscoder = sae_of(64, 64, [SITE, "blocks.1.hook_resid_post"])
    unplaced = sae_of(32, 32, [], [])
    unplaced.card["imported"] = {"transcoder": True}
    cases: list[tuple[Any, dict[str, Any], str]] = [
        ([], {}, "the list is empty"),
        (llama, {}, "splice takes SAEs"),
        (sae_of(32, 32, [], []), {}, "does not say its site"),
        (sae, {"site": "resid_pots:0"}, "did you mean resid_post:0"),
        (sae, {"site": "resid_post:*"}, "names 2 sites"),
        (sae, {"site": "post:0"}, "blocks.0.mlp.hook_post has width 64; the SAE reads 32"),
        (sae, {"site": "pattern:0"}, "no vector for each token"),
        (sae, {"site": "mlp_in:0"}, "no SAE can stand at blocks.0.hook_mlp_in"),
        (sae, {"target": "mlp_out:0"}, "give site="),
        (sae_of(*PLACES["transcoder"]), {"site": "mlp_in:0"}, "give target= as well"),
        (unplaced, {"site": "mlp_in:0"}, "give target= as well"),
        (unplaced, {}, "does not say where it writes: give site= and target="),
        (sae_of(32, 32, [SITE], k=6, W_skip=torch.zeros(32, 32)), {}, "does not say where it writes"),
        ([sae], {"site": "resid_post:0"}, "several go where their cards say"),
        ([sae, sae], {}, "stands at blocks.0.hook_resid_post already"),
        (foreign, {}, "was trained on a model with the fingerprint 0000"),
        (crosscoder, {}, "before blocks.1.hook_resid_post is computed"),
    ]
    for given, options, message in cases:
        with pytest.raises(ValueError, match=message), llama.splice(given, **options):
            pass
    foreign.card["model"] = llama.fingerprint
    with llama.splice(foreign):
        llama(TEXTS)


def test_a_splice_that_no_pass_came_to_is_an_error(llama: HookedTransformer) -> None:
    later = sae_of(32, 32, ["blocks.1.hook_resid_post"])
    with pytest.raises(ValueError, match="never fired"), llama.splice(later):
        llama(TEXTS, stop_at_layer=1)
    across = sae_of(32, 32, [SITE], ["blocks.1.hook_mlp_out"])
    stream = llama(TEXTS, stop_at_layer=1)
    with pytest.raises(ValueError, match="which this pass did not compute"), llama.splice(across):
        llama(stream, start_at_layer=1)
    several = sae_of(*PLACES["to several"])
    with llama.splice(several):  # what a pass left half done is not for the next one
        assert torch.equal(llama(TEXTS, stop_at_layer=1), stream)
        with pytest.raises(ValueError, match=r"needs blocks\.0\.hook_resid_post, which this pass"):
            llama(stream, start_at_layer=1)


def test_latents_and_logits_are_those_of_saelens(tiny: HookedTransformer) -> None:
    """HookedSAETransformer with the same weights, with and without the error, and with an edit of the latents."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sae_lens = pytest.importorskip("sae_lens", reason="the oracle is SAELens (extra saelens)")
        from lens_twin import lens_twin

        plain = lens_twin(tiny)
        twin = sae_lens.HookedSAETransformer(plain.cfg)
        twin.load_state_dict(plain.state_dict())
    for place, kind in (("stream", "topk"), ("stream", "jumprelu"), ("heads", "topk"), ("transcoder", "relu")):
        case = sae_of(*PLACES[place], **ARCHITECTURES[kind])
        theirs = saelens_sae(sae_lens, case, heads=place == "heads")
        ids = tiny.tokenize(TEXTS[0]).ids
        base = f"{case.targets[0]}.hook_sae"
        edit = {"fwd_hooks": [(f"{base}_acts_post", lambda value, hook: value * 1.5)]}
        for error in (True, False):
            with torch.no_grad(), warnings.catch_warnings(), twin.saes([theirs], use_error_term=error):
                warnings.simplefilter("ignore")
                expected, values = twin.run_with_cache(ids)
                edited = twin.run_with_hooks(ids, **edit)
            with tiny.splice(case, error=error):
                logits, cache = tiny.run_with_cache(ids, sites="*.hook_sae_*")
                assert torch.allclose(tiny.run_with_hooks(ids, **edit), edited, atol=2e-4)
            assert torch.allclose(logits, expected, atol=2e-4)
            for name, value in cache.items():
                assert torch.allclose(value.flatten(2), values[name].flatten(2), atol=2e-4), name


def saelens_sae(sae_lens: Any, ours: SAE, heads: bool) -> Any:
    """The same SAE in SAELens."""
    names: dict[str, tuple[str, str]] = {
        "topk": ("TopKSAE", "TopKSAEConfig"),
        "jumprelu": ("JumpReLUSAE", "JumpReLUSAEConfig"),
        "relu": ("Transcoder", "TranscoderConfig"),
    }
    kind, config = (getattr(sae_lens, name) for name in names[ours.architecture])
    options: dict[str, Any] = {"d_in": ours.d_in, "d_sae": ours.n_latents}
    options |= {"apply_b_dec_to_input": ours.apply_b_dec_to_input, "reshape_activations": "hook_z" if heads else "none"}
    options |= {"k": ours.k} if ours.k else {}
    options |= {"d_out": ours.d_out} if ours.is_transcoder else {}
    cfg = config(**options)
    cfg.metadata.hook_name = ours.sites[0]
    cfg.metadata.hook_name_out = ours.targets[0] if ours.is_transcoder else None
    theirs = kind(cfg)
    theirs.load_state_dict({name: value.detach().clone() for name, value in ours.state_dict().items()})
    return theirs.eval()
