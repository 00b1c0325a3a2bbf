"""Circuits against brute force: every value put in place by hand, and gradients by autograd."""

import numpy as np
import pytest
import torch
from tiny import shaken_model

from interp.circuits.edges import edge_attribution, load_edge_scores
from interp.circuits.effects import edge_effects
from interp.circuits.graph import circuit_graph
from interp.circuits.run import circuit_runs, others_mean, run_circuit, written
from interp.model import HookedTransformer
from interp.task import PromptPairs, pair_metric, prompt_pairs

FAMILIES = ["gpt2", "llama", "neox", "gptj", "gemma2", "olmo2", "mixtral", "sinusoidal", "bare", "bloom"]


def some_pairs(model: HookedTransformer, n: int = 3, length: int = 6, seed: int = 0) -> PromptPairs:
    rng = np.random.default_rng(seed)
    clean = rng.integers(0, 200, (n, length))
    corrupted = clean.copy()
    corrupted[:, 2] = (corrupted[:, 2] + 7) % 200
    corrupted[:, 4] = (corrupted[:, 4] + 31) % 200
    # Answers that tell the two prompts apart, for a random model has no right ones.
    with torch.no_grad():
        gap = (model(clean.tolist()) - model(corrupted.tolist()))[:, -1]
    answers, againsts = gap.argmax(-1).tolist(), gap.argmin(-1).tolist()
    return prompt_pairs(model, clean.tolist(), corrupted.tolist(), answers, againsts)


def brute_force(model: HookedTransformer, pairs: PromptPairs, sender: int, receiver: int) -> torch.Tensor:
    """One edge corrupted in the clean run: hooks on whole sites, one head of one receiver at a time."""
    graph = circuit_graph(model)
    node, port = graph.senders[sender], graph.receivers[receiver]
    sides = {}
    for side, tokens in (("clean", pairs.clean), ("corrupted", pairs.corrupted)):
        names = [f"result:{node.layer}"] if node.kind == "head" else []
        names = [f"mlp_out:{node.layer}"] if node.kind == "mlp" else names or ["resid_pre:0"]
        _, cache = model.run_with_cache(tokens, [*names, *([f"attn_out:{node.layer}"] if node.kind == "head" else [])])
        value = cache[model.expand_sites(names[0])[0]]
        if node.kind == "head":
            value = value[:, :, node.head]
        sides[side] = value
    change = sides["corrupted"] - sides["clean"]
    site = {"mlp": f"mlp_in:{port.layer}", "output": f"resid_post:{model.cfg.n_layers - 1}"}.get(
        port.kind, f"{port.kind}_input:{port.layer}"
    )

    def edit(value: torch.Tensor, ctx: object) -> torch.Tensor:
        if port.head < 0:
            return value + change
        value[:, :, port.head] += change
        return value

    with model.hooks({site: edit}):
        logits = model(pairs.clean)
    rows = torch.arange(len(pairs))
    return pair_metric(model, pairs).raw(logits[rows, pairs.clean.last])


@pytest.mark.parametrize("family", FAMILIES)
def test_all_edges_are_the_clean_run_and_none_the_corrupted(family: str) -> None:
    model = shaken_model(family)
    pairs = some_pairs(model)
    measured, graph = pair_metric(model, pairs), circuit_graph(model)
    runs = circuit_runs(model, pairs)
    everything, nothing = runs.metric(np.stack([graph.allowed, np.zeros_like(graph.allowed)]))
    assert torch.allclose(everything, measured.clean, atol=1e-4)
    assert torch.allclose(nothing, measured.corrupted, atol=1e-4)
    assert torch.allclose(runs.nothing, nothing, atol=1e-6)


@pytest.mark.parametrize("family", ["llama", "gemma2", "sinusoidal"])
def test_a_pair_has_no_part_in_its_own_mean(family: str) -> None:
    model = shaken_model(family)
    pairs, graph = some_pairs(model, n=4), circuit_graph(model)
    sides = [written(model, graph, tokens) for tokens in (pairs.clean, pairs.corrupted)]
    runs = circuit_runs(model, pairs, off="mean")
    for kind in ("senders", "streams"):
        both = torch.stack([getattr(side, kind) for side in sides]).double().mean(0)
        for pair in range(4):
            rest = [other for other in range(4) if other != pair]
            torch.testing.assert_close(
                getattr(runs.off, kind)[:, pair].double(), both[:, rest].mean(1), rtol=1e-4, atol=1e-4
            )
    everything, nothing = runs.metric(np.stack([graph.allowed, np.zeros_like(graph.allowed)]))
    assert torch.allclose(everything, pair_metric(model, pairs).clean, atol=1e-4)
    assert torch.allclose(nothing, runs.nothing, atol=1e-4)


