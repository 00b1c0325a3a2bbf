"""`load`: what a name means, errors that say how to mend them, and loading without copying."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from checkpoints import Q, byte_backend, random_gpt2, random_llama, write_gguf
from safetensors.torch import load_file, save_file
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, LlamaForCausalLM

from interp.model import HookedTransformer
from interp.weights.load import load

IDS = torch.randint(0, 260, (2, 20), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny Llama with a tokenizer, as transformers saves it."""
    folder = tmp_path / "tiny-llama"
    random_llama().save_pretrained(folder)
    byte_backend().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>"}))
    return folder


def in_child(code: str, *arguments: object, **environment: str) -> str:
    """Run code in a fresh process; its output."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout


# ----------------------------------------------------------------------------------------------- what a name means


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("smollm-135m", r"there is no model 'smollm-135m'.*Did you mean 'smollm2-135m'\?"),
        (
            "gpt5",
            r"not in the catalogue \(smollm2-135m, smollm2-135m-instruct-q4, minilm, all-minilm-l6-v2\).*org/name",
        ),
        ("./nowhere", "there is no file or folder ./nowhere"),
        ("/no/where/at/all", "there is no file or folder /no/where/at/all"),
        ("nowhere.gguf", r"there is no file or folder nowhere\.gguf"),
    ],
)
def test_unknown_names(name: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        load(name)


def test_wrong_arguments(folder: Path) -> None:
    with pytest.raises(ValueError, match="dtype 'int8' is not supported; choose one of float32"):
        load(folder, dtype="int8")
    with pytest.raises(ValueError, match="quantize='int4' is unknown: use 'int8'"):
        load(folder, quantize="int4")
    for device in ("abacus", "cuda:99"):
        with pytest.raises(ValueError, match=f"device '{device}' cannot be used here"):
            load(folder, device=device)
    with pytest.raises(ValueError, match="revision='main' is for hub ids"):
        load(folder, revision="main")
    with pytest.raises(ValueError, match="pass the folder of a Hugging Face model"):
        load(folder / "model.safetensors")


def test_a_folder(folder: Path) -> None:
    model = load(folder)
    assert (model.cfg.name, model.cfg.family) == ("tiny-llama", "llama")
    assert model.tokenizer is not None
    assert model("thin").shape == (1, 3, 260)
    assert not model.training
    assert not any(weight.requires_grad for weight in model.parameters())


def test_a_folder_without_a_tokenizer(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "tokenizer.json").unlink()
    model = load(folder)
    assert "takes token ids, but no text" in caplog.text
    assert model.tokenizer is None
    assert model(IDS).shape == (2, 20, 260)


# --------------------------------------------------------------------------------------------------- damaged folders


def test_folders_that_are_not_whole(folder: Path) -> None:
    (folder / "config.json").rename(folder / "config.bak")
    with pytest.raises(ValueError, match=r"has no config\.json"):
        load(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(ValueError, match="not valid JSON"):
        load(folder)
    (folder / "config.bak").rename(folder / "config.json")
    weights = (folder / "model.safetensors").read_bytes()
    for size in (0, 5, 100, len(weights) - 1):
        (folder / "model.safetensors").write_bytes(weights[:size])
        with pytest.raises(ValueError, match=r"not a whole safetensors file.*download it again"):
            load(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"has no model\.safetensors"):
        load(folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_attention_heads": 0}, "num_attention_heads=0: it must be a whole number of at least 1"),
        ({"num_hidden_layers": 2.5}, "num_hidden_layers=2.5: it must be a whole number"),
        ({"max_position_embeddings": "x"}, "max_position_embeddings='x': it must be a whole number"),
        ({"vocab_size": True}, "vocab_size=True: it must be a whole number"),
        ({"rope_theta": "x"}, "rope_theta='x': it must be a number greater than 0"),
        ({"rope_theta": float("inf")}, "rope_theta=inf: it must be a number greater than 0"),
        ({"rope_parameters": {"rope_theta": "x"}}, r"rope_parameters in .*config\.json sets rope_theta='x'"),
        ({"rope_parameters": {"factor": 0}}, "factor=0: it must be a number greater than 0"),
        ({"rope_parameters": "linear"}, "rope_parameters='linear': it must be an object"),
        ({"rope_scaling": ["linear"]}, r"rope_scaling=\['linear'\]: it must be an object"),
        ({"rms_norm_eps": "1e-5"}, "rms_norm_eps='1e-5': it must be a number"),
        ({"rms_norm_eps": None}, "rms_norm_eps=null, which is no value: leave the key out"),
        ({"architectures": "LlamaForCausalLM"}, r"architectures='LlamaForCausalLM'.*such as \[\"LlamaForCausalLM\"\]"),
        ({"architectures": [3]}, r"architectures=\[3\]: it must be a list of names"),
    ],
)
def test_values_of_the_configuration_that_cannot_be_meant(changes: dict[str, object], words: str, folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(ValueError, match=words):
        load(folder)


def test_a_configuration_that_is_a_list(folder: Path) -> None:
    (folder / "config.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"config\.json holds a list, not an object of options"):
        load(folder)


def test_pickled_weights_are_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch owned'\ntR.")
    with pytest.raises(ValueError, match=r"only pickled weights \(pytorch_model\.bin\).*save_pretrained"):
        load(folder)


def shard(folder: Path) -> dict[str, str]:
    """Split model.safetensors into two files and an index."""
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    where = {name: f"model-0000{1 + index % 2}-of-00002.safetensors" for index, name in enumerate(state)}
    for file in set(where.values()):
        save_file({name: state[name] for name in state if where[name] == file}, folder / file)
    write_index(folder, where)
    return where


def write_index(folder: Path, where: dict[str, str]) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))


def test_shards(folder: Path) -> None:
    with torch.no_grad():
        whole = load(folder)(IDS)
        where = shard(folder)
        assert torch.equal(load(folder)(IDS), whole)
    first = folder / "model-00001-of-00002.safetensors"
    write_index(folder, {**where, "model.more": first.name})
    with pytest.raises(ValueError, match=r"lacks the tensor model\.more"):
        load(folder)
    write_index(folder, {**where, "model.norm.weight": "../../secret.safetensors"})
    with pytest.raises(ValueError, match="files outside its folder"):
        load(folder)
    write_index(folder, where)
    first.unlink()
    with pytest.raises(ValueError, match=r"there is no file .*model-00001"):
        load(folder)


# ------------------------------------------------------------------------------------------------------ dtype, memory


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64", torch.bfloat16])
@pytest.mark.parametrize("make", [random_llama, random_gpt2])
def test_dtypes(make: type, dtype: str | torch.dtype, tmp_path: Path) -> None:
    make().save_pretrained(tmp_path)
    model, whole = load(tmp_path, dtype=dtype), load(tmp_path)
    assert {weight.dtype for weight in model.parameters()} == {model.dtype}
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, whole.state_dict()[name].to(model.dtype)), name


def test_a_half_precision_file_in_fp32(tmp_path: Path) -> None:
    random_llama().bfloat16().save_pretrained(tmp_path)
    theirs = LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        assert float((load(tmp_path)(IDS) - theirs(IDS).logits).abs().max()) < 1e-5


def test_int8_weights(folder: Path) -> None:
    whole, rounded = load(folder), load(folder, quantize="int8")
    assert "int8 weights, mean KL" in repr(rounded)
    with torch.no_grad():
        difference = (whole(IDS).softmax(-1) - rounded(IDS).softmax(-1)).abs().max()
    assert 0 < float(difference) < 0.05
    with pytest.raises(ValueError, match="this one is float16"):
        load(folder, dtype="float16", quantize="int8")


def test_edits_stay_in_memory(folder: Path) -> None:
    before = (folder / "model.safetensors").read_bytes()
    model = load(folder)
    with torch.no_grad():
        model.embed.weight.fill_(1.0)
        model.blocks[0].attn.q.weight.zero_()
    assert (folder / "model.safetensors").read_bytes() == before
    assert float(load(folder).embed.weight.std()) > 0


MEMORY = """
import sys
from interp.weights.load import load

