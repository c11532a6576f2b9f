"""In which order do the members of a team speak, and when do they stop? A file for each word after ``strategy:``."""

from workflows.strategies.debate import Debate
from workflows.strategies.graph import Graph
from workflows.strategies.parallel import Parallel
from workflows.strategies.round_robin import RoundRobin
from workflows.strategies.selector import Selector
from workflows.strategies.sequential import Sequential

STRATEGIES = (RoundRobin, Sequential, Parallel, Selector, Graph, Debate)
