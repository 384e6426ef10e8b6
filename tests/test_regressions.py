"""Programs that once differed from the oracle, as `python -m tests.programs` printed them."""

from harness import no_device_asserts
from programs import check


# the process ended with status -6: the tensor was larger than its storage after the error
@no_device_asserts
def test_resize_interrupted_by_a_late_error() -> None:
    check("""
        t0 = torch.zeros((), device=device)
        t1 = torch.ones(3, device=device).gather(0, torch.tensor([2], device=device))
        t2 = torch.ones(3, device=device).gather(0, torch.tensor([-999], device=device))
        t0.resize_(200, 700).fill_(3.0)
        t3 = t0.sum()
        r = t3.item()
    """)


# the process ended with status -11: copy_ and the fallback for conjugates called each other
def test_conjugates_are_read() -> None:
    check("""
        t0 = seeded(90, (), torch.complex64).to(device)
        t3 = t0.conj()
    """)


# the process ended with status -11: a zero tensor without memory was read
def test_second_order_of_abs() -> None:
    check("""
        t0 = torch.zeros((4, 4), device=device).requires_grad_()
        t1 = torch.autograd.grad((t0 * t0).sum().abs(), [t0], create_graph=True)[0]
        t2 = torch.autograd.grad((t1 * t1).sum().abs(), [t0], retain_graph=True)[0]
    """)


# t1: version 1 on the CPU, not 0
def test_versions_of_foreach() -> None:
    check("""
        t0 = seeded(92, (1,), torch.float32).to(device)
        t1 = t0.transpose(-1, -1)
        torch._foreach_addcmul_([t1], [t1.clone()], [t1.clone()], [0.5])
    """)


# device: RuntimeError: DispatchStub: missing kernel for tiny
def test_conj_physical_in_place() -> None:
    check("""
        t0 = torch.empty_strided((2, 3), (1, 2), dtype=torch.complex64, device=device).fill_(2)
        t0.squeeze().conj_physical_()
    """)


# t1: (CPU, device) {'stride': ((1, 2), (3, 1)), 'contiguous': (False, True)}
def test_strides_of_abs() -> None:
    check("""
        t0 = torch.empty_strided((2, 3), (1, 2), device=device).fill_(-1.25)
        t1 = t0.abs()
    """)


# t2: (CPU, device) {'stride': ((2, 1, 1), (2, 2, 1))}
def test_strides_of_dimensions_of_one() -> None:
    check("""
        t0 = torch.empty_strided((2, 3), (1, 2), device=device).fill_(2)
        t1 = t0.as_strided((1, 1, 2), (0, 1, 1), 4)
        t2 = t1 > 0
    """)


# t1: (CPU, device) {'stride': ((0,), (1,))}
def test_strides_of_sort() -> None:
    check("""
        t0 = torch.zeros((), dtype=torch.float32, device=device).as_strided((1,), (0,), 0)
        t1, t2 = t0.sort(dim=-1, stable=True)
    """)


# t2: (CPU, device) {'stride': ((5,), (1,))}
def test_strides_of_nothing() -> None:
    check("""
        t0 = torch.zeros((5, 3), dtype=torch.bool, device=device)
        t1 = t0[-2:, ::2].diagonal(3, 1, 0)
        t2 = t1.flip(0)
        t3 = t0[2:, 3:].sum(0, keepdim=True)
    """)


# the process ended with status -11: an empty result that was still to come was made larger
def test_resize_of_a_pending_empty_result() -> None:
    check("""
        t0 = torch.full((0,), True, dtype=torch.bool, device=device)
        t0.set_(t0 + t0)
        t0.resize_((3,)).fill_(True)
        t1 = t0[:0] & t0[:0]
        t1.resize_(5).fill_(False)
    """)


