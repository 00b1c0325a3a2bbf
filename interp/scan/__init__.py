"""One prompt, everything that is looked at first: see `interp/scan/prompt.py`."""

from interp.scan.prompt import scan_prompt
from interp.scan.result import ScanReport, load_scan_report

__all__ = ["ScanReport", "load_scan_report", "scan_prompt"]
