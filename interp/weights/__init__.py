"""Pretrained weights: from a catalogue name, a hub id, a folder or a GGUF file to a HookedTransformer.

Read `load.py` first. `family.py` says what a family is, `families.py` which there are; each has a file of its own.
"""
