"""Five minutes of the soak (`make soak MINUTES=60` runs longer), and tests of the soak itself."""

import subprocess
import sys
from random import Random

import pytest
from harness import ROOT, needs_cpu_memory, needs_tiny
from soak.health import Held
from soak.inside import growth
from soak.interrupt import interrupted
from soak.job import Turn
from soak.player import Player

pytestmark = [needs_tiny, needs_cpu_memory]


MINUTES = 5


@pytest.mark.long
def test_five_minutes_of_everything_at_once() -> None:
    command = [sys.executable, "-m", "tests.soak", "--minutes", str(MINUTES), "--seed", "0"]
    command = ["nice", "-n", "10", *command]  # it would take the cores from the other tests
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-20000:]}\n{done.stderr[-10000:]}"


@pytest.mark.filterwarnings("ignore")
def test_the_same_seed_makes_the_same_jobs() -> None:
    def texts(seed: int) -> list[str]:
        player = Player(seed, 0, "tiny:0")
        made = [player.make(number) for number in range(6)]
        assert not player.differences
        return [job[1].text() for job in made if job is not None]

    assert texts(1) == texts(1) != texts(2)


class _Wrong:
    """A job that the device does wrong every time."""

    is_quiet = True

    def make(self, numbers: Random, turn: Turn) -> None:
        pass

    def play(self, turn: Turn) -> None:
        raise AssertionError(f"on {turn.device}")

    def text(self) -> str:
        return "a test to paste"


def test_a_difference_is_reported() -> None:
    player = Player(0, 0, "tiny:0")
    player.play(7, _Wrong(), Turn("tiny:0"))
    (found,) = player.differences
    assert (found.job, found.reason) == (7, "AssertionError: on tiny:0")
    assert found.text == "a test to paste"
    assert "differs 4 of 4 times, with nothing compiled" in found.again


def test_an_interrupt_comes_while_its_job_runs() -> None:
    def forever() -> None:
        while True:
            pass

    assert interrupted(0.01, forever)
    assert not interrupted(30, lambda: None)


def test_growth_is_a_fault() -> None:
    held = Held(100 << 20, 0, 7, 2, threads=7, libraries=9, worker=50 << 20, compiled=1)
    more = Held(150 << 20, 8, 8, 5, threads=8, libraries=9, worker=600 << 20, compiled=1)
    assert growth([held] * 6) == []
    assert len(growth([*[held] * 5, more])) == 7
