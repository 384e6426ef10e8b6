"""Views: metadata, sharing, writes through them, and what cannot be viewed."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from harness import agree, agree_on_error, needs_tiny, only_on_cpu_memory, synchronize
from torch import Tensor
from util import ORACLE, assert_same

View = Callable[[Tensor], Tensor]

ordered_writes = only_on_cpu_memory("a GPU writes what overlaps in no fixed order")

VIEWS: dict[str, View] = {
    "slice": lambda x: x[1:, ::2],
    "slice_steps": lambda x: x[::3, 1:4:2, -2:],
    "select": lambda x: x.select(1, 2),
    "select_negative": lambda x: x[-1, ..., -2],
    "narrow": lambda x: x.narrow(2, 1, 2),
    "transpose": lambda x: x.transpose(0, 2),
    "permute": lambda x: x.permute(2, 0, 1),
    "movedim": lambda x: x.movedim(0, -1),
    "expand": lambda x: x[:, :1].expand(4, 5, 3),
    "expand_new": lambda x: x.expand(2, -1, -1, -1),
    "broadcast_to": lambda x: torch.broadcast_to(x[0, 0], (6, 3)),
    "diagonal": lambda x: x.diagonal(1, 0, 1),
    "unfold": lambda x: x.unfold(1, 3, 1),
    "unfold_step": lambda x: x.unfold(0, 2, 2),
    "as_strided": lambda x: x.as_strided((2, 3), (7, 2), 5),
    "as_strided_overlap": lambda x: x.as_strided((4, 4), (1, 1), 3),
    "as_strided_zero": lambda x: x.as_strided((3, 2), (0, 1), 9),
    "as_strided_of_view": lambda x: x[2:].mT.as_strided((3,), (2,)),
    "view": lambda x: x.view(10, 6),
    "view_infer": lambda x: x.view(-1, 3, 2),
    "view_of_transpose": lambda x: x.transpose(0, 1).view(5, 4, 3, 1),
    "reshape": lambda x: x.reshape(20, 3),
    "flatten": lambda x: x.flatten(1),
    "unflatten": lambda x: x.unflatten(0, (2, 2)),
    "squeeze": lambda x: x[:, 1:2].squeeze(1),
    "unsqueeze": lambda x: x.unsqueeze(-1).unsqueeze(0),
    "mT": lambda x: x.mT,
    "split": lambda x: x.split([1, 3, 1], 1)[1],
    "chunk": lambda x: x.chunk(3, 1)[-1],
    "tensor_split": lambda x: x.tensor_split((1, 4), 1)[1],
    "unbind": lambda x: x.unbind(2)[1],
    "hsplit": lambda x: torch.hsplit(x, [2])[1],
    "swapaxes": lambda x: x.swapaxes(0, 1)[1:],
    "dtype": lambda x: x.view(torch.int32),
    "dtype_wider": lambda x: x[..., :2].contiguous().view(torch.complex64),
    "dtype_narrower": lambda x: x.view(torch.int16),
    "detach": lambda x: x.detach()[1],
    "views_of_views": lambda x: x.permute(2, 1, 0)[1:, ::2].unfold(2, 2, 1).select(0, 1).mT,
    "empty": lambda x: x[4:, :0],
}

COMPLEX_VIEWS: dict[str, View] = {
    "real": lambda z: z.real,
    "imag": lambda z: z.imag[1:],
    "view_as_real": torch.view_as_real,
    "conj": lambda z: z.conj(),
    "conj_real": lambda z: z.conj().real,
    "conj_imag_is_negated": lambda z: z.conj().imag,
    "mH": lambda z: z.mH,
    "dtype": lambda z: z.view(torch.float32),
}


def base(device: str) -> Tensor:
    return torch.arange(60, dtype=torch.float32, device=device).view(4, 5, 3)


def complex_base(device: str) -> Tensor:
    return torch.complex(base(device)[..., 0], base(device)[..., 1])


def metadata(x: Tensor) -> tuple[object, ...]:
    return (
        x.shape,
        x.stride(),
        x.storage_offset(),
        x.dtype,
        x.is_contiguous(),
        x._version,
        x._is_view(),
        x.is_conj(),
        x.is_neg(),
    )


@pytest.mark.parametrize("name", VIEWS)
def test_metadata_and_values(name: str, device: str) -> None:
    expected, got = VIEWS[name](base(ORACLE)), VIEWS[name](base(device))
    assert metadata(got) == metadata(expected)
    assert got.untyped_storage().nbytes() == expected.untyped_storage().nbytes()
    assert_same(got, expected)


@pytest.mark.parametrize("name", COMPLEX_VIEWS)
def test_metadata_and_values_of_complex(name: str, device: str) -> None:
    expected, got = (COMPLEX_VIEWS[name](complex_base(d)) for d in (ORACLE, device))
    assert metadata(got) == metadata(expected)
    assert got.untyped_storage().nbytes() == expected.untyped_storage().nbytes()
    assert_same(got, expected)


@pytest.mark.parametrize("computed", [False, True], ids=["pending", "computed"])
@pytest.mark.parametrize("name", VIEWS)
def test_fill_through_a_view_is_seen_everywhere(name: str, computed: bool, device: str) -> None:
    def program(where: str) -> list[Tensor]:
        x = base(where)
        other = x.transpose(0, 1)[1]
        view = VIEWS[name](x)
        if computed:
            synchronize(where)
        view.fill_(3)
        x.mul_(2)
        return [x, other, view]

    agree(program, device)


@pytest.mark.parametrize("computed", [False, True], ids=["pending", "computed"])
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=ordered_writes if n == "views_of_views" else ())
        for n in VIEWS
        if "expand" not in n
        and "broadcast" not in n
        and "overlap" not in n
        and "zero" not in n
        and n != "unfold"
    ],
)
def test_writes_through_a_view(name: str, computed: bool, device: str) -> None:
    def program(where: str) -> list[Tensor]:
        x = base(where)
        other = x.view(-1)[7:40]
        view = VIEWS[name](x)
        view.add_(1)
        if computed:
            synchronize(where)
        view.copy_(view.clone() * 2)
        other -= 1
        view[..., :1] = 5
        return [x, other, view]

    agree(program, device)


@pytest.mark.parametrize("name", COMPLEX_VIEWS)
def test_writes_through_a_view_of_complex(name: str, device: str) -> None:
    def program(where: str) -> list[Tensor]:
        z = complex_base(where)
        view = COMPLEX_VIEWS[name](z)
        view.mul_(2)
        view[1:2] = 7
        return [z, view]

    agree(program, device)


def test_a_view_outlives_its_base(device: str) -> None:
    def program(where: str) -> Tensor:
        x = base(where)
        view = x[1].T
        x += 1
        del x
        return view.add_(1)

    agree(program, device)


def test_writes_keep_their_order(device: str) -> None:
    def program(where: str) -> list[Tensor]:
        x = torch.zeros(6, device=where)
        rows, before = x.view(2, 3), x.clone()
        rows[0] = 1
        middle = x.clone()
        x[2:4].fill_(2)
        rows.T[1] += 10
        return [before, middle, x, rows, x.as_strided((2, 2), (1, 1), 1)]

    agree(program, device)


def test_swap_of_rows(device: str) -> None:
    def program(where: str) -> Tensor:
        x = base(where)
        x[0], x[1] = x[1].clone(), x[0].clone()
        x[[2, 3]] = x[[3, 2]]
        return x

    agree(program, device)


def test_as_strided_does_not_stack(device: str) -> None:
    x = base(device)
    view = x[3].as_strided((2, 2), (1, 2), 1).as_strided((3,), (2,), 0)
    assert view.storage_offset() == 0
    assert view.tolist() == [0, 2, 4]


def test_scatter_like_copies_of_views(device: str) -> None:
    def program(where: str) -> list[Tensor]:
        x = base(where)
        return [
            torch.as_strided_scatter(x, torch.ones(2, 2, device=where), (2, 2), (3, 1), 4),
            torch.select_scatter(x, torch.ones(5, 3, device=where), 0, 1),
            torch.slice_scatter(x, torch.ones(2, 5, 3, device=where), 0, 0, 4, 2),
            torch.diagonal_scatter(x, torch.ones(3, 4, device=where), 0, 0, 1),
            x,
        ]

    agree(program, device)


@pytest.mark.parametrize(
    "program",
    [
        lambda d: base(d).transpose(0, 1).view(-1),
        lambda d: base(d)[:, ::2].view(12, 3),
        lambda d: base(d).view(7, -1),
        lambda d: base(d).expand(4, 5, 6),
        lambda d: base(d).expand(5, 3),
        lambda d: base(d).as_strided((100,), (1,)),
        lambda d: base(d).as_strided((2,), (-1,)),
        lambda d: base(d).as_strided((2, 2), (1,)),
        lambda d: base(d).squeeze(5),
        lambda d: base(d).permute(0, 1),
        lambda d: base(d).permute(0, 0, 1),
        lambda d: base(d).unfold(0, 9, 1),
        lambda d: base(d).narrow(0, 3, 4),
        lambda d: base(d).diagonal(0, 1, 1),
        lambda d: base(d).real.imag,
        lambda d: torch.view_as_complex(base(d)),
        lambda d: base(d).transpose(0, 2).view(torch.int16),
        lambda d: base(d).view(torch.complex64),
        lambda d: base(d)[:1].expand(4, 5, 3).add_(1),
        lambda d: base(d).view(-1)[1:].copy_(base(d).view(-1)),
        lambda d: (x := base(d).view(-1))[1:].add_(x[:-1]),
        lambda d: base(d).unflatten(1, (2, 2)),
        lambda d: torch.broadcast_to(base(d), (2, 3)),
    ],
)
def test_what_cannot_be_viewed_raises(program: Callable[[str], object], device: str) -> None:
    agree_on_error(program, device)


def test_a_view_knows_its_base(device: str) -> None:
    x = torch.zeros(4, 5, 3, device=device)
    view = x[1].T
    assert view._base is x
    assert x._base is None
    assert view.is_set_to(x[1].T)
    assert view.untyped_storage()._cdata == x.untyped_storage()._cdata
    assert x.clone()._base is None


def test_version_counters(device: str) -> None:
    def program(where: str) -> list[int]:
        x = base(where)
        view, detached, data = x[0], x.detach(), x.data
        view.add_(1)
        torch.add(x, 1, out=x)
        detached.zero_()
        data.fill_(2)
        x[x > 5] = 0
        x.resize_(2, 2)
        return [x._version, view._version, detached._version, data._version]

    agree(program, device)


def test_addresses_agree_with_the_metadata(device: str) -> None:
    x = base(device)
    view = x[2:, 1].T
    assert x.data_ptr() == x.untyped_storage().data_ptr()
    assert view.data_ptr() - x.data_ptr() == view.storage_offset() * view.element_size()
    before = x.data_ptr()
    x.add_(1).mul_(2)
    assert x.data_ptr() == before
    assert torch.empty(0, device=device).data_ptr() == 0


@needs_tiny
def test_metadata_answers_without_running_anything(device: str) -> None:
    for _ in range(2):  # a call that has not been seen before may run at once
        synchronize(device)
        x = base(device) + 1
        before = torch.tiny.metrics()["traces"]
        y = (x.mT @ x)[1:]
        y[0].add_(1)
        metadata(y), metadata(y._base)
    assert torch.tiny.metrics()["traces"] == before


def test_memory_formats(device: str) -> None:
    def program(where: str) -> list[Tensor]:
        x = torch.arange(48.0, device=where).view(2, 2, 3, 4)
        y = x.contiguous(memory_format=torch.channels_last)
        z = torch.empty_like(y, memory_format=torch.contiguous_format).copy_(y)
        return [
            y,
            y + 1,
            y.clone(),
            y.contiguous(),
            z,
            y * x,
            torch.relu(y.permute(0, 2, 3, 1)),
            torch.zeros_like(y),
            y.to(torch.float64),
            x.to(memory_format=torch.channels_last),
        ]

    agree(program, device)


@pytest.mark.parametrize("size", [(2, 2), (10,), (3, 4, 6), (0,), ()])
def test_resize(size: tuple[int, ...], device: str) -> None:
    def program(where: str) -> list[Tensor]:
        x = torch.arange(12.0, device=where)
        view = x[3:7]
        x.resize_(size).fill_(1)
        view.add_(1)
        return [x, view]

    agree(program, device)


def test_resize_of_a_view_grows_the_storage(device: str) -> None:
    def program(where: str) -> list[Tensor]:
        x = torch.arange(4.0, device=where)
        view = x[2:]
        view.resize_(5).fill_(7)
        return [x, view, torch.tensor(x.untyped_storage().nbytes())]

    agree(program, device)


def test_set_in_all_its_forms(device: str) -> None:
    def program(where: str) -> list[Tensor]:
        x, y = torch.zeros(3, device=where), torch.arange(12.0, device=where)
        results = []
        for set_ in (
            lambda t: t.set_(y),
            lambda t: t.set_(y.untyped_storage()),
            lambda t: t.set_(y.untyped_storage(), 2, (2, 3), (3, 1)),
            lambda t: t.set_(y, 1, (4,), (2,)),
            lambda t: t.set_(),
        ):
            t = x.clone()
            set_(t)
            t.add_(1)
            results.append(t)
        return [*results, y]

    agree(program, device)


def test_data_can_be_replaced(device: str) -> None:
    def program(where: str) -> list[Tensor]:
        x, y = torch.zeros(3, device=where), torch.arange(4.0, device=where)
        x.data = y.view(2, 2).T
        x.add_(1)
        return [x, y]

    agree(program, device)


@pytest.mark.parametrize("shape", [(4, 5), (3,), (0,), (4, 1)])
def test_out_is_resized_with_the_warning_of_the_oracle(shape: tuple[int, ...], device: str) -> None:
    def program(where: str) -> list[object]:
        out = torch.zeros(shape, device=where)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            torch.add(torch.ones(4, 5, device=where), 1, out=out)
        return [out, [str(w.message).splitlines()[0] for w in seen]]

    agree(program, device)


def test_out_into_a_strided_slice(device: str) -> None:
    def program(where: str) -> list[Tensor]:
        x = torch.zeros(6, 8, device=where)
        a = torch.arange(12.0, device=where).view(3, 4)
        torch.mul(a, 2, out=x[::2, 1::2])
        torch.mm(a, a.T, out=x[3:, 5:])
        torch.sum(a, 1, out=x[1:4, 0])
        torch.cat([a[0], a[1]], out=x.T[:, 5])
        return [x]

    agree(program, device)


def test_memory_of_a_view_is_that_of_the_whole(device: str) -> None:
    x = base(device)
    assert x[0, 0].untyped_storage().nbytes() == 240
    assert x[0, 0].clone().untyped_storage().nbytes() == 12


def test_deep_chains_of_views(device: str) -> None:
    def program(where: str) -> list[Tensor]:
        x = torch.zeros(2, 2, 2, 2, device=where)
        view = x
        for step in range(50):
            view = view.permute(1, 2, 3, 0).unsqueeze(0).squeeze(0)
            view[step % 2, 0] += step
        return [x, view]

    agree(program, device)
