"""The statements about capitals of countries once more, in Spanish: the same facts, partners and groups.

Groups keep their English names: a fold that holds out France holds it out in both languages, so a probe that learned from
the English rows and is tested on the Spanish ones can be kept from having seen the fact.
"""

from .facts import gives_itself_away, table
from .statements import COLUMNS, Row, statements
from .topics import TOPICS

NAME, ORIGINAL = "capitals_es", "capitals"
_TEXTS = {
    "affirmative": "La capital de {entity} es {answer}.",
    "negated": "La capital de {entity} no es {answer}.",
}


def capitals() -> list[Row]:
    """A row for each English row of the groups whose two countries are in the table."""
    named = {row["country"]: row for row in table(NAME) if not gives_itself_away(row["entity"], row["answer"])}
    english = statements(ORIGINAL, TOPICS[ORIGINAL])
    capital_of = {row["answer"]: row["entity"] for row in english if row["label"] and row["polarity"] == "affirmative"}
    missing = {row["group"] for row in english if row["entity"] not in named}
    rows = []
    for row in english:
        if row["group"] in missing:
            continue
        entity, answer = named[row["entity"]]["entity"], named[capital_of[row["answer"]]]["answer"]
        text = _TEXTS[row["polarity"]].format(entity=entity, answer=answer).replace(" de el ", " del ")
        pair = row["pair"].replace(ORIGINAL, NAME)
        values = (text, row["label"], row["group"], NAME, row["polarity"], pair, row["relation"], entity, answer)
        rows.append(dict(zip(COLUMNS, values, strict=True)) | {"language": "es", "translates": row["pair"]})
    return rows