def test_a_mean_over_prompts_of_unequal_length_counts_tokens() -> None:
    values, lengths = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0)), [4, 2, 3]
    pairs = prompt_pairs(shaken_model("llama"), ["abcd", "ab", "abc"], ["bbcd", "bb", "bbc"], ["e"] * 3, ["f"] * 3)
    mean = others_mean(values[0], values[1], pairs)
    assert mean.shape == (3, 1, 5)
    for pair in range(3):
        rows = [values[side, other, : lengths[other]] for side in (0, 1) for other in range(3) if other != pair]
        torch.testing.assert_close(mean[pair, 0], torch.cat(rows).mean(0))


@pytest.mark.parametrize("family", FAMILIES)
def test_parts_sum_to_the_stream(family: str) -> None:
    model = shaken_model(family)
    pairs = some_pairs(model)
    graph = circuit_graph(model)
    sides = [written(model, graph, tokens) for tokens in (pairs.clean, pairs.corrupted)]
    change, streams = sides[1].senders - sides[0].senders, sides[1].streams - sides[0].streams
    assert torch.allclose(change.sum(0), streams[-1], atol=1e-3 * float(streams.abs().max()))


@pytest.mark.parametrize("family", ["gpt2", "llama", "neox", "gptj", "mixtral", "bare"])
def test_one_edge_less_is_that_edge_patched_by_hand(family: str) -> None:
    model = shaken_model(family)
    pairs, graph = some_pairs(model), circuit_graph(model)
    index = np.argwhere(graph.allowed)
    chosen = index[np.random.default_rng(0).permutation(len(index))[:25]]
    kept = np.stack([graph.allowed] * len(chosen))
    for circuit, (sender, receiver) in zip(kept, chosen, strict=True):
        circuit[sender, receiver] = False
    found = circuit_runs(model, pairs).metric(kept)
    wanted = torch.stack([brute_force(model, pairs, int(s), int(r)) for s, r in chosen])
    assert torch.allclose(found, wanted, atol=2e-4)
    effects = edge_effects(model, pairs, chosen)
    assert torch.allclose(effects, wanted, atol=2e-4)


def test_edges_of_gemma_alone_agree_with_a_circuit_of_all_others() -> None:
    model = shaken_model("gemma2")
    pairs, graph = some_pairs(model), circuit_graph(model)
    index = np.argwhere(graph.allowed)[::5]
    kept = np.stack([graph.allowed] * len(index))
    kept[np.arange(len(index)), index[:, 0], index[:, 1]] = False
    assert torch.allclose(circuit_runs(model, pairs).metric(kept), edge_effects(model, pairs, index), atol=2e-4)


