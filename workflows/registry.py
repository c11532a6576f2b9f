"""Which workflow types does a worker run?"""

from workflows.agent import Agent, Model
from workflows.query import Query
from workflows.strategies.debate import Debate
from workflows.strategies.graph import Graph
from workflows.strategies.parallel import Parallel
from workflows.strategies.round_robin import RoundRobin
from workflows.strategies.selector import Selector
from workflows.strategies.sequential import Sequential
from workflows.tool import Tool

WORKFLOWS = (Query, Agent, Model, Tool, RoundRobin, Sequential, Parallel, Selector, Graph, Debate)
