"""The stubs: what a type checker says of a program that uses the package."""

import ast
import json
import pathlib
import subprocess
import sys

import tidegauge

STUB = pathlib.Path(tidegauge.__file__).with_name("__init__.pyi")


def mypy(*arguments):
    return subprocess.run([sys.executable, "-m", *arguments], capture_output=True, text=True, timeout=300)


def test_a_program_with_every_setting_is_typed_and_wrong_ones_are_found(tmp_path):
    # An error that mypy does not find is an unused "ignore", and that is an error.
    done = mypy("mypy", "--strict", "--no-incremental", f"--cache-dir={tmp_path}", str(pathlib.Path(__file__).with_name("typed.py")))
    assert done.returncode == 0, done.stdout


def test_the_stub_says_what_the_package_has(tmp_path):
    # The native half has no stub: all that is public stands in the package's own. Its start() takes any keyword and
    # says which it does not know.
    allowed = tmp_path / "allowed"
    # Nor can an adapter be imported where its framework is not installed.
    frameworks = "tidegauge\\.(accelerate|deepspeed|lightning|megatron_bridge|transformers|verl)(\\..*)?"
    allowed.write_text(f"tidegauge\\._agent\ntidegauge\\._frames\ntidegauge\\.__main__\ntidegauge\\.start\n{frameworks}\n")
    config = tmp_path / "mypy.ini"
    config.write_text("[mypy]\nignore_missing_imports = True\n")
    options = ["--allowlist", str(allowed), "--ignore-unused-allowlist", "--mypy-config-file", str(config)]
    done = mypy("mypy.stubtest", "tidegauge", *options)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_stub_has_the_settings_that_there_are():
    start = next(f for f in ast.parse(STUB.read_text()).body if isinstance(f, ast.FunctionDef) and f.name == "start")
    keywords = [argument.arg for argument in start.args.args + start.args.kwonlyargs]
    done = mypy("tidegauge", "doctor", "--json")
    settings = [setting["name"] for setting in json.loads(done.stdout)["settings"]]
    assert keywords == settings
    documented = ast.get_docstring(start)
    assert [name for name in settings if f"\n{name}: " not in documented] == []
