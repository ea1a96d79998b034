"""``evert.verifiers`` where verifiers is not: in its own environment, ``tests/more_trainers``."""

import importlib

import pytest

from evert.bridge.errors import MissingPackageError


def test_without_verifiers_it_says_what_to_install() -> None:
    with pytest.raises(MissingPackageError, match="needs the package verifiers 0.4 or newer"):
        importlib.import_module("evert.verifiers")
