"""Records PyTorch memory snapshots during training and sends them to a Tidegauge server.

    import tidegauge

    tidegauge.start("gpt-small", steps=[1, 5, 10])
    for batch in batches:
        train(batch)
        tidegauge.step()

Nothing here raises: what goes wrong is said on standard error, once, and training goes on.
"""

from ._agent import __version__, own, snapshot, start, step, stop

__all__ = ["__version__", "own", "snapshot", "start", "step", "stop"]
