"""Says what a training in this interpreter would find, as one line of JSON behind a marker.

Torch is imported where it is installed, and only there. No device is used: asking whether one is available makes no
context on it.
"""

import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import sys

MARKER = "tidegauge-doctor "


def is_installed(name):
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def version_of(name, found):
    """Imports a package that is installed; what keeps it from being imported is a finding, too."""
    if not is_installed(name):
        return None
    try:
        module = importlib.import_module(name)
    except BaseException as error:
        found["broken"][name] = f"{type(error).__name__}: {error}"
        return None
    found["versions"][name] = str(getattr(module, "__version__", "unknown"))
    return module


def is_available(torch, name):
    try:
        return bool(getattr(torch, name).is_available())
    except Exception:
        return False


def release_of(distribution):
    """Of a package that is not imported for it."""
    try:
        return importlib.metadata.version(distribution)
    except Exception:
        return None


def has_auto():
    """Whether the file is there that looks at TIDEGAUGE_AUTO when an interpreter starts."""
    return is_installed("_tidegauge_auto") and any(
        os.path.exists(os.path.join(folder, "tidegauge_auto.pth")) for folder in sys.path
    )


def main():
    asked = json.loads(sys.argv[1])
    found = {"python": platform.python_version(), "executable": sys.executable, "versions": {}, "broken": {}}
    version_of("tidegauge", found)
    releases = {name: release_of(name) for name in asked["frameworks"]}
    found["frameworks"] = {name: release for name, release in releases.items() if release}
    found["has_auto"] = has_auto()
    torch = version_of("torch", found)
    if torch is not None:
        before = set(sys.modules)
        found["comes_with_torch"] = [package for package in asked["packages"] if package in before]
        for package in asked["packages"]:
            version_of(package, found)
        found["available"] = [name for name in asked["devices"] if is_available(torch, name)]
        found["is_rocm"] = bool(getattr(getattr(torch, "version", None), "hip", None))
    print(MARKER + json.dumps(found), flush=True)


main()
