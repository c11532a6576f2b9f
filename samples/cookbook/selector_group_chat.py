"""A selector chooses who speaks: a planner, a searcher and an analyst, from AutoGen's ``SelectorGroupChat``.

The tools are functions of this program, which executes the run itself.
"""

import asyncio

import baton


def search_web(query: str) -> str:
    """Searches the web."""
    if "2006-2007" in query:
        return "Dwyane Wade scored 1397 points for Miami Heat in the season 2006-2007."
    return "Udonis Haslem scored 844 points, Dwyane Wade 1397 points, James Posey 550 points."


def percentage_change(start: float, end: float) -> float:
    """Calculates the change between two numbers in percent."""
    return (end - start) / start * 100


planner = baton.Agent(
    "planner",
    prompt="You break down tasks for the searcher and the analyst. When all is done, end with a summary.",
    tools=["terminate"],
    description="plans the work; should be the first",
)
searcher = baton.Agent("searcher", prompt="You search.", tools=[search_web], description="searches the web")
analyst = baton.Agent("analyst", prompt="You calculate.", tools=[percentage_change], description="does calculations")
team: baton.Team[str] = baton.Team("analysts", strategy="selector", members=[planner, searcher, analyst], max_turns=25)


async def main() -> str:
    """The summary of the planner."""
    return (await baton.run(team, "Who was the best player of Miami Heat in 2006-2007?")).value


if __name__ == "__main__":
    print(asyncio.run(main()))
