"""What the door of every package offers as it is, beside the errors: whatever no driver changes.

The doors of core, torch and CuPy take it and ``errors`` over by ``from ... import *``, so that each
name is listed once and type checkers see it. What depends on the driver each package binds itself.
"""

from .conditional import Body, Loop
from .inspection import export_dot
from .protocols import PoolStatistics, StagePlan, Update
from .registry import close_all
from .scopes import AnnotatedNode, annotate, annotations, clear_annotations
from .topology import Node, Topology

__all__ = [
    # graph
    "export_dot",
    "close_all",
    "StagePlan",
    "Update",
    "Topology",
    "Node",
    # annotations
    "annotate",
    "annotations",
    "clear_annotations",
    "AnnotatedNode",
    # pool
    "PoolStatistics",
    # conditional
    "Body",
    "Loop",
]
