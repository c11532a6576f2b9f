"""Which workflow types does a worker run?"""

from .agent import Agent, Model
from .query import Query
from .strategies.debate import Debate
from .strategies.graph import Graph
from .strategies.parallel import Parallel
from .strategies.round_robin import RoundRobin
from .strategies.selector import Selector
from .strategies.sequential import Sequential
from .tool import Tool

WORKFLOWS = (Query, Agent, Model, Tool, RoundRobin, Sequential, Parallel, Selector, Graph, Debate)
