"""`generate` by TransformerLens' conventions: text in, whole text out; ids in, ids out."""

from typing import Any

import torch
from torch import Tensor

from interp.compat.transformer_lens.tokenizing import LensTokenizer
from interp.model import HookedTransformer as NativeTransformer
from interp.tokens import Tokens


class Generating:
    """The part of HookedTransformer that continues texts."""

    native: NativeTransformer
    tokenizer: Any
    batch: Any
    padded: Any

    @torch.inference_mode()
    def generate(
        self,
        input: Any = "",
        max_new_tokens: int = 10,
        stop_at_eos: bool = True,
        eos_token_id: int | list[int] | None = None,
        do_sample: bool = True,
        top_k: int | None = None,
        top_p: float | None = None,
        temperature: float = 1.0,
        freq_penalty: float = 0.0,
        use_past_kv_cache: bool = True,
        prepend_bos: bool | None = None,
        padding_side: str | None = None,
        return_type: str = "input",
        verbose: bool = True,
        *,
        seed: int | None = None,
    ) -> Any:
        """Continue a text, texts or ids. Hooks that are attached see the prompt first, then one token at a time.

        Args:
            input: text, texts (padded on the left), or ids [batch pos].
            max_new_tokens: the limit.
            stop_at_eos: end a row at eos_token_id; rows that ended are filled with it.
            eos_token_id: one or several; None takes the tokenizer's.
            do_sample: False takes the most probable token.
            top_k: draw from the k most probable tokens.
            top_p: draw from the smallest set with this probability.
            temperature: 0 is greedy.
            freq_penalty: must be 0; `model.native.generate` has repetition_penalty.
            use_past_kv_cache: unused: the cache is always there and changes nothing.
            prepend_bos: None follows cfg.default_prepend_bos.
            padding_side: unused: new tokens stand behind their prompts only with pads on the left.
            return_type: "str", "tokens", or "input" for what `input` is.
            verbose: unused: there is no progress bar.
            seed: of the draws; None takes one from torch's global state, so that torch.manual_seed repeats them.

        Returns:
            The text with its prompt, without special tokens (a list for several), or ids [batch pos+new].
        """
        del use_past_kv_cache, padding_side, verbose
        if freq_penalty:
            raise ValueError(
                "freq_penalty is not offered; model.native.generate(repetition_penalty=) weakens repetitions"
            )
        if return_type not in ("input", "str", "tokens"):
            raise ValueError(f"return_type must be 'input', 'str' or 'tokens', got {return_type!r}")
        as_text = isinstance(input, str) or (isinstance(input, list) and bool(input) and isinstance(input[0], str))
        tokens = self.padded(input, prepend_bos, "left") if as_text else self.batch(input, prepend_bos, None, None)
        stops = self._stops(eos_token_id) if stop_at_eos else []
        seed = int(torch.randint(2**31, ()).item()) if seed is None else seed
        out = self.native.generate(
            tokens,
            max_new_tokens,
            temperature=temperature if do_sample else 0.0,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
            stop_at_eos=False,
            stop=stops,
        )
        new = [[*row.tokens, *([row.stop] if isinstance(row.stop, int) else [])] for row in out.rows]
        ids = _filled(tokens, new, self._fill(stops))
        if return_type == "tokens" or (return_type == "input" and not as_text):
            return ids
        tokenizer = self.tokenizer
        assert isinstance(tokenizer, LensTokenizer)
        texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
        return texts[0] if len(texts) == 1 else texts

    def _stops(self, eos_token_id: int | list[int] | None) -> list[int]:
        if eos_token_id is None:
            eos_token_id = None if self.tokenizer is None else self.tokenizer.eos_token_id
        if eos_token_id is None:
            raise ValueError("there is no end-of-text token: pass eos_token_id, or stop_at_eos=False")
        return [eos_token_id] if isinstance(eos_token_id, int) else list(eos_token_id)

    def _fill(self, stops: list[int]) -> int:
        """What stands behind a row that ended."""
        own = None if self.tokenizer is None else self.tokenizer.eos_token_id
        return stops[0] if len(stops) == 1 or own is None else own


def _filled(prompt: Tokens, new: list[list[int]], fill: int) -> Tensor:
    """Prompt and new tokens [batch pos+new], short rows filled behind."""
    width = max(map(len, new))
    rows = [row + [fill] * (width - len(row)) for row in new]
    return torch.cat(
        [prompt.ids, torch.tensor(rows, dtype=torch.long, device=prompt.ids.device).view(len(rows), width)], 1
    )
