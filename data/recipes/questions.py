"""Multiple-choice questions about the entities that the statements leave out.

Four entities share their four answers as options. So each option is right once and wrong three times, and nothing but
the question tells which. Within a block the right one stands once at each of the four places. The group is the block.
"""

from typing import Any

from .facts import blocks, divide, shuffled
from .topics import TOPICS

Row = dict[str, Any]
N_OPTIONS = 4


def questions() -> list[Row]:
    """Every topic's questions, in an order that mixes the topics."""
    rows = []
    for name, topic in TOPICS.items():
        for block in blocks(divide(name, topic)[1], N_OPTIONS):
            group = f"{name}: " + " | ".join(entity.name for entity in block)
            for relation, templates in topic.relations.items():
                places = shuffled(range(N_OPTIONS), f"{group}/{relation}")
                for entity, place in zip(block, places, strict=True):
                    others = [other.answers[relation] for other in block if other is not entity]
                    options = shuffled(others, f"{relation} of {entity.name}")
                    options.insert(place, entity.answers[relation])
                    rows.append(
                        {
                            "prompt": f"Question: {templates.question.format(entity=entity.name)}\nAnswer:",
                            "options": [f" {option}" for option in options],
                            "answer": place,
                            "group": group,
                            "topic": name,
                            "relation": relation,
                            "entity": entity.name,
                        }
                    )
    return shuffled(rows, "questions", key=lambda row: row["prompt"])
