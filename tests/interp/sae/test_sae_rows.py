"""Where rows come from: sites and targets of every kind of data, the scale, and the shares of several processes."""

import itertools
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from interp.sae.config import SAEConfig
from interp.sae.rows import TrainingRows, training_rows
from interp.store import Batches, Store

SITE, BELOW = "blocks.1.hook_resid_post", "blocks.0.hook_resid_post"
CONFIG = SAEConfig(width=64, batch_size=50, epochs=2, seed=3)


def rows_of(n: int = 230, d: int = 6, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 4 * torch.randn(n, d, generator=generator) + torch.arange(d)


@pytest.fixture
def xy() -> tuple[Tensor, Tensor]:
    """Rows of two sites: y says which row of x stands beside it."""
    x = rows_of()
    return x, torch.cat([10 * x[:, :2] + 1, -x[:, :1]], dim=1)


def all_pairs(rows: TrainingRows) -> tuple[Tensor, Tensor]:
    x, y = zip(*map(rows.pair, rows.batches), strict=True)
    return torch.cat(x), torch.cat(y)


def sorted_rows(x: Tensor) -> Tensor:
    return x[x[:, 0].argsort()]


# -------------------------------------------------------------------------------------------------- one site, the scale


def test_scaled_rows_have_variance_one(xy: tuple[Tensor, Tensor]) -> None:
    x = xy[0]
    rows = training_rows(x, CONFIG)
    ours, same = rows.pair(x)
    assert same is ours
    assert float(ours.var(dim=0, correction=0).mean()) == pytest.approx(1.0, rel=1e-5)
    torch.testing.assert_close(ours, x * rows.scale_in.float())
    torch.testing.assert_close(rows.mean_in, x.double().mean(0), rtol=1e-6, atol=1e-6)
    assert rows.scale_in.unique().numel() == 1
    assert (rows.sites, rows.targets, rows.is_paired, dict(rows.widths)) == (("",), ("",), False, {"": 6})
    assert (rows.card["site"], rows.card["sites"], rows.card["widths"]) == (None, [], {})
    assert (rows.n_rows, rows.n_steps) == (460, 10)


def test_batches_of_other_dtypes_become_float32(xy: tuple[Tensor, Tensor]) -> None:
    rows = training_rows({"a": xy[0].double(), "b": xy[1].half()}, CONFIG)
    x, _ = rows.pair({"a": xy[0].double(), "b": xy[1].half()})
    assert x.dtype == torch.float32
    expected = torch.cat([xy[0], xy[1].half().float()], dim=1) * rows.scale_in.float()
    torch.testing.assert_close(x, expected)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_row_that_is_not_finite_is_refused(xy: tuple[Tensor, Tensor], value: float) -> None:
    x, y = xy
    rows = training_rows({"a": x, "b": y}, CONFIG, target="b")
    bad = y.clone()
    bad[7, 1] = value
    with pytest.raises(ValueError, match="1 of 230 rows of a batch hold NaN or infinity \\(the first is row 7\\)"):
        rows.pair({"a": x, "b": bad})
    with pytest.raises(ValueError, match="hold NaN or infinity"):
        training_rows({"a": x, "b": bad}, CONFIG, target="b")


def test_finite_rows_whose_sum_overflows_are_taken() -> None:
    x = torch.tensor([[3e38, 1.0], [3e38, 2.0]])
    rows = training_rows(rows_of(d=2), CONFIG)
    assert rows.pair(x * 1.0)[0].shape == (2, 2)


# ----------------------------------------------------------------------------------------------------- several sites


def as_mapping(x: Tensor, y: Tensor) -> Any:
    return {"x": x, "y": y}


def as_list(x: Tensor, y: Tensor) -> Any:
    return [{"x": a, "y": b} for a, b in zip(x.split(50), y.split(50), strict=True)]


def as_batches(x: Tensor, y: Tensor) -> Any:
    def read(index: np.ndarray) -> dict[str, Tensor]:
        return {"x": x[index], "y": y[index]}

    options = {"row_bytes": 36, "size": 50, "seed": 0, "epochs": 1, "drop_last": False}
    return Batches(read, np.arange(len(x)), site=["x", "y"], d=[6, 3], **options)


@pytest.mark.parametrize("data", [as_mapping, as_list, as_batches])
def test_a_transcoder_reads_one_site_and_writes_the_other(data: Callable[..., Any], xy: tuple[Tensor, Tensor]) -> None:
    config = SAEConfig(width=64, batch_size=50)
    rows = training_rows(data(*xy), config, target="y")
    assert (rows.sites, rows.targets, rows.is_paired) == (("x",), ("y",), True)
    assert (rows.n_rows, rows.n_steps) == (230, 5)
    x, y = all_pairs(rows)
    raw_x, raw_y = x / rows.scale_in.float(), y / rows.scale_out.float()
    torch.testing.assert_close(sorted_rows(raw_x), sorted_rows(xy[0]))
    torch.testing.assert_close(raw_y[:, 2], -raw_x[:, 0], rtol=1e-4, atol=1e-4)
    for scaled in (x, y):
        assert float(scaled.var(dim=0, correction=0).mean()) == pytest.approx(1.0, rel=1e-5)
    torch.testing.assert_close(rows.mean_out, xy[1].double().mean(0), rtol=1e-6, atol=1e-6)
    assert (rows.card["site"], rows.card["sites"], rows.card["targets"]) == ("x", ["x"], ["y"])
    assert rows.card["widths"] == {"x": 6, "y": 3}


@pytest.mark.parametrize("data", [as_mapping, as_list, as_batches])
def test_a_crosscoder_reads_and_writes_all_sites(data: Callable[..., Any], xy: tuple[Tensor, Tensor]) -> None:
    rows = training_rows(data(*xy), CONFIG, site=["y", "x"])
    assert rows.sites == rows.targets == ("y", "x")
    joint, same = rows.pair({"x": xy[0], "y": xy[1]})
    assert same is joint
    torch.testing.assert_close(joint, torch.cat([xy[1] * rows.scales["y"], xy[0] * rows.scales["x"]], dim=1))
    assert rows.scale_in.tolist() == [rows.scales["y"]] * 3 + [rows.scales["x"]] * 6
    assert training_rows(data(*xy), CONFIG).sites == ("x", "y")
    assert training_rows(data(*xy), CONFIG, site="y").sites == ("y",)
    assert rows.card["site"] is None


def test_a_pair_of_tensors_is_a_transcoder_where_a_target_is_named(xy: tuple[Tensor, Tensor]) -> None:
    """Without one, a tuple of tensors is batches, as `x.split(...)` gives them."""
    rows = training_rows(xy, CONFIG, site="resid_mid:3", target="mlp_out:3")
    assert (rows.sites, rows.targets) == (("blocks.3.hook_resid_mid",), ("blocks.3.hook_mlp_out",))
    assert training_rows(xy, CONFIG, target="out").sites == ("x",)
    assert training_rows(xy[0].split(115), CONFIG).n_rows == 230


def test_shorthand_names_the_sites_of_batches(xy: tuple[Tensor, Tensor]) -> None:
    for names in ((BELOW, SITE), ("resid_post:0", "resid_post:1")):
        rows = training_rows(dict(zip(names, xy, strict=True)), CONFIG, site="resid_post:0", target=SITE)
        assert (rows.sites, rows.targets) == ((BELOW,), (SITE,))
    assert training_rows([{BELOW: xy[0], SITE: xy[1]}], CONFIG, site="resid_post:0").sites == (BELOW,)
    assert training_rows(xy[0], CONFIG, site="resid_post:0").card["site"] == BELOW


def test_data_that_does_not_fit_the_sites_is_refused(xy: tuple[Tensor, Tensor]) -> None:
    x, y = xy
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (x, {"target": "b"}, "takes the rows of each, but the data is of one"),
        (x, {"site": ["a", "b"]}, "takes the rows of each, but the data is of one"),
        ([x, x], {"target": "b"}, "takes the rows of each"),
        ({"a": x, "b": y}, {"site": "c"}, "are of a, b, not of c"),
        ({"a": x, "b": y}, {"site": "a", "target": "a"}, "leave target= out"),
        ({"a": x, "b": y[:9]}, {}, "all have as many rows; got {'a': 230, 'b': 9}"),
        ([{"a": x, "b": y[:9]}], {}, "all have as many rows"),
        ({"a": x, "b": 3}, {}, "float tensor \\[row d_model\\] with at least one row, got int"),
        ({"a": x, "b": torch.ones(230, 2)}, {}, "all 230 rows of b are equal"),
        ({"resid_post:1": x, SITE: y}, {}, "are the same site"),
        ({}, {}, "several tensors are given as"),
    ]
    for data, options, message in cases:
        with pytest.raises(ValueError, match=message):
            training_rows(data, CONFIG, **options)


