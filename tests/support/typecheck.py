"""The runtime type checker of the test run: jaxtyping hands every function of `interp` to it."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
