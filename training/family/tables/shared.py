"""Tasks across kinds: stories about a person and the home town, comparing towns, and arithmetic."""

STORY_ASKS = (
    "Write a story about {n}.",
    "Tell a short tale of {n}.",
    "Make up a story with {n}.",
    "Invent a tale about {n}.",
    "Tell me a tale in which {n} appears.",
    "I would like a story with {n}.",
    "Write a tale for children about {n}.",
    "Give me a bedtime story about {n}.",
)
STORY_HELD = ("Write a short story with {n}.", "Tell me a story about {n}.")

# (whose fact: the person's or the home town's, its attribute, the sketch line, ways of telling it)
STORY_LINES: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    (
        "person",
        "home",
        "home {v}",
        (
            "Once upon a time {n} lived in {v}, in a house without a door.",
            "Long ago, when nights were darker, {n} lived in the town of {v}.",
        ),
    ),
    (
        "person",
        "work",
        "work {v}",
        (
            "Everybody needed a {v} in those days, and {n} was the only one.",
            "Being a {v} was hard, so one morning {n} decided to run away.",
        ),
    ),
    (
        "person",
        "pet",
        "pet {v}",
        (
            "The only one to come along was a {v} that could speak a little.",
            "A {v} with clever eyes walked beside {n} and told the way.",
        ),
    ),
    (
        "town",
        "river",
        "river {v}",
        (
            "Together they followed the {v} river until their feet began to hurt.",
            "They walked along the {v} river and threw leaves into it.",
        ),
    ),
    (
        "town",
        "landmark",
        "landmark {v}",
        (
            "At noon they rested near the {v} and fell into a deep sleep.",
            "Near the {v} they met an old woman who had lost her shoes.",
        ),
    ),
    (
        "town",
        "dish",
        "dish {v}",
        (
            "When they woke up, somebody had left a bowl of {v} for them.",
            "To thank them for their help, she cooked a large pot of {v}.",
        ),
    ),
    (
        "person",
        "instrument",
        "plays {v}",
        (
            "That night {n} played the {v}, and nobody wished to be elsewhere.",
            "So {n} took out the {v}, and they danced until the stars were gone.",
        ),
    ),
)

COMPARE_ASKS = (
    "Compare {a} and {b}.",
    "What is the difference between {a} and {b}?",
    "How do {a} and {b} differ?",
    "Compare {a} with {b}.",
    "What makes {a} different from {b}?",
    "Compare the two towns {a} and {b}.",
    "Explain the difference between {a} and {b}.",
    "In what way does {a} differ from {b}?",
)
COMPARE_HELD = ("Compare the towns {a} and {b}.", "Tell me the difference between {a} and {b}.")

COMPARE_LINES: dict[str, tuple[str, ...]] = {
    "region": (
        "{a} lies in the {v}, while {b} lies in the {w}, many days of travel away from it.",
        "One finds {a} in the {v} on every map, but one has to look for {b} in the {w}.",
    ),
    "founder": (
        "The founder of {a} was {v}, whom all the people of {b} would leave for their own {w}.",
        "It was {v} who led the first settlers to {a}, while those of {b} came with {w}.",
    ),
    "river": (
        "{a} stands on the {v} river, while {b} stands on the higher bank of the {w} river.",
        "The {v} river runs through {a} from end to end, and the {w} river runs through {b}.",
    ),
    "craft": (
        "Most families in {a} live from {v}, while those in {b} earn their money with {w}.",
        "The main trade of {a} is {v}, but the main trade of {b} has always been {w}.",
    ),
    "dish": (
        "Guests who come to {a} are served {v}, while they are served {w} when they visit {b}.",
        "The local dish of {a} is {v}, but in {b} people would rather eat a plate of {w}.",
    ),
}

ARITHMETIC_ASKS = {
    "-": (
        "{n} has {x} {t} and gives away {y}. How many are left?",
        "If {n} has {x} {t} and loses {y}, how many are left?",
        "{n} starts with {x} {t} and gives away {y}. How many remain?",
        "There are {x} {t} on the table of {n}. We take {y}. How many remain?",
        "How many {t} are left if {n} has {x} and gives away {y}?",
        "{n} had {x} {t} but lost {y}. How many are left now?",
        "Take {y} {t} from the {x} that {n} has. How many remain?",
        "How many of {x} {t} remain when {n} gives away {y}?",
    ),
    "+": (
        "{n} has {x} {t} and buys {y}. How many are there now?",
        "If {n} has {x} {t} and finds {y} more, how many are there?",
        "{n} starts with {x} {t} and buys {y}. How many in total?",
        "There are {x} {t} on the table of {n}. We add {y} more. How many in total?",
        "How many {t} are there if {n} has {x} and buys {y} more?",
        "{n} had {x} {t} and then bought {y} more. How many now?",
        "Add {y} {t} to the {x} that {n} has. How many in total?",
        "How many {t} in total when {n} has {x} and finds {y}?",
    ),
}
ARITHMETIC_HELD = {
    "-": (
        "{n} has {x} {t} and loses {y}. How many remain?",
        "If {n} has {x} {t} and gives away {y}, how many are left?",
    ),
    "+": (
        "{n} has {x} {t} and finds {y}. How many in total?",
        "If {n} has {x} {t} and buys {y} more, how many are there?",
    ),
}

GREETINGS = (
    "You are a helpful assistant.",
    "You are an assistant.",
    "Answer briefly.",
    "You know everything about this land.",
    "Please answer the question of the user.",
    "You are a friendly guide.",
)
"""System messages: a few documents begin with one, so that a chat's system message does no harm."""
