"""The command line and the environment of every process of a run: what belongs to whom."""

from pipeline import programs
from pipeline.config import Config
from pipeline.engine_processes import engine_processes


def config_of(**sections) -> Config:
    tasks = {"tasks": {"chain_sum": {"min_terms": 2}}}
    return Config.model_validate({"run": {"name": "small"}, "model": {"path": "model"}, "data": tasks, **sections})


def test_engines_and_trainer_see_their_own_gpus_and_nobody_else_sees_any(sglang_stand_in):
    config = config_of(
        engines={"device": "cuda", "count": 2, "tp": 2, "gpus": [0, 1, 2, 3]}, trainer={"ranks": 2, "gpus": [4, 5]}
    )
    engines = [engine.program for engine in engine_processes(config)]
    assert [engine.env["CUDA_VISIBLE_DEVICES"] for engine in engines] == ["0,1", "2,3"]
    assert all("SGLANG_USE_CPU_ENGINE" not in engine.env and "--tp" in engine.argv for engine in engines)
    assert programs.trainer(config, "redis://").env["CUDA_VISIBLE_DEVICES"] == "4,5"
    assert programs.cold_start(config).env["CUDA_VISIBLE_DEVICES"] == "4"
    assert programs.worker(config, "worker-0", "redis://").env["CUDA_VISIBLE_DEVICES"] == ""
    assert "torch.distributed.run" in programs.trainer_argv(config, restarts=0)


def test_torchrun_restarts_ranks_where_nobody_else_does():
    """`headrace up` starts a trainer again by itself, unless ranks on other nodes must start with it."""
    meeting = {"nodes": 2, "rendezvous": "node-0:29500", "max_restarts": 5}
    one, two = (config_of(trainer={"ranks": 4} | more) for more in ({}, meeting))
    line = " ".join(programs.trainer(one, "redis://").argv)
    assert "--standalone" in line and "--nproc-per-node 4 --max-restarts 0 --shutdown-timeout 600" in line
    line = " ".join(programs.trainer(two, "redis://").argv)
    assert "--nnodes 2 --rdzv-backend c10d --rdzv-endpoint node-0:29500 --rdzv-id" in line
    assert "--nproc-per-node 2 --max-restarts 5" in line and "--standalone" not in line


def test_an_engine_on_a_cpu_is_the_same_server_with_what_it_needs_there(sglang_stand_in):
    (engine,) = engine_processes(config_of(engines={"args": ["--max-total-tokens", "4096"]}))
    line = " ".join(engine.program.argv)
    assert "-m sglang.launch_server --model-path model --host 127.0.0.1" in line
    assert "--device cpu --dtype float32" in line
    assert line.endswith("--max-total-tokens 4096")
    assert engine.program.env["SGLANG_USE_CPU_ENGINE"] == "1"
    assert engine.program.env["OMP_NUM_THREADS"] == "1"


def test_every_process_is_kept_from_a_users_own_modules(sglang_stand_in):
    config = config_of()
    all_of_them = [
        programs.coordinator(config, "redis://", []),
        programs.trainer(config, "redis://"),
        programs.worker(config, "worker-0", "redis://"),
        programs.cold_start(config),
        programs.values(config, []),
    ]
    assert {program.env["PYTHONSAFEPATH"] for program in all_of_them} == {"1"}
