"""Places, what people do there and what is found there."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """A place: "at the market" is `where`, "to the market" is "to " + `name`."""

    name: str
    where: str
    acts: tuple[str, ...]
    sights: tuple[str, ...]
    adjectives: tuple[str, ...]


def _place(where: str, acts: str, sights: str, adjectives: str) -> Place:
    name = where[where.index("the ") :]
    return Place(name, where, *(tuple(text.split(", ")) for text in (acts, sights, adjectives)))


PLACES = (
    _place(
        "at the market",
        "buy some apples, look at the flowers, sell fresh eggs, taste the cheese, carry a basket, "
        "meet a friend, choose a melon, count the coins",
        "baskets of fruit, fresh bread, a man with a drum, flowers of every colour",
        "busy, noisy, crowded, colourful",
    ),
    _place(
        "in the garden",
        "water the flowers, plant a tree, pick some roses, sit under the apple tree, "
        "dig a hole, feed the birds, cut the grass, watch a butterfly",
        "red roses, an old bench, a small pond, tall sunflowers",
        "green, quiet, lovely, sunny",
    ),
    _place(
        "in the forest",
        "look for mushrooms, follow a narrow path, climb a tree, listen to the birds, "
        "collect dry wood, hide behind a tree, watch a deer, pick wild berries",
        "tall trees, a small stream, a deer and its baby, soft green moss",
        "dark, deep, cool, silent",
    ),
    _place(
        "by the river",
        "catch a fish, throw stones into the water, swim to the other side, wash the clothes, "
        "watch the boats, sit on the bank, cross the bridge, build a small boat",
        "an old bridge, a wooden boat, ducks with yellow feet, clear water",
        "wide, deep, clear, fast",
    ),
    _place(
        "at the school",
        "learn the alphabet, write on the blackboard, read a story, answer every question, "
        "draw a map, count to a hundred, sing in the choir, play with the other children",
        "rows of desks, a big map of the world, happy children, many books",
        "big, noisy, friendly, modern",
    ),
    _place(
        "at the library",
        "read an old book, look for a map, borrow some books, study for an exam, "
        "write a letter, return a book, sleep on a chair, ask for help",
        "thousands of books, long shelves, a reading lamp, an old globe",
        "quiet, large, warm, peaceful",
    ),
    _place(
        "on the beach",
        "build a castle of sand, look for shells, swim in the sea, lie in the sun, "
        "fly a kite, eat ice cream, watch the waves, walk along the water",
        "white sand, small crabs, a sailing boat, children with buckets",
        "long, sandy, empty, windy",
    ),
    _place(
        "in the kitchen",
        "cook a hot soup, bake a cake, wash the dishes, cut the onions, boil some water, "
        "make a pot of tea, taste the sauce, set the table",
        "a pot of soup, clean plates, a warm oven, a bowl of fruit",
        "warm, small, bright, clean",
    ),
    _place(
        "on the farm",
        "feed the hens, milk the cow, drive the tractor, ride the horse, collect the eggs, "
        "repair the fence, pick the apples, brush the pony",
        "fat pigs, a red tractor, fields of wheat, a sleepy dog",
        "old, busy, muddy, peaceful",
    ),
    _place(
        "in the mountains",
        "climb to the top, follow the path, look at the valley, take a picture, drink cold water, "
        "build a snowman, rest on a rock, watch an eagle",
        "snow on the peaks, a deep valley, goats on the rocks, a lonely hut",
        "high, cold, steep, beautiful",
    ),
    _place(
        "in the park",
        "play football, feed the ducks, ride a bicycle, sit on a bench, walk the dog, "
        "meet some friends, run around the lake, read a newspaper",
        "a small lake, old trees, children on the swings, a man with a balloon",
        "green, pleasant, large, sunny",
    ),
    _place(
        "at the station",
        "wait for the train, buy a ticket, say goodbye to a friend, carry a heavy suitcase, "
        "read the timetable, drink a coffee, look at the clock, ask for the way",
        "a long train, people with bags, a big clock, a tired guard",
        "crowded, cold, noisy, grey",
    ),
    _place(
        "in the museum",
        "look at the paintings, learn about the past, draw a statue, listen to the guide, "
        "walk through the halls, buy a postcard, take a photograph, study an old sword",
        "golden coins, old paintings, the bones of a whale, a stone lion",
        "large, famous, silent, interesting",
    ),
    _place(
        "at the harbour",
        "watch the ships, repair the nets, sell fresh fish, talk to the sailors, clean the boat, "
        "look out to sea, count the seagulls, wait for the ferry",
        "white ships, strong ropes, hungry seagulls, boxes of fish",
        "busy, windy, old, small",
    ),
    _place(
        "in the village",
        "visit an old friend, walk through the streets, ring the bell, buy some bread, "
        "sit by the fountain, talk to the neighbours, dance in the square, help the baker",
        "white houses, a little church, a fountain, friendly people",
        "small, quiet, pretty, peaceful",
    ),
    _place(
        "in the city",
        "take the bus, visit a museum, look at the shops, eat in a restaurant, cross the bridge, "
        "see a film, look for a hotel, walk in the park",
        "tall buildings, bright lights, yellow taxis, wide streets",
        "big, noisy, modern, exciting",
    ),
    _place(
        "in the castle",
        "open the heavy gate, climb the tower, light a candle, look for a treasure, "
        "talk to the queen, sleep in a big bed, guard the door, explore the dark rooms",
        "thick walls, a golden throne, long tables, a secret door",
        "old, cold, grand, dark",
    ),
    _place(
        "on the island",
        "build a hut, look for water, light a fire, catch some fish, watch the sea, "
        "climb a palm tree, find a cave, wait for a ship",
        "white sand, green parrots, a hidden cave, tall palm trees",
        "small, lonely, green, sunny",
    ),
    _place(
        "at the hospital",
        "visit a sick friend, talk to the doctor, help the nurses, bring some flowers, "
        "wait for an hour, rest in bed, take the medicine, thank the nurse",
        "white beds, kind nurses, long corridors, fresh flowers",
        "clean, white, quiet, modern",
    ),
    _place(
        "in the office",
        "write a report, answer the telephone, drink some coffee, talk to the manager, "
        "read many letters, work at the computer, plan a meeting, look for a pen",
        "a big desk, two computers, a green plant, piles of paper",
        "small, bright, busy, tidy",
    ),
    _place(
        "in the living room",
        "watch a film, sit by the fire, play the piano, read the newspaper, listen to music, "
        "play chess, knit a scarf, talk about the day",
        "a soft sofa, a warm fire, old photographs, a sleeping cat",
        "cosy, warm, comfortable, bright",
    ),
    _place(
        "at the bakery",
        "buy a loaf of bread, smell the fresh rolls, carry the flour, bake a pie, "
        "choose a cake, talk to the baker, sweep the floor, eat a biscuit",
        "warm bread, sweet cakes, sacks of flour, a long queue",
        "warm, little, popular, friendly",
    ),
)
