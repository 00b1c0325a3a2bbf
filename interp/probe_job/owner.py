"""Whose folder it is: a job's report and probes are never replaced in silence by those of another job.

job.json names the specification, the texts by their hash, and the model by its fingerprint. A folder is gone on with by
the same job alone. Bootstrap draws may change, for they change no probe and no figure but the intervals.
"""

import logging
from collections.abc import Mapping
from typing import Any

from interp import artifact
from interp.dataset import Dataset
from interp.probe_job.folder import OWNER, JobFolder
from interp.probe_job.spec import ProbeSpec

KIND = "probe job owner"
FREE = ("n_boot",)
"""Keys of a specification that may change."""
_MOST = 60

log = logging.getLogger("interp.probe_job")


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
    known = _known(folder)
    changed = [] if known is None else differences(known, own)
    if changed and not replace:
        raise ValueError(
            f"{folder.path} holds another job. What differs: {'; '.join(changed)}. Choose another folder (--out), or replace the "
            "job (--replace): its report and probes then move to earlier/ in this folder"
        )
    if changed:
        log.info("the report of another job was moved to %s", folder.move_earlier())
    path = folder.path / OWNER
    if not path.is_file() or artifact.read_json(path) != own:
        artifact.write_json(path, own)


def _known(folder: JobFolder) -> dict[str, Any] | None:
    """Whose folder it is; of folders of before job.json the report says it."""
    path = folder.path / OWNER
    if path.is_file():
        found = artifact.read_json(path)
        if not isinstance(found, dict) or found.get("kind") != KIND:
            raise ValueError(f"{path} does not say whose folder this is: choose another folder")
        return found
    if not folder.report.is_file():
        return None
    report = artifact.read_json(folder.report)
    if not isinstance(report, dict) or "job" not in report:
        raise ValueError(f"{folder.report} is not the report of a probe job: choose another folder")
    card = report.get("card", {})
    return {"job": report["job"], "texts": card.get("data"), "model": card.get("model", {}).get("fingerprint")}


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """What differs between two jobs and can change a figure, each as `key: there -> here`; keys are those of `--set`."""
    mine, others = (dict(_flat(each["job"])) for each in (one, other))
    found = [
        f"{key}: {_short(mine.get(key))} -> {_short(others.get(key))}"
        for key in dict.fromkeys([*mine, *others])
        if key not in FREE and mine.get(key) != others.get(key)
    ]
    for key, words in (("texts", "the texts, labels or groups"), ("model", "the model's weights")):
        if one.get(key) != other.get(key):
            found.append(f"{words} (hash {str(one.get(key))[:12]} -> {str(other.get(key))[:12]})")
    return found


def _flat(values: Mapping[str, Any], before: str = "") -> Any:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def _short(value: Any) -> str:
    if isinstance(value, list) and value and all(isinstance(each, Mapping) for each in value):
        value = [{key: part for key, part in each.items() if part not in (None, {}, False, [])} for each in value]
    text = "none" if value is None else str(value)
    return text if len(text) <= _MOST else text[: _MOST - 1] + "…"
