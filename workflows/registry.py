"""Which workflow types does a worker run?"""

from workflows.agent import Agent
from workflows.query import Query
from workflows.strategies import STRATEGIES

WORKFLOWS = (Query, Agent, *STRATEGIES)
