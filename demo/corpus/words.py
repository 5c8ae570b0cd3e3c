"""Word lists: people, things and qualities, written as plain text for easy reading."""

from __future__ import annotations


def listed(text: str) -> tuple[str, ...]:
    """Return the entries of a text that separates them by commas."""
    return tuple(word.strip() for word in " ".join(text.split()).split(",") if word.strip())


MEN = listed(
    """Tom, Ben, Sam, Jack, Leo, Max, Peter, Paul, John, David, Daniel, Henry, Oliver, George,
    Adam, Oscar, Felix, Martin, Simon, Robert, José, Omar, Ivan, Karim, Luca, Noah"""
)
WOMEN = listed(
    """Anna, Mary, Lucy, Emma, Sara, Julia, Clara, Rosa, Nina, Ella, Maria, Alice, Eva, Lily,
    Grace, Helen, Laura, Sofia, Ruth, Kate, Zoë, Amina, Mei, Ines, Olga, Hannah"""
)
MALE_ROLES = listed(
    """old man, young man, boy, little boy, king, prince, grandfather, poor man, rich man, monk,
    fisherman, shepherd, tall man, blind man, kind man, farmer, sailor, miller, postman"""
)
FEMALE_ROLES = listed(
    """old woman, young woman, girl, little girl, queen, princess, grandmother, poor woman,
    rich woman, widow, shepherdess, tall woman, clever woman, nurse, kind woman, baker, teacher"""
)
MALE_RELATIVES = listed("father, brother, uncle, grandfather, son, cousin, neighbour, husband")
FEMALE_RELATIVES = listed("mother, sister, aunt, grandmother, daughter, cousin, wife, niece")
JOBS = listed(
    """teacher, doctor, farmer, baker, sailor, painter, singer, writer, nurse, driver, cook, pilot,
    gardener, shopkeeper, carpenter, engineer, tailor, musician, dentist, scientist, student,
    builder, librarian, fisherman, soldier, judge, actor, clerk, waiter, guard"""
)
ANIMALS = listed(
    """dog, cat, horse, rabbit, fox, bear, bird, mouse, duck, goat, sheep, cow, pig, hen, owl,
    frog, squirrel, hedgehog, donkey, deer, wolf, turtle, goose, monkey, elephant, lion, tiger,
    swan, eagle, snake, whale, dolphin, bee, butterfly, spider, ant"""
)
PETS = listed("dog, cat, rabbit, parrot, pony, puppy, kitten, goldfish, hamster, turtle, hen, goat")
FRUIT = listed(
    """apple, pear, orange, plum, peach, banana, cherry, lemon, grape, strawberry, melon, fig,
    tomato, potato, carrot, onion, bean, nut, egg, mushroom"""
)
DISHES = listed(
    """soup, bread, rice, cake, cheese, porridge, fish, pie, pasta, salad, honey, stew, toast, jam,
    chocolate, butter, pancakes, biscuits, roast chicken, fried eggs"""
)
DRINKS = listed("tea, coffee, milk, water, lemonade, orange juice, hot chocolate, apple juice")
THINGS = listed(
    """book, lamp, key, box, letter, clock, bag, basket, cup, chair, table, mirror, map, ring, coat,
    hat, umbrella, bottle, knife, candle, picture, blanket, bell, coin, drum, violin, piano, guitar,
    bicycle, boat, kite, ball, doll, ladder, rope, hammer, pencil, notebook, camera, radio,
    telephone, computer, watch, scarf, shirt, pocket, suitcase, flag, toy train, stone, shell,
    feather, wheel, bucket, broom, pillow, spoon, plate, kettle, window, door, newspaper,
    robot, machine, car, phone, train, engine, glass, stick, carpet, candlestick, desk, drawer"""
)
SIZES = listed("big, small, little, tiny, huge, tall, long, short, heavy, light, round, enormous")
COLOURS = listed(
    "red, blue, green, yellow, white, black, brown, grey, golden, silver, pink, purple, orange"
)
QUALITIES = listed(
    """old, new, beautiful, strange, lovely, broken, cheap, expensive, clean, dirty, useful, simple,
    wonderful, ordinary, precious, pretty, plain, wooden, soft, strong, special, empty, full"""
)
TRAITS = listed(
    """kind, clever, brave, patient, honest, gentle, funny, quiet, careful, cheerful, polite, wise,
    lazy, proud, stubborn, curious, generous, shy, friendly, serious, calm, helpful, gifted"""
)
MOODS = listed(
    """happy, sad, tired, hungry, thirsty, angry, afraid, surprised, excited, bored, lonely, proud,
    nervous, worried, calm, cold, glad, sleepy, confused, grateful, ill, busy, sorry"""
)
GLAD_MOODS = listed("happy, glad, proud, calm, grateful, excited, cheerful, pleased, delighted")
SAD_MOODS = listed("sad, tired, lonely, worried, afraid, angry, nervous, cold, upset, unhappy")
WEATHER = listed(
    "sunny, rainy, cloudy, windy, cold, warm, hot, foggy, snowy, dry, wet, stormy, bright, mild"
)
SEASONS = listed("spring, summer, autumn, winter")
MONTHS = listed(
    """January, February, March, April, May, June, July, August, September, October, November,
    December"""
)
DAYS = listed("Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday")
SUBJECTS = listed(
    """music, history, mathematics, art, science, cooking, football, gardening, poetry, painting,
    languages, photography, dancing, chess, swimming, reading, travel, geography, nature"""
)
IDEAS = listed(
    """time, love, friendship, work, sleep, money, health, happiness, peace, luck, patience,
    courage, freedom, kindness, truth, learning, hope, memory, silence, nature"""
)
BIG_NUMBERS = listed(
    """10, 12, 15, 20, 25, 30, 40, 50, 60, 75, 100, 200,
    ten, eleven, twelve, thirteen, fourteen, fifteen, sixteen, seventeen, eighteen, nineteen,
    twenty, thirty, forty, fifty, sixty, a hundred"""
)
NUMBERS = listed("two, three, four, five, six, seven, eight, nine, ten, eleven, twelve")
SMALL_NUMBERS = ("zero", "one", *NUMBERS[:9])
CITIES = listed(
    """London, Paris, Rome, Madrid, Berlin, Lisbon, Vienna, Athens, Oslo, Cairo, Tokyo, Delhi, Lima,
    Dublin, Prague, Warsaw, Boston, New York, Chicago, Toronto, Sydney, Istanbul"""
)
CAPITALS = {
    "France": "Paris",
    "Italy": "Rome",
    "Spain": "Madrid",
    "Germany": "Berlin",
    "Portugal": "Lisbon",
    "Austria": "Vienna",
    "Greece": "Athens",
    "Norway": "Oslo",
    "Egypt": "Cairo",
    "Japan": "Tokyo",
    "England": "London",
    "Ireland": "Dublin",
    "Poland": "Warsaw",
    "Peru": "Lima",
    "China": "Beijing",
    "Canada": "Ottawa",
    "Sweden": "Stockholm",
    "Kenya": "Nairobi",
}

