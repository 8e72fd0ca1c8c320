"""Messages between tensors on GPUs, in the process group of the user: torch.distributed (NCCL) carries them.

Experimental: tried with gloo only. Receives are posted before sends, in one batch, as NCCL needs it.
"""

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from digrad._internal.error_text import agents_text, first_line
from digrad.errors import CommunicationError
from digrad.torch.transport.coordination import GRACE
from digrad.torch.transport.transports import Channel

TAGS = 1 << 16  # rounds are numbered modulo this, so that a message can only meet its own round


class DeviceRound:
    """A round whose messages are tensors of a device, as :class:`~digrad.torch.engines.synchronous.PacketRound`.

    Args:
        parts: The arrays, in the same order on every agent.
        channel: That counts them.
        network: Who is connected to whom.
        number: Of the round.
        k: The step.
    """

    def __init__(self, parts: list[Any], channel: Channel, network: Any, number: int, k: int) -> None:
        self.parts, self._network, self._k = parts, network, k
        options = {"group": network.group, "tag": number % TAGS}
        ops = []
        for part in parts:
            for sender in part.peers(receiving=True):
                part.received[sender] = torch.empty_like(part.message(sender, receiving=True))
                ops.append(dist.P2POp(dist.irecv, part.received[sender], **options, group_peer=sender))
        for part in parts:
            for receiver in part.peers(receiving=False):
                message = part.message(receiver, receiving=False).contiguous()
                channel.bytes_sent += message.nbytes
                ops.append(dist.P2POp(dist.isend, message, **options, group_peer=receiver))
        self._ops = ops  # with their memory
        try:
            self._works = dist.batch_isend_irecv(ops) if ops else []
        except RuntimeError as error:
            raise self._lost(error) from error

    def finish(self) -> None:
        """Wait until everything has arrived and left.

        Raises:
            CommunicationError: It has not within the timeout.
        """
        for work in self._works:
            try:
                with self._network.waiting_for(range(self._network.n)):
                    done = work.wait(timedelta(seconds=self._network.timeout)) is not False
            except RuntimeError as error:
                raise self._lost(error) from error
            if not done:
                raise self._lost(RuntimeError(f"nothing came within {self._network.timeout:.1f} s"))
        self._works = []

    def release(self) -> None:
        """Do nothing: what was received is memory of its own."""

    def _lost(self, error: RuntimeError) -> CommunicationError:
        peers = sorted({op.group_peer for op in self._ops})
        return CommunicationError(
            f"step {self._k}: messages of {agents_text(peers)} are lost ({first_line(error)}); start all agents again."
        )


def all_reduce(values: torch.Tensor, group: dist.ProcessGroup, timeout: float, channel: Channel) -> None:
    """Replace a tensor by the sum over a group; ``channel`` counts what is handed over.

    Raises:
        RuntimeError: It was not complete within the timeout.
    """
    options = dist.AllreduceOptions()
    # Its own timeout: under that of the group the process could not end before a minute has passed. Waiting a little
    # longer than the operation lasts lets it end by itself.
    options.timeout = timedelta(seconds=timeout)
    channel.bytes_sent += values.nbytes
    group.allreduce([values], options).wait(timedelta(seconds=timeout + GRACE))
