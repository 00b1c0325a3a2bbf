"""`Job`: what every step of a job knows, and what decides whether an earlier result may be used again."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from interp import artifact
from interp.dataset import Dataset
from interp.jobs import Progress
from interp.model import HookedTransformer
from interp.probe.reading import expand_places
from interp.probe_job.folder import JobFolder
from interp.probe_job.spec import ProbeSpec
from interp.probe_job.tasks import TaskFiles
from interp.probe_job.texts import asked_rows
from interp.store import Store


@dataclass(frozen=True, eq=False)
class Job:
    """A job whose activations are there."""

    folder: JobFolder
    """Where everything goes."""
    spec: ProbeSpec
    """What is asked."""
    data: Dataset
    """All texts, those of controls too."""
    model: HookedTransformer
    """Whose activations they are."""
    store: Store
    """The activations of all texts."""
    tell: Progress
    """How far it is."""

    @cached_property
    def rows(self) -> list[int]:
        """Numbers of the texts whose label is the one asked about: all but those of controls."""
        return asked_rows(self.data)

    @cached_property
    def asked(self) -> Store:
        """The activations of these texts."""
        return self.store.select(texts=self.rows)

    @cached_property
    def places(self) -> list[str]:
        """Full names of the places."""
        return expand_places(list(self.spec.sites), self.store)

    @cached_property
    def origin(self) -> dict[str, Any]:
        """What decides every result beside the settings."""
        return {"model": self.model.fingerprint, "texts": self.data.hash, "stored": self.store.card["tokens"]}

    @cached_property
    def key(self) -> str:
        """Hash of everything that decides the report."""
        return artifact.hash_json([self.spec.to_dict(), self.origin, self.places, artifact.provenance()])

    def arguments(self) -> dict[str, Any]:
        """Of a sweep, without its seed."""
        spec = self.spec
        return {
            "sites": self.places, "kinds": spec.kinds, "tokens": spec.tokens, "C": spec.C, "n_folds": spec.folds,
            "n_boot": spec.n_boot, "n_controls": spec.controls.n, "protocol": spec.protocol,
        }  # fmt: skip

    def files(self, seed: int) -> TaskFiles:
        """Finished tasks of a seed. Kinds and bootstrap draws do not change what a task gives."""
        arguments = self.arguments()
        decides = {name: arguments[name] for name in ("tokens", "n_folds", "n_controls", "protocol")}
        read = artifact.hash_json(self.rows)
        return TaskFiles(self.folder, seed, {**self.origin, **decides, "C": list(self.spec.C), "rows": read})
