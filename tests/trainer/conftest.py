import pytest

from pipeline.config import TinyModel
from trainer import tiny


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """A model folder: 2 layers × 32, vocabulary 320."""
    folder = tmp_path_factory.mktemp("model") / "tiny"
    tiny.make(folder, TinyModel(layers=2, hidden=32, heads=2, vocabulary=320), ["12 * 7 = ?"], seed=1, context=4096)
    return folder