def test_circuits_side_by_side_and_padded_pairs_agree_with_single_ones() -> None:
    model = shaken_model("llama")
    short = prompt_pairs(model, "Ann met Bob", "Cyd saw Bob", 98, 120)
    long = prompt_pairs(model, "Two men met by the sea", "Two men sat by the sea", 101, 120)
    clean, corrupted = ([*getattr(short, side), *getattr(long, side)] for side in ("clean_texts", "corrupted_texts"))
    both = prompt_pairs(model, clean, corrupted, [98, 101], [120, 120])
    graph = circuit_graph(model)
    kept = graph.allowed & (np.random.default_rng(0).random((4, *graph.allowed.shape)) < 0.7)
    together = circuit_runs(model, both).metric(kept)
    one_by_one = circuit_runs(model, both).metric(kept, batch_size=1)
    assert torch.allclose(together, one_by_one, atol=1e-5)
    for column, single in enumerate((short, long)):
        assert torch.allclose(together[:, column], circuit_runs(model, single).metric(kept)[:, 0], atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_are_the_slope_of_the_exact_effect(family: str) -> None:
    # The gradient by differences: the edge's exact effect, of a corrupted run that is almost the clean one.
    model = shaken_model(family).double()
    pairs, graph = some_pairs(model), circuit_graph(model)
    scores = edge_attribution(model, pairs, method="eap")
    change = written(model, graph, pairs.corrupted).senders - written(model, graph, pairs.clean).senders
    chosen = np.random.default_rng(1).permutation(len(scores.index))[:12]
    clean = pair_metric(model, pairs).clean
    for edge in chosen:
        sender, receiver = (int(i) for i in scores.index[edge])
        step = 1e-5
        moved = edge_effects(model, pairs, scores.index[[edge]], scale=step)[0]
        slope = (moved - clean) / step
        assert torch.allclose(scores.raw[edge].double(), slope, rtol=2e-3, atol=2e-3 * float(change[sender].abs().max())), (
            graph.senders[sender].name, graph.receivers[receiver].name,
        )  # fmt: skip


def test_scores_are_exact_where_the_metric_is_linear() -> None:
    # Without a final norm every edge into the output is a straight line.
    model = shaken_model("llama", final_norm=False)
    pairs, graph = some_pairs(model), circuit_graph(model)
    scores = edge_attribution(model, pairs, method="eap")
    direct = scores.index[:, 1] == len(graph.receivers) - 1
    exact = edge_effects(model, pairs, scores.index[direct]) - pair_metric(model, pairs).clean
    assert torch.allclose(scores.raw[torch.as_tensor(direct)].double(), exact, atol=1e-3)
    assert scores.scores[direct] == pytest.approx(
        exact.mean(1).numpy() / float((scores.clean - scores.corrupted).mean()), abs=1e-4
    )


def test_batches_do_not_change_scores_and_files_hold_them(tmp_path) -> None:  # type: ignore[no-untyped-def]
    model = shaken_model("llama")
    pairs = some_pairs(model, n=4)
    scores = edge_attribution(model, pairs, steps=3)
    again = edge_attribution(model, pairs, steps=3, batch_size=1)
    assert torch.allclose(scores.raw, again.raw, atol=1e-4)
    own = edge_attribution(model, pairs, steps=3, metric=lambda logits: pair_metric(model, pairs).raw(logits[:, -1]))
    assert torch.allclose(scores.raw, own.raw, atol=1e-4)
    loaded = load_edge_scores(scores.save(tmp_path / "scores.safetensors"))
    assert loaded.to_frame(5).equals(scores.to_frame(5))
    frame = scores.to_frame(10)
    assert list(frame["score"].abs()) == sorted(frame["score"].abs(), reverse=True)
    low, score, high = (frame[column].to_numpy() for column in ("low", "score", "high"))
    assert ((low <= score) & (score <= high)).all()
    assert scores.strongest(7).sum() == 7
    scores.plot(8)


def test_integrated_gradients_add_up_along_the_line() -> None:
    # Moving the whole input from clean to corrupted changes the metric by the integral: completeness of the method. With
    # one block of parallel parts and no norms, edges from the input are all that the input feeds.
    model = shaken_model("neox", n_layers=1)
    pairs = some_pairs(model)
    measured = pair_metric(model, pairs)
    gaps = {}
    for method, steps in (("eap", 1), ("eap_ig", 60)):
        scores = edge_attribution(model, pairs, method=method, steps=steps)
        from_input = scores.index[:, 0] == 0
        total = scores.raw[torch.as_tensor(from_input)].sum(0).double()
        gaps[method] = float((total - (measured.corrupted - measured.clean)).abs().max())
    assert gaps["eap_ig"] < 0.02 * gaps["eap"] + 1e-3


def test_what_has_no_graph_is_refused_with_a_reason() -> None:
    with pytest.raises(ValueError, match="encoder"):
        circuit_graph(shaken_model("bert"))
    with pytest.raises(ValueError, match="latent attention"):
        circuit_graph(shaken_model("deepseek"))
    model = shaken_model("llama")
    pairs = some_pairs(model)
    graph = circuit_graph(model)
    with pytest.raises(ValueError, match="do not exist"):
        run_circuit(model, pairs, np.ones_like(graph.allowed))
    with pytest.raises(ValueError, match="method='acdc' is unknown"):
        edge_attribution(model, pairs, method="acdc")
    with pytest.raises(ValueError, match="no slope"):
        edge_attribution(model, pairs, metric="kl", method="eap")
    with pytest.raises(ValueError, match="steps=0"):
        edge_attribution(model, pairs, steps=0)
    with pytest.raises(ValueError, match="off='zero'"):
        circuit_runs(model, pairs, off="zero")


def test_graph_counts_and_paths() -> None:
    graph = circuit_graph(shaken_model("llama"))  # 2 layers, 4 heads, 2 kv heads
    assert [len(graph.senders), len(graph.receivers)] == [11, 19]
    # Layer 0: 8 attention inputs read 1 sender, the MLP 5; layer 1: 8 x 6 and 10; the output 11.
    assert graph.n_edges == 8 * 1 + 5 + 8 * 6 + 10 + 11
    parallel = circuit_graph(shaken_model("neox"))
    assert parallel.n_edges == 12 * 1 + 1 + 12 * 6 + 6 + 11
    name = {node.name: i for i, node in enumerate(graph.senders)}
    port = {one.name: i for i, one in enumerate(graph.receivers)}
    kept = np.zeros_like(graph.allowed)
    kept[name["input"], port["L0KV1.v"]] = kept[name["L0H3"], port["output"]] = True  # a path: head 3 reads kv head 1
    path = kept.copy()
    kept[name["L0H1"], port["output"]] = True  # kv head 0: nothing reaches it
    kept[name["input"], port["MLP 0"]] = True  # nobody hears it
    assert (graph.connected(kept) == path).all()
