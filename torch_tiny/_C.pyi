"""The C++ core: devices, the recorder, the trace and its runs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict, TypeVar

from torch import Generator, Tensor, UntypedStorage, dtype

_T = TypeVar("_T")

class Cause(TypedDict):
    """Why traces were run, and the line of the user's program that made it necessary."""

    reason: str
    where: str
    count: int

class Trouble(TypedDict):
    """Something that cost speed, and the line of the user's program that recorded it."""

    kind: str
    reason: str
    where: str
    count: int

class Traffic(TypedDict):
    """Bytes moved between the host and a portable device, by one line."""

    direction: str
    where: str
    count: int
    bytes: int

class Metrics(TypedDict):
    """What has happened since the start or the last `reset_metrics`."""

    calls: int
    calls_by_op: dict[str, int]
    at_once_by_op: dict[str, int]
    traces: int
    plan_hits: int
    plan_misses: int
    metadata_hits: int
    metadata_misses: int
    syncs: int
    relayouts: int
    products: int
    graphs: int
    graph_runs: int
    causes: list[Cause]
    miss_reasons: list[Cause]
    seconds_recording: float
    seconds_running: float
    traffic: list[Traffic]
    fallbacks: list[Cause]

def init(
    hosts: list[str],
    numbers: str,
    traits: Mapping[str, Sequence[str]],
    composed: Sequence[tuple[str, str, Callable[..., Any]]],
    /,
) -> None:
    """Make tiny:i live in the memory of hosts[i] ("cpu", "cuda:0").

    traits: what is true of operators, and the patterns of their names. composed: the operators that
    are made of others, where, and by what.
    """

def add_library_folder(folder: str, /) -> None:
    """Frames of files below `folder` are not the user's when a line is to be named."""

def device_count() -> int: ...
def current_device() -> int: ...
def set_device(index: int, /) -> None: ...
def exchange_device(index: int, /) -> int:
    """Set the current device and return the one before."""

def device_host(index: int, /) -> str:
    """The memory of tiny:index, as given to `init`."""

def run_everything(reason: str) -> None:
    """On all devices; who runs next on one hears of an error there."""

def set_default_type_while_idle(dtype: object, /) -> bool:
    """Call it while nothing is recorded or waits to run. Whether that was possible just now."""

def default_type_was_set(dtype: object, /) -> None:
    """By the program, maybe while a run has set another one."""

def synchronize(index: int, /) -> None:
    """Run the trace of tiny:index and wait for its memory's device."""

def run(index: int, reason: str, /) -> None:
    """Run the trace of tiny:index, or leave it to a thread; `reason` goes into the metrics."""

def finish() -> None:
    """Wait for traces that were left to a thread, and drop their errors."""

def host_alias(tensor: Tensor, /) -> Tensor:
    """A CPU or CUDA tensor over the same memory; writes on either side are seen on the other."""

def host_memory(tensor: Tensor, /) -> Tensor:
    """The same, but what is recorded later is in this memory only after `synchronize`.

    The memory is shared from then on: it stays where it is.
    """

def share_buffer(tensor: Tensor, lend: Callable[[int], _T], /) -> _T:
    """On a portable device: what `lend` makes of the number of the buffer, which is then shared."""

def shared_tensor(index: int, memory: int, dtype: dtype, /) -> Tensor | None:
    """A flat tensor over memory that was shared, a buffer or an address, if one lives already."""

def adopt_shared(host: Tensor, index: int, /) -> Tensor:
    """A tensor of tiny:index over the memory of a CPU tensor, which others look at too."""

def adopt_shared_buffer(index: int, buffer: int, nbytes: int, dtype: dtype, /) -> Tensor:
    """The same over a buffer of a portable device."""

def note_traffic(direction: str, nbytes: int, /) -> None: ...
def has_memory(tensor: Tensor, /) -> bool:
    """Whether there is memory of a tiny device behind `tensor`: not if it is fake or functional."""

def fix_size(storage: UntypedStorage, /) -> None:
    """From now on `storage` cannot be resized."""

def materialize(tensor: Tensor, /) -> None:
    """Run what `tensor` depends on, so that its data_ptr is real and the data is there."""

