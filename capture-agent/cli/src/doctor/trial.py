"""Records for a moment, as a training would: one allocation on the device, one step, one snapshot in a folder."""

import importlib
import json
import sys

asked = json.loads(sys.argv[1])
torch = importlib.import_module("torch")
importlib.import_module(asked["package"])
tidegauge = importlib.import_module("tidegauge")

tidegauge.start("doctor", **asked["settings"])
memory = torch.empty(1 << 20, dtype=torch.uint8, device=asked["device"])
tidegauge.step()
tidegauge.stop()