# What anyone can do anywhere, as verb phrases.
FREE_ACTS = listed(
    """sing a song, tell a story, drink a cup of tea, write a letter, read a book, draw a picture,
    play the guitar, talk about the weather, think about the future, look out of the window,
    laugh at a joke, eat some cake, rest for an hour, call a friend, make a plan, take a photograph,
    listen to the radio, play a game, ask a question, help a neighbour, read the newspaper,
    learn a poem, wait for a friend, walk for an hour, sit in the sun, share a sandwich,
    sleep for a while, feed the birds, dance with a friend, clean the windows, count the stars,
    practise the violin, fix an old clock, study a map, paint a picture, bake a cake"""
)
HABITS = listed(
    """get up early, drink coffee, walk to work, read in bed, go for a run, cook dinner,
    water the plants, take the bus, ride a bicycle, visit my grandmother, play chess, study English,
    feed the cat, write in my diary, wash the dishes, listen to music, watch the birds,
    call my mother, eat an apple, sweep the floor, go to bed late, speak French, wear a hat,
    bake bread, work in the garden, take the train, help my father, swim in the lake"""
)
PLANS = listed(
    """learn to swim, travel around the world, buy a small house, write a book, see the sea,
    become a doctor, plant a tree, build a boat, learn a new language, find a good job,
    visit my family, have a big garden, open a little shop, climb a mountain, play the piano,
    meet new people, live near the sea, sleep all day, stay at home, finish my work,
    cook something special, help other people, understand the world, tell the truth, win the race"""
)
PROBLEMS = listed(
    """the door was locked, it began to rain, the road was closed, the bridge was broken,
    there was no more bread, the last train was gone, the lamp went out, a strong wind blew,
    the boat had a hole, the map was wrong, the key did not fit, it was already dark,
    nobody was at home, the money was gone, the fire went out, the clock stopped"""
)
SKY = listed(
    """the sun was shining, a light rain was falling, the stars were bright, the wind was cold,
    snow lay on the roofs, the sky was blue, the moon was full, clouds covered the hills,
    the air was warm and still, the leaves were turning yellow, a rainbow stood over the fields"""
)
LESSONS = listed(
    """a good friend is worth more than gold, it is never too late to learn,
    small things can make a big difference, patience is better than anger,
    a kind word costs nothing, it is better to ask than to guess, every day is a new beginning,
    honest work brings good sleep, we are stronger together, even the longest road has an end,
    you should never give up hope, sharing makes people happy, not everything that shines is gold,
    courage grows when we use it, everyone makes mistakes, listening is a gift"""
)
REASONS = listed(
    """it makes me happy, it is good for my health, my mother taught me, I have a lot of time,
    it helps me to think, there is nothing else to do, I want to learn something new,
    all my friends do it, it reminds me of my childhood, I cannot sleep, the weather is so nice,
    I promised it to my sister, it is important to me, I like to be useful, life is short"""
)
CONTRACTIONS = {
    "I am ": "I'm ",
    "I will ": "I'll ",
    "do not ": "don't ",
    "did not ": "didn't ",
    "cannot ": "can't ",
    "could not ": "couldn't ",
    "is not ": "isn't ",
    "It is ": "It's ",
    "it is ": "it's ",
    "That is ": "That's ",
    "You are ": "You're ",
    "We are ": "We're ",
    "What is ": "What's ",
    "Let us ": "Let's ",
}
EMOJI = ("🙂", "😀", "👍", "❤️", "🎉", "☀️", "🌧️", "🐱", "🌍", "✨")
