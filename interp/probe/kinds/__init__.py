"""The kinds of probe, a module each: every one turns a design and many problems (labels, rows to see) into readers.

The linear kinds are functions `fit_*(design, y, mask, C, seed) -> Readers`. All problems of a call are solved together
where the algebra allows, and a problem never depends on those beside it.
"""
