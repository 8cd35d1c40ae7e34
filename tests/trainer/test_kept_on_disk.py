"""However long a run is, its folder keeps a few checkpoints and a few versions, and doctor knows how much that is."""

import pytest

from pipeline import checkpoint_folder, doctor_disk, weights
from pipeline.watch import Watch
from tests.trainer.ledger import Producer, make_run
from tests.trainer.runs import train
from trainer.loop import Trainer


def bytes_of(folder, pattern):
    return sum(path.stat().st_size for path in folder.rglob(pattern))


@pytest.mark.parametrize("loss", ["", "kl = 0.1"])
def test_a_run_keeps_no_more_on_the_disk_than_doctor_reckons_with(client, run, tmp_path, loss):
    config = make_run(tmp_path, run, total_steps=9, checkpoint_every=1, checkpoints_kept=3, loss=loss)
    seen = []

    class Looks(Trainer):
        def _next_batch(self):
            self._settle(wait=True)
            coordinator._tend()
            seen.append(
                (
                    [path.name for path in checkpoint_folder.all_of(config.folder / "checkpoints")],
                    len(weights.published(config.folder / "weights")),
                    bytes_of(config.folder / "checkpoints", "*.distcp")
                    + bytes_of(config.folder / "weights", "*.safetensors"),
                )
            )
            return super()._next_batch()

    with Producer(client, config):
        coordinator = Watch(config, client, ["http://127.0.0.1:1"])
        train(config, client, kind=Looks)
    assert seen[-1][0] == ["8", "7", "6"] and max(len(kept) for kept, *_ in seen) == 3
    assert max(versions for _, versions, _ in seen) <= doctor_disk.VERSIONS - 1, "the last is being written"
    wanted, most = doctor_disk.wanted_bytes(config), max(taken for *_, taken in seen)
    assert 0.6 * wanted < most < 1.2 * wanted, "beside its bytes, each tensor has 2 kB: a third, of one so small"
