"""A sweep's tasks on executors that others wrote: Dask's, and one whose processes die."""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

import pytest

import convlab

SMALL = "N=1,C=4,H=12,W=12,K=8,R=3,S=3"
GRID = {"TILE": [8, 16]}


def counts(result):
    return result.frame.drop(columns="host_seconds")


def test_dasks_cluster_finds_what_one_process_finds():
    distributed = pytest.importorskip("distributed", reason="pip install distributed")
    here = convlab.sweep("03", GRID, SMALL, engine="sim", progress=False)
    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as dask,
        distributed.Client(dask) as client,
        client.get_executor() as executor,
    ):
        there = convlab.sweep("03", GRID, SMALL, engine="sim", executor=executor, progress=False)
        seen = client.run(os.getpid)
    assert set(seen.values()) - {os.getpid()}
    assert there.best == here.best and counts(there).equals(counts(here)) and len(here.frame) == 2


def test_a_process_that_dies_costs_its_points_only():
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, os._exit, (1,)) as executor:
        lost = convlab.sweep("03", GRID, SMALL, engine="sim", executor=executor, progress=False)
    assert not lost.ok and set(lost.dropped["kind"]) == {"failed"} and len(lost.dropped) == 2
    assert "ProcessPoolExecutor lost it: BrokenProcessPool" in lost.dropped["reason"][0]
