"""torch.tiny, torch.accelerator, streams and events, and how the devices are named."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from harness import KIND, ROOT, needs_tiny, numbers, python

pytestmark = needs_tiny


def test_importing_torch_is_enough() -> None:
    out = python("import torch; print(torch.ones(3, device='tiny').sum().item())")
    assert out.strip() == "3.0"


def test_a_core_for_another_python_is_named(tmp_path: Path) -> None:
    (tmp_path / "torch_tiny").mkdir()
    for path in (ROOT / "torch_tiny").iterdir():
        if path.suffix != ".so":
            (tmp_path / "torch_tiny" / path.name).symlink_to(path)
    (tmp_path / "torch_tiny" / "_C.cpython-30-x86_64-linux-gnu.so").touch()
    out = python(
        f"""
        import platform, sys
        sys.path.insert(0, {str(tmp_path)!r})
        try:
            import torch_tiny
        except ImportError as error:
            assert f"this is Python {{platform.python_version()}}" in str(error), error
            print(error)
        """,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    assert "_C.cpython-30-x86_64-linux-gnu.so" in out


def test_what_is_there() -> None:
    tiny = torch.tiny
    assert tiny.is_available()
    assert tiny.is_initialized()
    assert tiny.device_count() >= 1
    assert tiny.current_device() == 0
    assert tiny.device_name(0).startswith(KIND)
    assert tiny.get_device_properties(0).total_memory > 2**28
    assert torch.bfloat16 in tiny.get_amp_supported_dtype()
    assert torch.get_device_module("tiny") is torch.tiny


def test_current_device() -> None:
    torch.tiny.set_device(0)
    torch.tiny.set_device("tiny:0")
    with torch.tiny.device(0):
        assert torch.tiny.current_device() == 0
    with torch.tiny.device("tiny:0"), torch.tiny.device(-1):
        assert torch.ones(1, device="tiny").device.index == 0
    with torch.tiny.device_of(torch.ones(1, device="tiny")):
        assert torch.tiny.current_device() == 0
    for wrong in (9, "tiny:9"):
        with pytest.raises(RuntimeError, match="9"):
            torch.tiny.set_device(wrong)
    with pytest.raises(ValueError, match="cpu"):
        torch.tiny.set_device("cpu")


def test_names_of_the_device() -> None:
    x = torch.ones(2, device="tiny")
    assert x.device == torch.device("tiny:0") == torch.device("tiny", 0)
    assert str(x.device) == "tiny:0"
    assert torch.ones(2, device=torch.device("tiny")).device.index == 0
    assert x.get_device() == 0
    assert x.type() == "torch.tiny.FloatTensor"
    assert torch._C._get_privateuse1_backend_name() == "tiny"


def test_methods() -> None:
    x = torch.ones(2)
    y = x.tiny()
    assert y.is_tiny
    assert not x.is_tiny
    assert not y.is_cpu
    assert y.tiny() is y
    assert x.tiny("tiny:0", non_blocking=True).is_tiny
    model = torch.nn.Linear(2, 2).tiny()
    assert model.weight.is_tiny
    assert torch.nn.Linear(2, 2).tiny(0).weight.is_tiny
    assert y.untyped_storage().is_tiny
    assert x.untyped_storage().tiny().is_tiny


def test_accelerator() -> None:
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator().type == "tiny"
    assert torch.accelerator.device_count() == torch.tiny.device_count()
    assert torch.accelerator.current_device_index() == 0
    torch.accelerator.set_device_index(0)
    with torch.accelerator.device_index(0):
        pass
    x = torch.ones(3, device=torch.accelerator.current_accelerator()) + 1
    torch.accelerator.synchronize()
    assert x.tolist() == [2, 2, 2]
    assert torch.accelerator.current_stream().device.type == "tiny"


def test_accelerator_memory() -> None:
    torch.accelerator.empty_cache()
    torch.accelerator.reset_peak_memory_stats()
    before = torch.accelerator.memory_allocated()
    x = torch.ones(1000, device="tiny") + 1
    torch.tiny.synchronize()
    assert torch.accelerator.memory_allocated() - before >= 4000
    assert torch.accelerator.max_memory_allocated() >= torch.accelerator.memory_allocated()
    assert torch.accelerator.memory_reserved() >= torch.accelerator.memory_allocated()
    assert torch.accelerator.memory_stats()["allocated_bytes.all.current"] >= 4000
    assert x.sum().item() == 2000


def test_synchronize_runs_everything() -> None:
    for _ in range(2):  # the first call of its kind may run at once
        torch.tiny.synchronize()
        x = torch.ones(3, device="tiny") + 1
    torch.tiny.reset_metrics()
    torch.tiny.synchronize()
    assert torch.tiny.metrics()["traces"] == 1
    torch.tiny.synchronize("tiny:0")
    torch.tiny.synchronize(0)
    assert torch.tiny.metrics()["traces"] == 1
    with pytest.raises(RuntimeError):
        torch.tiny.synchronize(7)
    assert x.tolist() == [2, 2, 2]


def test_streams() -> None:
    x = torch.ones(3, device="tiny")
    stream = torch.Stream(device="tiny")
    assert stream.device == torch.device("tiny:0")
    with stream:
        assert torch.tiny.current_stream() == stream
        y = x + 1
    with torch.tiny.stream(stream):
        y.mul_(2)
    torch.tiny.current_stream().wait_stream(stream)
    stream.synchronize()
    assert stream.query()
    assert torch.tiny.current_stream() == torch.tiny.default_stream()
    assert y.tolist() == [4, 4, 4]
    torch.tiny.set_stream(torch.tiny.default_stream())
    y.record_stream(stream)


def test_a_stream_with_work_is_not_done() -> None:
    x = torch.ones(3, device="tiny") + 1
    torch.tiny.synchronize()
    stream = torch.tiny.current_stream()
    assert stream.query()
    x = torch.ones(3, device="tiny") + 1
    assert not stream.query()
    stream.synchronize()
    assert stream.query()
    assert x.tolist() == [2, 2, 2]


def test_events() -> None:
    stream = torch.tiny.current_stream()
    begin = torch.Event(device="tiny", enable_timing=True)
    end = torch.Event(device="tiny", enable_timing=True)
    x = torch.ones(300, 300, device="tiny")
    x = x @ x / 300  # what has been seen once is recorded from then on
    begin.record()
    for _ in range(10):
        x = x @ x / 300
    end.record(stream)
    end.synchronize()
    assert end.query()
    assert begin.elapsed_time(end) > 0
    with pytest.raises(ValueError, match="enable_timing"):
        end.elapsed_time(torch.Event(device="tiny"))
    with pytest.raises(ValueError, match="recorded"):
        end.elapsed_time(torch.Event(device="tiny", enable_timing=True))


def test_events_order_streams() -> None:
    stream = torch.Stream(device="tiny")
    x = torch.ones(3, device="tiny") + 1
    event = torch.tiny.current_stream().record_event()
    stream.wait_event(event)
    event.wait(stream)
    with stream:
        y = x * 2
    done = stream.record_event()
    done.synchronize()
    assert done.query()
    assert event.query()
    assert y.tolist() == [4, 4, 4]


def test_memory_stats() -> None:
    torch.tiny.synchronize()
    torch.tiny.empty_cache()
    torch.tiny.reset_peak_memory_stats()
    before = torch.tiny.memory_allocated()
    x = torch.ones(2**18, device="tiny") + 1
    torch.tiny.synchronize()
    assert 2**20 <= torch.tiny.memory_allocated() - before < 2**21
    del x
    torch.tiny.synchronize()
    assert torch.tiny.memory_allocated() <= before + 4096
    assert torch.tiny.max_memory_allocated() >= before + 2**20
    torch.tiny.reset_peak_memory_stats()
    assert torch.tiny.max_memory_allocated() < before + 2**20
    stats = torch.tiny.memory_stats()
    assert stats["reserved_bytes.all.current"] >= stats["allocated_bytes.all.current"]
    assert torch.tiny.memory_reserved() == stats["reserved_bytes.all.current"]
    assert torch.tiny.max_memory_reserved() >= torch.tiny.memory_reserved()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gpu", ["gpu", "cpu", "cuda"]),
        ("cpu,", ["cpu", "cuda"]),
        ("cpu:1", ["cpu:1", "cpu"]),
        ("cuda:99", ["cuda:99"]),
    ],
)
def test_a_wrong_memory_is_explained(text: str, words: list[str]) -> None:
    out = python(f"""
        import os
        os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
        os.environ["TORCH_TINY_DEVICES"] = {text!r}
        try:
            import torch_tiny
        except ValueError as error:
            print(error)
    """)
    assert all(word in out for word in ["TORCH_TINY_DEVICES", *words]), out


def test_a_wrong_memory_does_not_break_torch() -> None:
    out = python("import torch; print(torch.ones(3).sum().item())", TORCH_TINY_DEVICES="cpu,cpu")
    assert out.strip() == "3.0"


def test_default_device_and_dtype() -> None:
    torch.set_default_device("tiny")
    try:
        assert torch.ones(2).is_tiny
        assert torch.arange(3).is_tiny
        assert torch.tensor([1, 2]).is_tiny
        assert torch.nn.Linear(2, 2).weight.is_tiny
        assert torch.randperm(3).is_tiny
    finally:
        torch.set_default_device(None)
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.ones(2, device="tiny").dtype == torch.float64
        assert (torch.arange(2, device="tiny") / 2).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert (torch.arange(2, device="tiny") / 2).dtype == torch.float32


def test_meta_and_fake_tensors() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    assert torch.ones(2, device="meta").to("meta").is_meta
    x = numbers(2, 3).tiny()
    with FakeTensorMode(allow_non_fake_inputs=True):
        y = torch.ones(3, 4, device="tiny") @ torch.ones(4, 5, device="tiny")
        assert y.shape == (3, 5)
        assert y.device.type == "tiny"
    assert x.sum().item() == pytest.approx(numbers(2, 3).sum().item())


def test_deterministic_algorithms() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        x = torch.zeros(3, device="tiny").index_add_(
            0, torch.tensor([0, 0, 2], device="tiny"), torch.ones(3, device="tiny")
        )
        assert x.tolist() == [2, 0, 1]
        assert torch.empty(3, device="tiny").isnan().all()
    finally:
        torch.use_deterministic_algorithms(False)


def test_profiler_sees_the_operators() -> None:
    with torch.profiler.profile() as profile:
        (torch.ones(3, device="tiny") + 1).cpu()
    assert "aten::add" in {event.key for event in profile.key_averages()}
