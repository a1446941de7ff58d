"""Steps with collectives: equal to eager DDP on two GPUs, and closed before their process group."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest
import torch

TWO_GPUS = pathlib.Path(__file__).with_name("ddp_two_gpus.py")


@pytest.mark.gpu
@pytest.mark.slow
def test_two_gpus_equal_eager_ddp_and_exit_cleanly():
    if torch.cuda.device_count() < 2:
        pytest.skip("there are not two CUDA devices")
    done = subprocess.run(
        [sys.executable, str(TWO_GPUS), "2"],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["equal"]
    for rank in result["ranks"]:
        assert rank["microseconds"]["ours"] <= 1.1 * rank["microseconds"]["idiom"]


PROGRAM = """
import sys
import torch.distributed as dist
from torch.distributed import destroy_process_group as early

dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
group = dist.new_group([0])

from tensorplay_adapt.distributed import watch

class Step:
    def __init__(self, name): self.name = name
    def close(self): print("closed", self.name, "while the group is", dist.is_initialized())

one = Step("one"); watch(one)
dist.destroy_process_group(group)
two, dropped = Step("two"), Step("dropped"); watch(two); watch(dropped); del dropped
{call}()
print("destroyed", not dist.is_initialized())
"""


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch is without distributed")
@pytest.mark.parametrize("call", ["dist.destroy_process_group", "early"])
def test_steps_are_closed_before_their_process_group(forked, tmp_path, call):
    done = forked("-c", PROGRAM.replace("{call}", call), tmp_path / "store", timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "closed one while the group is True",
        "closed two while the group is True",
        "destroyed True",
    ]
