"""Jobs: long work in a folder that is gone on with, and its life in a process of its own.

`folder` is what every kind of job shares (its folder, its owner, its specification). `background` starts a command in a
process of its own and says how far it is, `worker` is that process, and `progress` is how a command tells it.
"""

from interp.jobs.background import Job, JobState, again, cancel, job, jobs, submit
from interp.jobs.folder import (
    DAMAGED,
    LOG,
    OWNER,
    PAGE,
    REPORT,
    JobFolder,
    Progress,
    at_least,
    build,
    differences,
    file_hash,
    plain,
    read_task,
    read_toml,
    settle_owner,
)
from interp.jobs.progress import note_progress

__all__ = [
    "DAMAGED",
    "LOG",
    "OWNER",
    "PAGE",
    "REPORT",
    "Job",
    "JobFolder",
    "JobState",
    "Progress",
    "again",
    "at_least",
    "build",
    "cancel",
    "differences",
    "file_hash",
    "job",
    "jobs",
    "note_progress",
    "plain",
    "read_task",
    "read_toml",
    "settle_owner",
    "submit",
]