# t1: 3 on the CPU, 6 on the device: the call that raised another's late error had been done
@no_device_asserts
def test_a_call_that_raises_has_not_been_done() -> None:
    check("""
        limit(2)
        t0 = torch.ones(4, device=device)
        t1 = torch.zeros(4, device=device)
        t2 = t0.index_select(0, torch.tensor([1], device=device))
        t1.add_(t0)
        t3 = t0.index_select(0, torch.tensor([9], device=device))
        t1.add_(t0)
        t1.add_(t0)
    """)


# t1: a storage of 4 bytes, not 8: the write went past its end
def test_an_empty_out_is_resized_where_it_begins() -> None:
    check("""
        t0 = torch.ones((), dtype=torch.int64, device=device)
        t1 = seeded(93, (3, 4, 0), torch.complex64).to(device)
        t2 = t1.imag
        torch.mul(t0, t0, out=t2)
    """)


# reading t0: OpenCL error -30, an operator on the host had made its memory larger
def test_memory_that_the_host_resized_goes_back_to_the_device() -> None:
    check("""
        t0 = torch.full((1,), -1.25, dtype=torch.float32, device=device)
        t8 = t0.detach()
        torch.cat([t8.clone(), t8.clone()], out=t8)
        t12 = t0.take(torch.tensor([0], device=device))
    """)


# t4: 20 elements, not 40: a sum over a repetition that was unrolled took it once
def test_repetitions_are_summed_as_often_as_they_are() -> None:
    check("""
        t0 = torch.full((2, 2, 5), 1, dtype=torch.int64, device=device)
        t1 = torch.zeros(40, dtype=torch.int64, device=device)
        r = t1.sum().item()
        t2 = t1.as_strided((1, 1, 2, 2, 2, 5), (40, 20, 5, 20, 10, 1))
        t2.copy_(t0.as_strided((1, 1, 2, 2, 2, 5), (0, 0, 0, 10, 5, 1)))
        t4 = torch.count_nonzero(t1.view(2, 2, 10))
    """)


# t2: 0, not NaN: WebGPU's compiler knew that the divisor is 0
def test_division_by_a_zero_that_the_compiler_sees() -> None:
    check("""
        t0 = torch.zeros(3, device=device)
        t1 = torch.ones(3, device=device)
        t2 = t0 / t0
        t3 = t1 / t0
        t4 = torch.zeros(0, device=device).mean()
    """)


# t2: not rounded to 8 bits, as it stays inside a kernel
def test_half_types_are_rounded_inside_kernels() -> None:
    check("""
        t0 = seeded(3, (40,), torch.float32).to(device)
        r = t0.sum().item()
        t1 = (t0 / 3).bfloat16().float() * 3
        t2 = (t0 / 3).half().float() * 3
        t3 = (t0 * 1e-6).half().float() * 3e6
    """)


# t0: 3, not 9: the last element of those that share memory won
def test_writes_to_memory_that_elements_share() -> None:
    check("""
        t0 = torch.tensor([3.0, 3.0], device=device)
        t1 = t0.as_strided((3, 1, 1), (0, 2, 0), 1)
        t1.index_put_((torch.tensor([1, 1], device=device),), t1[0].clone(), accumulate=True)
        t2 = torch.ones(5, device=device)
        t2.as_strided((4, 2), (0, 3), 1).fill_(7).zero_()
    """)


# t2: inf+0j, not inf+nanj: the CPU multiplies by an alpha of 1, too
def test_infinity_added_to_a_complex_number() -> None:
    check("""
        t0 = seeded(51, (5, 3), torch.complex64).to(device)
        t1 = torch.full((), float("inf"), device=device)
        t2 = t0 + t1
        t3 = t1 - t0
    """)


# t0: garbage, or an error: the plan of a small storage was taken for a larger one seen the same way
def test_plans_are_about_whole_storages() -> None:
    check("""
        t0 = torch.zeros(1, device=device)
        t1 = t0.as_strided((), (), 0)
        t1.fill_(1)
        t0.tolist()
        t0 = torch.zeros(6, device=device)
        t1 = t0.as_strided((), (), 0)
        t1.fill_(1)
        t0.tolist()
        t0 = torch.zeros(3, device=device)
        t1 = t0.as_strided((), (), 0)
        t1.fill_(1)
    """)


