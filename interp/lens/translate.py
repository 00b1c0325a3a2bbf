"""What a lens other than the logit lens is: a map from the stream at a place to what the end of the model reads.

Every lens ends the same way: the final norm of that row, then the unembedding. The logit lens puts nothing before it.
A `Translator` puts its own map there: an affine one that was trained (`interp.lens.tuned`), or the average Jacobian.
"""

from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from interp.model import HookedTransformer


@runtime_checkable
class Translator(Protocol):
    """A lens that `logit_lens(model, x, lens=...)` reads through, and that is compared with others by held-out KL."""

    @property
    def name(self) -> str:
        """One word for tables and charts: "tuned", "jacobian"."""
        ...

    @property
    def sites(self) -> tuple[str, ...]:
        """Full names of the places that it translates, in the model's order."""
        ...

    def translate(self, rows: Float[Tensor, "row d_model"], site: str) -> Float[Tensor, "row d_model"]:
        """Rows of the stream at a site, as the final norm and the unembedding (`model.unembed_logits`) then read them.

        Args:
            rows: of the stream; what comes back has their dtype.
            site: full (`blocks.3.hook_resid_post`) or short name (`resid_post:3`).

        Raises:
            ValueError: a site that the lens does not translate, with those that it does.
        """
        ...

    def check_model(self, model: HookedTransformer) -> None:
        """Refuse a model that the lens was not made for, with ValueError."""
        ...
