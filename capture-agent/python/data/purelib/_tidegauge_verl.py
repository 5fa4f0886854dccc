"""The entry point that verl loads wherever it is imported: the adapter, if TIDEGAUGE_AUTO asks for it.

In most processes tidegauge_auto.pth was here before. It does not run where Python was started with -I or -S, or where
the variable was set after the start.
"""

import _tidegauge_auto

if _tidegauge_auto.is_asked_for("verl"):
    _tidegauge_auto.install()
