"""What each part of a model adds to a logit."""

from interp.attribution.direct import WAYS, direct_logit_attribution
from interp.attribution.result import Attribution, load_attribution
from interp.attribution.weighted import value_weighted_attention

__all__ = ["WAYS", "Attribution", "direct_logit_attribution", "load_attribution", "value_weighted_attention"]
