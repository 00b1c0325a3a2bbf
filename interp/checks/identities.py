"""Identities that hold between the sites of one pass, by the kind of block; the lens; attributions; ablated heads."""

import math

import torch
from torch import Tensor

from interp.checks.patient import Patient, bounded, judged, logit_error, row_error, skipped
from interp.checks.plain import PlainModel
from interp.checks.report import Check
from interp.intervene import Ablate
from interp.lens import logit_lens


def shapes(patient: Patient) -> Check:
    """Every site has the shape that `model.sites()` documents, on a batch of two texts."""
    model, batch = patient.model, 2
    ids = torch.stack([patient.ids[:5], patient.ids[:5].flip(0)])
    n_pos = ids.shape[1]
    with torch.no_grad():
        _, cache = model.run_with_cache(ids, sites=model.site_names)
    table = model.sites().drop_duplicates("site").set_index("site")
    places = {"batch": batch, "pos": n_pos, "query": n_pos, "key": n_pos}
    wrong = []
    for name in model.site_names:
        axes = str(table.loc[name, "size"]).split()
        expected = [places[axis] if axis in places else int(axis) if axis.isdigit() else -1 for axis in axes]
        found = list(cache[name].shape)
        if len(found) != len(expected) or any(a != b for a, b in zip(found, expected, strict=True) if b >= 0):
            wrong.append(f"{name} is {found}, documented {table.loc[name, 'size']}")
    return judged("shapes", f"{len(model.site_names)} sites with the table of model.sites()", wrong)


def residual(patient: Patient) -> Check:
    """What enters a block, what its parts add, and what leaves it: the sum that the kind of block makes."""
    cfg, cache = patient.model.cfg, patient.cache
    kind = "parallel" if cfg.parallel else "sequential"
    kind = kind if cfg.norm_placement == "pre" else cfg.norm_placement
    worst, where = 0.0, ""

    def hold(found: Tensor, expected: Tensor, name: str) -> None:
        nonlocal worst, where
        error = row_error(found, expected)
        if error > worst:
            worst, where = error, name

    for layer in range(cfg.n_layers):
        pre, attn, post = (cache[name, layer] for name in ("resid_pre", "attn_out", "resid_post"))
        middle = pre + attn
        if patient.has(f"blocks.{layer}.hook_resid_mid"):
            hold(cache["resid_mid", layer], middle, f"resid_pre + attn_out = resid_mid in layer {layer}")
        if cfg.norm_placement == "post_ln":
            middle = _normed_middle(patient, layer, middle)
        mlp = cache["mlp_out", layer] if patient.has(f"blocks.{layer}.hook_mlp_out") else 0.0
        hold(post, middle + mlp, f"the sum that makes resid_post in layer {layer}")
        if layer:
            before = f"blocks.{layer - 1}.hook_normalized_resid_post"
            before = before if patient.has(before) else f"blocks.{layer - 1}.hook_resid_post"
            hold(pre, cache[before], f"resid_pre:{layer} = {before}")
        hold(_heads_out(patient, layer), attn, f"heads + b_O = attn_out in layer {layer}")
    bound = patient.rounding
    return bounded(
        "residual identities",
        f"stream, attn_out, mlp_out and the sum of heads in {cfg.n_layers} {kind} blocks",
        worst,
        bound,
        "" if worst <= bound else where,
    )


def _normed_middle(patient: Patient, layer: int, middle: Tensor) -> Tensor:
    return PlainModel(patient.model).norm(f"blocks.{layer}.ln1", middle.cpu().double())["out"].to(middle)


def _heads_out(patient: Patient, layer: int) -> Tensor:
    """The sum over heads of z W_O, plus b_O, through the norm after attention where there is one."""
    plain, cfg = PlainModel(patient.model), patient.model.cfg
    prefix = f"blocks.{layer}"
    total = patient.cache["result", layer][0].cpu().double().sum(1)
    if f"{prefix}.attn.o.bias" in plain.weights:
        total = total + plain.weights[f"{prefix}.attn.o.bias"]
    if cfg.norm_placement in ("post", "sandwich"):
        total = plain.norm(f"{prefix}.ln1_post", total)["out"]
    return total[None].to(patient.cache["attn_out", layer])


