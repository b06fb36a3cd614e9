"""Golden traces of PPO, DPO, GRPO, RLOO, KTO and the reward model: where does a trainer leave?"""

from afarm_golden_traces.check import Departure, Report, check
from afarm_golden_traces.dumps import read_dump
from afarm_golden_traces.traces import METHODS, Trace, TraceError, load_trace

__all__ = ["METHODS", "Departure", "Report", "Trace", "TraceError", "check", "load_trace", "read_dump"]