def is_portable(index: int, /) -> bool:
    """Whether only tinygrad drives the memory of tiny:index."""

def set_portable(functions: Any, /) -> None:
    """Its upload, download, run, wait and warn serve the portable devices."""

def set_compile_portable(function: Callable[[int, int, str, list[str]], str], /) -> None:
    """Called at first sight of a trace on a portable device."""

def set_missing_types(index: int, types: list[int], advice: str, /) -> None:
    """Types that tiny:index lacks, by c10's numbers; `advice` ends the error."""

def refuse_fallbacks(refuse: bool, /) -> None:
    """Whether an operator that would run on the host raises instead."""

def dropped(index: int, /) -> tuple[list[int], list[int]]:
    """Buffers of tiny:index, and programs of all devices, that nobody needs any more."""

def default_generator(index: int, /) -> Generator: ...
def metrics() -> Metrics: ...
def reset_metrics() -> None: ...
def memory_stats(index: int, /) -> dict[str, int]: ...
def reset_peak_memory_stats(index: int, /) -> None: ...
def reset_accumulated_memory_stats(index: int, /) -> None: ...
def empty_cache() -> None: ...
def memory_limit_of_groups(groups: str, root: str, /) -> int:
    """The lowest limit of the cgroups that the file `groups` names, which are folders of `root`."""

def set_limits(calls: int, bytes: int, /) -> None:  # noqa: A002
    """Limits of one trace: recorded calls and bytes pending."""

def set_kept(plans: int, signatures: int, codes: int, /) -> None:
    """How many a device keeps, at most: for tests."""

def fill_fresh_memory(byte: int, /) -> None:
    """What fresh memory of the host holds; negative: whatever was there. For tests."""

def in_bad_fork() -> bool:
    """Whether this process was forked from one that had used the device."""

def set_mode(mode: str, /) -> None:
    """ "aten", "auto" or "uop"; see torch_tiny.engine.settings."""

def set_validate(on: bool, /) -> None: ...
def set_random_kernels(machine_code: Callable[[int], bytes], /) -> None:
    """Where the kernels that draw on a GPU come from, by the index of the GPU."""

def set_cuda_graphs(on: bool, /) -> None:
    """Whether settled plans on CUDA memory become CUDA graphs."""

def next_job(patience: float, /) -> tuple[int, int, str, list[str]] | None:
    """The next hot trace: its device, plan and text, and the user's line of each call.

    None after `patience` seconds.
    """

def postponed_jobs() -> int:
    """How often a hot trace had to wait for room among the jobs."""

def troubles() -> list[Trouble]: ...
def set_teller(tell: Callable[[], None], /) -> None:
    """Called in the main thread, between two of its steps, when there is trouble to tell of."""

def tell_soon() -> None:
    """Have it called."""

def listen(on: bool, /) -> list[str]:
    """Keep the text of every trace that runs, or stop; what was heard since the last time."""

def wake() -> None:
    """Let a waiting `next_job` return None now."""

def reset_jobs() -> None:
    """In a forked child: forget jobs, and locks that were held when it was forked."""

def set_compile_now(function: Callable[[int, int, str, list[str]], str], /) -> None:
    """Called at first sight of a trace in mode "uop"; returns what went wrong."""

def install(
    device: int,
    plan: int,
    steps: list[tuple[int, int, list[int]]],
    regions: list[dict[str, Any]],
    /,
) -> bool:
    """Run the plan as compiled from now on. False if it is not known any more.

    regions: engine/plan.py's Place; the code of each has to be loaded.
    """

class LoadedCode:
    """Code that stays loaded for as long as this, or a plan with it, lives."""

def load_code(device: int, key: str, code: dict[str, Any], /) -> LoadedCode:
    """engine/plan.py's Code, with the path of its library and the engine that was chosen."""

def loaded_code(device: int, key: str, /) -> LoadedCode | None:
    """What is loaded under this key."""

def replace_code(device: int, key: str, code: dict[str, Any], /) -> None:
    """Regions with this code run another one from now on, timed anew."""

def decisions() -> int:
    """How many choices between two ways to run something were made by measuring."""

def plans(device: int, /) -> list[dict[str, Any]]:
    """What is known of the compiled plans of a device."""
