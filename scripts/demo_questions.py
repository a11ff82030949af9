"""The demo's questions. They share no text, so no engine can answer one from what it cached for another."""

from __future__ import annotations

from dataclasses import dataclass

_LIGHTHOUSE = """\
The lighthouse on Gull Rock was built in 1874 by the engineer Anna Berg. The rock lies nine miles off the coast and is
under water at every spring tide, so her workers could land on it for only three hours a day, and only between May and
August. Each block of granite was cut on the mainland, fitted to its neighbours there, numbered with red paint and
then taken apart again for the journey. The first tower was forty metres high. It was lit by an oil lamp with six
wicks, which a keeper had to trim every four hours, and its beam could be seen from a distance of eighteen miles.
Three keepers lived in the tower at a time; every second month a boat brought the next crew together with flour, coal,
letters and books. In the winter of 1902 a storm broke the glass of the lantern, and the keeper Jon Dahl stood in the
open for two nights, holding a canvas before the flame so that it would not go out. In 1931 the oil lamp was replaced
by an electric one, and in 1978 the last keepers left the tower, which has been run by a computer on the mainland
since then."""

_BOAT = """\
The Heron is a river boat that was built in 1896 in the town of Millbrook by the carpenter Clara Weston. She had
learned the trade from her father and knew every sandbank between the mountains and the sea. The boat is twenty-six
metres long, carries eighty passengers and forty tons of freight, and draws so little water that farmers along the
river used to say she could sail on a wet meadow. Her first engine burned wood, which the crew took on board every
evening from the villages on the bank; it was replaced by a diesel engine in 1938. In the flood of 1921 the river rose
by two metres in a single night and tore away the bridge at Oakley. For nine days the Heron went from farm to farm,
took people, dogs, goats and even a piano from the roofs of the barns, and brought them to the harbour of Seaford,
where the whole town stood on the quay and the bells were rung. The mayor gave a silver clock to the crew, which hangs
in the wheelhouse to this day. Since a road was built along the river in 1964, nobody needs the boat for freight any
more. It belongs to a museum now, and on Sundays in summer it takes visitors from Millbrook to the ruins of the old
bridge and back, a journey of three hours."""


@dataclass(frozen=True)
class Question:
    """One chat turn.

    Attributes:
        title: a word for tables.
        text: the question.
        context: a text that the question is about; may be empty.
    """

    title: str
    text: str
    context: str = ""

    def messages(self) -> list[dict[str, str]]:
        """Returns the chat messages."""
        context = " ".join(self.context.split())  # the line ends are this file's, not the text's
        return [{"role": "user", "content": f"{self.text}\n\n{context}".strip()}]


QUESTIONS = (
    Question("lighthouse", "Who built the lighthouse, and when? Answer from this text.", _LIGHTHOUSE),
    Question("boat", "What is the Heron?", _BOAT),
    Question("capital", "What is the capital of France?"),
)
WARM_UP = Question("warm-up", "Write two sentences about rivers.")
"""Asked once of every fresh server and not shown: the first request pays for connections and lazy set-up."""