def pattern_rows(patient: Patient) -> Check:
    """Rows of real queries sum to 1, rows of pads to 0, and no key that may not be seen has any weight."""
    cfg, worst, where = patient.model.cfg, 0.0, ""
    rounding = {torch.float64: 1e-12, torch.float32: 2e-6}.get(patient.model.dtype, 2e-2)
    for side in ("right", "left"):
        tokens = patient.padded(patient.rows, side)
        with torch.no_grad():
            _, cache = patient.model.run_with_cache(tokens, sites="pattern:*")
        positions, real = tokens.positions, tokens.mask
        for layer in range(cfg.n_layers):
            pattern = cache["pattern", layer]
            back = positions[:, :, None] - positions[:, None, :]
            allowed = real[:, :, None] & real[:, None, :]
            allowed = allowed & (back >= 0) if cfg.causal else allowed
            if cfg.window is not None and cfg.has_window(layer):
                allowed = allowed & (back < cfg.window)
            sums = (pattern.double().sum(-1) - 1).abs().amax(1)[real].max()
            leaked = pattern.masked_fill(allowed[:, None], 0.0).abs().max()  # a pad's query may see nothing at all
            error = float(torch.stack((sums, leaked.double())).max())  # NaN stays NaN
            if not error <= worst:
                worst, where = error, f"layer {layer}, padded on the {side}"
    compared = (
        f"rows of real queries with 1, those of pads with 0, forbidden keys with no weight; {cfg.n_layers} layers"
    )
    return bounded("pattern rows", compared, worst, rounding, "" if worst <= rounding else where)


