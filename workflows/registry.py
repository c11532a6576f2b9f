"""Which workflow types does a worker run?"""

from workflows.agent import Agent, Model
from workflows.query import Query
from workflows.strategies import STRATEGIES
from workflows.tool import Tool

WORKFLOWS = (Query, Agent, Model, Tool, *STRATEGIES)
