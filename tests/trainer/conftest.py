import pytest

from pipeline.config_sections import TinyModel
from pipeline.redis_client import connect
from tests.trainer.ledger import Producer, make_run
from tests.trainer.runs import comparable, last_weights, recorded, train
from trainer import tiny


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """A model folder: 2 layers × 32, vocabulary 320."""
    folder = tmp_path_factory.mktemp("model") / "tiny"
    tiny.make(folder, TinyModel(layers=2, hidden=32, heads=2, vocabulary=320), ["12 * 7 = ?"], seed=1, context=4096)
    return folder


@pytest.fixture
def client(redis_url):
    with connect(redis_url) as client:
        yield client


@pytest.fixture(scope="session")
def uninterrupted(redis_url, tmp_path_factory):
    """Metrics and final weights of a run that nothing disturbed."""
    with connect(redis_url) as client:
        config = make_run(tmp_path_factory.mktemp("runs"), "uninterrupted")
        with Producer(client, config):
            train(config, client)
        return comparable(recorded(config)), last_weights(config)