def lens(patient: Patient) -> Check:
    """The lens at the last layer is the model's prediction; earlier, it is the final norm of that row, unembedded."""
    cfg, model = patient.model.cfg, patient.model
    last, name = cfg.n_layers - 1, "lens"
    compared = "the lens at the last layer with the logits, and at earlier sites with each row's own norm in fp64"
    if cfg.norm_placement == "post_ln":
        return skipped(name, compared, "the stream of a post-LN model is normed in every block")
    early = sorted({0, cfg.n_layers // 2} - {last})
    sites = ["embed", *(f"resid_post:{layer}" for layer in [*early, last])]
    k = min(5, cfg.d_vocab)
    with torch.no_grad():
        model(patient.ids[None])  # a lens that keeps the final scale takes it from the last pass
    result = logit_lens(model, patient.ids[None], sites=sites, k=k)
    plain, worst, where = PlainModel(model), 0.0, ""
    for index, site in enumerate(result.sites):
        if site.endswith(f".{last}.hook_resid_post"):
            logits = patient.logits[0].cpu().double()
        else:
            stream = patient.cache["resid_pre", 0] if site == "hook_embed" else patient.cache[site]
            logits = plain.head(stream[0].cpu().double())["logits"]
        expected = logits.log_softmax(-1).gather(-1, result.top_ids[index])
        error = float((result.top_probs[index].double().log() - expected).abs().max())
        if not error <= worst:
            worst, where = error, f"log-probabilities at {site}"
    bound = patient.nats
    return bounded(name, compared, worst, bound, "" if worst <= bound else where)


def attributions(patient: Patient) -> Check:
    """Embedding, every head, every MLP and all biases, each through the frozen final norm, sum to the logit."""
    cfg, model, cache = patient.model.cfg, patient.model, patient.cache
    name = "sum of attributions"
    compared = "embedding + heads + MLPs + biases through the frozen final norm, in fp64, with the top logit"
    if cfg.norm_placement == "post_ln" or cfg.mlm_head:
        return skipped(name, compared, "the stream is normed in every block, so the logit is no sum of parts")
    plain = PlainModel(model)
    pos = len(patient.ids) - 1
    target = int(patient.logits[0, pos].argmax())
    parts, total = _parts(patient, plain, pos), cache["resid_post", cfg.n_layers - 1][0, pos].cpu().double()
    row = "embed.weight" if cfg.tie_embeddings else "unembed.weight"
    direction = plain.weights.raw(row)[target].cpu().double()
    kind = cfg.norm if cfg.final_norm else "none"
    bias = 0.0
    if kind != "none":
        centred = total - total.mean() if kind == "layer" else total
        scale = (centred.pow(2).mean() + cfg.norm_eps).sqrt()
        gain = plain.weights["ln_final.weight"] + (1.0 if cfg.norm_offset and kind == "rms" else 0.0)
        bias = float(plain.weights["ln_final.bias"] @ direction) if kind == "layer" else 0.0
        parts = parts - parts.mean(-1, keepdim=True) if kind == "layer" else parts
        parts = parts / scale * gain
    contributions = parts @ direction
    logit = float(contributions.sum()) + bias
    logit += float(plain.weights["unembed_bias"][target]) if cfg.unembed_bias else 0.0
    if cfg.final_softcap is not None:
        logit = cfg.final_softcap * math.tanh(logit / cfg.final_softcap)
    # Large parts that cancel carry their rounding into the sum.
    size = max(float(contributions.abs().sum()), abs(logit), 1e-6)
    error = abs(logit - float(patient.logits[0, pos, target])) / size
    note = f"{len(parts)} parts sum to {logit:.4f}, the logit is {float(patient.logits[0, pos, target]):.4f}"
    return bounded(name, compared, error, patient.rounding, note)


def _parts(patient: Patient, plain: PlainModel, pos: int) -> Tensor:
    """What each component writes to the stream at one position: [part d_model]."""
    cfg, cache = patient.model.cfg, patient.cache
    if cfg.embed_norm == "sum":
        parts = [cache["resid_pre", 0][0, pos].cpu().double()]
    else:
        sites = ("hook_embed", "hook_pos_embed", "hook_token_type_embed")
        parts = [cache[site][0, pos].cpu().double() for site in sites if patient.has(site)]
    after = cfg.norm_placement in ("post", "sandwich")
    for layer in range(cfg.n_layers):
        prefix = f"blocks.{layer}"
        z = cache["z", layer][0, pos].cpu().double()
        by_head = plain.weights[f"{prefix}.attn.o.weight"].T.view(cfg.n_heads, cfg.d_value, cfg.d_model)
        heads = torch.einsum("hd,hdm->hm", z, by_head)
        if f"{prefix}.attn.o.bias" in plain.weights:
            heads = torch.cat((heads, plain.weights[f"{prefix}.attn.o.bias"][None]))
        parts += list(_frozen(plain, f"{prefix}.ln1_post", heads) if after else heads)
        if patient.has(f"{prefix}.hook_mlp_out"):
            parts.append(cache["mlp_out", layer][0, pos].cpu().double())
    return torch.stack(parts)


def _frozen(plain: PlainModel, name: str, parts: Tensor) -> Tensor:
    """Parts through a norm whose scale is that of their sum: a linear map of each, and its bias as one more part."""
    whole = plain.norm(name, parts.sum(0, keepdim=True))
    if "scale" not in whole:
        return parts
    if plain.cfg.norm == "layer":
        parts = parts - parts.mean(-1, keepdim=True)
    gain = plain.weights[f"{name}.weight"] + (1.0 if plain.cfg.norm_offset and plain.cfg.norm == "rms" else 0.0)
    parts = parts / whole["scale"] * gain
    return torch.cat((parts, plain.weights[f"{name}.bias"][None])) if plain.cfg.norm == "layer" else parts


def no_heads(patient: Patient) -> Check:
    """With every head of every layer zeroed, attention writes its bias and nothing else."""
    cfg, plain = patient.model.cfg, PlainModel(patient.model)
    heads = [(layer, head) for layer in range(cfg.n_layers) for head in range(cfg.n_heads)]
    with patient.model.intervene(Ablate(heads=heads, kind="zero")), torch.no_grad():
        _, cache = patient.model.run_with_cache(patient.ids[None], sites="attn_out:*")
    worst, where = 0.0, ""
    for layer in range(cfg.n_layers):
        prefix = f"blocks.{layer}"
        bias = f"{prefix}.attn.o.bias"
        expected = plain.weights[bias] if bias in plain.weights else torch.zeros(cfg.d_model, dtype=torch.float64)
        if cfg.norm_placement in ("post", "sandwich"):
            expected = plain.norm(f"{prefix}.ln1_post", expected[None])["out"][0]
        found = cache["attn_out", layer][0].cpu()
        error = row_error(found, expected.expand(found.shape))
        if not error <= worst:
            worst, where = error, f"layer {layer}"
    compared = f"attn_out with all {len(heads)} heads zeroed, with the output bias"
    return bounded("no heads", compared, worst, patient.rounding, "" if worst <= patient.rounding else where)


def repeatable(patient: Patient) -> Check:
    """Logits of the whole pass, the same when the pass is made twice."""
    error = logit_error(patient.run(patient.ids[None]), patient.logits)
    return bounded("repeatable", "logits of two passes over one text, bare and with every site recorded", error, 0.0)
