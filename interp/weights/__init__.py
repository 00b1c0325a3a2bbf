"""Pretrained weights: from a catalogue name, a hub id, a folder or a GGUF file to a HookedTransformer.

Read `load.py` first. `family.py` says what a family is; `llama.py` and `gpt2.py` are one family each.
"""