# ------------------------------------------------------------------------------------------------------- from a store


def test_rows_of_two_sites_are_typical_at_both(store: Store) -> None:
    config = SAEConfig(width=64, batch_size=64)
    rows = training_rows(store, config, site="resid_post:0", target="resid_post:1")
    both = store.typical(BELOW) & store.typical(SITE)
    x, y = all_pairs(rows)
    assert len(x) == rows.n_rows == both.sum()
    raw = torch.cat([x / rows.scale_in.float(), y / rows.scale_out.float()], dim=1)
    expected = torch.cat([store.rows(BELOW, both), store.rows(SITE, both)], dim=1)
    torch.testing.assert_close(raw.sum(0), expected.sum(0), rtol=1e-4, atol=0.1)
    assert rows.card["left_out"] == (~both).sum()
    assert rows.card["typical_norms"] == {site: store.stats(site).typical_norm for site in (BELOW, SITE)}
    assert (rows.card["site"], rows.card["typical_norm"]) == (BELOW, None)
    assert training_rows(store, config, site=["resid_post:1", "resid_post:0"]).sites == (SITE, BELOW)


def test_the_scale_of_a_store_is_that_of_all_its_typical_rows(store: Store) -> None:
    """Whatever is held out, and whichever other site is read beside."""
    variance = float(store.stats(SITE).typical.variance.sum())
    some = np.arange(store.n_rows // 3)
    options: dict[str, Any]
    for options in ({"site": SITE}, {"site": SITE, "rows": some}, {"site": [BELOW, SITE]}):
        rows = training_rows(store, CONFIG, **options)
        assert rows.scales[SITE] == pytest.approx((rows.widths[SITE] / variance) ** 0.5, rel=1e-12)
    held_out = training_rows(store, CONFIG, site=SITE, rows=some)
    assert held_out.n_rows == 2 * store.typical(SITE)[some].sum()
    assert held_out.card["left_out"] == (~store.typical(SITE)[some]).sum()


def test_rows_in_another_order_are_other_rows(store: Store, xy: tuple[Tensor, Tensor]) -> None:
    """The same statistics and as many rows: only which rows they are, and the seed, tell them apart."""
    typical = np.flatnonzero(store.typical(SITE))
    first, second = typical[:100], typical[100:200]
    every = [training_rows(store, CONFIG, site=SITE, rows=rows) for rows in (first, second, first)]
    assert every[0].identity == every[2].identity
    differs = {name for name, value in every[0].identity.items() if value != every[1].identity[name]}
    assert differs == {"order"}
    before = every[0].identity
    batches = iter(every[0].batches)
    next(batches)
    assert every[0].identity == json.loads(json.dumps(before)) == before
    shuffled = [training_rows(as_batches(*xy), CONFIG, target="y").identity for _ in range(2)]
    other = as_batches(*xy)
    other._seed = 5
    assert shuffled[0] == shuffled[1] != training_rows(other, CONFIG, target="y").identity


def test_batches_are_read_from_their_beginning(xy: tuple[Tensor, Tensor]) -> None:
    batches = as_batches(*xy)
    next(reading := iter(batches))
    state = batches.state()
    reading.close()
    batches.load_state(state)
    rows = training_rows(batches, CONFIG, target="y")
    assert rows.moments["x"].count == rows.n_rows == 230
    assert len(all_pairs(rows)[0]) == 230


# ------------------------------------------------------------------------------------------------- several processes


@pytest.mark.parametrize("source", ["store", "tensor", "pair"])
def test_processes_share_the_rows(source: str, store: Store, xy: tuple[Tensor, Tensor]) -> None:
    """All steps of one process, cut into shares of one size; no row twice in an epoch."""
    data: Any = {"store": store, "tensor": xy[0], "pair": {"a": xy[0], "b": xy[1]}}[source]
    options: dict[str, Any] = {"site": SITE} if source == "store" else {"target": "b"} if source == "pair" else {}
    config = SAEConfig(width=64, batch_size=40, epochs=1)
    alone = training_rows(data, config, **options)
    shares = [training_rows(data, config, **options, rank=rank, world_size=2) for rank in (0, 1)]
    assert shares[0].identity == shares[1].identity
    assert shares[0].identity["statistics"] == alone.identity["statistics"]
    assert abs(shares[0].n_rows - alone.n_rows) <= 1
    assert shares[0].n_steps == alone.n_steps
    found = [[rows.pair(batch)[0] for batch in rows.batches] for rows in shares]
    assert [len(batch) for batch in found[0]] == [len(batch) for batch in found[1]]
    assert {len(batch) for batch in found[0][:-1]} == {20}
    together = torch.cat([*found[0], *found[1]])
    assert len(together) == shares[0].n_rows
    if source != "store":  # where texts begin alike, rows are equal
        assert len(together.unique(dim=0)) == len(together)


def test_any_process_goes_on_where_one_of_them_stood(xy: tuple[Tensor, Tensor]) -> None:
    config = SAEConfig(width=64, batch_size=40)

    def share(rank: int) -> TrainingRows:
        return training_rows(xy[0], config, rank=rank, world_size=2)

    leader, whole = share(0), list(share(1).batches)
    assert len(list(itertools.islice(leader.batches, 3))) == 3
    state = json.loads(json.dumps(leader.state()))
    other = share(1)
    other.load_state(state)
    assert all(map(torch.equal, other.batches, whole[3:]))
    with pytest.raises(ValueError, match="world_size differ"):
        training_rows(xy[0], SAEConfig(width=64, batch_size=20)).load_state(state)


def test_what_processes_cannot_share_is_refused(xy: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(ValueError, match="batch_size=50 cannot be dealt out to 4 processes"):
        training_rows(xy[0], CONFIG, world_size=4)
    with pytest.raises(ValueError, match="2 processes share the rows of a store or of a tensor"):
        training_rows([xy[0]], CONFIG, world_size=2)
    with pytest.raises(ValueError, match="rank must be 0 to world_size - 1"):
        training_rows(xy[0], CONFIG, rank=2, world_size=2)


def test_batches_that_do_not_know_where_they_stand_have_no_state(xy: tuple[Tensor, Tensor]) -> None:
    assert training_rows([xy[0]], CONFIG).state() is None
