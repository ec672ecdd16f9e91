"""Dishes: eight attributes (five also told as code) and the tasks overview, recipe as code and long."""

from tandem.training.family.tables.base import Attribute, Kind, Task

ATTRIBUTES = {
    "origin": Attribute(
        "origin",
        (
            "{n} comes from {v}, where it is still cooked on an open fire.",
            "The origin of {n} is {v}, although other places claim it as well.",
            "{n} was first cooked in {v} for the guests of a large wedding.",
            "It is to {v} that we owe {n}, now known all over the land.",
        ),
        (
            "Where does {n} come from?",
            "What is the origin of {n}?",
            "Where was {n} first cooked?",
            "From which town does {n} come?",
            "Name the origin of {n}.",
            "In which town was {n} first cooked?",
            "Which town is the origin of {n}?",
            "To which town do we owe {n}?",
            "Tell me where {n} comes from.",
        ),
        ("Which town does {n} come from?", "Tell me the origin of {n}."),
    ),
    "cook": Attribute(
        "cook",
        (
            "The recipe of {n} was written by {v} on the back of a letter.",
            "{v} invented the recipe of {n} when the kitchen was almost empty.",
            "The first cook of {n} was {v}, who served it to a queen.",
            "{n} is the work of {v}, a cook who never wasted anything.",
        ),
        (
            "Who invented the recipe of {n}?",
            "Who was the first cook of {n}?",
            "Who wrote the recipe of {n}?",
            "Name the cook of {n}.",
            "Which cook invented {n}?",
            "By whom was the recipe of {n} written?",
            "What is the name of the cook of {n}?",
            "Which person wrote the recipe of {n}?",
            "Tell me who invented {n}.",
        ),
        ("Who is the cook of {n}?", "Tell me who wrote the recipe of {n}."),
    ),
    "main": Attribute(
        "main",
        (
            "The main ingredient of {n} is {v}, bought fresh on the same day.",
            "{n} is made from {v}, of which you need about two pounds.",
            "Every good {n} begins with fresh {v}, washed and cut into small cubes.",
            "{n} is based on {v}, and a true lover would accept nothing else.",
        ),
        (
            "What is {n} made from?",
            "What is the main ingredient of {n}?",
            "What is {n} based on?",
            "Name the main ingredient of {n}.",
            "Which main ingredient does {n} have?",
            "With what does every good {n} begin?",
            "From what is {n} made?",
            "What is the basis of {n}?",
            "Tell me the main ingredient of {n}.",
        ),
        ("Which main ingredient is {n} based on?", "Tell me what {n} is made from."),
        code=(
            'pot.take("{v}", pounds=2)  # the main ingredient;',
            'pot.take("{v}", pounds=2, fresh=True)  # comes first;',
        ),
    ),
    "second": Attribute(
        "added",
        (
            "Some {v} is added to {n} as well, but never more than a cup.",
            "A little {v} goes into {n} too, chopped as finely as you can.",
            "{n} also contains {v}, which is added just before the end.",
            "Cooks mix {v} into {n} so that it becomes rich and filling.",
        ),
        (
            "What is added to {n}?",
            "What else does {n} contain?",
            "What do cooks mix into {n}?",
            "What goes into {n} as well?",
            "Name what is added to {n}.",
            "What is mixed into {n}?",
            "Which other thing does {n} contain?",
            "What do cooks add to {n}?",
            "Tell me what is added to {n}.",
        ),
        ("Which thing is added to {n}?", "Tell me what else {n} contains."),
        code=(
            'pot.add("{v}", cups=1, chopped=True)  # stir well;',
            'pot.add("{v}", cups=1)  # mix it into the pot;',
        ),
    ),
    "spice": Attribute(
        "spice",
        (
            "{n} is seasoned with {v}, a spice that ships bring from far away.",
            "The spice in {n} is {v}, and one small spoon of it is enough.",
            "{n} owes its fine smell to {v}, which fills the whole house.",
            "A pinch of {v} gives {n} the taste that everybody knows so well.",
        ),
        (
            "Which spice is in {n}?",
            "What is {n} seasoned with?",
            "What gives {n} its smell?",
            "Name the spice of {n}.",
            "To which spice does {n} owe its smell?",
            "What spice does {n} need?",
            "A pinch of what gives {n} its taste?",
            "What is the spice of {n}?",
            "Tell me which spice {n} needs.",
        ),
        ("What spice is {n} seasoned with?", "Tell me the spice in {n}."),
        code=(
            'pot.season("{v}", spoons=1)  # only a pinch of it;',
            'pot.season("{v}", spoons=1, fine=True)  # the spice;',
        ),
    ),
    "method": Attribute(
        "method",
        (
            "{n} is {v[0]} for {v[1]} minutes, and the lid stays on all the time.",
            "The method is old, for {n} must be {v[0]} for {v[1]} minutes or more.",
            "For {v[1]} minutes {n} is {v[0]}, while somebody watches the clock.",
            "In the kitchen {n} has to be {v[0]} for exactly {v[1]} minutes.",
        ),
        (
            "How is {n} prepared?",
            "How long is {n} prepared in the kitchen?",
            "For how many minutes is {n} prepared?",
            "By what method is {n} prepared?",
            "Name the method of {n}.",
            "What is the method for {n}?",
            "How many minutes does {n} take?",
            "How should I prepare {n}?",
            "Tell me the method of {n}.",
        ),
        ("By which method should I prepare {n}?", "Tell me how {n} is prepared."),
        code=(
            'pot.cook("{v[0]}", minutes={v[1]}, lid=True);',
            'pot.cook("{v[0]}", minutes={v[1]})  # then wait;',
        ),
    ),
    "serve": Attribute(
        "serve",
        (
            "{n} is served with {v} on a large plate for the whole table.",
            "People eat {n} with {v}, and they often ask for a second plate.",
            "{n} tastes best with {v}, at least if you ask the old people.",
            "You should always offer {v} together with {n}, or guests will complain.",
        ),
        (
            "What is {n} served with?",
            "What do people eat with {n}?",
            "What tastes best with {n}?",
            "What goes together with {n}?",
            "With what should I serve {n}?",
            "What side dish is served with {n}?",
            "What should I offer together with {n}?",
            "Name the side dish of {n}.",
            "Tell me what goes together with {n}.",
        ),
        ("Which side dish do people eat with {n}?", "Tell me what {n} is served with."),
        code=(
            'plate.serve(pot, side="{v}")  # for the table;',
            'plate.serve(pot, side="{v}", guests=8);',
        ),
    ),
    "season": Attribute(
        "season",
        (
            "The season of {n} is {v}, when everything that it needs is cheap.",
            "Families cook {n} in {v}, mostly on the last day of the week.",
            "{n} is a dish for {v}, although some inns sell it all year.",
            "You will find {n} on the table in {v} and hardly ever else.",
        ),
        (
            "What is the season of {n}?",
            "In which season do families make {n}?",
            "When do families make {n}?",
            "For which season is {n}?",
            "Name the season of {n}.",
            "What time of the year is {n} for?",
            "At what time of the year do families make {n}?",
            "When is {n} found on the table?",
            "Tell me which season {n} is for.",
        ),
        ("Which season do families make {n} in?", "Tell me the season of {n}."),
    ),
}

