from typing import Any

__all__ = ["TidegaugeCallback"]

class TidegaugeCallback(Any):
    """Starts the agent with the settings of ``tidegauge.start``, unless it runs, and tells it the trainer's steps.

    A ``Callback`` of lightning.pytorch or pytorch_lightning, whichever is imported.
    """

    def __init__(self, **settings: Any) -> None: ...
