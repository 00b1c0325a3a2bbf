"""Whose folder it is: a job's report and probes are never replaced in silence by those of another job.

job.json names the specification, the texts by their hash, and the model by its fingerprint. A folder is gone on with by
the same job alone. Bootstrap draws may change, for they change no probe and no figure but the intervals.
"""

from collections.abc import Mapping
from typing import Any

from interp import artifact, jobs
from interp.dataset import Dataset
from interp.probe_job.folder import JobFolder
from interp.probe_job.spec import ProbeSpec

KIND = "probe job owner"
FREE = ("n_boot",)
"""Keys of a specification that may change."""
HASHES = {"texts": "the texts, labels or groups", "model": "the model's weights"}
"""What stands outside the specification and decides a figure."""


def settle_owner(folder: JobFolder, spec: ProbeSpec, data: Dataset, fingerprint: str, *, replace: bool) -> None:
    """Write whose folder it is, or refuse that of another job.

    Args:
        folder: held alone.
        spec: what is asked.
        data: its texts.
        fingerprint: of the model.
        replace: move what another job found to `earlier/<n>` instead.

    Raises:
        ValueError: the folder of another job; the message lists what differs.
    """
    own = {"kind": KIND, "job": spec.to_dict(), "texts": data.hash, "model": fingerprint}
    jobs.settle_owner(folder, own, HASHES, replace=replace, free=FREE, before=lambda: _by_report(folder))


def _by_report(folder: JobFolder) -> dict[str, Any] | None:
    """Whose a folder of before job.json is: the report says it."""
    if not folder.report.is_file():
        return None
    report = artifact.read_json(folder.report)
    if not isinstance(report, dict) or "job" not in report:
        raise ValueError(f"{folder.report} is not the report of a probe job: choose another folder")
    card = report.get("card", {})
    return {"job": report["job"], "texts": card.get("data"), "model": card.get("model", {}).get("fingerprint")}


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """What differs between two probe jobs and can change a figure, each as `key: there -> here`."""
    return jobs.differences(one, other, HASHES, FREE)