def own():  # megabytes that are no pages of a file
    return next(int(line.split()[1]) / 1e3 for line in open("/proc/self/status") if line.startswith("RssAnon"))

load(sys.argv[1])
for folder in sys.argv[2:]:
    before = own()
    model = load(folder)
    loaded = own()
    total = sum(float(weight.sum()) for weight in model.parameters())
    print(loaded - before, own() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts memory as Linux does")
def test_weights_are_mapped_not_copied(folder: Path, tmp_path: Path) -> None:
    llama = random_llama(hidden_size=1024, intermediate_size=4096, num_attention_heads=16)
    gpt2 = random_gpt2(n_embd=1024, n_head=16)
    large = [tmp_path / "llama", tmp_path / "gpt2"]
    for model, path in zip((llama, gpt2), large):
        model.save_pretrained(path)
        assert (path / "model.safetensors").stat().st_size > 100e6
    for line in in_child(MEMORY, folder, *large).splitlines():
        loaded, used = map(float, line.split())
        assert loaded < 5, "loading takes no memory of its own"
        assert used < 10, "reading the weights neither: they are pages of the file"


PEAK = """
import ctypes, sys
from interp.weights.load import load

def memory(key):  # megabytes
    return next(int(line.split()[1]) / 1e3 for line in open("/proc/self/status") if line.startswith(key))

load(sys.argv[1])
for path, dtype in zip(sys.argv[2::2], sys.argv[3::2], strict=True):
    ctypes.CDLL(None).malloc_trim(0)  # what the last model has freed
    open("/proc/self/clear_refs", "w").write("5")  # the peak begins anew
    before = memory("VmRSS")
    model = load(path, dtype=dtype)
    size = sum(weight.numel() * weight.element_size() for weight in model.parameters()) / 1e6
    total = sum(float(weight.sum()) for weight in model.parameters())
    print(size, memory("VmHWM") - before)
    del model
"""
LARGE = {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16, "vocab_size": 2000}


def large_neox() -> GPTNeoXForCausalLM:
    """Its file holds queries, keys and values of each head in turn: our parameters are copies."""
    return GPTNeoXForCausalLM(GPTNeoXConfig(**LARGE, num_hidden_layers=3))


def large_llama() -> LlamaForCausalLM:
    return random_llama(**LARGE, num_hidden_layers=2)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts memory as Linux does")
def test_loading_never_holds_the_weights_twice(folder: Path, tmp_path: Path) -> None:
    """Peak memory, pages of the file counted: whatever the file's dtype, joint projections, or quantisation."""
    llama, neox, packed = (tmp_path / name for name in ("llama-half", "neox", "q8.gguf"))
    large_llama().bfloat16().save_pretrained(llama)
    large_neox().save_pretrained(neox)
    write_gguf(packed, large_llama(), quant=Q.Q8_0, tokenizer=False)
    byte_backend().save(str(tmp_path / "tokenizer.json"))
    # The promise is 1.15 times the weights and 100 MB; with so small models only a narrower bar sees a mistake. A file
    # that is quantised or of another dtype costs one tensor in fp32 beside them.
    cases = ((llama, "float32", 25), (neox, "float32", 25), (packed, "float32", 25), (neox, "bfloat16", 40))
    arguments = [each for path, dtype, _ in cases for each in (path, dtype)]
    for (path, dtype, more), line in zip(cases, in_child(PEAK, folder, *arguments).splitlines(), strict=True):
        size, peak = map(float, line.split())
        assert size > (130 if dtype == "float32" else 65)
        assert peak < 1.05 * size + more, f"{path.name} in {dtype}: {peak:.0f} MB for {size:.0f} MB of weights"


# --------------------------------------------------------------------------------------------------------------- hub

HUB = """
import sys
from interp.weights.load import load
for revision in sys.argv[2:]:
    try:
        model = load(sys.argv[1], revision=None if revision == "newest" else revision)
        print(model.cfg.name, model.tokenizer.name)
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_hub_without_a_network(tmp_path: Path) -> None:
    output = in_child(HUB, "org/model", "newest", "v1", HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path))
    one, other = output.splitlines()
    assert one.startswith("ConnectionError could not download 'org/model' (")
    assert other.startswith("ConnectionError could not download 'org/model' at revision 'v1' (")
    assert "and there is no folder org/model here" in one
    assert one.endswith("elsewhere and pass the folder")


def test_hub_snapshot_that_is_cached(folder: Path, tmp_path: Path) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "hub" / "models--org--model"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    (repository / "snapshots").mkdir()
    folder.rename(repository / "snapshots" / commit)
    output = in_child(HUB, "org/model", "newest", commit, HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path))
    assert output == "org/model org/model\n" * 2


# ---------------------------------------------------------------------------------------------------- the real model

EIFFEL = "The Eiffel Tower is located in the city of"


@torch.no_grad()
def test_real_model_knows_paris(smollm: HookedTransformer) -> None:
    assert smollm.tokenizer is not None
    probabilities = smollm(EIFFEL)[0, -1].softmax(-1)
    assert float(probabilities[smollm.tokenizer.to_single_token(" Paris")]) == pytest.approx(0.702, abs=0.005)


def test_real_model_says_what_it_is(smollm: HookedTransformer) -> None:
    assert "dequantised Q4_1, Instruct" in repr(smollm)
    assert smollm.cfg.name == "smollm2-135m-instruct-q4"
    assert (smollm.cfg.n_layers, smollm.cfg.n_heads, smollm.cfg.kv_heads, smollm.cfg.d_head) == (30, 9, 3, 64)


LATER = """
import time
from interp.weights.load import load
start = time.perf_counter()
model = load("smollm2-135m")
seconds = time.perf_counter() - start
peak = next(int(line.split()[1]) / 1e3 for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(seconds, peak, sum(w.numel() * w.element_size() for w in model.parameters()) / 1e6)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the peak memory as Linux writes it")
def test_later_loads_are_quick_and_small(smollm: HookedTransformer) -> None:
    times: list[float] = []
    for _ in range(3):  # another job may hold the processor
        seconds, peak, weights = map(float, in_child(LATER).split())
        assert weights == pytest.approx(538, abs=1)
        assert peak < 1.15 * weights + 100
        times.append(seconds)
        if seconds < 2.0:
            return
    pytest.fail(f"loading took {times} seconds")
