"""Charts of frames and arrays, with Altair: one look for the notebook, the report and the dashboard.

The rules that every chart keeps:

1. It takes a DataFrame or an array and knows no result type, so anything with the right columns can be drawn.
2. It carries no ink of its own: axes and labels take the colours of the page around them, fills are one hue from
   transparent to full, and so a chart is right on white and on black. `to_svg`, `to_png` and `to_html` set the ink.
3. Scales are fixed (probabilities and attention 0 to 1), axes name their unit, and colours are close to Okabe and Ito's
   set, which colour-blind readers can tell apart (https://jfly.uni-koeln.de/color/).
4. Tokens are shown by `token_label`, with their index where one token can stand twice. Nothing is ever read as markup.
"""

from interp.plot.attribution import attribution_bars, attribution_heads, attribution_sources, attribution_waterfall
from interp.plot.circuits import circuit_graph_chart
from interp.plot.curves import (
    fvu_curve,
    layer_curve,
    next_token_bars,
    reliability,
    token_bars,
)
from interp.plot.diffs import head_differences, layer_differences, score_pairs, token_differences
from interp.plot.effects import effect_bars, score_against_effect, set_against_random
from interp.plot.gate import gate_curve, gate_risks
from interp.plot.grids import STATISTICS, attention_matrix, head_grid, kept_layers, lens_grid
from interp.plot.grounding import abstention_curve, attention_reach, grounding_errors, grounding_signals
from interp.plot.lenses import followed_tokens, lens_comparison
from interp.plot.patching import patch_grid
from interp.plot.probe_parts import decodable_and_used, part_intervals, probe_scores
from interp.plot.probes import layer_transfer, place_grid, probed_heads, transfer_matrix
from interp.plot.sae import latent_activations, latent_densities, latent_logits, sae_frontier, training_curves
from interp.plot.scans import lead_bars
from interp.plot.steering import steering_damage, steering_effect, steering_slopes, strength_map
from interp.plot.style import Chart, save_chart, to_html, to_png, to_svg, token_label
from interp.plot.sycophancy import sycophancy_accuracy, sycophancy_layers, sycophancy_shifts, sycophancy_steering
from interp.plot.token_calibration import calibration_by_layer, calibration_by_part, reliability_panels
from interp.plot.trace import answer_layers, token_lines
from interp.plot.tracing import trace_grid
from interp.plot.uncertainty import risk_coverage, signal_ranking
from interp.plot.weights import composition_arrows, composition_grid, copying_scatter, singular_values

__all__ = [
    "STATISTICS",
    "Chart",
    "abstention_curve",
    "answer_layers",
    "attention_matrix",
    "attention_reach",
    "attribution_bars",
    "attribution_heads",
    "attribution_sources",
    "attribution_waterfall",
    "calibration_by_layer",
    "calibration_by_part",
    "circuit_graph_chart",
    "composition_arrows",
    "composition_grid",
    "copying_scatter",
    "decodable_and_used",
    "effect_bars",
    "followed_tokens",
    "fvu_curve",
    "gate_curve",
    "gate_risks",
    "grounding_errors",
    "grounding_signals",
    "head_differences",
    "head_grid",
    "kept_layers",
    "latent_activations",
    "latent_densities",
    "latent_logits",
    "layer_curve",
    "layer_differences",
    "layer_transfer",
    "lead_bars",
    "lens_comparison",
    "lens_grid",
    "next_token_bars",
    "part_intervals",
    "patch_grid",
    "place_grid",
    "probe_scores",
    "probed_heads",
    "reliability",
    "reliability_panels",
    "risk_coverage",
    "sae_frontier",
    "save_chart",
    "score_against_effect",
    "score_pairs",
    "set_against_random",
    "signal_ranking",
    "singular_values",
    "steering_damage",
    "steering_effect",
    "steering_slopes",
    "strength_map",
    "sycophancy_accuracy",
    "sycophancy_layers",
    "sycophancy_shifts",
    "sycophancy_steering",
    "to_html",
    "to_png",
    "to_svg",
    "token_bars",
    "token_differences",
    "token_label",
    "token_lines",
    "trace_grid",
    "training_curves",
    "transfer_matrix",
]
