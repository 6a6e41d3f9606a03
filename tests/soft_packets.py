"""Random packets for the tiny models, and stock models that know their ids."""

from __future__ import annotations

import copy
from typing import Any

import torch

from shared.engine.model.model import LoadedModel
from shared.engine.model.packets import Packets
from shared.packets import PacketFacts
from tests.oracles import VOCAB


def random_packets(model: LoadedModel, num_header: int = 3, num_trailer: int = 2, seed: int = 0) -> Packets:
    weight = model.hf_model.get_input_embeddings().weight
    generator = torch.Generator().manual_seed(seed)
    vectors_PE = torch.randn(num_header + num_trailer, weight.shape[1], generator=generator)
    facts = PacketFacts(model.base_fingerprint, VOCAB, num_header, num_trailer, "tiny")
    return Packets(vectors_PE * float(weight.float().std()), facts)


def knowing(hf_model: Any, packets: Packets) -> Any:
    """A copy of a stock model that embeds the packets' ids as their vectors."""
    model = copy.deepcopy(hf_model)
    weight = model.get_input_embeddings().weight
    rows = torch.cat([weight.detach(), packets.vectors_PE.to(weight.dtype)])
    model.set_input_embeddings(torch.nn.Embedding.from_pretrained(rows))
    return model