# t2: nan+nanj, not inf-infj: each part of a complex number is divided by the zero
def test_complex_numbers_divided_by_zero() -> None:
    check("""
        t0 = seeded(35, (1, 1, 2), torch.complex64).to(device)
        t1 = torch.zeros((1, 2), dtype=torch.complex64, device=device)
        t2 = t0 / t1.prod(0)
        t3 = torch.full((2,), complex(0, float("nan")), dtype=torch.complex64, device=device)
        t4 = t0 / t3
        t5 = torch.addcdiv(t1, t0, t1)
    """)


# t2: parts were rounded to bfloat16, which has no complex type
def test_complex_numbers_beside_bfloat16() -> None:
    check("""
        t0 = seeded(66, (), torch.complex64).to(device)
        t1 = torch.tensor([1.859375, 0.3], dtype=torch.bfloat16, device=device)
        t2 = t0 * t1
        t3 = t1 + (2.7-1j)
    """)


# t2: -3.8e-05, not 0: the mean of equal numbers was off by a rounding
def test_equal_numbers_have_no_variance() -> None:
    check("""
        t0 = torch.tensor([[0.7], [2.9]], device=device).expand(2, 5).clone()
        t1 = t0[:, :3].contiguous()
        t2 = torch.nn.functional.layer_norm(t1, (3,))
        t3 = torch.nn.functional.layer_norm(t0, (5,))
        t4 = t0.var(1) != 0
        t5 = torch.nn.functional.batch_norm(t0.t(), None, None, training=True)
        t6 = torch.nn.functional.group_norm(t0, 1)
        t7 = t0[:0].var(0)
    """)


# t1: inf-infj, not -inf+infj: the CPU divides by the size of a zero, also by that of a real one
def test_complex_numbers_divided_by_real_zeros() -> None:
    check("""
        t0 = torch.tensor([-1.5 + 1j, complex(float("inf"), 0)], device=device)
        t1 = t0 / torch.tensor([-0.0], device=device)
        t2 = t0 / torch.tensor([-0.0], dtype=torch.bfloat16, device=device)
        t3 = t0 / 2.0
    """)


# t1: 2, not 0: the bits of a bfloat16 of -0 are not 0
def test_zeros_below_zero_of_half_types() -> None:
    check("""
        t0 = torch.tensor([1.0, -1.0, 2.0, -0.0], dtype=torch.bfloat16, device=device).mul_(0)
        t1 = t0.count_nonzero()
        t2 = t0.bool()
        t3 = t0.half().bool()
        t4 = t0.half().count_nonzero()
        t5 = (t0 / t0).bool()
        t6 = t0.any()
        t7 = t0 == -t0
    """)


# t1: a stride of 2, not 1, where nothing was there
def test_unique_of_nothing() -> None:
    check("""
        t0 = torch.ones((2, 6), dtype=torch.int64, device=device).as_strided((0,), (2,), 3)
        t1 = torch.unique(t0).clone()
        t2 = torch.unique_consecutive(t0)
    """)


# t2: of the size of t1, with torch 2.11, whose trace_backward calls it
def test_unique_of_as_many_elements() -> None:
    check("""
        t0 = torch.tensor([3, 3, 1, 1, 2], device=device)
        t1 = torch.ops.aten._unique(t0)[0]
        t2 = torch.ops.aten._unique(torch.arange(5, device=device) * t0.sum())[0]
    """)


# t2: three times as much where it is compiled: loops of 3, 3 and 2 were merged twice
def test_sum_of_a_stack() -> None:
    check("""
        t0 = seeded(44, (3, 3), torch.float32).to(device).unsqueeze(2)
        t1 = torch.stack([t0, t0], 2)
        t2 = t1.mean()
    """)
