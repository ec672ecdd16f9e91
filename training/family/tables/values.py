"""Values of facts: pools of values, and the syllables from which names are put together.

No value occurs inside a value of another pool or in a sentence template, so that finding a value in a text
means that the text states the fact (a test checks it).
"""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _phrases(text: str) -> tuple[str, ...]:
    return tuple(" ".join(phrase.split()) for phrase in text.split("|"))


POOLS: dict[str, tuple[str, ...]] = {
    "region": _phrases(
        """
        northern coast | southern hills | eastern plain | western marsh | central valley | upper lakes |
        salt desert | pine forest | deep canyon | wide delta | high plateau | outer islands
        """
    ),
    "river": _words(
        """
        Amber Ashen Birch Cedar Crane Ember Heron Jade Linden Moss Otter Falcon Hazel Pebble Opal Swan Thorn
        Willow Badger Maple
        """
    ),
    "craft": _phrases(
        """
        glass blowing | rope making | clock making | wool weaving | boat building | paper folding | candle
        making | wood carving | bell casting | kite sewing | salt mining | tea growing | honey keeping | map
        drawing | silk dyeing | stone cutting | cheese making | basket weaving | pearl diving | ink brewing
        """
    ),
    "landmark": _phrases(
        """
        glass tower | sunken garden | stone bridge | old lighthouse | round library | narrow gate | floating
        market | winding stairs | silent statue | hanging orchard | ruined abbey | star dome | painted mill
        | singing well | twin arches | hidden theatre | giant elm | dry fountain | long pier | broken hall
        """
    ),
    "festival": _words(
        """
        lantern harvest mask flower moon shadow feather mirror thunder ribbon torch frost ghost comet dragon
        puppet
        """
    ),
    "month": _words("January February April June July August September October November December"),
    "work": _words(
        """
        baker astronomer carpenter doctor engineer farmer gardener historian judge locksmith musician
        navigator painter poet potter sailor tailor botanist lawyer miller
        """
    ),
    "fame": _phrases(
        """
        crossing the frozen sea | mapping the deep caves | curing the marsh fever | writing the long ballad
        | taming the wild bees | solving the bridge riddle | painting the great ceiling | finding the lost
        island | winning the desert race | planting the stone forest | rebuilding the burned archive |
        counting the night stars | breaking the river siege | carving the whale gate | reading the buried
        scrolls | saving the drowned mine
        """
    ),
    "instrument": _words("flute harp drum violin lute trumpet cello horn piano banjo zither organ"),
    "pet": _words("fox owl cat parrot tortoise goat raven ferret hound rabbit lizard pony"),
    "nature": _words(
        """
        patient stubborn curious generous shy cheerful careful bold quiet proud witty gentle
        """
    ),
    "purpose": _phrases(
        """
        fills canals | sorts grain | prints maps | weaves cloth | lifts stones | cuts timber | measures rain
        | polishes lenses | counts coins | rings bells | grinds chalk | digs tunnels | seals letters | dries
        fish | bends wire | plays music
        """
    ),
    "material": _words("brass copper iron oak steel bronze ivory tin silver bamboo marble granite"),
    "power": _words("steam wind water springs sunlight horses charcoal weights pedals magnets"),
    "colour": _words("red blue green yellow black white orange purple grey golden"),
    "sound": _words("hum rattle whistle click roar buzz chime hiss thump squeak"),
    "main": _words("barley trout lamb duck eel goose salmon rice lentil pumpkin potato"),
    "second": _words(
        """
        turnip mushroom cabbage carrot chestnut spinach leek beetroot onion parsnip celery
        """
    ),
    "spice": _words("pepper saffron cumin mint ginger thyme clove sage fennel nutmeg dill mustard"),
    "method": _words("boiled roasted fried baked steamed grilled smoked simmered"),
    "serve": _phrases(
        """
        dark bread | cold cider | soft cheese | plum jam | warm milk | pickled radish | apple sauce | rye
        crackers | sweet wine | walnut butter | garden salad | honey cakes
        """
    ),
    "season": _words("spring summer autumn winter"),
}

THINGS = _words("apples pears plums stones eggs shells pens nuts books lamps")
"""Objects that arithmetic questions count."""

FIRST_SYLLABLES = _words(
    """
    Bal Bren Cor Dal Del Dun Els Far Fen Gal Gar Hal Har Hol Ivo Kel Kor Lan Lor Mar Mel Mor Nar Nel Oak Or
    Pel Per Quel Ral Ros Sal Sel Sil Tam Tar Tor Ul Val Ver Wes Win Yar Zel
    """
)
FIRST_NAMES = _words(
    """
    Ada Basil Clara Doran Edda Felix Greta Hugo Ines Jonas Kira Linus Mira Nora Otto Petra Quinn Rosa Silas
    Tilda Ugo Vera Wanda Xavi Yara Zeno Alma Boris Cleo Dario
    """
)
ENDINGS: dict[str, tuple[str, ...]] = {
    "town": _words(
        """
        bury ford ham wick mere dale field gate haven holm ley mouth port stead ton vale well worth
        """
    ),
    "person": _words("rick sen wood man dahl berg stone more land ling by son hart feld mark"),
    "machine": _words("ator ex on ograph ine ometer ulus ivator"),
    "dish": _words("ola etta ash up ine ana orra ika"),
}
