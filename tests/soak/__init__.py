"""One process for minutes or hours, as people run it: default mode, four threads, everything mixed.

    python -m tests.soak --minutes 60 --seed 0

Random programs, samples of the operator database and networks in training take turns, each often
enough to be compiled, with reads, exceptions, interrupts and tensors dropped by other threads. All
results are compared with the CPU's. At the end nothing may have grown, failed or be left behind.
"""

import sys
from pathlib import Path

# For `util` and its neighbours, and for `examples`, where pytest has not done so.
sys.path += [str(Path(__file__).parent.parent), str(Path(__file__).parent.parent.parent)]
