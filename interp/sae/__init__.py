"""Sparse autoencoders: train them on a store, measure them honestly, look at their latents.

`config` choices, `rows` where rows come from, `step` and `sparse` the arithmetic, `train` the run, `model` the trained
value, `evaluate` what it explains, `splice` what the model does with it in place, `features` what its latents fire on.
"""