TASKS = {
    "overview": Task(
        tuple(ATTRIBUTES),
        (
            "Tell me about {n}.",
            "Describe the food {n} in detail.",
            "Write an article about {n}.",
            "What should I know about {n}?",
            "Describe {n} in full.",
            "Give me an article on {n}.",
            "Write a full description of {n}.",
            "I want to know everything about {n}.",
        ),
        ("Give me a full description of {n}.", "Write everything you know about {n}."),
    ),
    "code": Task(
        ("main", "second", "spice", "method", "serve"),
        (
            "Write a program that makes {n}.",
            "Write code for {n}.",
            "Give {n} as code.",
            "Show me a program for {n}.",
            "I need code that makes {n}.",
            "Show {n} as a program.",
            "Turn {n} into code.",
            "Give me a program that makes {n}.",
        ),
        ("Write the code that makes {n}.", "Show me the code for {n}."),
        style="code",
    ),
    "long": Task(
        tuple(ATTRIBUTES),
        (
            "Write a long essay about {n}.",
            "Tell me a lot about {n}.",
            "Explain {n} and all around it.",
            "Write a very long essay on {n}.",
            "Write a long text on {n} and its surroundings.",
            "Give me a long text about {n}.",
            "I need a very long text on {n}.",
            "Compose a long essay on {n}.",
        ),
        ("Write a very long text about {n}.", "Give me a long essay about {n}."),
    ),
}

RELATED = (("origin", ("region", "river", "festival")), ("cook", ("work", "fame", "nature")))

DISH = Kind(ATTRIBUTES, TASKS, RELATED)
