"""A cache of its own for every run: rows that older code built must not pass a test."""

import datasets
import pytest


@pytest.fixture(autouse=True, scope="session")
def fresh_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
        yield
