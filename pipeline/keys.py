"""Every Redis key of a run. All share the hash tag {run}, so that a run lives on one shard of a cluster.

hr:{run}                            hash    schema digest created_ms, and each setting of the buffers
                                            version head event oldest checkpoint credited trainer: how far the run is
                                            rules    the settings that scripts need, in one line: ledger_settings.RULES
                                            window   occupied/due/min_version of each buffer, from the last down to head
                                            awaited  head, if the trainer waits for it
                                            stored   trajectories that the ledger keeps
                                            paused stopped consecutive_failures consecutive_filtered: what holds it up
                                            the rest is the scripts' own: lua/create.lua, lua/_run.lua
hr:{run}:buffer:<v>                 hash    state occupied reserved due over capacity target min_version
hr:{run}:buffer:<v>:entries         zset    entry -> V_traj · 2^32 + finishing number
hr:{run}:entry:<id>                 hash    state prompt version deadline event value worker engine attempt reserved_ms;
                                            later also what lua/_entries.lua lists
hr:{run}:reserved                   zset    entry -> deadline · 2^32 + reservation number
hr:{run}:prompts                    zset    idle prompts, the race          :quarantined  zset  prompt -> ms
hr:{run}:prompt:<id>                hash    alpha beta event visits value payload epoch attempts lost
hr:{run}:engines                    zset    engine -> version               :engine:<name>  hash
hr:{run}:engine_urls                hash    engine -> url, where its requests go
hr:{run}:engine_changes             hash    engine -> url; "" for one that a person has removed
hr:{run}:workers                    zset    incarnation -> lease's end in ms  :worker:<incarnation>  hash, …:entries
hr:{run}:trajectories:<incarnation> stream  payload, one entry per trajectory
hr:{run}:versions                   hash    version -> {path, digest, event, time} as JSON
hr:{run}:trainers                   hash    incarnation -> ms it joined
hr:{run}:counters                   hash    surplus, filtered, consumed, released:<reason>, staleness:<k>
hr:{run}:events                     stream  every transition: the bell and, archived, the record
hr:{run}:metrics                    stream  one update an entry
hr:{run}:transfers                  list    weights that engines ask the trainer for  :transfer:<id>  list
hr:{run}:processes                  zset    process -> ms when it is gone  :process:<name>  hash
hr:{run}:evals                      zset    version -> version               :eval:<version>  hash
hr:{run}:launcher                   hash    what the local `headrace up` shall keep running
"""

SCHEMA = 4  # of all this; a run that was made with another one is refused


def run(name: str) -> str:
    return f"hr:{{{name}}}"


def fixed(name: str) -> list[str]:
    """The keys that every transition gets, in the order of lua/_call.lua."""
    return [
        run(name),
        prompts(name),
        reserved(name),
        events(name),
        counters(name),
        workers(name),
    ]


def prompts(name: str) -> str:
    return f"{run(name)}:prompts"


def quarantined(name: str) -> str:
    return f"{run(name)}:quarantined"


def prompt(name: str, prompt_id: str) -> str:
    return f"{run(name)}:prompt:{prompt_id}"


def reserved(name: str) -> str:
    return f"{run(name)}:reserved"


def entry(name: str, entry_id: str) -> str:
    return f"{run(name)}:entry:{entry_id}"


def buffer(name: str, version: int) -> str:
    return f"{run(name)}:buffer:{version}"


def buffer_entries(name: str, version: int) -> str:
    return f"{buffer(name, version)}:entries"


def events(name: str) -> str:
    return f"{run(name)}:events"


def counters(name: str) -> str:
    return f"{run(name)}:counters"


def engines(name: str) -> str:
    return f"{run(name)}:engines"


def engine(name: str, engine_name: str) -> str:
    return f"{run(name)}:engine:{engine_name}"


def engine_urls(name: str) -> str:
    return f"{run(name)}:engine_urls"


def engine_changes(name: str) -> str:
    return f"{run(name)}:engine_changes"


def workers(name: str) -> str:
    return f"{run(name)}:workers"


def worker(name: str, incarnation: str) -> str:
    return f"{run(name)}:worker:{incarnation}"


def worker_entries(name: str, incarnation: str) -> str:
    return f"{worker(name, incarnation)}:entries"


def trajectories(name: str, incarnation: str) -> str:
    return f"{run(name)}:trajectories:{incarnation}"


def versions(name: str) -> str:
    return f"{run(name)}:versions"


def trainers(name: str) -> str:
    return f"{run(name)}:trainers"


def metrics(name: str) -> str:
    """Stream, capped at 10,000: one entry per update, field `json`."""
    return f"{run(name)}:metrics"


def transfers(name: str) -> str:
    return f"{run(name)}:transfers"


def transfer(name: str, transfer_id: str) -> str:
    """List that expires: taken, then done or why not."""
    return f"{run(name)}:transfer:{transfer_id}"


def process(name: str, process_name: str) -> str:
    """Hash that expires unless it is refreshed (progress.py): role, pid, waiting, since_ms, role-specific numbers."""
    return f"{run(name)}:process:{process_name}"


def processes(name: str) -> str:
    """Zset process -> when it is gone unless it is refreshed, in ms: the index of the processes."""
    return f"{run(name)}:processes"


def launcher(name: str) -> str:
    """Hash: workers, the names of those that the local `headrace up` shall keep running."""
    return f"{run(name)}:launcher"


def evaluation(name: str, version: int) -> str:
    """Hash: state requested|running|done|failed, requested_ms, worker, success, trajectories, seconds, error."""
    return f"{run(name)}:eval:{version}"


def evaluations(name: str) -> str:
    """Zset version -> version: the index of the evaluations."""
    return f"{run(name)}:evals"
